"""What is known of machines, GPUs and their software: package data behind one typed object.

Facts are rows of provisioner/catalog/data/*.yaml, each with its source; docs/reference/catalog.md says how to add one.
A table is read when it is first asked for, once for each process.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache, cached_property
from importlib.resources import files
from itertools import combinations
from types import MappingProxyType
from typing import Any, TypeVar

from provisioner.catalog.description import FARTHER, MachineDescription
from provisioner.catalog.description import machine as described_machine
from provisioner.catalog.known_bad import Bulletin, KnownBad
from provisioner.catalog.limits import (
    Ceiling,
    CopyLimit,
    FabricLimit,
    GpuLimit,
    Limit,
    NcclLimit,
    RdmaLimit,
    ScratchLimit,
)
from provisioner.catalog.models import (
    NO_GPU,
    Basis,
    Board,
    Gpu,
    GpuFraction,
    Machine,
    ProviderName,
    Row,
    Topology,
    Xid,
)
from provisioner.catalog.prices import Bought, ListPrices, Price, Seller, Without
from provisioner.catalog.providers import Provider
from provisioner.common import yaml_text
from provisioner.common.errors import GpuprovError
from provisioner.common.suggest import did_you_mean

__all__ = ["Catalog", "load"]

RowT = TypeVar("RowT", bound=Row)
NO_NVLINK = "-"


class Catalog:
    """The tables by name. Rows are frozen; a name that is not there raises GpuprovError with the nearest ones."""

    own: Mapping[str, Machine] = MappingProxyType({})
    """The machine types of a user."""

    @cached_property
    def listed(self) -> Mapping[str, Machine]:
        """The rows of machines.yaml, each of which somebody has looked at closely."""
        return {row.name: row for row in _rows("machines", "machines", Machine)}

    @cached_property
    def _sizes(self) -> Mapping[str, Machine]:
        """The other sizes that clouds sell, as rows: what cloud_sizes.yaml does not say is derived."""
        return {row["name"]: self._size(row) for row in _document("cloud_sizes")["machines"]}

    def _size(self, row: Mapping[str, Any]) -> Machine:
        sources = _document("cloud_sizes")["sources"]
        keys = {key: value for key, value in row.items() if key != "name"}
        keys["source"] = tuple(sources[name] for name in row["source"])
        return described_machine(row["name"], MachineDescription.model_validate(keys), self, "documented")

    @cached_property
    def without_gpus(self) -> Mapping[str, Machine]:
        """Sizes of the clouds that have no GPU, for head nodes."""
        rows = _document("cloud_sizes")["without_gpus"]
        return {row["name"]: self._size({**row, "gpus": 0}) for row in rows}

    @cached_property
    def fractions(self) -> Mapping[str, GpuFraction]:
        """Sizes that have a part of a GPU, and need a vGPU driver."""
        return {row.name: row for row in _rows("cloud_sizes", "fractional", GpuFraction)}

    @cached_property
    def _machines(self) -> Mapping[str, Machine]:
        return {**self.listed, **self._sizes, **self.without_gpus, **self.own}

    @cached_property
    def _gpus(self) -> Mapping[str, Gpu]:
        return {row.model: row for row in _rows("gpus", "gpus", Gpu)}

    def with_described(self, descriptions: Mapping[str, MachineDescription]) -> Catalog:
        """The same and the machine types of a user. Raises GpuprovError for a GPU that is not in the catalogue."""
        if not descriptions:
            return self
        gpus = [
            gpu for name, description in descriptions.items() if (gpu := description.own_gpu(name, self)) is not None
        ]
        rows = [described_machine(name, description, self, "user") for name, description in descriptions.items()]
        extended = Catalog()
        extended.__dict__["_gpus"] = {**self._gpus, **{gpu.model: gpu for gpu in gpus}}
        extended.own = {**self.own, **{row.name: row for row in rows}}
        return extended

    @cached_property
    def boards(self) -> tuple[Board, ...]:
        return _rows("gpus", "boards", Board)

    @cached_property
    def _topologies(self) -> Mapping[str, Topology]:
        return {row.name: row for row in _rows("topologies", "topologies", Topology)}

    @cached_property
    def _xids(self) -> Mapping[int, Xid]:
        return {row.code: row for row in _rows("xids", "xids", Xid)}

    @cached_property
    def known_bad(self) -> tuple[KnownBad, ...]:
        """Combinations of versions and hardware that were reported as broken. Raises KeyError for a row of a GPU that
        is not in the catalogue."""
        rows = _rows("known_bad", "known_bad", KnownBad)
        for row in rows:
            for model in row.gpus:
                self._gpus[model]
        return rows

    @cached_property
    def bulletins(self) -> tuple[Bulletin, ...]:
        """Security bulletins of the driver and the container toolkit."""
        return _rows("security", "bulletins", Bulletin)

    @cached_property
    def _nccl(self) -> Mapping[str, NcclLimit]:
        return {name: row for row in _rows("limits", "nccl", NcclLimit) for name in row.machines}

    @cached_property
    def _fabric(self) -> Mapping[str, FabricLimit]:
        return {name: row for row in _rows("limits", "fabric", FabricLimit) for name in row.machines}

    @cached_property
    def _rdma(self) -> Mapping[str, RdmaLimit]:
        return {name: row for row in _rows("limits", "rdma", RdmaLimit) for name in row.machines}

    @cached_property
    def ceilings(self) -> Mapping[str, float]:
        """The most of each counter that is still healthy, by name."""
        return {row.name: row.most for row in self.ceiling_rows}

    @cached_property
    def ceiling_rows(self) -> tuple[Ceiling, ...]:
        return _rows("health", "ceilings", Ceiling)

    @cached_property
    def limit_rows(self) -> Mapping[str, tuple[Limit, ...]]:
        """The rows of limits.yaml by the test that they are for: nccl, copies, gpus, fabric, scratch, rdma."""
        return {
            "nccl": _rows("limits", "nccl", NcclLimit),
            "copies": _rows("limits", "copies", CopyLimit),
            "gpus": _rows("limits", "gpus", GpuLimit),
            "fabric": _rows("limits", "fabric", FabricLimit),
            "scratch": _rows("limits", "scratch", ScratchLimit),
            "rdma": _rows("limits", "rdma", RdmaLimit),
        }

    def limits(self, machine: Machine) -> dict[str, Basis]:
        """What each limit that a node of this type is held to rests on, by the limit's name: those of health.yaml, and
        busbw, host_copy, peer_copy, gpu_compute, gpu_memory, scratch_read, scratch_write, fabric, rdma, nvlink where
        there is one."""
        bases: dict[str, Basis] = {row.name: row.basis for row in self.ceiling_rows}
        rows = (row for rows in self.limit_rows.values() for row in rows)
        bases |= {row.name: row.basis for row in rows if row.of(machine)}
        if machine.nvlink.links_per_gpu:
            captured = machine.nvlink.generation in _document("limits")["nvlink"]["measured"]
            bases["nvlink"] = "measured" if captured else "unverified"
        return bases

    @cached_property
    def nvlink_share(self) -> float:
        """Share of a link's rate that nvidia-smi prints at least for a healthy one."""
        return float(_document("limits")["nvlink"]["efficiency"])

    @cached_property
    def _providers(self) -> Mapping[str, Provider]:
        return {row.name: row for row in _rows("providers", "providers", Provider)}

    @cached_property
    def _prices(self) -> Mapping[str, Mapping[str, Price]]:
        rows = _rows("prices", "on_demand", ListPrices)
        return {row.machine: {price.region: price for price in row.prices} for row in rows}

    @cached_property
    def _bought(self) -> Mapping[tuple[str, str], Bought]:
        return {(row.provider, row.kind): row for row in _rows("prices", "bought", Bought)}

    @cached_property
    def price_sources(self) -> Mapping[str, str]:
        """Where prices were read, by the id that `Price.source` gives."""
        return dict(_document("prices")["sources"])

    def machine(self, name: str) -> Machine:
        """The machine type of that name. Raises GpuprovError."""
        row = self.listed.get(name) or self._machines.get(name)
        if row is None:
            raise _unknown("machine", name, self.names())
        return row

    def gpu(self, model: str) -> Gpu:
        """The GPU product of that slug (Machine.gpu_model); NO_GPU for a machine without. Raises GpuprovError."""
        if model == NO_GPU.model:
            return NO_GPU
        try:
            return self._gpus[model]
        except KeyError:
            raise _unknown("GPU", model, tuple(self._gpus)) from None

    def machines(self, provider: ProviderName | None = None) -> tuple[Machine, ...]:
        """All machine types in the order of the file, or those of one provider."""
        return tuple(m for m in self._machines.values() if provider is None or m.provider == provider)

    def names(self, provider: ProviderName | None = None) -> tuple[str, ...]:
        return tuple(m.name for m in self.machines(provider))

    def provider(self, name: ProviderName) -> Provider:
        return self._providers[name]

    def providers(self) -> tuple[Provider, ...]:
        return tuple(self._providers.values())

    def gpus(self) -> tuple[Gpu, ...]:
        return tuple(self._gpus.values())

    def xids(self) -> tuple[Xid, ...]:
        return tuple(self._xids.values())

    def xid(self, code: int) -> Xid | None:
        """What is known of an Xid code; None for a code that is not in the table, which is not the same as harmless."""
        return self._xids.get(code)

    def nccl_limit(self, machine: Machine) -> NcclLimit | None:
        """The bus bandwidth that a healthy node of this type reaches; None where nobody has published one."""
        return self._nccl.get(machine.name)

    def fabric_limit(self, machine: Machine) -> FabricLimit | None:
        """The bus bandwidth that healthy nodes of this type reach together; None where nobody has published one."""
        return self._fabric.get(machine.name)

    def copy_limits(self, machine: Machine) -> dict[str, float]:
        """host_copy and peer_copy, GB/s, that each GPU of a healthy node reaches; without what nobody has published."""
        return _thresholds(_rows("limits", "copies", CopyLimit), machine)

    def gpu_limits(self, machine: Machine) -> dict[str, float]:
        """gpu_compute, TFLOP/s, and gpu_memory, GB/s, that a healthy GPU reaches; without what is unknown."""
        return _thresholds(_rows("limits", "gpus", GpuLimit), machine)

    def scratch_limits(self, machine: Machine) -> dict[str, float]:
        """scratch_read and scratch_write, GB/s, that a healthy node reaches; without what nobody has published."""
        return _thresholds(_rows("limits", "scratch", ScratchLimit), machine)

    def rdma_limit(self, machine: Machine) -> RdmaLimit | None:
        """The RDMA write bandwidth that each port of a healthy node reaches; None where nobody has published one."""
        return self._rdma.get(machine.name)

    def price(self, machine: Machine, region: str) -> Price | None:
        """The on-demand list price in a region; None where nobody has written it down, which is not free of charge."""
        return self._prices.get(machine.name, {}).get(region)

    def prices(self, machine: Machine) -> tuple[Price, ...]:
        """The list prices that are known, by the region's name."""
        return tuple(self._prices.get(machine.name, {}).values())

    def without_price(self, machine: Machine) -> str:
        """Why there is no list price of a machine anywhere; empty where nobody has looked."""
        rows = _rows("prices", "without", Without)
        return next((row.why for row in rows if row.machine == machine.name), "")

    def bought(self, provider: ProviderName, kind: str) -> Bought:
        """What that way of buying costs. Raises KeyError for a kind that the provider does not sell."""
        return self._bought[provider, kind]

    def seller(self, provider: ProviderName) -> Seller:
        return next(row for row in _rows("prices", "sellers", Seller) if row.provider == provider)

    def topology(self, machine: Machine) -> dict[tuple[int, int], frozenset[str]]:
        """For each pair i < j of GPUs the cells that `nvidia-smi topo -m` may print between them.

        One cell where the layout is known, several where it is not documented inside the VM; empty for a lone GPU.
        """
        pairs = combinations(range(machine.gpu_count), 2)
        anything = frozenset(machine.peer_cells)
        if machine.topology is None:
            return dict.fromkeys(pairs, anything)
        cells = self._topologies[machine.topology].cells
        unlinked = frozenset(cell for cell in anything if nvlinks(cell) == 0)
        return {(i, j): unlinked if cells[i][j] == NO_NVLINK else frozenset({cells[i][j]}) for i, j in pairs}

    def layout(self, machine: Machine) -> dict[tuple[int, int], str]:
        """One matrix that `topology` allows, for simulated nodes: pairs of one NUMA node are near, others far.

        Where the number of NUMA nodes is not known, 8 GPUs are taken to hang on two.
        """
        half = max(1, machine.gpu_count // (machine.numa_nodes or max(1, machine.gpu_count // 4)))
        return {
            (i, j): (min if i // half == j // half else max)(cells, key=_distance)
            for (i, j), cells in self.topology(machine).items()
        }

    def nvlinks_per_gpu(self, machine: Machine) -> tuple[int, ...]:
        """For each GPU the NVLinks that must be active, at least: all of them behind NVSwitch, else the sum over
        its peers (of the smallest allowed cell where the pair is not documented). Zeros for AMD and plain PCIe."""
        if machine.nvlink.topology == "nvswitch":
            return (machine.nvlink.links_per_gpu,) * machine.gpu_count
        links = [0] * machine.gpu_count
        for (i, j), cells in self.topology(machine).items():
            minimum = min(nvlinks(cell) for cell in cells)
            links[i] += minimum
            links[j] += minimum
        return tuple(links)


def nvlinks(cell: str) -> int:
    """Number of bonded NVLinks in a topo cell: 12 for NV12, 0 for SYS.

    >>> nvlinks("NV12"), nvlinks("SYS")
    (12, 0)
    """
    return int(cell[2:]) if cell.startswith("NV") and cell[2:].isdigit() else 0


def _distance(cell: str) -> tuple[int, int]:
    return (FARTHER.index(cell) + 1, 0) if cell in FARTHER else (0, -nvlinks(cell))


@cache
def load() -> Catalog:
    """The catalogue that is part of the package, one object for each process."""
    return Catalog()


def _thresholds(rows: Iterable[Limit], machine: Machine) -> dict[str, float]:
    """What a healthy node of this type reaches, by the limit's name."""
    return {row.name: row.threshold for row in rows if row.of(machine)}


@cache
def _document(name: str) -> dict[str, Any]:
    text = files("provisioner.catalog").joinpath("data", f"{name}.yaml").read_bytes()
    document: dict[str, Any] = yaml_text.load(text)
    return document


def _rows(name: str, key: str, model: type[RowT]) -> tuple[RowT, ...]:
    return tuple(model.model_validate(row) for row in _document(name)[key])


def _unknown(noun: str, name: str, known: tuple[str, ...]) -> GpuprovError:
    hint = did_you_mean(name, known, limit=3) or "`gpuprov catalog` lists what is known"
    if noun == "machine" and hint.startswith("`"):
        hint += "; `gpuprov catalog --from-host USER@ADDRESS` describes another one for `machines` of cluster.yaml"
    return GpuprovError(f"no {noun} {name!r} in the catalogue", hint=hint)
