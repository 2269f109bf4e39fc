"""Terraform's JSON log (`-json`), line by line: what it plans and did, as events and numbers, and why it failed.

https://developer.hashicorp.com/terraform/internals/machine-readable-ui
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from provisioner.common.errors import Diagnostic, GpuprovError, LockedError, ProviderError
from provisioner.common.events import Events

OWN_DOING = ("Resource targeting is in effect", "Applied changes may be incomplete")
"""Warnings of Terraform's about -target, which gpuprov gives for a reason and a person has not given."""
IDLE = ("noop", "read")
"""Actions of a plan that change nothing."""


@dataclass(frozen=True, slots=True)
class Changes:
    """What a plan or an apply adds, changes and destroys: numbers of resources. `actions` of a plan: each resource's
    address with what is to be done to it (create, update, replace, delete); `reasons`: address → Terraform's word for
    why (tainted, requested, cannot_update, …); `outputs`: whether an output changes."""

    add: int = 0
    change: int = 0
    destroy: int = 0
    actions: tuple[tuple[str, str], ...] = field(default=(), compare=False)
    outputs: bool = field(default=False, compare=False)
    reasons: Mapping[str, str] = field(default_factory=dict, compare=False)

    @property
    def total(self) -> int:
        return self.add + self.change + self.destroy


@dataclass(slots=True)
class JsonLog:
    """What one command's log has said so far."""

    command: str
    events: Events
    changes: Changes = Changes()
    planned: list[tuple[str, str]] = field(default_factory=list)
    reasons: dict[str, str] = field(default_factory=dict)
    errors: list[Diagnostic] = field(default_factory=list)
    plain: list[str] = field(default_factory=list)
    """Lines that are no JSON."""
    outputs: bool = False
    """Whether a planned output differs from the state's."""

    def read(self, line: str) -> None:
        """Take a line."""
        try:
            record = json.loads(line)
        except ValueError:
            self.plain.append(line)
            return
        if not isinstance(record, dict):
            return
        kind = record.get("type", "")
        if kind == "change_summary":
            counts = record.get("changes", {})
            self.changes = Changes(
                counts.get("add", 0), counts.get("change", 0), counts.get("remove", 0), tuple(self.planned),
                outputs=self.outputs, reasons=self.reasons,
            )  # fmt: skip
        elif kind == "outputs":  # of a plan they have an action, of an apply a value
            rows = record.get("outputs", {}).values()
            self.outputs = any(row.get("action", "noop") not in IDLE for row in rows)
            self.changes = replace(self.changes, outputs=self.outputs)
        elif kind == "planned_change":
            change = record.get("change", {})
            if change.get("action") not in IDLE:
                address = change.get("resource", {}).get("addr", "?")
                self.planned.append((address, change.get("action", "?")))
                if reason := change.get("reason"):
                    self.reasons[address] = str(reason)
        elif kind == "apply_complete":
            self.events(
                "terraform",
                "progress",
                record.get("@message", ""),
                node=_node(record),
                unit="resource",
            )
        elif kind in ("apply_start", "apply_errored"):  # why it errored is a diagnostic
            self.events(
                "terraform",
                "progress" if kind == "apply_start" else "log",
                record.get("@message", ""),
                node=_node(record),
            )
        elif kind == "provision_progress":
            self.events("terraform", "log", record.get("hook", {}).get("output", ""), node=_node(record))
        elif kind == "diagnostic":
            self._diagnostic(record.get("diagnostic", {}))

    def _diagnostic(self, fields: dict[str, Any]) -> None:
        severity = str(fields.get("severity", ""))
        diagnostic = Diagnostic(
            str(fields.get("summary", "")), str(fields.get("detail", "")), str(fields.get("address", "")), severity
        )
        if diagnostic.summary in OWN_DOING:
            return
        is_error = severity == "error"  # the command fails with it, and what it fails with is told once
        if is_error:
            self.errors.append(diagnostic)
        self.events(
            "terraform", "log" if is_error else "warning", str(diagnostic),
            data={"command": self.command, "severity": severity},
        )  # fmt: skip

    def failure(self, status: int, where: str, log: str) -> GpuprovError:
        """The cause and the resource, not the wall: diagnostics first, else the last lines that Terraform printed."""
        diagnostics = self.errors or from_text(self.plain)
        lines = [line.strip() for line in self.plain if line.strip() not in "╷╵│"][-6:]
        cause = "\n  ".join(dict.fromkeys(map(str, diagnostics) if diagnostics else lines))
        cause = cause or f"it exited with status {status} and said nothing"
        return refused(self.command, cause, diagnostics, where=where, hint=f"the whole log: {log}" if log else "")


def refused(command: str, cause: str, diagnostics: Sequence[Diagnostic], *, where: str, hint: str = "") -> GpuprovError:
    """Terraform's command has failed: LockedError where another Terraform holds the state, else ProviderError; a lock
    that could not be asked for is held by nobody."""
    if any(is_lock_error(diagnostic) for diagnostic in diagnostics):
        hint = "another Terraform is running on it; if none is, `gpuprov unlock` removes what it left"
        return LockedError(f"terraform {command}: {cause}", where=where, hint=hint)
    return ProviderError(f"terraform {command} failed: {cause}", where=where, hint=hint, diagnostics=diagnostics)


_ERROR = re.compile(r"^Error: (.*)$")
_RESOURCE = re.compile(r"^  with (\S+),$")
_SOURCE = re.compile(r"^  on \S+ line \d+|^ +\d+: ")


def from_text(lines: Iterable[str]) -> list[Diagnostic]:
    """The errors of a command that has no JSON log (init, import, state), as it prints them for people.
    github.com/hashicorp/terraform: internal/command/format/diagnostic.go"""
    errors: list[tuple[str, str, list[str]]] = []
    for line in (part for text in lines for part in text.splitlines()):
        plain = re.sub(r"^│ ?", "", line.rstrip())
        if begins := _ERROR.match(plain):
            errors.append((begins[1], "", []))
        elif errors and (resource := _RESOURCE.match(plain)):
            errors[-1] = (errors[-1][0], resource[1], errors[-1][2])
        elif errors and plain not in "╷╵" and not _SOURCE.match(plain):
            errors[-1][2].append(plain)
    return [Diagnostic(summary, "\n".join(detail).strip(), address) for summary, address, detail in errors]


LOCK_ERROR = "Error acquiring the state lock"
"""Summary of the diagnostic; its detail has the holder ("Lock Info:" and an ID) only where there is one.
github.com/hashicorp/terraform: internal/command/clistate/state.go, internal/states/statemgr/locker.go"""
_HOLDER = re.compile(r"Lock Info:\s+ID:\s+\S")


def is_lock_error(diagnostic: Diagnostic) -> bool:
    """Whether a diagnostic says that somebody else holds the state's lock."""
    return diagnostic.summary == LOCK_ERROR and _HOLDER.search(diagnostic.detail) is not None


def _node(record: dict[str, Any]) -> str | None:
    """The key of a for_each resource: the node's name, by the module contract."""
    key = record.get("hook", {}).get("resource", {}).get("resource_key")
    return key if isinstance(key, str) else None
