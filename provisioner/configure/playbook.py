"""playbooks/site.yml as gpuprov reads it: which roles it has, in which order, and under which condition each runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import jinja2

from provisioner.common import paths, yaml_text

IMPORT_ROLE = "ansible.builtin.import_role"


@dataclass(frozen=True, slots=True)
class Entry:
    """One role of the playbook. `task` is its whole entry; `when` a Jinja expression, empty for every node."""

    role: str
    when: str
    task: Mapping[str, Any]

    def applies(self, variables: Mapping[str, Any]) -> bool:
        """Whether the role runs for these inventory variables. True where only Ansible can evaluate the condition: then
        the role counts as wanted, and Ansible skips it."""
        if not self.when:
            return True
        try:
            expression = jinja2.Environment(autoescape=False).compile_expression(self.when, undefined_to_none=False)  # noqa: S701
            return bool(expression(**variables))
        except (jinja2.TemplateError, TypeError):
            return True


@dataclass(frozen=True, slots=True)
class Playbook:
    """`entries` in the order in which they run. `tasks`: names of the other tasks. `head`: what is common to all roles,
    that is the play without its tasks, and the tasks before the first role."""

    entries: tuple[Entry, ...]
    tasks: tuple[str, ...]
    head: Mapping[str, Any]

    @property
    def roles(self) -> tuple[str, ...]:
        return tuple(entry.role for entry in self.entries)

    def task(self, role: str) -> Mapping[str, Any] | None:
        """The entry of a role."""
        return next((entry.task for entry in self.entries if entry.role == role), None)


def load() -> Playbook:
    """The playbook of this installation."""
    return _read(paths.data("ansible"))


@cache
def _read(root: Path) -> Playbook:
    text = (root / "playbooks" / "site.yml").read_text(encoding="utf-8")
    play = yaml_text.load(text)[0]
    entries = tuple(_entry(task) for task in play["tasks"] if IMPORT_ROLE in task)
    first = next((index for index, task in enumerate(play["tasks"]) if IMPORT_ROLE in task), 0)
    head = {key: value for key, value in play.items() if key != "tasks"} | {"tasks": play["tasks"][:first]}
    return Playbook(entries, tuple(t.get("name", "") for t in play["tasks"] if IMPORT_ROLE not in t), head)


def _entry(task: Mapping[str, Any]) -> Entry:
    when = task.get("when", "")
    text = " and ".join(f"({condition})" for condition in when) if isinstance(when, list) else str(when)
    return Entry(task[IMPORT_ROLE]["name"], text, task)
