"""The shape of `gpuprov up --json`, `gpuprov verify --json` and `gpuprov replace --json`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from provisioner.output.base import Number, OpenOutput, Output
from provisioner.output.error import FailureOutput
from provisioner.output.site_choice import SiteChoiceOutput


class AcknowledgedOutput(Output):
    """Somebody has looked at a warning (`gpuprov ack`)."""

    owner: str
    reason: str
    until: str = Field(description="UTC, 2026-01-31T12:00:00Z")


class CheckOutput(Output):
    """One check on one node."""

    id: str = Field(
        description="area.what, such as gpu.count", json_schema_extra={"pattern": r"^[a-z0-9_]+\.[a-z0-9_.]+$"}
    )
    severity: Literal["fatal", "warn", "info"]
    status: Literal["pass", "fail", "unknown", "skip", "note"] = Field(
        description="skip: does not apply to this machine; unknown: applies and could not be answered; note: worth "
        "knowing, and no failure"
    )
    expected: object = None
    actual: object = None
    message: str
    action: Literal["none", "reconfigure", "clean", "reset", "reboot", "replace", "vendor"]
    parts: list[str] = Field(
        default=[], description="The checks that made it so, where several are reported under one name"
    )
    acknowledged: AcknowledgedOutput | None = Field(default=None, description="Who owns the warning, until when")


class QuarantineOutput(OpenOutput):
    """Who keeps a node out of service, and why."""

    owner: str = Field(description="gpuprov where a verdict did, else a person")
    reason: str
    since: str = Field(description="UTC, 2026-01-31T12:00:00Z")
    checks: list[str] = Field(description="What failed")
    level: Literal["quick", "standard", "stress"] | None = Field(
        default=None, description="A healthy verdict at this level or a deeper one puts it back"
    )
    problem: str = Field(default="", alias="trouble", description="Why the last drain or resume command did not work")


class BreakerOutput(OpenOutput):
    """Too many nodes turned bad at once: none of them was touched."""

    message: str
    bad: list[str] = Field(description="Those nodes")
    quarantined: int = Field(ge=0, description="Nodes that were in quarantine already")
    bound: int = Field(description="Nodes that may be in quarantine", json_schema_extra={"minimum": 1})
    check: str = Field(description="What condemns most of the bad nodes: the common cause to look for")
    shared: int = Field(description="How many of them", json_schema_extra={"minimum": 1})


class MeasureOutput(OpenOutput):
    """What a node reached at work, of one kind: the slowest GPU's of what is measured for each."""

    value: Number = Field(json_schema_extra={"exclusiveMinimum": 0})
    unit: str = Field(description="GB/s, TFLOP/s, MHz, samples/s")
    record: Number | None = Field(description="The fleet's own record of it; null where there is none")
    of: Literal["node", "group"] | None = Field(
        description="Whose record: this machine's, or the median of its group's where the machine is new"
    )
    change: Number | None = Field(description="Share above the record: -0.07 is seven per cent below it")
    published: Number | None = Field(description="Published of a healthy node of this type; it is not judged")
    slower: bool = Field(description="Further below the record than the catalogue allows")


class NodeOutput(OpenOutput):
    """One node with its verdict."""

    name: str
    group: str
    site: str = Field(default="", description="Its site in cluster.yaml")
    machine: str
    ok: bool
    checks: list[CheckOutput]
    simulated: bool = Field(default=False, description="Its hardware is simulated")
    absent: bool = Field(default=False, description="cluster.yaml wants it, and no machine is there")
    quarantine: QuarantineOutput | None = None
    borrowed: list[str] | None = Field(
        default=None, description="Proven, idle neighbours that were its partners between nodes and are not judged"
    )
    measures: dict[str, MeasureOutput] | None = Field(
        default=None,
        description="Given where the level measures: host_copy, peer_copy, memory, compute, clock, busbw, training",
    )
    error: str | None = Field(default=None, description="Why it was not looked at")


class ChangesOutput(OpenOutput):
    """What `up` did."""

    resources: int = Field(ge=0, description="Terraform resources made, changed and removed")
    configured: int = Field(ge=0, description="Nodes that the roles ran on")


class PlacedPiece(OpenOutput):
    """A piece of a bundle that was recognised."""

    source: str = Field(alias="from", description="The file, and the part of it")
    file: str = Field(description="The output that it is")


class UnplacedPiece(OpenOutput):
    """A piece of a bundle that was not recognised."""

    source: str = Field(alias="from", description="The file, and the part of it")
    reason: str = Field(alias="why")


class BundleOutput(OpenOutput):
    """What a bundle was made of."""

    placed: list[PlacedPiece]
    unplaced: list[UnplacedPiece]
    placed_omitted: int = Field(default=0, description="Recognised pieces that are not listed")
    unplaced_omitted: int = Field(default=0, description="Other pieces that are not listed")


class LimitsOutput(OpenOutput):
    """What the limits of the checks rest on."""

    total: int = Field(ge=1, description="Limits that the nodes are held to")
    unverified: int = Field(ge=0, description="Those without a measurement or a document: a failure there only warns")


class ReportOutput(OpenOutput):
    """`gpuprov up --json`, `gpuprov verify --json` and `gpuprov replace --json`"""

    ok: bool
    level: Literal["quick", "standard", "stress", "image"] | None = Field(
        default=None, description="How deep it looked; not given for bundles, which are judged by what they have"
    )
    nodes: list[NodeOutput]
    seconds: dict[str, Number] = Field(description="Duration of each stage")
    breaker: BreakerOutput | None = Field(
        default=None, description="Given where more nodes turned bad than may be in quarantine at once"
    )
    limits: LimitsOutput | None = Field(default=None, description="Given where a node was judged")
    site_choices: list[SiteChoiceOutput] = Field(
        default=[], description="Of each group with a list of sites: which one was chosen, and why the others were not"
    )
    simulated: bool = Field(default=False, description="The hardware of a node is simulated")
    changes: ChangesOutput | None = Field(default=None, description="Given by `up` alone")
    report: str | None = Field(default=None, description="Path of the report for a browser, given by `up` alone")
    waiting: dict[str, list[str]] | None = Field(
        default=None, description="Nodes that stay on an older lock, with what `gpuprov upgrade` would change"
    )
    failed: dict[str, FailureOutput] | None = Field(
        default=None, description="Sites that were left out, each with what it failed with; given by `up`"
    )
    bundle: BundleOutput | None = Field(
        default=None, description="Given where the files of a bundle were recognised by content"
    )
