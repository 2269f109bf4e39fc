"""docs/sandbox.md's table: every fault that `gpuprov sandbox faults` lists, in its order.

python -m provisioner.sandbox.fault_table            prints it
python -m provisioner.sandbox.fault_table --write    puts it into docs/sandbox.md
"""

from __future__ import annotations

import sys
from pathlib import Path

from provisioner.sandbox.faults import list_faults

BEGIN, END = "<!-- faults: begin -->", "<!-- faults: end -->"
PAGE = Path("docs/sandbox.md")


def table() -> str:
    """The table as Markdown."""
    lines = ["| fault | what it is | found by | needs |", "| --- | --- | --- | --- |"]
    lines += [f"| `{f.name}` | {f.sentence} | `{f.check}` | {f.needs} |" for f in list_faults(None)]
    return "\n".join(lines)


def placed(page: str) -> str:
    """A page with the table between its two marks."""
    before, rest = page.split(BEGIN)
    return f"{before}{BEGIN}\n{table()}\n{END}{rest.split(END)[1]}"


if __name__ == "__main__":
    if "--write" in sys.argv[1:]:
        PAGE.write_text(placed(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    else:
        sys.stdout.write(table() + "\n")
