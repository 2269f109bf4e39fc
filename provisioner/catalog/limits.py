"""What a healthy machine reaches or stays below: frozen models over catalog/data/limits.yaml."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from provisioner.catalog.models import Basis, Machine, Row

Efficiency = Annotated[float, Field(gt=0, le=1)]


class Limit(Row):
    """A threshold as a share of what the wire can carry, so that none can stand above it."""

    machines: tuple[str, ...]
    line_rate: float = Field(gt=0)
    efficiency: Efficiency
    basis: Basis
    source: str

    @property
    def threshold(self) -> float:
        """The least that a healthy node reaches, in the unit of `line_rate`."""
        return round(self.line_rate * self.efficiency, 1)

    @property
    def name(self) -> str:
        """What the limit is called in `Expected.least` and in reports."""
        raise NotImplementedError

    def of(self, machine: Machine) -> bool:
        """Whether a machine type is held to it."""
        return machine.name in self.machines


class NcclLimit(Limit):
    """Single-node all_reduce bus bandwidth, GB/s, at message size `size`; `measured` on a healthy node."""

    size: str
    measured: float | None = None

    @property
    def name(self) -> str:
        return "busbw"


class FabricLimit(Limit):
    """all_reduce bus bandwidth of `nodes` nodes together, GB/s, at message size `size`; `line_rate` is what all network
    ports of a node carry in one direction. `measured` may stand above it (head of limits.yaml)."""

    nodes: int = Field(gt=1)
    size: str
    measured: float | None = None

    @property
    def name(self) -> str:
        return "fabric"


class CopyLimit(Limit):
    """Copies of one GPU, GB/s in one direction: with the host's pinned memory, or to another GPU of the node."""

    way: Literal["host", "peer"]

    @property
    def name(self) -> str:
        return f"{self.way}_copy"


class GpuLimit(Limit):
    """One GPU by itself, whatever machine it is in: dense products in half precision, TFLOP/s, or bytes read and
    written by a copy within its memory, GB/s. `line_rate`: the data sheet's; `measured`: what a healthy one reached."""

    machines: tuple[str, ...] = ()
    gpus: tuple[str, ...]
    way: Literal["compute", "memory"]
    measured: float | None = None

    @property
    def name(self) -> str:
        return f"gpu_{self.way}"

    def of(self, machine: Machine) -> bool:
        return machine.gpu_model in self.gpus


class ScratchLimit(Limit):
    """All local disks of a machine together, GB/s, big pieces one after the other."""

    way: Literal["read", "write"]

    @property
    def name(self) -> str:
        return f"scratch_{self.way}"


class RdmaLimit(Limit):
    """ib_write_bw of one port, Gbit/s, from GPU or host memory."""

    memory: Literal["gpu", "host"]

    @property
    def name(self) -> str:
        return "rdma"


class Ceiling(Row):
    """The most of a counter or reading that is still healthy, whatever the machine."""

    name: str
    most: float = Field(ge=0)
    unit: str
    basis: Basis
    source: str
