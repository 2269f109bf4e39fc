"""What the fleet reached in `gpuprov bench --save-baseline`: bench.json in the run directory."""

from __future__ import annotations

from dataclasses import field
from typing import ClassVar

from pydantic.dataclasses import dataclass

from provisioner.common.paths import ClusterPaths
from provisioner.rundir import records


@dataclass(config=records.STRICT, frozen=True, slots=True)
class Rate:
    """Units per second of all GPUs of a run. `at`: UTC (2026-01-31T12:00:00Z); `nodes`: where it ran."""

    rate: float
    unit: str
    at: str
    nodes: list[str]


@dataclass(config=records.STRICT, slots=True)
class BenchmarkBaseline:
    """bench.json: the key of a run (workloads/benchmarks.py) → what it reached."""

    FILE: ClassVar[str] = "bench.json"
    REPAIR: ClassVar[str] = "remove it: `gpuprov bench --save-baseline` writes it again"

    rates: dict[str, Rate] = field(default_factory=dict)

    def save(self, paths: ClusterPaths) -> None:
        records.save(paths, self)


def load(paths: ClusterPaths) -> BenchmarkBaseline:
    """What is recorded. Raises DamagedFileError."""
    return records.load(paths, BenchmarkBaseline) or BenchmarkBaseline()
