"""The shapes of what `--json` prints: stable, and part of `gpuprov schema`.

A value that a tool did not give is null. Facts may gain keys; nothing here is renamed or removed.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class Output(BaseModel):
    model_config = ConfigDict(extra="forbid")


class OpenOutput(BaseModel):
    """May carry more keys than are named here."""

    model_config = ConfigDict(extra="allow")


class ProblemOutput(Output):
    """One thing wrong with a file."""

    file: str
    line: int = Field(ge=1)
    column: int = Field(ge=1)
    path: str = Field(description="Dotted, list items by index: sites.virginia.zones[0]")
    message: str
    hint: str


class ValidateOutput(Output):
    """`gpuprov validate --json`"""

    ok: bool
    problems: list[ProblemOutput]


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


class NodeOutput(OpenOutput):
    """One node with its verdict."""

    name: str
    group: str
    machine: str
    ok: bool
    checks: list[CheckOutput]


class ReportOutput(OpenOutput):
    """`gpuprov up --json` and `gpuprov verify --json`"""

    ok: bool
    nodes: list[NodeOutput]
    seconds: dict[str, float] = Field(description="Duration of each stage")


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


class StatusNode(OpenOutput):
    name: str
    group: str
    site: str
    machine: str
    address: str | None
    stage: str
    ok: bool | None


class StatusOutput(OpenOutput):
    """`gpuprov status --json`"""

    cluster: str
    nodes: list[StatusNode]


OUTPUTS: dict[str, type[BaseModel]] = {
    "validate": ValidateOutput,
    "report": ReportOutput,
    "facts": FactsOutput,
    "status": StatusOutput,
}
