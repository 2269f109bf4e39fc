"""docs/sandbox.md's table: every fault that `gpuprov sandbox faults` lists, in its order.

python -m provisioner.sandbox.fault_table            prints it
python -m provisioner.sandbox.fault_table --write    puts it into docs/sandbox.md
"""

from __future__ import annotations

from pathlib import Path

from provisioner.generated import Marks
from provisioner.sandbox.faults import list_faults

MARKS = Marks(Path("docs/sandbox.md"), "faults")


def table() -> str:
    """The table as Markdown."""
    lines = ["| fault | what it is | found by | needs |", "| --- | --- | --- | --- |"]
    lines += [f"| `{f.name}` | {f.sentence} | `{f.check}` | {f.needs} |" for f in list_faults(None)]
    return "\n".join(lines)


def placed(page: str) -> str:
    """A page with the table between its two marks."""
    return MARKS.placed(page, table())


if __name__ == "__main__":
    MARKS.show(table())
