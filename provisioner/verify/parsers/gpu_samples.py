"""`nvidia-smi --query-gpu=… --format=csv`, asked again and again while the load program runs: what each GPU showed at
most and at least.

Traps: the header may name a field otherwise than it was asked for (clocks.sm, clocks.current.sm) and has its unit in
brackets; it comes again with each answer; memory without a sensor is N/A; an answer can be cut by the end of the load.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from provisioner.verify.document import plain
from provisioner.verify.parsers import Unreadable, first_line, lines, number, whole_number
from provisioner.verify.tool import Tool, nvidia


@dataclass(frozen=True, slots=True)
class Samples:
    """One GPU over the load: how often it answered, °C, MHz of its multiprocessors, W. None where it never said."""

    index: int
    count: int
    temperature: float | None = None
    """The highest."""
    memory_temperature: float | None = None
    """The highest."""
    clock_sm_mhz: float | None = None
    """The lowest."""
    power_w: float | None = None
    """The highest."""


def parse(text: str) -> tuple[Samples, ...]:
    names: list[str] = []
    samples: dict[int, Samples] = {}
    for line in lines(text):
        cells = [cell.strip() for cell in line.split(",")]
        if "index" in cells and "temperature.gpu" in cells:
            names = [cell.partition(" [")[0] for cell in cells]
        elif names and len(cells) == len(names):
            row = dict(zip(names, cells, strict=True))
            index = whole_number(row["index"])
            if index is not None:
                samples[index] = _with(samples.get(index, Samples(index, 0)), row)
    if not samples:
        raise Unreadable(f"no row of a GPU: {first_line(text)}")
    return tuple(samples[index] for index in sorted(samples))


def _with(so_far: Samples, row: Mapping[str, str]) -> Samples:
    clock = number(row.get("clocks.current.sm", row.get("clocks.sm")))
    return replace(
        so_far,
        count=so_far.count + 1,
        temperature=_maximum(so_far.temperature, number(row.get("temperature.gpu"))),
        memory_temperature=_maximum(so_far.memory_temperature, number(row.get("temperature.memory"))),
        clock_sm_mhz=min((c for c in (so_far.clock_sm_mhz, clock) if c is not None), default=None),
        power_w=_maximum(so_far.power_w, number(row.get("power.draw"))),
    )


def _maximum(*values: float | None) -> float | None:
    return max((value for value in values if value is not None), default=None)


FIELDS = "index,temperature.gpu,temperature.memory,clocks.current.sm,power.draw"
"""Of one name in every branch since 450: one field that a driver does not know, and it answers nothing at all."""
TOOLS = (
    Tool(
        file="nvidia-smi-samples.csv",
        field="samples",
        parse=parse,
        command=("nvidia-smi", f"--query-gpu={FIELDS}", "--format=csv"),
        when=nvidia,
        asked="throughout",
        label="nvidia-smi --query-gpu=… every 5 s of the load",
        document={"load_samples": plain},
    ),
)
