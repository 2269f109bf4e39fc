"""Run the checks over all nodes in one pytest process of their own, with a deadline.

The process can crash, hang or be killed: what it had found until then counts, and every check that it had not come to
is unknown. Nothing of the user's pytest configuration reaches it.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import provisioner
from provisioner.verify.bundle import Bundle
from provisioner.verify.check import ACTIONS, SEVERITIES
from provisioner.verify.expectations import Expected
from provisioner.verify.results import CheckResult

CHECKS = Path(__file__).parent / "checks"
GIVEN, FOUND, LOG = "in.json", "out.jsonl", "log.txt"


@dataclass(frozen=True, slots=True)
class Case:
    """One node to judge. `host` is a pytest-testinfra connection (ssh://node?ssh_config=FILE, local://); nodes of one
    `group` are compared with each other, a node of none ("") with nobody."""

    bundle: Bundle
    expected: Expected
    host: str | None = None
    group: str = ""


@dataclass(frozen=True, slots=True)
class Judged:
    checks: tuple[CheckResult, ...]
    facts: Mapping[str, Any]


def judge(cases: Mapping[str, Case], *, checks: Sequence[Path] = (), deadline_s: float = 120.0) -> dict[str, Judged]:
    """Judge every node by gpuprov's checks and those in the directories `checks`."""
    if not cases:
        return {}
    with tempfile.TemporaryDirectory(prefix="gpuprov-judge-") as scratch:
        root = Path(scratch)
        found, log = root / FOUND, root / LOG
        (root / GIVEN).write_text(json.dumps({"nodes": {name: _case(case) for name, case in cases.items()}}))
        (root / "pytest.ini").write_text("[pytest]\npython_files = *.py\n")
        ended = _run(root, [CHECKS, *(path.absolute() for path in checks)], deadline_s)
        records = _records(found)
        trouble = ended or _trouble(records, log)
    return {name: _judged(name, records, trouble) for name in cases}


def _case(case: Case) -> dict[str, Any]:
    given = {"bundle": case.bundle.to_json(), "expected": case.expected.to_json()}
    return given | {"host": case.host, "group": case.group}


def _run(root: Path, paths: list[Path], deadline_s: float) -> str:
    """Run pytest in the scratch directory; the reason why it did not end by itself, or ""."""
    log = root / LOG
    package = str(Path(provisioner.__file__).parent.parent)
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST_", "COV_"))}
    environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    environment["PYTHONPATH"] = os.pathsep.join(p for p in (package, environment.get("PYTHONPATH")) if p)
    command = [sys.executable, "-m", "pytest", "-c", str(root / "pytest.ini"), "--rootdir", str(root)]
    for plugin in ("cacheprovider", "terminal", "junitxml", "pastebin", "doctest", "unittest", "logging", "warnings"):
        command += ["-p", f"no:{plugin}"]
    command += ["-p", "provisioner.verify.plugin", "--import-mode=importlib", "--continue-on-collection-errors"]
    command += ["--gpuprov-in", str(root / GIVEN), "--gpuprov-out", str(root / FOUND), *map(str, paths)]
    with log.open("wb") as stream:
        process = subprocess.Popen(
            command,
            cwd=root,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=stream,
            start_new_session=True,
        )
        try:
            process.wait(deadline_s)
        except subprocess.TimeoutExpired:
            return f"the checks did not end within {deadline_s:.0f} s"
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            with suppress(subprocess.TimeoutExpired):
                process.wait(5)
    # 0 and 1 are verdicts; 5 (nothing collected) and the rest are trouble that _trouble words.
    return "" if process.returncode in (0, 1, 2) else f"pytest ended with status {process.returncode}: {_tail(log)}"


def _trouble(records: list[dict[str, Any]], log: Path) -> str:
    if any(record["kind"] == "collected" for record in records):
        return ""
    return f"no check was found: {_tail(log)}"


def _tail(log: Path) -> str:
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return " / ".join(lines[-3:])[-400:] or "it said nothing"


def _records(found: Path) -> list[dict[str, Any]]:
    """Whole lines only: a killed process can leave half of one."""
    records = []
    with suppress(FileNotFoundError):
        for line in found.read_text(errors="replace").splitlines():
            with suppress(ValueError):
                record = json.loads(line)
                if isinstance(record, dict):
                    records.append(record)
    return records


def _judged(name: str, records: list[dict[str, Any]], trouble: str) -> Judged:
    facts: Mapping[str, Any] = {}
    results: dict[str, CheckResult] = {}
    follows: dict[str, list[str]] = {}
    for record in records:
        if record["kind"] == "broken":
            message = f"{record['where']} could not be loaded: {record['message']}"
            results[f"broken:{record['where']}"] = CheckResult(
                "verify.checks", "fatal", "unknown", "reconfigure", "a directory of checks is broken", message=message
            )
        if record.get("node") != name:
            continue
        if record["kind"] == "facts":
            facts = record["facts"]
        elif record["kind"] == "collected":
            results[record["test"]] = _result(record, "unknown", f"not run: {trouble or 'stopped before it'}")
        elif record["kind"] == "result":
            results[record["test"]] = _result(record, record["status"], record["message"])
            follows[record["test"]] = record["check"]["follows"]
    if trouble and not results:
        results["trouble"] = CheckResult(
            "verify.checks", "fatal", "unknown", "reconfigure", "the checks could not be run", message=trouble
        )
    return Judged(tuple(_blame(results, follows)), facts)


def _result(record: dict[str, Any], status: Any, message: str) -> CheckResult:
    declared = record["check"]
    action = record.get("action") or declared["action"]
    return CheckResult(
        id=declared["id"],
        severity=declared["severity"] if declared["severity"] in SEVERITIES else "fatal",
        status=status if status in ("pass", "fail", "unknown", "skip") else "unknown",
        action=action if action in ACTIONS else "reconfigure",
        says=declared["says"],
        expected=record.get("expected"),
        actual=record.get("actual"),
        message=message,
    )


def _blame(results: dict[str, CheckResult], follows: Mapping[str, Sequence[str]]) -> list[CheckResult]:
    """The second rule of check.py: a failure that another one explains is unknown."""
    failed = {result.id for result in results.values() if result.status == "fail"}
    blamed = []
    for test, result in results.items():
        causes = [cause for cause in follows.get(test, ()) if cause in failed]
        if result.status == "fail" and causes:
            message = f"explained by {', '.join(causes)}: {result.message}"
            result = replace(result, status="unknown", message=message)  # noqa: PLW2901
        blamed.append(result)
    return blamed
