"""`dcgmi diag -r N -j`: which tests failed. In a bundle the table without -j is read too (dcgmi_diag_table.py).

Traps: DCGM 3 and 4 have other top keys; a banner can come before the JSON; Skip is not Pass; names in angle brackets
("<<<NULL>>>") and 9223372036854775794 stand for nothing; DCGM 4 sums a test up apart from its entities, which can be
none; several iterations stand in a list; a diagnosis that did not begin is a "runtime_error".
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from provisioner.verify.document import plain
from provisioner.verify.parsers import Unreadable, dcgmi_diag_table, first_line
from provisioner.verify.tool import Tool


@dataclass(frozen=True, slots=True)
class Diag:
    dcgm_version: str | None
    driver_version: str | None
    passed: tuple[str, ...]
    failed: tuple[str, ...]
    warned: tuple[str, ...]
    skipped: tuple[str, ...]
    messages: tuple[str, ...]


def parse(text: str) -> Diag:
    table = dcgmi_diag_table.read(text)
    if table is not None:
        return Diag(
            dcgm_version=table.about.get("DCGM Version"),
            driver_version=table.about.get("Driver Version Detected"),
            passed=tuple(table.results["pass"]),
            failed=tuple(table.results["fail"]),
            warned=tuple(table.results["warn"]),
            skipped=tuple(table.results["skip"]),
            messages=tuple(message[:300] for message in table.messages),
        )
    start = text.find("{")
    try:
        data, _ = json.JSONDecoder().raw_decode(text, max(start, 0))
    except (ValueError, RecursionError) as error:
        raise Unreadable(f"not JSON: {first_line(text)}") from error
    top = _dict(data)
    runs = [_dict(run) for run in _list(top.get("iterations"))] or [top]
    bodies = [_dict(run.get("DCGM Diagnostic")) or _dict(run.get("DCGM GPU Diagnostic")) for run in runs]
    broken = [body["runtime_error"] for body in bodies if isinstance(body.get("runtime_error"), str)]
    if broken:
        raise Unreadable(f"the diagnosis did not run: {first_line(broken[0])}")
    if not all(isinstance(body.get("test_categories"), list) for body in bodies):
        raise Unreadable("no test_categories in it")
    sorted_by: dict[str, list[str]] = {"pass": [], "fail": [], "warn": [], "skip": []}
    messages: list[str] = []
    for category in (category for body in bodies for category in body["test_categories"]):
        for test in filter(None, _list(_dict(category).get("tests"))):  # there can be a null between two
            name = str(_dict(test).get("name", "?"))[:80]
            results = [_dict(r) for r in _list(_dict(test).get("results"))]
            summary = _dict(_dict(test).get("test_summary"))
            states = {str(r.get("status", "")).lower() for r in [*results, *([summary] if summary else [])]}
            # The worst of its entities is the test's result; a state that is not known counts as failed.
            worst = next((s for s in dcgmi_diag_table.WORST_FIRST if s in states), "fail")
            sorted_by["fail" if states - set(sorted_by) and worst != "fail" else worst].append(name)
            for result in results:
                warnings = result.get("warnings")
                # One text in releases before 3.1.
                for warning in [warnings] if isinstance(warnings, str) and warnings else _list(warnings):
                    messages.append(str(_dict(warning).get("warning") or warning)[:300])
    metadata = _dict(runs[0].get("metadata"))
    return Diag(
        dcgm_version=_text(metadata.get("version")),
        driver_version=_text(metadata.get("Driver Version Detected")),
        passed=tuple(sorted_by["pass"]),
        failed=tuple(sorted_by["fail"]),
        warned=tuple(sorted_by["warn"]),
        skipped=tuple(sorted_by["skip"]),
        messages=tuple(messages),
    )


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _text(value: Any) -> str | None:
    return value[:80] if isinstance(value, str) and value else None


TOOLS = (
    Tool(
        file="dcgmi-diag.json",
        field="diag",
        parse=parse,
        asked="load",
        label="dcgmi diag -j",
        document={"dcgm_diag": plain},
    ),
)
