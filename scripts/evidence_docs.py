"""docs/reference/evidence.md: what each fatal check and each limit rests on, from the code and the catalogue.

scripts/check_docs.py writes the generated part; what stands above it stays.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from provisioner import catalog
from provisioner.catalog.limits import Ceiling, CopyLimit, GpuLimit, Limit, ScratchLimit
from provisioner.catalog.models import Basis
from provisioner.sandbox.sources import source_rows
from provisioner.stack.facts import rows
from provisioner.verify.check import Check
from provisioner.verify.expectations import expect
from provisioner.verify.registry import declared
from provisioner.verify.row_basis import FROM_ROW

PAGE = Path(__file__).parent.parent / "docs/reference/evidence.md"
BEGINS = "## In short"
UNVERIFIED = """\
These checks warn or inform. Only sandbox nodes were held to them so far. The runbook says what each check rests on."""
UNITS = {"nccl": "GB/s", "copies": "GB/s", "fabric": "GB/s", "scratch": "GB/s", "rdma": "Gbit/s", "gpus": "GB/s"}


def text() -> str:
    """The generated part of the page, as Markdown."""
    catalogue, checks = catalog.load(), declared()
    limits = [row for rows in catalogue.limit_rows.values() for row in rows]
    return "\n".join(
        [
            *_short(checks, limits, catalogue.ceiling_rows),
            *_expectations(),
            *_checks(checks),
            *_limits(catalogue.limit_rows.items()),
            *_ceilings(catalogue.ceiling_rows),
            *_repositories(),
            *_simulated_texts(),
        ]
    )


def _short(checks: Iterable[Check], limits: Iterable[Limit], ceilings: Iterable[Ceiling]) -> list[str]:
    rows = {
        "fatal checks": Counter(check.basis for check in checks if check.severity == "fatal"),
        "other checks": Counter(check.basis for check in checks if check.severity != "fatal"),
        "expected values of machine types": sum(_of_machines().values(), Counter[Basis]()),
        "limits of a machine type": Counter(row.basis for row in limits),
        "limits of every machine": Counter(row.basis for row in ceilings),
        "texts of simulated nodes": Counter(
            row.basis.replace("simulated", "unverified") for row in source_rows().values()
        ),
    }
    lines = [BEGINS, "", "| | measured | documented | unverified |", "| --- | --- | --- | --- |"]
    for name, counts in rows.items():
        lines.append(f"| {name} | {counts['measured']} | {counts['documented']} | {counts['unverified']} |")
    return [*lines, ""]


@cache
def _of_machines() -> dict[str, Counter[Basis]]:
    """Field of Expected that follows from a machine's row → its basis over the machine types that have the value."""
    known, bases = catalog.load(), {field: Counter[Basis]() for field in FROM_ROW}
    for machine in known.machines():
        want = expect(machine, known.gpu(machine.gpu_model), None, None, known)
        for field, basis in want.basis.items():
            if getattr(want, field) not in (None, False, 0, "", "none", (), {}):
                bases[field][basis] += 1
    return bases


def _expectations() -> list[str]:
    lines = [
        "## What is expected of a machine type",
        "",
        "How many machine types are held to it, by what their rows rest on.",
    ]
    lines += ["", "| expected | follows from | measured | documented | unverified |", "| --- | --- | --- | --- | --- |"]
    for field, counts in _of_machines().items():
        if counts:
            keys = ", ".join(f"`{key}`" for key in FROM_ROW[field])
            lines.append(
                f"| `{field}` | {keys} | {counts['measured']} | {counts['documented']} | {counts['unverified']} |"
            )
    return [*lines, ""]


def _checks(checks: Iterable[Check]) -> list[str]:
    lines = ["## Fatal checks", "", "| check | rests on | source |", "| --- | --- | --- |"]
    for check in checks:
        if check.severity == "fatal":
            source = f"capture `{check.measured}`" if check.measured else check.documented
            lines.append(f"| `{check.id}` | {check.basis} | {source} |")
    counts = Counter(c.id.partition(".")[0] for c in checks if c.severity != "fatal" and c.basis == "unverified")
    lines += ["", "## Unverified warnings", "", UNVERIFIED, "", "| area | unverified checks |", "| --- | --- |"]
    return [*lines, *(f"| [{area}](runbook/{area}.md) | {counts[area]} |" for area in sorted(counts)), ""]


def _limits(rows: Iterable[tuple[str, tuple[Limit, ...]]]) -> list[str]:
    lines = ["## Limits of a machine type", "", "| limit | machines | at least | rests on | source |"]
    lines.append("| --- | --- | --- | --- | --- |")
    for test, limits in rows:
        for row in limits:
            name = f"{test}, {row.way}" if isinstance(row, CopyLimit | ScratchLimit | GpuLimit) else test
            unit = "TFLOP/s" if name == "gpus, compute" else UNITS[test]
            machines = ", ".join(
                f"`{machine}`" for machine in (row.gpus if isinstance(row, GpuLimit) else row.machines)
            )
            lines.append(f"| {name} | {machines} | {row.threshold:g} {unit} | {row.basis} | {row.source} |")
    return [*lines, ""]


def _ceilings(rows: Iterable[Ceiling]) -> list[str]:
    lines = ["## Limits of every machine", "", "| limit | at most | rests on | source |", "| --- | --- | --- | --- |"]
    lines += [f"| `{row.name}` | {row.most:g} {row.unit} | {row.basis} | {row.source} |" for row in rows]
    return [*lines, ""]


def main() -> None:
    head = PAGE.read_text(encoding="utf-8").partition(BEGINS)[0]
    PAGE.write_text(head + text(), encoding="utf-8")


def _repositories() -> list[str]:
    lines = ["## Where packages come from", "", "| repository | kind | vouched for by | rests on | source |"]
    lines.append("| --- | --- | --- | --- | --- |")
    for name, row in rows("repositories").items():
        kind = "archives" if row.get("archives") else "apt"
        known = f"{len(row.get('hashes') or ())} known SHA-256; others are confirmed in cluster.yaml"
        unsigned = known if row.get("archives") else "a key that cluster.yaml names"
        key = f"key {row['fingerprint']}" if row["fingerprint"] else unsigned
        lines.append(f"| {name} | {kind} | {key} | {row.get('basis', 'documented')} | {_one_line(row['source'])} |")
    return [*lines, ""]


def _simulated_texts() -> list[str]:
    lines = ["## What simulated nodes show of real software", "", "| what | where | rests on | source |"]
    lines.append("| --- | --- | --- | --- |")
    lines += [f"| {row.name} | {row.as_} | {row.basis} | {_one_line(row.source)} |" for row in source_rows().values()]
    return [*lines, ""]


def _one_line(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
