"""The policies of docs/guides/aws.md, azure.md, alicloud.md and tencent.md, made of each provider's actions.yaml.

A page has them between `<!-- policy: NAME -->` and `<!-- end of policy -->`, and what nobody has verified between
`<!-- unverified actions -->` and `<!-- end of unverified actions -->`.
"""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from provisioner.machines.providers import actions
from provisioner.machines.providers.actions import ActionTable, Statement

GUIDES = Path(__file__).parent.parent / "docs/guides"
PROVIDERS = ("aws", "azure", "alicloud", "tencent")
WIDTH = 118
LOOK = re.compile(r"Describe|Get|List|Head|Simulate|Decode")
REMOVE = re.compile(r"Cancel|Delete|Deregister|Detach|Disassociate|Leave|Release|Revoke|Terminate|Un(assoc|[tT]ag)")
MARKED = re.compile(r"(<!-- policy: (\w+) -->\n).*?(<!-- end of policy -->\n)", re.S)
NOTES = re.compile(r"(<!-- unverified actions -->\n).*?(<!-- end of unverified actions -->\n)", re.S)
DESCRIPTIONS = {
    "plan": "Plans the machines of a GPU fleet.", "up": "Makes and removes the machines of a GPU fleet.",
    "gc": "Removes what was left of a GPU fleet.", "image": "Makes images for a GPU fleet.",
    "cost": "Asks what a GPU fleet costs.", "state": "Keeps the state of a GPU fleet.",
}  # fmt: skip


def statements(table: ActionTable, policy: str) -> Iterator[Statement]:
    """The statements of a policy: what looks, makes and removes without a limit, then what the table narrows."""
    remaining = set(table.policy(policy))
    narrowed = []
    for row in table.statements:
        present = sorted(remaining.intersection(row.actions))
        if present and (not row.policies or policy in row.policies):
            narrowed.append(Statement(row.name, tuple(present), row.resource, row.condition))
            remaining -= set(present)
    by_verb: dict[str, list[str]] = {"Look": [], "Make": [], "Remove": []}
    for name in sorted(remaining):
        verb = name.partition(":")[2]
        by_verb["Look" if LOOK.match(verb) else "Remove" if REMOVE.match(verb) else "Make"].append(name)
    yield from (Statement(name, tuple(names)) for name, names in by_verb.items() if names)
    yield from narrowed


def document(provider: str, policy: str) -> Mapping[str, Any]:
    """A policy as its cloud takes it."""
    table = actions.load(provider)
    if provider == "azure":
        return _role(table, policy)
    rows = []
    for statement in statements(table, policy):
        row: dict[str, Any] = {"Sid": statement.name} if provider == "aws" else {}
        row |= {"Effect": "Allow", "Action": list(statement.actions), "Resource": list(statement.resource)}
        if statement.condition:
            row["Condition"] = statement.condition
        rows.append(row)
    if provider == "tencent":
        lower = [{key.lower(): value for key, value in {**row, "Effect": "allow"}.items()} for row in rows]
        return {"version": "2.0", "statement": lower}
    return {"Version": "2012-10-17" if provider == "aws" else "1", "Statement": rows}


def _role(table: ActionTable, policy: str) -> Mapping[str, Any]:
    names = sorted(table.policy(policy))
    data = [name for name in names if name in table.calls.get("state_data", ())]
    return {
        "Name": f"gpuprov {policy}", "Description": DESCRIPTIONS[policy],
        "Actions": [name for name in names if name not in data], "NotActions": [],
        **({"DataActions": data, "NotDataActions": []} if data else {}),
        "AssignableScopes": ["/subscriptions/11111111-2222-3333-4444-555555555555"],
    }  # fmt: skip


def packed(value: Any, indent: int = 0) -> str:
    """JSON with as many texts of a list in a line as fit."""
    pad = " " * indent
    if isinstance(value, list) and value and all(isinstance(item, str) for item in value):
        line = json.dumps(value)
        if len(line) + indent + 16 <= WIDTH:
            return line
        text = ", ".join(json.dumps(item) for item in value)
        lines = textwrap.wrap(text, WIDTH - indent - 2, break_long_words=False, break_on_hyphens=False)
        return "[\n" + "\n".join(f"{pad}  {line}" for line in lines) + f"\n{pad}]"
    if isinstance(value, list) and value:
        return "[\n" + ",\n".join(f"{pad}  {packed(item, indent + 2)}" for item in value) + f"\n{pad}]"
    if isinstance(value, Mapping) and value:
        rows = (f"{pad}  {json.dumps(key)}: {packed(item, indent + 2)}" for key, item in value.items())
        return "{\n" + ",\n".join(rows) + f"\n{pad}}}"
    return json.dumps(value)


def unverified(provider: str) -> Sequence[str]:
    """One line for each thing that was not read in a source."""
    table = actions.load(provider)
    kinds_by_action: dict[tuple[str, str], set[str]] = {}
    for kind, operations in table.resources.items():
        for rows in operations.values():
            for action in rows:
                if action.source == actions.UNVERIFIED:
                    kinds_by_action.setdefault((action.name, action.condition), set()).add(kind)
    lines = [
        f"`{name}` ({', '.join(f'`{kind}`' for kind in sorted(kinds))}{f': {condition}' if condition else ''})"
        for (name, condition), kinds in sorted(kinds_by_action.items())
    ]
    return [*lines, *table.unverified]


def written(provider: str, text: str) -> str:
    """A page with its policies and what is unverified of them."""
    text = MARKED.sub(
        lambda match: f"{match[1]}\n```json\n{packed(document(provider, match[2]))}\n```\n\n{match[3]}", text
    )
    notes = "".join(f"- {line}\n" for line in unverified(provider))
    return NOTES.sub(lambda match: f"{match[1]}\n{notes}\n{match[2]}", text)


def main() -> None:
    for provider in PROVIDERS:
        file = GUIDES / f"{provider}.md"
        file.write_text(written(provider, file.read_text(encoding="utf-8")), encoding="utf-8")
