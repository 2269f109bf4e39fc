"""The shape of `gpuprov facts --json`."""

from __future__ import annotations

from pydantic import Field

from provisioner.output.base import OpenOutput, Output


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
