"""docs/stack.md's table: every machine type with the newest stack that it is given when nothing is pinned.

python scripts/stack_table.py            prints it
python scripts/stack_table.py --write    puts it into docs/stack.md
"""

from __future__ import annotations

from pathlib import Path

from provisioner import catalog
from provisioner.generated import Marks
from provisioner.spec.models import ClusterSpec
from provisioner.stack.solve import solve

MARKS = Marks(Path("docs/stack.md"), "machines")
HEAD = (
    "| machine | GPU | os | driver | modules | CUDA | NCCL | PyTorch | beside it |",
    "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
)


def table() -> str:
    """The table as Markdown, one row for each machine type of the catalogue, in its order."""
    lines = list(HEAD)
    for machine in catalog.load().machines():
        spec = ClusterSpec.model_validate(
            {
                "name": "table",
                "sites": {"here": {"provider": "baremetal"}},
                "groups": {"all": {"machine": machine.name}},
            }
        )
        stack = solve(spec)["all"]
        beside = {
            "fabric manager": machine.fabric_manager_required, "nvlsm": machine.subnet_manager_required,
            "IMEX": machine.imex_required, f"EFA {stack.efa}": stack.efa, f"ROCm {stack.rocm}": stack.rocm,
        }  # fmt: skip
        cells = (
            f"`{machine.name}`", machine.gpu_model, stack.os, stack.driver or "", stack.kernel_modules or "",
            stack.cuda_toolkit or "", stack.nccl or "", (stack.pytorch or "").split("+", 1)[0],
            ", ".join(name for name, there in beside.items() if there),
        )  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def placed(page: str) -> str:
    """A page with the table between its two marks."""
    return MARKS.placed(page, table())


if __name__ == "__main__":
    MARKS.show(table())
