"""All of gpuprov's own checks as declared, and what docs/checks.md and docs/runbook.md say of them.

`python -m provisioner.verify.catalogue` writes both.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from provisioner.verify.check import Check
from provisioner.verify.checked import all_checks
from provisioner.verify.runbook import page


@cache
def declared() -> tuple[Check, ...]:
    """Every check in provisioner/verify/checks, in the order of their ids."""
    return tuple(sorted((check for _, check in all_checks()), key=lambda c: c.id))


def table() -> str:
    """The Markdown table of docs/checks.md."""
    rows = ["| check | severity | do | level | reads | failure explained by | what a failure means |"]
    rows.append("| --- | --- | --- | --- | --- | --- | --- |")
    for c in declared():
        reads = (
            ", ".join("the list of GPUs" if need == "gpus" else f"`{need}`" for need in c.needs) or "how its tool ended"
        )
        follows = ", ".join(f"`{other}`" for other in c.follows) or "-"
        rows.append(f"| `{c.id}` | {c.severity} | {c.action} | {c.level} | {reads} | {follows} | {c.says} |")
    return "\n".join(rows) + "\n"


def write(docs: Path) -> None:
    """Bring docs/checks.md and docs/runbook.md to what the code declares; what stands above their generated parts
    stays."""
    for name, begins, text in (("checks.md", "| check |", table()), ("runbook.md", "## What to do", page(declared()))):
        file = docs / name
        head = file.read_text(encoding="utf-8").partition(begins)[0]
        file.write_text(head + text, encoding="utf-8")


if __name__ == "__main__":
    write(Path(__file__).parents[2] / "docs")
