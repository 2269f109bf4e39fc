"""All of gpuprov's own checks as declared, and the table of them in docs/checks.md."""

from __future__ import annotations

import importlib
import pkgutil
import sys
from functools import cache

from provisioner.verify import checks
from provisioner.verify.check import Check


@cache
def declared() -> tuple[Check, ...]:
    """Every check in provisioner/verify/checks, in the order of their ids."""
    found = []
    for info in pkgutil.iter_modules(checks.__path__):
        module = importlib.import_module(f"{checks.__name__}.{info.name}")
        found += [c for f in vars(module).values() if isinstance(c := getattr(f, "__check__", None), Check)]
    return tuple(sorted(found, key=lambda c: c.id))


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


if __name__ == "__main__":
    sys.stdout.write(table())
