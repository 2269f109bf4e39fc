"""The reference of the checks, a page for each area, made of what the checks declare.

    python -m scripts.check_docs     writes every generated page of docs/

These are docs/reference/checks (a table), docs/reference/runbook (a section for each check), the commands and documents
(cli_docs.py), docs/reference/evidence.md (evidence_docs.py), the policies of the clouds' pages (policy_docs.py) and the
tables (doc_tables.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from provisioner.verify.check import Check
from provisioner.verify.merged_checks import MERGED, MergedCheck, by_id, reported
from provisioner.verify.registry import declared
from provisioner.verify.runbook import STEPS, anchor, by_hand
from scripts import cli_docs, doc_tables, evidence_docs, policy_docs

REFERENCE = Path(__file__).parent.parent / "docs/reference"
BEGIN, END = "<!-- checks: begin -->", "<!-- checks: end -->"
AREAS = {
    "amd": "AMD GPUs", "baseline": "The fleet's own speed", "bmc": "BMC", "cloud": "Events of the cloud",
    "container": "Containers", "cuda": "CUDA", "dcgm": "DCGM", "driver": "NVIDIA driver", "efa": "EFA",
    "fabric": "RDMA fabric", "fleet": "Differences between nodes", "framework": "Frameworks", "gpu": "GPUs",
    "host": "Host", "ib": "InfiniBand", "image": "Images", "kernel": "Kernel", "limits": "Limits",
    "load": "Load on one node", "log": "Kernel log", "nccl": "NCCL", "net": "Network", "nvlink": "NVLink",
    "nvswitch": "NVSwitch", "os": "Distribution", "packages": "Packages", "pcie": "PCIe",
    "peermem": "GPU memory for RDMA", "rdma": "RDMA cards", "security": "Security", "services": "Services",
    "speed": "Speed", "storage": "Storage",
}  # fmt: skip
"""Area (what stands before the dot of an id) → its title."""

WITHOUT_LOCK = """\
`gpuprov verify --host` and `--bundle` judge machines without a lock and without a cluster.yaml. Contradictions on a
node, or with its machine type, are found there as well. These checks, or parts of them, need the lock:"""


def areas() -> list[str]:
    """The areas that have a check or a name under which checks are reported."""
    return sorted({_area(check.id) for check in declared()} | {_area(merged.id) for merged in MERGED})


def _area(id: str) -> str:
    return id.partition(".")[0]


def _title(area: str) -> str:
    return AREAS.get(area, area)


def _of(area: str) -> tuple[list[Check], list[MergedCheck]]:
    return [c for c in declared() if _area(c.id) == area], [m for m in MERGED if _area(m.id) == area]


def _heading(merged: MergedCheck) -> str:
    """A name under which checks are reported may be a check's id, too."""
    return merged.id if merged.id not in {check.id for check in declared()} else f"{merged.id} and others"


def _link(id: str, folder: str = "") -> str:
    return f"{folder}{_area(id)}.md#{anchor(id)}"


def table(area: str) -> str:
    """The page of an area below docs/reference/checks."""
    checks, merged = _of(area)
    lines = [f"# {area}: {_title(area)}", ""]
    if checks:
        lines += ["| check | severity | do | level | what a failure means |", "| --- | --- | --- | --- | --- |"]
        for c in checks:
            link = f"[`{c.id}`]({_link(c.id, '../runbook/')})"
            lines.append(f"| {link} | {c.severity} | {c.action} | {c.level} | {c.says} |")
        lines.append("")
    if merged:
        lines += ["## Reported under one name", "", "| name | checks | what a failure means |", "| --- | --- | --- |"]
        lines += [f"| `{m.id}` | {', '.join(f'`{part}`' for part in m.parts)} | {m.says} |" for m in merged]
    return "\n".join(lines).rstrip() + "\n"


def checks_index() -> str:
    """The generated part of docs/reference/checks/README.md."""
    rows = ["| area | fatal | others | subject |", "| --- | --- | --- | --- |"]
    for area in areas():
        checks, _ = _of(area)
        fatal = sum(check.severity == "fatal" for check in checks)
        rows.append(f"| [{area}]({area}.md) | {fatal} | {len(checks) - fatal} | {_title(area)} |")
    rows += ["", "## Without a lock", "", WITHOUT_LOCK, ""]
    rows += ["| check | what needs the lock | judged without one |", "| --- | --- | --- |"]
    rows += [f"| `{c.id}` | {c.lock} | {c.without_lock or '-'} |" for c in declared() if c.lock]
    rows += ["", "## Reported under one name", "", "A report names some checks together:", ""]
    rows += ["| name | what a failure means |", "| --- | --- |"]
    rows += [f"| [`{m.id}`]({_link(_heading(m).replace(' ', '-'), '../runbook/')}) | {m.says} |" for m in MERGED]
    return "\n".join(rows) + "\n"


def runbook(area: str) -> str:
    """The page of an area below docs/reference/runbook."""
    checks, merged_checks = _of(area)
    lines = [f"# {area}: {_title(area)}", ""]
    for merged in merged_checks:
        lines += [f"## {_heading(merged)}", "", f"{merged.says} It is one of these:", ""]
        lines += [*(f"- [{part}]({_link(part)})" for part in merged.parts), ""]
    for check in checks:
        lines += [f"## {check.id}", "", check.says, "", *_entry(check), ""]
    return "\n".join(lines).rstrip() + "\n"


def _entry(check: Check) -> Iterator[str]:
    """What a person on call needs of a check, a line each."""
    step = f"[{check.action}](README.md#{check.action})"
    yield f"- severity: {check.severity}; level: {check.level}; usual next step: {step}"
    if commands := by_hand(check):
        yield "- see it by hand: " + ", ".join(f"`{command}`" for command in commands)
    if check.follows:
        yield "- look first at: " + ", ".join(f"[{other}]({_link(other)})" for other in check.follows)
    files = [f"`{need}`" for need in check.needs if need != "gpus"]
    if files:
        yield f"- unknown without: {', '.join(files)} of the bundle"
    if reported(check.id) != check.id or check.id in by_id():
        yield f"- reported as: `{reported(check.id)}`"
    basis = f"capture `{check.measured}`" if check.measured else check.documented
    yield f"- rests on: {check.basis}" + (f" ({basis})" if basis else "")


def runbook_index() -> str:
    """The generated part of docs/reference/runbook/README.md."""
    lines = ["## What to do", ""]
    for action, steps in STEPS.items():
        lines += [f"### {action}", "", *(f"{n}. {step}" for n, step in enumerate(steps, 1)), ""]
    lines += ["## Areas", "", "| area | checks | subject |", "| --- | --- | --- |"]
    lines += [f"| [{area}]({area}.md) | {len(_of(area)[0])} | {_title(area)} |" for area in areas()]
    return "\n".join(lines) + "\n"


def pages() -> Iterator[tuple[Path, str]]:
    """Every page of checks and runbook with its text as the code has it now."""
    for folder, index, area_page in (("checks", checks_index, table), ("runbook", runbook_index, runbook)):
        file = REFERENCE / folder / "README.md"
        head, tail = file.read_text(encoding="utf-8").split(BEGIN)
        yield file, f"{head}{BEGIN}\n\n{index()}\n{END}{tail.split(END)[1]}"
        for area in areas():
            yield REFERENCE / folder / f"{area}.md", area_page(area)


def main() -> None:
    for file, text in (*pages(), *cli_docs.pages()):
        file.write_text(text, encoding="utf-8")
    evidence_docs.main()
    policy_docs.main()
    for table in doc_tables.TABLES:
        table.page.write_text(table.placed(), encoding="utf-8")


if __name__ == "__main__":
    main()
