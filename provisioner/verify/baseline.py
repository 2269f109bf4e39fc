"""What a node reached at work, by name, and the fleet's own record of it: what is slower than it was.

A record is of one level: five seconds of matrix products and five minutes of them end at other clocks. A machine is
known by its id. One without a record of its own, because it was replaced, is compared with the median of its group's.
Simulated and real nodes are never compared.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any

from provisioner.common.levels import LEVELS
from provisioner.verify.expectations import Expected
from provisioner.verify.facts import Facts
from provisioner.verify.parsers.load import Load

SCHEMA = 3
"""Of the record as a document: as it is written, and what is read."""


def loaded(node: Facts) -> Load | None:
    """What the load program reached on the GPUs; None where it did not come to its end there."""
    load = node.load
    if load is None or not load.finished or not (load.device == "cuda" or load.simulated):
        return None
    return load


def _slowest(node: Facts, *rates: str) -> float | None:
    """The slowest GPU's: what a job goes at. None where one GPU does not say."""
    load = loaded(node)
    values = [getattr(gpu, rate) for gpu in load.gpus for rate in rates] if load is not None else []
    return None if not values or None in values else min(values)


def host_copy(node: Facts) -> float | None:
    """GB/s between the host's pinned memory and the slowest GPU, in the slower direction."""
    return _slowest(node, "h2d_gbps", "d2h_gbps")


def peer_copy(node: Facts) -> float | None:
    """GB/s from a GPU to its neighbour, the slowest pair."""
    return _slowest(node, "peer_gbps")


def memory(node: Facts) -> float | None:
    """GB/s within the slowest GPU's memory, read and write together."""
    return _slowest(node, "memory_gbps")


def compute(node: Facts) -> float | None:
    """TFLOP/s of the slowest GPU's matrix products at the end of the load."""
    return _slowest(node, "tflops_last")


def busbw(node: Facts) -> float | None:
    """GB/s of all_reduce's bus bandwidth at its best message size: by nccl-tests where they ran, else the load's.
    None beside a job, whose traffic it would share."""
    if node.load is not None and node.load.state == "busy":
        return None
    if node.nccl is not None and node.nccl.max_busbw_gbps is not None:
        return node.nccl.max_busbw_gbps
    load = loaded(node)
    best = load.best_busbw if load is not None else None
    return best[1] if best is not None else None


def training(node: Facts) -> float | None:
    """Samples/s of the reference model on all GPUs together."""
    load = loaded(node)
    return load.samples_per_s if load is not None else None


def clock(node: Facts) -> float | None:
    """MHz of the GPUs' multiprocessors in the midst of the matrix products: the median GPU's, because one GPU alone is
    compute's to tell."""
    if loaded(node) is None or node.under_load is None:
        return None
    clocks = [gpu.clock_sm_mhz for gpu in node.under_load.gpus if not gpu.lost and gpu.clock_sm_mhz is not None]
    return float(median(clocks)) if clocks else None


def _scratch(node: Facts, part: str, of: str) -> float | None:
    phase = node.fio.phase(part) if node.fio is not None else None
    value: float | None = getattr(phase, of) if phase is not None else None
    return value


def scratch_write(node: Facts) -> float | None:
    """GB/s that fio wrote to the scratch filesystem, one after the other."""
    return _scratch(node, "write", "gbps")


def scratch_read(node: Facts) -> float | None:
    """GB/s that fio read from it, one after the other."""
    return _scratch(node, "read", "gbps")


def scratch_iops(node: Facts) -> float | None:
    """Thousands of 4 KiB reads per second, here and there."""
    rate = _scratch(node, "random", "iops")
    return rate / 1000 if rate is not None else None


@dataclass(frozen=True, slots=True)
class Measure:
    """One thing that is measured: more of it is better. `title` heads a column."""

    name: str
    title: str
    unit: str
    of: Callable[[Facts], float | None]


MEASURES = (
    Measure("host_copy", "host copy", "GB/s", host_copy),
    Measure("peer_copy", "GPU to GPU", "GB/s", peer_copy),
    Measure("memory", "GPU memory", "GB/s", memory),
    Measure("compute", "compute", "TFLOP/s", compute),
    Measure("clock", "clock at work", "MHz", clock),
    Measure("busbw", "all_reduce", "GB/s", busbw),
    Measure("training", "training", "samples/s", training),
    Measure("scratch_write", "scratch writes", "GB/s", scratch_write),
    Measure("scratch_read", "scratch reads", "GB/s", scratch_read),
    Measure("scratch_iops", "small reads", "k/s", scratch_iops),
)
NAMED: Mapping[str, Measure] = {measure.name: measure for measure in MEASURES}


def measured(node: Facts) -> dict[str, float]:
    """Everything that was measured on a node, by name, in the measure's unit. What is not above zero is no rate."""
    values = {measure.name: measure.of(node) for measure in MEASURES}
    return {name: value for name, value in values.items() if value is not None and is_rate(value)}


@dataclass(frozen=True, slots=True, order=True)
class GpuIdentity:
    """What tells one GPU from another: `uuid` and, of most data centre boards, `serial`. `index` and `pci` say where it
    is."""

    index: int
    pci: str
    uuid: str
    serial: str = ""

    @property
    def slot(self) -> str:
        return f"GPU {self.index}"

    @property
    def text(self) -> str:
        return f"serial {self.serial}, UUID {self.uuid}" if self.serial else f"UUID {self.uuid}"

    @classmethod
    def from_json(cls, data: Any) -> GpuIdentity:
        """Raises TypeError or KeyError for anything but what asdict gives."""
        if not isinstance(data["index"], int):
            raise TypeError("the index of a GPU is not a number")
        if not all(isinstance(data[key], str) for key in ("pci", "uuid", "serial")):
            raise TypeError("the identity of a GPU is not text")
        return cls(data["index"], data["pci"], data["uuid"], data["serial"])


def gpu_identities(node: Facts) -> tuple[GpuIdentity, ...]:
    """The GPUs of a node that answer and tell their UUID, in their order."""
    return tuple(GpuIdentity(g.index, g.pci or "", g.uuid, g.serial or "") for g in node.gpus or () if g.uuid)


def hardware_changes(recorded: Sequence[GpuIdentity], present: Sequence[GpuIdentity], count: int | None) -> list[str]:
    """What of a machine's GPUs is another than it was, as key: value then → value now. `count`: how many GPUs answer,
    None where nobody knows. A GPU stands in the place of the one that had its PCI address, else its number.

    >>> a, b = GpuIdentity(3, "0000:4f:00.0", "GPU-a", "165"), GpuIdentity(3, "0000:4f:00.0", "GPU-b", "166")
    >>> hardware_changes([a], [b], 1)
    ['GPU 3: serial 165 → 166, UUID GPU-a → GPU-b']
    """
    uuids, recorded_uuids = {gpu.uuid for gpu in present}, {gpu.uuid for gpu in recorded}
    missing = [gpu for gpu in recorded if gpu.uuid not in uuids]
    changes = [f"GPU count: {len(recorded)} → {count}"] if count is not None and count != len(recorded) else []
    added = []
    for gpu in (gpu for gpu in present if gpu.uuid not in recorded_uuids):
        former = next((old for old in missing if old.pci and old.pci == gpu.pci), None)
        former = former or next((old for old in missing if old.index == gpu.index), None)
        if former is None:
            added.append(gpu)
            continue
        missing.remove(former)
        serials = former.serial and gpu.serial and former.serial != gpu.serial
        changes.append(
            f"GPU {gpu.index}: "
            + (f"serial {former.serial} → {gpu.serial}, " if serials else "")
            + f"UUID {former.uuid} → {gpu.uuid}"
        )
    changes += [f"GPU {gpu.index}: none → {gpu.text}" for gpu in added]
    changes += [f"{gpu.slot}: {gpu.text} → none" for gpu in missing] if count == len(present) else []
    return changes


@dataclass(frozen=True, slots=True)
class Baseline:
    """What one node is compared with, by the measure's name. `own`: it is this machine's record, else the median of
    `nodes` machines of its group; `at` (UTC) is its newest measurement; `other_lock`: what was installed then was
    something else."""

    values: Mapping[str, float]
    own: bool = True
    at: str = ""
    nodes: int = 1
    other_lock: bool = False
    gpus: tuple[GpuIdentity, ...] = ()
    """The GPUs that the machine had then; empty where the record is not its own, or does not say."""

    @property
    def whose(self) -> str:
        """The words for it."""
        many = "" if self.nodes == 1 else f" of {self.nodes} nodes"
        then = f" of {self.at[:10]}" if self.at else ""
        lock = ", with another lock" if self.other_lock else ""
        return f"{'its own record' if self.own else f'the record{many} of its group'}{then}{lock}"

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Baseline:
        return cls(**{**data, "gpus": tuple(map(GpuIdentity.from_json, data.get("gpus", ())))})


def is_slower(value: float, record: float, share: float) -> bool:
    """Whether a value is below the recorded one by more than a share (0.05 is five per cent)."""
    return value < record * (1 - share)


@dataclass(frozen=True, slots=True)
class Reached:
    """One measure of a node, beside the record and what is published of a healthy machine of its kind (None where there
    is neither). `own` as Baseline has it; `slower`: behind the record by more than the catalogue allows."""

    name: str
    unit: str
    value: float
    record: float | None = None
    own: bool | None = None
    published: float | None = None
    slower: bool = False

    @property
    def share(self) -> float | None:
        """How far from the record: -0.07 is seven per cent below it."""
        return self.value / self.record - 1 if self.record else None


def reached(values: Mapping[str, float], baseline: Baseline | None, expected: Expected) -> tuple[Reached, ...]:
    """A node's measures beside what they are compared with, in the order of MEASURES."""
    rows = []
    for name, measure in NAMED.items():
        if name not in values:
            continue
        record = baseline.values.get(name) if baseline is not None else None
        share = expected.most.get(f"baseline.{name}")
        rows.append(
            Reached(
                name,
                measure.unit,
                values[name],
                record,
                baseline.own if baseline is not None and record is not None else None,
                expected.published.get(name),
                record is not None and share is not None and is_slower(values[name], record, share),
            )
        )
    return tuple(rows)


@dataclass(frozen=True, slots=True)
class Entry:
    """One machine's measures of one run: `id` is the provider's, `at` UTC (2026-01-31T12:00:00Z), `lock` the release
    that was on it, `gpus` its GPUs."""

    id: str
    group: str
    machine: str
    at: str
    lock: str
    simulated: bool
    measures: Mapping[str, float]
    gpus: tuple[GpuIdentity, ...] = ()

    def to_json(self) -> dict[str, Any]:
        measures = {name: {"value": value, "unit": NAMED[name].unit} for name, value in self.measures.items()}
        return asdict(self) | {"measures": measures}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Entry:
        """Raises ValueError, TypeError or KeyError for anything but what to_json writes."""
        values = {}
        for name, measure in data["measures"].items():
            if measure["unit"] != NAMED[name].unit or not is_rate(measure["value"]):
                raise ValueError(f"{name} is {measure['value']} {measure['unit']}")
            values[name] = float(measure["value"])
        rows = data["gpus"]
        if not isinstance(rows, list | tuple):
            raise TypeError("gpus is not a list")
        entry = cls(**{**data, "measures": values, "gpus": tuple(map(GpuIdentity.from_json, rows))})
        texts = (entry.id, entry.group, entry.machine, entry.at, entry.lock)
        if not all(isinstance(text, str) for text in texts) or not isinstance(entry.simulated, bool):
            raise TypeError("an entry is not whole")
        return entry


def is_rate(value: object) -> bool:
    """Whether something can be a measure's value."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value > 0


@dataclass(frozen=True, slots=True)
class Record:
    """The fleet's own record: node name → level → what it reached."""

    nodes: Mapping[str, Mapping[str, Entry]] = field(default_factory=dict)

    def of(
        self, name: str, *, id: str, group: str, machine: str, level: str, lock: str, simulated: bool
    ) -> Baseline | None:
        """What the machine of that name is to be compared with at that level; None where nothing fits."""
        like = {
            node: entry
            for node, levels in self.nodes.items()
            if (entry := levels.get(level)) is not None
            and (entry.group, entry.machine, entry.simulated) == (group, machine, simulated)
        }
        own_entry = like.get(name)
        if own_entry is not None and own_entry.id == id:
            return Baseline(own_entry.measures, True, own_entry.at, 1, own_entry.lock != lock, own_entry.gpus)
        if not like:
            return None
        group_values: dict[str, list[float]] = {}
        for entry in like.values():
            for measure, value in entry.measures.items():
                group_values.setdefault(measure, []).append(value)
        return Baseline(
            {measure: float(median(values)) for measure, values in group_values.items()},
            False,
            max(entry.at for entry in like.values()),
            len(like),
            any(entry.lock != lock for entry in like.values()),
        )

    def to_json(self) -> dict[str, Any]:
        nodes = {
            name: {level: entry.to_json() for level, entry in levels.items()} for name, levels in self.nodes.items()
        }
        return {"schema": SCHEMA, "nodes": nodes}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Record:
        """Raises ValueError, TypeError, KeyError or AttributeError for anything but what to_json writes."""
        if data["schema"] != SCHEMA:
            raise ValueError(f"schema {data['schema']}, and this gpuprov knows {SCHEMA}")
        nodes = {
            name: {level: Entry.from_json(entry) for level, entry in levels.items()}
            for name, levels in data["nodes"].items()
        }
        if strange := {level for levels in nodes.values() for level in levels} - set(LEVELS):
            raise ValueError(f"there is no level {sorted(strange)[0]!r}")
        return cls(nodes)
