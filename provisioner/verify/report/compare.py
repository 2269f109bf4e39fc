"""What has changed since an earlier report of the same fleet: what broke, what was mended."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from provisioner.verify.results import Report


@dataclass(frozen=True, slots=True)
class Change:
    """One check on one node that stands otherwise than before. `before` is None for a node that was not there."""

    node: str
    check: str
    before: str | None
    after: str
    message: str

    @property
    def worse(self) -> bool:
        return self.after in ("fail", "unknown")


def earlier(page: str | Path | None) -> Mapping[str, Any] | None:
    """report.json beside the page of an earlier run; None where there is none, or it is damaged."""
    if page is None:
        return None
    try:
        document = json.loads(Path(page).with_name("report.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return document if isinstance(document, dict) and isinstance(document.get("nodes"), list) else None


def changes(previous: Mapping[str, Any], report: Report) -> tuple[Change, ...]:
    """What fails or is unknown now and was not, and the reverse; worse ones first. What was skipped before or is now
    (another level, another machine) is no change."""
    old = {
        str(node.get("name")): {str(c.get("id")): str(c.get("status")) for c in node.get("checks", [])}
        for node in previous["nodes"]
        if isinstance(node, dict)
    }
    rows = []
    for node in report.nodes:
        had = old.get(node.name)
        for check in node.checks:
            was = had.get(check.id) if had is not None else None
            if "skip" in (was, check.status) or was == check.status:
                continue
            # A check that is new to a node that was there says nothing of the node; of a new node what fails is told.
            is_reported = check.status == "fail" if had is None else was is not None
            if is_reported and {was, check.status} & {"fail", "unknown"}:
                rows.append(Change(node.name, check.id, was, check.status, check.message))
    return tuple(sorted(rows, key=lambda change: (not change.worse, change.check, change.node)))
