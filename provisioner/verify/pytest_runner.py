"""Run the checks over all nodes in pytest processes, with a deadline: gpuprov's in one, and a user's in another one
afterwards, so that nothing of a user's files (a conftest.py, a module that does not end) reaches gpuprov's.

A process can crash, hang or be killed: what it had found until then counts, and every check that it had not come to is
unknown. Nothing of the user's pytest configuration reaches it.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import provisioner
from provisioner.common import ownership
from provisioner.common import paths as paths_of
from provisioner.transport import keeper
from provisioner.verify.baseline import Baseline, GpuIdentity
from provisioner.verify.bundle import Bundle
from provisioner.verify.check import ACTIONS, SEVERITIES, Severity
from provisioner.verify.document import Document
from provisioner.verify.expectations import Expected
from provisioner.verify.results import CheckResult, blame

CHECKS = Path(__file__).parent / "checks"
GIVEN, FOUND, LOG = "in.json", "out.jsonl", "log.txt"


@dataclass(frozen=True, slots=True)
class Case:
    """One node to judge. `host` is a pytest-testinfra connection (ssh://node?ssh_config=FILE, local://); nodes of one
    `group` are compared with each other, a node of none ("") with nobody; `baseline` is what the fleet's own record
    says of the node."""

    bundle: Bundle
    expected: Expected
    host: str | None = None
    group: str = ""
    baseline: Baseline | None = None


@dataclass(frozen=True, slots=True)
class Judged:
    checks: tuple[CheckResult, ...]
    facts: Mapping[str, Any]
    """The `facts` document; of a healthy node of more than DETAILED what is reported of every node: `fabric`."""
    measures: Mapping[str, float] = field(default_factory=dict)
    """What was measured under load, by baseline.Measure's name."""
    looks: Mapping[str, Any] | None = None
    """What the next look is given (growth.looks)."""
    gpus: tuple[GpuIdentity, ...] = ()
    """The node's GPUs."""


def judge(cases: Mapping[str, Case], *, checks: Sequence[Path] = (), deadline_s: float = 120.0) -> dict[str, Judged]:
    """Judge every node by gpuprov's checks and those in the directories `checks`; each of both has the deadline."""
    if not cases:
        return {}
    with tempfile.TemporaryDirectory(prefix=keeper.scratch("judge")) as scratch:
        input_file = Path(scratch) / GIVEN
        _give(input_file, cases)
        runs = [_run_over(input_file, cases, [CHECKS], deadline_s)]
        runs += [_run_over(input_file, cases, [path.absolute() for path in checks], deadline_s)] if checks else []
    return {name: _judged(name, runs) for name in cases}


def _run_over(input_file: Path, nodes: Iterable[str], paths: list[Path], deadline_s: float) -> _Records:
    with tempfile.TemporaryDirectory(dir=input_file.parent) as scratch:
        root = Path(scratch)
        (root / "pytest.ini").write_text("[pytest]\npython_files = *.py\n", encoding="utf-8")
        ended = _run(root, input_file, paths, deadline_s)
        records = _Records(root / FOUND, nodes)
        none = "" if records.tests or records.broken else f"no check was found: {_tail(root / LOG)}"
        records.trouble = ended or none
    return records


def _give(file: Path, cases: Mapping[str, Case]) -> None:
    """What plugin_nodes.nodes_of reads: what is expected, which nodes of one group mostly share, and beside it the
    nodes with their outputs."""
    expected = {id(case.expected): case.expected for case in cases.values()}
    index_of = {key: index for index, key in enumerate(expected)}
    starts = []
    with file.with_suffix(".nodes").open("wb") as stream:
        for name, case in cases.items():
            starts.append(stream.tell())
            entry = {"node": name, "expects": index_of[id(case.expected)], "host": case.host, "group": case.group}
            entry["baseline"] = case.baseline.to_json() if case.baseline is not None else None
            case.bundle.send(stream, entry)
    file.write_text(
        json.dumps({"expectations": [expectation.to_json() for expectation in expected.values()], "nodes": starts}),
        encoding="utf-8",
    )


def _run(root: Path, input_file: Path, paths: list[Path], deadline_s: float) -> str:
    """Run pytest in the scratch directory; the reason why it did not end by itself, or ""."""
    log = root / LOG
    package = str(Path(provisioner.__file__).parent.parent)
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST_", "COV_"))}
    environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    environment["PYTHONPATH"] = os.pathsep.join(p for p in (package, environment.get("PYTHONPATH")) if p)
    if ownership.person() is not None:  # root's compiled checks are not for a person's folder
        environment["PYTHONPYCACHEPREFIX"] = str(paths_of.cache() / "pycache")
    command = [sys.executable, "-m", "pytest", "-c", str(root / "pytest.ini"), "--rootdir", str(root)]
    for plugin in ("cacheprovider", "terminal", "junitxml", "pastebin", "doctest", "unittest", "logging", "warnings"):
        command += ["-p", f"no:{plugin}"]
    command += ["-p", "provisioner.verify.plugin", "--import-mode=importlib", "--continue-on-collection-errors"]
    if paths == [CHECKS]:  # what an `assert` saw is told for own checks; gpuprov's say it themselves
        command.append("--assert=plain")
    command += ["--gpuprov-in", str(input_file), "--gpuprov-out", str(root / FOUND), *map(str, paths)]
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
    # 0 and 1 are verdicts; with 5 nothing was collected, which the caller words.
    return "" if process.returncode in (0, 1, 2, 5) else f"pytest ended with status {process.returncode}: {_tail(log)}"


def _tail(log: Path) -> str:
    lines = [line for line in log.read_text(errors="replace", encoding="utf-8").splitlines() if line.strip()]
    return " / ".join(lines[-3:])[-400:] or "it said nothing"


class _Records:
    """What the process wrote, by node. Whole lines only: a killed process can leave half of one."""

    trouble = ""
    """Why the process did not end by itself, or found no check."""

    def __init__(self, output_file: Path, nodes: Iterable[str]) -> None:
        self.tests: dict[str, dict[str, Any]] = {}
        self.broken: list[dict[str, Any]] = []
        self.facts: dict[str, Mapping[str, Any]] = {}
        self.measures: dict[str, Mapping[str, float]] = {}
        self.looks: dict[str, Mapping[str, Any] | None] = {}
        self.gpus: dict[str, tuple[GpuIdentity, ...]] = {}
        self.of: dict[str, list[str]] = {name: [] for name in nodes}
        self.outcomes: dict[int, tuple[str, CheckResult]] = {}
        self.results: dict[str, dict[str, CheckResult]] = {name: {} for name in self.of}
        for file in (
            output_file,
            *sorted(output_file.parent.glob(f"{output_file.name}.*")),
        ):  # plugin.py's processes each have one
            with suppress(FileNotFoundError), file.open(encoding="utf-8", errors="replace") as lines:
                for line in lines:
                    with suppress(ValueError, KeyError):
                        self._take(json.loads(line))

    def _take(self, record: dict[str, Any]) -> None:
        match record["kind"]:
            case "facts":
                name = record["node"]
                self.facts[name], self.measures[name] = {"fabric": record["fabric"]}, record["measures"]
                self.looks[name] = record["looks"]
                self.gpus[name] = tuple(map(GpuIdentity.from_json, record["gpus"]))
                if "facts" in record:
                    self.facts[name] = Document(record["facts"], self.facts[name])
            case "document":
                name = record["node"]
                self.facts[name] = Document(record["facts"], self.facts[name])
            case "broken":
                self.broken.append(record)
            case "collected":
                self.tests[record["test"]] = record["check"]
                for name in (record["node"],) if record["node"] is not None else self.of:
                    self.of[name].append(record["test"])
            case "outcome":
                test = record["test"]
                self.outcomes[record["number"]] = test, _result(self.tests[test], record)
            case "results":
                for node, number in record["of"]:
                    test, result = self.outcomes[number]
                    self.results[node][test] = result


def _judged(name: str, runs: Sequence[_Records]) -> Judged:
    """`runs`: of gpuprov's checks first, whose facts and measures count."""
    results: dict[str, CheckResult] = {}
    for records in runs:
        results |= _results(name, records)
    tests = {test: declared for records in runs for test, declared in records.tests.items() if test in results}
    explained_by = {test: declared["follows"] for test, declared in tests.items()}
    suppresses = {test: declared["silences"] for test, declared in tests.items()}
    builtin_run, known = runs[0], [records.facts[name] for records in runs if name in records.facts]
    facts = next((document for document in known if isinstance(document, Document)), known[0] if known else {})
    return Judged(
        tuple(blame(results, explained_by, suppresses)), facts, builtin_run.measures.get(name, {}),
        builtin_run.looks.get(name), builtin_run.gpus.get(name, ()),
    )  # fmt: skip


def _results(name: str, records: _Records) -> dict[str, CheckResult]:
    """Of one run, by test."""
    results: dict[str, CheckResult] = {}
    for record in records.broken:
        message = f"{record['where']}: {record['message']}"
        results[f"broken:{record['where']}"] = CheckResult(
            "verify.checks", "fatal", "unknown", "reconfigure", "an own check is broken", message=message
        )
    missing = {"status": "unknown", "message": f"not run: {records.trouble or 'stopped before it'}"}
    by_test = records.results[name]
    for test in records.of[name]:
        results[test] = by_test.get(test) or _result(records.tests[test], missing)
    if records.trouble and not results:
        results[f"trouble {id(records)}"] = CheckResult(
            "verify.checks", "fatal", "unknown", "reconfigure", "the checks could not be run", message=records.trouble
        )
    return results


def _result(declared: Mapping[str, Any], record: Mapping[str, Any]) -> CheckResult:
    action = record.get("action") or declared["action"]
    severity: Severity = declared["severity"] if declared["severity"] in SEVERITIES else "fatal"
    lowered = record.get("unverified") is True and severity == "fatal"
    return CheckResult(
        id=declared["id"],
        severity="warn" if lowered else severity,
        lowered=lowered,
        status=record["status"] if record["status"] in ("pass", "fail", "unknown", "skip", "note") else "unknown",
        action=action if action in ACTIONS else "reconfigure",
        says=declared["says"],
        expected=record.get("expected"),
        actual=record.get("actual"),
        message=record["message"],
        unread=record.get("unread", ""),
    )
