"""The tables of the documentation that are written from what the code knows.

python scripts/doc_tables.py            prints them
python scripts/doc_tables.py --write    puts each between the two marks of its page

docs/concepts/sandbox.md: every fault that `gpuprov sandbox faults` lists, in its order.
docs/concepts/stack.md: every machine type with the newest stack that it is given when nothing is pinned.
docs/reference/cluster-yaml-PROVIDER.md: of the table in cluster-yaml.md the keys that sites of that provider can have
(scripts/check_docs.py writes these, too).
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import get_args

from provisioner import catalog
from provisioner.common.errors import CODES
from provisioner.rundir.files import FILES
from provisioner.sandbox.faults import list_faults
from provisioner.spec import folders, schema
from provisioner.spec.models import ClusterSpec
from provisioner.spec.site import Site
from provisioner.stack.solve import solve
from provisioner.verify.merged_checks import reported

DOCS = Path(__file__).parent.parent / "docs"
CONCEPTS, REFERENCE = DOCS / "concepts", DOCS / "reference"


@dataclass(frozen=True, slots=True)
class Table:
    """A table of docs/, behind `<!-- NAME: begin -->` and before `<!-- NAME: end -->` of its page."""

    page: Path
    name: str
    rows: Callable[[], str]

    def placed(self) -> str:
        """The page's text with the table as the code has it now."""
        begin, end = f"<!-- {self.name}: begin -->", f"<!-- {self.name}: end -->"
        head, tail = self.page.read_text(encoding="utf-8").split(begin)
        return f"{head}{begin}\n{self.rows()}\n{end}{tail.split(end)[1]}"


def faults() -> str:
    """Every fault of the sandbox, as Markdown."""
    lines = ["| fault | what it is | found by | needs |", "| --- | --- | --- | --- |"]
    lines += [f"| `{f.name}` | {f.sentence} | `{reported(f.check)}` | {f.needs} |" for f in list_faults(None)]
    return "\n".join(lines)


def machines() -> str:
    """One row for each machine type of the catalogue, in its order, as Markdown."""
    lines = [
        "| machine | GPU | os | driver | modules | CUDA | NCCL | PyTorch | beside it |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for machine in catalog.load().listed.values():
        spec = ClusterSpec.model_validate(
            {
                "name": "table",
                "sites": {"here": {"provider": "baremetal"}},
                "groups": {"all": {"machine": machine.name}},
            }
        )
        stack = solve(spec)["all"]
        features = {
            "fabric manager": machine.fabric_manager_required, "nvlsm": machine.subnet_manager_required,
            "IMEX": machine.imex_required, f"EFA {stack.efa}": stack.efa, f"ROCm {stack.rocm}": stack.rocm,
        }  # fmt: skip
        cells = (
            f"`{machine.name}`", machine.gpu_model, stack.os, stack.driver or "", stack.kernel_modules or "",
            stack.cuda_toolkit or "", stack.nccl or "", (stack.pytorch or "").split("+", 1)[0],
            ", ".join(name for name, present in features.items() if present),
        )  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


SITE = "sites.<name>."
_ROW = re.compile(r"^\| `([^`]+)` \|.*$", re.M)


def keys(provider: str) -> str:
    """The rows of docs/reference/cluster-yaml.md that a file with sites of this provider alone can have."""
    models = {
        get_args(site_model.model_fields["provider"].annotation): site_model
        for site_model in folders.models("site", Site)
    }
    model = models[provider,]
    known = {f"{SITE}{key}" for key in schema.key_names(model.model_json_schema())}
    page = (REFERENCE / "cluster-yaml.md").read_text(encoding="utf-8").partition("## Every key")[2]
    page = page.partition("\n## ")[0]
    rows = [row[0] for row in _ROW.finditer(page) if not row[1].startswith(SITE) or row[1] in known]
    return "\n".join(["| key | value | default | meaning |", "| --- | --- | --- | --- |", *rows]).replace(
        "](#", "](cluster-yaml.md#"
    )


def page_of(provider: str) -> Path:
    """The page of a provider's keys."""
    return REFERENCE / f"cluster-yaml-{provider}.md"


PROVIDERS = ("aws", "alicloud", "azure", "tencent", "baremetal")
PAGES = tuple(Table(page_of(provider), "keys", partial(keys, provider)) for provider in PROVIDERS)


def codes() -> str:
    """One row for each code of an error, as Markdown."""
    rows = [f"| `{code}` | {meaning} |" for code, meaning in CODES.items()]
    return "\n".join(["| code | means |", "| --- | --- |", *rows])


def run_files() -> str:
    """One row for each file of the run directory, as Markdown."""
    rows = [f"| `{row.pattern}` | {row.holds} | {row.sharing} | {row.damaged or '-'} |" for row in FILES]
    return "\n".join(["| file | holds | sharing | when damaged |", "| --- | --- | --- | --- |", *rows])


TABLES = (
    Table(DOCS / "guides/operators.md", "files", run_files),
    Table(DOCS / "reference/cli/README.md", "codes", codes),
    Table(CONCEPTS / "sandbox.md", "faults", faults),
    Table(CONCEPTS / "stack.md", "machines", machines),
    *PAGES,
)


def main() -> None:
    for table in TABLES:
        if "--write" in sys.argv[1:]:
            table.page.write_text(table.placed(), encoding="utf-8")
        else:
            print(f"{table.page.name}:\n{table.rows()}\n")


if __name__ == "__main__":
    main()
