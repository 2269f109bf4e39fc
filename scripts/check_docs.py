"""The generated parts of docs/reference/checks.md and docs/reference/runbook.md, made of what the checks declare.

python scripts/check_docs.py writes both, docs/reference/evidence.md, the policies of the clouds' pages and the keys of
cluster.yaml by provider; what stands around their generated parts stays.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from provisioner.verify.check import Check
from provisioner.verify.merged_checks import MERGED, by_id, reported
from provisioner.verify.registry import declared
from provisioner.verify.runbook import STEPS, anchor, by_hand
from scripts import doc_tables, evidence_docs, policy_docs

DOCS = Path(__file__).parent.parent / "docs/reference"

WITHOUT_LOCK = """\
`gpuprov verify --host` and `--bundle` judge machines without a lock and without a cluster.yaml. What contradicts
itself on a node, or the machine type, is found there as well; these checks, or parts of them, need the lock:"""


def table() -> str:
    """The Markdown table of docs/reference/checks.md."""
    rows = ["| check | severity | do | level | reported as | reads | failure explained by | what a failure means |"]
    rows.append("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for c in declared():
        reads = (
            ", ".join("the list of GPUs" if need == "gpus" else f"`{need}`" for need in c.needs) or "how its tool ended"
        )
        follows = ", ".join(f"`{other}`" for other in c.follows) or "-"
        merged = f"`{reported(c.id)}`" if reported(c.id) != c.id or c.id in by_id() else "-"
        rows.append(f"| `{c.id}` | {c.severity} | {c.action} | {c.level} | {merged} | {reads} | {follows} | {c.says} |")
    rows += ["", "## Without a lock", "", WITHOUT_LOCK, ""]
    rows += ["| check | what needs the lock | judged without one |", "| --- | --- | --- |"]
    rows += [f"| `{c.id}` | {c.lock} | {c.without_lock or '-'} |" for c in declared() if c.lock]
    rows += ["", "## Reported under one name", "", "| name | checks | what a failure means |", "| --- | --- | --- |"]
    rows += [f"| `{m.id}` | {', '.join(f'`{part}`' for part in m.parts)} | {m.says} |" for m in MERGED]
    return "\n".join(rows) + "\n"


def page(checks: Sequence[Check]) -> str:
    """The generated part of docs/reference/runbook.md."""
    lines = ["## What to do", ""]
    for action, steps in STEPS.items():
        lines += [f"### {action}", "", *(f"{n}. {step}" for n, step in enumerate(steps, 1)), ""]
    lines += ["## Check by check", ""]
    names = {check.id for check in checks}
    for merged in MERGED:
        heading = merged.id if merged.id not in names else f"{merged.id} and others"
        lines += [f"### {heading}", "", f"{merged.says} It is one of these:", ""]
        lines += [*(f"- [{part}](#{anchor(part)})" for part in merged.parts), ""]
    for check in checks:
        lines += [f"### {check.id}", "", check.says, ""]
        lines.append(f"- severity: {check.severity}; usual next step: [{check.action}](#{check.action})")
        if seen := by_hand(check):
            lines.append("- see it by hand: " + ", ".join(f"`{command}`" for command in seen))
        if check.follows:
            lines.append("- look first at: " + ", ".join(f"[{other}](#{anchor(other)})" for other in check.follows))
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def main() -> None:
    for name, begins, text in (("checks.md", "| check |", table()), ("runbook.md", "## What to do", page(declared()))):
        file = DOCS / name
        head = file.read_text(encoding="utf-8").partition(begins)[0]
        file.write_text(head + text, encoding="utf-8")
    evidence_docs.main()
    policy_docs.main()
    for one in doc_tables.PAGES:
        one.page.write_text(one.placed(), encoding="utf-8")


if __name__ == "__main__":
    main()
