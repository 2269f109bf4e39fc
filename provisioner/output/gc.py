"""The shape of `gpuprov gc --json`."""

from __future__ import annotations

from pydantic import Field

from provisioner.output.base import OpenOutput


class LeftThing(OpenOutput):
    """One thing with gpuprov's tags."""

    kind: str = Field(description="instance, volume, security group, container …")
    id: str
    name: str
    state: str
    since: str | None = Field(description="When it was made, UTC; null where the provider does not say")
    kept: str = Field(description="Why gc does not remove it, or empty")


class LeftCluster(OpenOutput):
    """All that has the tags of one cluster at one place."""

    cluster: str
    identity: str = Field(default="", description="Its tag gpuprov-id, or empty; it tells namesakes apart")
    site: str
    place: str = Field(description="A region, IAM, or this machine")
    alive: str = Field(description="Who knows it on this machine; empty where nobody does")
    since: str | None = Field(description="The oldest thing's")
    things: list[LeftThing]


class GcOutput(OpenOutput):
    """`gpuprov gc --json`"""

    clusters: list[LeftCluster] = Field(description="As they were found, before anything was removed")
    removed: int = Field(ge=0)
    left: list[str] = Field(description="Of the cluster that was to be removed: what is still there and why")
    unknown: list[str] = Field(description="Questions without an answer: they may hide more")
