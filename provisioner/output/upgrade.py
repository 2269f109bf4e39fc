"""The shape of `gpuprov upgrade --json`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from provisioner.output.base import Number, OpenOutput


class UpgradeNode(OpenOutput):
    """One node after an upgrade."""

    name: str
    step: Literal[
        "unchanged", "waiting", "draining", "drained", "proven", "moved", "leaving", "failed", "back", "rolled-back",
        "left", "stuck",
    ]  # fmt: skip
    reason: str
    lock: str | None = Field(description="The lock that it runs now; null where it was never proven")
    driver: str | None


class UpgradeOutput(OpenOutput):
    """`gpuprov upgrade --json`"""

    cluster: str
    sandbox: bool = Field(default=False, description="Whether it is the sandbox of the file's cluster")
    ok: bool = Field(description="Every node runs the lock that cluster.yaml wants")
    to: str
    phase: Literal["moving", "rolling-back", "done", "rolled-back"]
    message: str
    nodes: list[UpgradeNode]
    seconds: Number
