"""The shapes of what `--json` prints: stable, and part of `gpuprov schema`.

A value that a tool did not give is null. Facts may gain keys; nothing here is renamed or removed.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field

from provisioner.spec.output_cost import CostOutput, PlannedCost, SpentOutput
from provisioner.spec.output_error import ErrorOutput, ValidateOutput
from provisioner.spec.output_gc import GcOutput
from provisioner.spec.output_shape import OpenOutput, Output


class CheckOutput(Output):
    """One check on one node."""

    id: str = Field(pattern=r"^[a-z0-9_]+\.[a-z0-9_.]+$", description="area.what, such as gpu.count")
    severity: Literal["fatal", "warn", "info"]
    status: Literal["pass", "fail", "unknown", "skip"] = Field(
        description="skip: does not apply to this machine; unknown: applies and could not be answered"
    )
    expected: object = None
    actual: object = None
    message: str
    action: Literal["none", "reconfigure", "reset", "reboot", "replace", "vendor"]


class QuarantineOutput(OpenOutput):
    """Who keeps a node out of service, and why."""

    owner: str = Field(description="gpuprov where a verdict did, else a person")
    reason: str
    since: str = Field(description="UTC, 2026-01-31T12:00:00Z")
    checks: list[str] = Field(description="What failed")


class BreakerOutput(OpenOutput):
    """Too many nodes turned bad at once: none of them was touched."""

    message: str
    bad: list[str] = Field(description="Those nodes")
    quarantined: int = Field(ge=0, description="Nodes that were in quarantine already")
    bound: int = Field(ge=1, description="Nodes that may be in quarantine")
    check: str = Field(description="What condemns most of the bad nodes: the common cause to look for")
    shared: int = Field(ge=1, description="How many of them")


class MeasureOutput(OpenOutput):
    """What a node reached at work, of one kind: the slowest GPU's of what is measured for each."""

    value: float = Field(gt=0)
    unit: str = Field(description="GB/s, TFLOP/s, MHz, samples/s")
    record: float | None = Field(description="The fleet's own record of it; null where there is none")
    of: Literal["node", "group"] | None = Field(
        description="Whose record: this machine's, or the median of its group's where the machine is new"
    )
    change: float | None = Field(description="Share above the record: -0.07 is seven per cent below it")
    published: float | None = Field(description="Published of a healthy node of this type; it is not judged")
    slower: bool = Field(description="Further below the record than the catalogue allows")


class NodeOutput(OpenOutput):
    """One node with its verdict."""

    name: str
    group: str
    machine: str
    ok: bool
    checks: list[CheckOutput]
    error: str | None = Field(default=None, description="Why it was not looked at")
    absent: bool = Field(default=False, description="cluster.yaml wants it, and no machine is there")
    quarantine: QuarantineOutput | None = None
    measures: dict[str, MeasureOutput] | None = Field(
        default=None,
        description="Given where the level measures: host_copy, peer_copy, memory, compute, clock, busbw, training",
    )


class ChangesOutput(OpenOutput):
    """What `up` did."""

    resources: int = Field(ge=0, description="Terraform resources made, changed and removed")
    configured: int = Field(ge=0, description="Nodes that the roles ran on")


class ReportOutput(OpenOutput):
    """`gpuprov up --json`, `gpuprov verify --json` and `gpuprov replace --json`"""

    ok: bool
    nodes: list[NodeOutput]
    seconds: dict[str, float] = Field(description="Duration of each stage")
    changes: ChangesOutput | None = Field(default=None, description="Given by `up` alone")
    report: str | None = Field(default=None, description="Path of the report for a browser, given by `up` alone")
    breaker: BreakerOutput | None = Field(
        default=None, description="Given where more nodes turned bad than may be in quarantine at once"
    )
    waiting: dict[str, list[str]] | None = Field(
        default=None, description="Nodes that stay on an older lock, with what `gpuprov upgrade` would change"
    )


class GpuFacts(OpenOutput):
    index: int | None
    model: str | None
    uuid: str | None
    memory_mib: int | None
    ecc_mode: str | None
    ecc_uncorrectable: int | None
    ecc_correctable: int | None
    remap_pending: bool | None
    remap_failure: bool | None
    mig_mode: str | None
    pcie_gen: int | None
    pcie_width: int | None
    fabric_state: str | None
    lost: bool | None


class LinkFacts(OpenOutput):
    active: int | None
    inactive: int | None


class XidFacts(OpenOutput):
    code: int
    pci: str | None
    count: int


class PortFacts(OpenOutput):
    device: str
    port: int
    state: str | None
    physical_state: str | None
    rate_gbps: float | None
    link_layer: str | None


class NcclFacts(OpenOutput):
    avg_busbw_gbps: float | None
    max_busbw_gbps: float | None
    ranks: int | None


class Unreadable(Output):
    file: str
    reason: str


class FactsOutput(OpenOutput):
    """`gpuprov facts --json`: what was read, tool by tool, before any judgement."""

    simulated: bool = Field(default=False, description="The machine says that gpuprov simulates it")
    driver_version: str | None
    cuda_version: str | None
    gpus: list[GpuFacts] | None
    topology: dict[str, dict[str, str]] | None = Field(description="GPU0 → GPU1 → NV12")
    nvlinks: dict[str, LinkFacts] | None = Field(description="By GPU index")
    xids: list[XidFacts] | None
    ib_ports: list[PortFacts] | None
    efa_devices: int | None
    nccl: NcclFacts | None
    unreadable: list[Unreadable]


class DriftOutput(Output):
    """One thing on a node that is not as its lock says."""

    kind: Literal[
        "unknown", "stamp", "package", "hold", "unit", "hook", "image", "updates", "system", "kernel", "reboot"
    ] = Field(description="unknown: it could not be read; stamp: the roles ran for something else, or never")
    subject: str = Field(description="The package, unit, image, file …")
    wanted: str | None
    found: str | None
    message: str


class NodeUpgrade(OpenOutput):
    """Where a node is in an upgrade."""

    step: Literal[
        "waiting", "draining", "drained", "proven", "moved", "leaving", "failed", "back", "rolled-back", "left", "stuck"
    ]
    reason: str = Field(description="Why, where something went wrong")


class NodeReplacement(OpenOutput):
    """How far the replacement of a node's machine is."""

    step: Literal["draining", "making", "proving"]


class StatusNode(OpenOutput):
    name: str
    group: str
    site: str
    machine: str
    address: str | None
    stage: str
    ok: bool | None
    drift: list[DriftOutput] | None = Field(
        default=None, description="What is not as the node's lock says; null where it was not asked or did not answer"
    )
    lock: str | None = Field(default=None, description="The lock that it runs, by gpuprov's id")
    driver: str | None = Field(default=None, description="The driver of that lock")
    waiting: list[str] = Field(default=[], description="What `gpuprov upgrade` would change")
    upgrade: NodeUpgrade | None = Field(default=None, description="null where no upgrade is under way")
    quarantine: QuarantineOutput | None = Field(default=None, description="null where it is in none")
    replace: NodeReplacement | None = Field(default=None, description="null where its machine is not being replaced")


class StatusUpgrade(OpenOutput):
    """The last upgrade."""

    phase: Literal["moving", "rolling-back", "done", "rolled-back"]
    to: str = Field(description="The lock's id")
    reason: str = Field(description="Why it was rolled back")


class StatusOutput(OpenOutput):
    """`gpuprov status --json`"""

    cluster: str
    nodes: list[StatusNode]
    upgrade: StatusUpgrade | None = None
    cost: SpentOutput | None = Field(default=None, description="null for a rehearsal, and where nothing was made yet")


class PlannedNode(OpenOutput):
    """One node that is wanted."""

    name: str
    group: str
    site: str
    machine: str
    drift: list[DriftOutput] | None = Field(
        default=None, description="What `up` would mend; null where there is no node yet, or it did not answer"
    )
    reboot: bool | None = Field(default=None, description="Whether it will have to reboot for that")
    waiting: list[str] = Field(default=[], description="What only `gpuprov upgrade` would change")


class SiteChanges(OpenOutput):
    """What Terraform would do at a site: numbers of resources."""

    add: int = Field(ge=0)
    change: int = Field(ge=0)
    destroy: int = Field(ge=0)


class PlannedStack(OpenOutput):
    """Versions that would be installed; null where the machine has no such thing."""

    driver: str | None
    cuda: str | None
    nccl: str | None


class FindingOutput(OpenOutput):
    """One preflight finding."""

    status: Literal["ok", "warning", "blocks", "unknown"] = Field(description="blocks: `up` refuses while it stands")
    subject: str
    message: str
    action: str


class PlanOutput(OpenOutput):
    """`gpuprov plan --json`"""

    cluster: str
    sandbox: bool
    nodes: list[PlannedNode]
    changes: dict[str, SiteChanges] = Field(description="By site")
    stack: dict[str, PlannedStack] = Field(description="By group")
    findings: list[FindingOutput]
    cost: PlannedCost | None = Field(default=None, description="By list prices; null for a rehearsal")


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
    ok: bool = Field(description="Every node runs the lock that cluster.yaml wants")
    to: str
    phase: Literal["moving", "rolling-back", "done", "rolled-back"]
    message: str
    nodes: list[UpgradeNode]
    seconds: float


class DownOutput(OpenOutput):
    """`gpuprov down --json`"""

    cluster: str
    removed: int = Field(ge=0, description="Terraform resources removed")
    left: list[str] = Field(description="What is still there, one sentence each")


class DiagnosisOutput(OpenOutput):
    """One thing of this machine."""

    subject: str
    status: Literal["ok", "missing", "unknown"]
    found: str
    needed_for: str
    mend: str = Field(description="The command that mends it, or empty")


class DoctorOutput(OpenOutput):
    """`gpuprov doctor --json`"""

    ok: bool
    findings: list[DiagnosisOutput]


OUTPUTS: dict[str, type[BaseModel]] = {
    "validate": ValidateOutput,
    "report": ReportOutput,
    "facts": FactsOutput,
    "status": StatusOutput,
    "plan": PlanOutput,
    "upgrade": UpgradeOutput,
    "down": DownOutput,
    "gc": GcOutput,
    "cost": CostOutput,
    "doctor": DoctorOutput,
    "error": ErrorOutput,
}
