"""Terraform's JSON log (`-json`), line by line: what it plans and did, as events and numbers, and why it failed.

https://developer.hashicorp.com/terraform/internals/machine-readable-ui
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from provisioner.errors import GpuprovError, LockedError, ProviderError
from provisioner.events import Events

IDLE = ("noop", "read")
"""Actions of a plan that change nothing."""


@dataclass(frozen=True, slots=True)
class Changes:
    """What a plan or an apply adds, changes and destroys: numbers of resources. `actions` of a plan: each resource's
    address with what is to be done to it (create, update, replace, delete)."""

    add: int = 0
    change: int = 0
    destroy: int = 0
    actions: tuple[tuple[str, str], ...] = field(default=(), compare=False)

    @property
    def total(self) -> int:
        return self.add + self.change + self.destroy


@dataclass(slots=True)
class JsonLog:
    """What one command's log has said so far."""

    command: str
    events: Events
    changes: Changes = Changes()
    done: int = 0
    planned: list[tuple[str, str]] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    plain: list[str] = field(default_factory=list)
    """Lines that are no JSON."""

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
                counts.get("add", 0), counts.get("change", 0), counts.get("remove", 0), tuple(self.planned)
            )
        elif kind == "planned_change":
            change = record.get("change", {})
            if change.get("action") not in IDLE:
                self.planned.append((change.get("resource", {}).get("addr", "?"), change.get("action", "?")))
        elif kind == "apply_complete":
            self.done += 1
            self.events(
                "terraform",
                "progress",
                record.get("@message", ""),
                node=_node(record),
                done=self.done,
                total=self.changes.total or None,
            )
        elif kind in ("apply_start", "apply_errored"):
            self.events(
                "terraform",
                "progress" if kind == "apply_start" else "warning",
                record.get("@message", ""),
                node=_node(record),
            )
        elif kind == "provision_progress":
            self.events("terraform", "log", record.get("hook", {}).get("output", ""), node=_node(record))
        elif kind == "diagnostic":
            self._diagnostic(record.get("diagnostic", {}))

    def _diagnostic(self, found: dict[str, Any]) -> None:
        address = found.get("address", "")
        detail = " ".join(str(found.get("detail", "")).split())
        text = f"{address}: " if address else ""
        text += found.get("summary", "") + (f": {detail}" if detail else "")
        if found.get("severity") == "error":
            self.errors.append(text)
        self.events("terraform", "warning", text, data={"command": self.command, "severity": found.get("severity", "")})

    def failure(self, status: int, where: str, log: str) -> GpuprovError:
        """The cause and the resource, not the wall: diagnostics first, else the last lines that Terraform printed."""
        said = self.errors or [line.strip() for line in self.plain if line.strip() and line.strip() not in "╷╵│"][-6:]
        cause = "\n  ".join(dict.fromkeys(said)) or f"it exited with status {status} and said nothing"
        if "Error acquiring the state lock" in cause:
            hint = "another Terraform is running on it; if none is, `gpuprov unlock` removes what it left"
            return LockedError(f"terraform {self.command}: {cause}", where=where, hint=hint)
        return ProviderError(
            f"terraform {self.command} failed: {cause}",
            where=where,
            hint=f"the whole log: {log}" if log else "",
        )


def _node(record: dict[str, Any]) -> str | None:
    """The key of a for_each resource: the node's name, by the module contract."""
    key = record.get("hook", {}).get("resource", {}).get("resource_key")
    return key if isinstance(key, str) else None
