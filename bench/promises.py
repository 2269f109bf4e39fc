"""One promise: what was said, what was measured, whether it is kept. And how all of them are shown."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Promise:
    """`ratio` is what is compared with `limit`; `at_most` says on which side of it the promise is kept.

    `unit` is empty for a ratio of two measured times.
    """

    subject: str
    promised: str
    measured: str
    ratio: float
    limit: float
    at_most: bool = True
    unit: str = "×"
    numbers: dict[str, Any] = field(default_factory=dict)

    @property
    def kept(self) -> bool:
        return self.ratio <= self.limit if self.at_most else self.ratio >= self.limit

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "kept": self.kept}


def table(promises: list[Promise]) -> str:
    """A Markdown table, readable as plain text too."""
    rows = [("what", "promised", "measured", "result", "")]
    rows += [
        (p.subject, p.promised, p.measured, f"{p.ratio:.2f} {p.unit}".strip(), "met" if p.kept else "**MISSED**")
        for p in promises
    ]
    widths = [max(len(row[i]) for row in rows) for i in range(5)]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |" for row in rows
    ]
    return "\n".join([lines[0], "|" + "|".join("-" * (width + 2) for width in widths) + "|", *lines[1:]])
