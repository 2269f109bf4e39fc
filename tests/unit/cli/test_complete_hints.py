"""Every hint that is a command can be typed as it is: with the cluster's file, and --sandbox for a sandbox."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from provisioner.cli.main import COMMANDS as MAIN
from provisioner.cli.status import first_lines, lines
from provisioner.common.typed_command import completed, typed_file
from provisioner.lifecycle import diff, planning
from provisioner.output.plan import PlanOutput
from provisioner.output.report import QuarantineOutput
from provisioner.output.status import StatusOutput
from provisioner.verify.check import ACTIONS
from provisioner.verify.registry import declared
from provisioner.verify.report.terminal import next_steps, table
from provisioner.verify.results import Breaker, CheckResult, NodeReport, Report
from provisioner.verify.runbook import COMMANDS

FILE = "my fleet.yaml"
WORDS = "'my fleet.yaml' --sandbox"
NAMES = {*MAIN} - {"docs"}
"""Commands; docs needs no file."""


def incomplete(text: str) -> list[str]:
    """Commands of a text that lack the file; the name of a run that has ended is none."""
    named_runs = re.sub(r"(the last|not as) `gpuprov [a-z]+`|`gpuprov [a-z]+` \(process", "", text)
    commands = re.findall(r"gpuprov ([a-z-]+)([^`\n]*)", named_runs)
    return [
        f"{name}{remaining}" for name, remaining in commands if name in NAMES and not remaining.startswith(f" {WORDS}")
    ]


def printed(report: Report) -> str:
    stream = io.StringIO()
    Console(file=stream, width=2000).print(table(report, file=WORDS, absent=["train-9"], explains=True))
    return stream.getvalue()


def test_each_hint_of_a_report_is_complete() -> None:
    entry = {"reason": "gpu.count", "since": "2026-11-21T10:00:00Z", "checks": [], "level": "quick"}
    nodes = [
        NodeReport(
            f"{action}-{owner}", "train", "here", "p4d.24xlarge", True,
            (CheckResult("gpu.count", "fatal", "fail", action, message="wrong"),),
            quarantine=None if owner == "nobody" else QuarantineOutput(owner=owner, **entry),
        )
        for action in ACTIONS for owner in ("nobody", "gpuprov", "me")
    ]  # fmt: skip
    texts = [
        CheckResult(check.id, severity, status, "none", says=check.says)
        for check in declared()
        for severity, status in (("fatal", "fail"), ("info", "note"))
    ]
    nodes.append(NodeReport("sentences", "train", "here", "p4d.24xlarge", True, tuple(texts)))
    nodes.append(NodeReport("absent", "train", "here", "p4d.24xlarge", True, (), error=diff.ABSENT, absent=True))
    tripped = Breaker(("a", "b"), 0, 1, 3, "gpu.ecc", 1)
    text = printed(Report(tuple(nodes), {}, 0.0, breaker=tripped, limits=9, unverified=3))
    assert incomplete(text) == [] and text.count(WORDS) > len(nodes)


def test_each_hint_of_status_is_complete() -> None:
    quarantine = QuarantineOutput(owner="gpuprov", reason="gpu.count", since="2026-11-21T10:00:00Z", checks=[])
    node = {
        "name": "train-0", "group": "train", "site": "here", "machine": "p4d.24xlarge", "address": None, "ok": None,
        "stage": "verified", "waiting": ["driver 1 → 2"], "drift": [], "quarantine": quarantine,
        "bmc": {"power": "Off", "health": "OK", "error": ""},
        "replace": {"step": "proving"}, "upgrade": None,
    }  # fmt: skip
    document: dict[str, Any] = {
        "cluster": "vision", "sandbox": True, "nodes": [node], "upgrade": None, "ends": {}, "cost": None, "report": "",
        "partial_report": None, "lock_changes": ["driver: 1 → 2"],
        "failed": {"here": "1 machine stands: `gpuprov up` goes on, `gpuprov down` removes it"},
        "run": {"command": "replace", "state": "interrupted", "stage": "verify", "since": 0, "process": 7, "user": ""},
    }  # fmt: skip
    interrupted, at_work = (
        StatusOutput.model_validate(document | {"run": document["run"] | {"state": state}})
        for state in ("interrupted", "at work")
    )
    text = "\n".join([*first_lines(interrupted, Path(FILE)), *lines(interrupted, Path(FILE))])
    text += "\n".join([*first_lines(at_work, Path(FILE)), *lines(at_work, Path(FILE))])
    complete = [command for command in incomplete(text) if not command.startswith("lock ")]  # --sandbox is at its end
    assert complete == [] and text.count(WORDS) == 12
    assert f"`gpuprov lock '{FILE}' --sandbox` renews it" in text


def test_each_hint_of_a_plan_is_complete() -> None:
    node = {
        "name": "train-0", "group": "train", "site": "here", "machine": "p4d.24xlarge", "waiting": ["driver 1 → 2"],
    }  # fmt: skip
    document: dict[str, Any] = {
        "cluster": "vision", "sandbox": True, "nodes": [node], "changes": {}, "findings": [], "new_lock": True,
        "stack": {"train": {"driver": "1", "cuda": "2", "nccl": "3"}},
    }  # fmt: skip
    text = planning.text(PlanOutput.model_validate(document), WORDS)
    assert incomplete(text) == [f"cost '{FILE}'"], "the cloud's price, not the sandbox's"


def test_what_takes_a_node_out_of_quarantine_names_file_and_node() -> None:
    assert (
        completed("`gpuprov verify --level standard` asks", WORDS) == f"`gpuprov verify {WORDS} --level standard` asks"
    )
    assert typed_file(FILE, sandbox=True) == WORDS and typed_file("c.yaml", sandbox=False) == "c.yaml"


@pytest.mark.parametrize(("owner", "end"), [("gpuprov", ""), ("me", f", then gpuprov release {WORDS} train-0")])
def test_a_node_in_quarantine_is_not_told_to_be_quarantined(owner: str, end: str) -> None:
    wrong = CheckResult("gpu.ecc", "fatal", "fail", "reset", message="3 errors")
    quarantine = QuarantineOutput(owner=owner, reason="reset", since="2026-11-21T10:00:00Z", checks=[])
    node = NodeReport("train-0", "train", "here", "p4d.24xlarge", True, (wrong,), quarantine=quarantine)
    assert next_steps(Report((node,), {}, 0.0), WORDS) == [
        "reset train-0: the steps of `gpuprov docs runbook reset`, "
        f"then gpuprov verify {WORDS} --node train-0 --level stress{end}"
    ]
    assert "gpuprov quarantine" in COMMANDS["reset"], "of one that is in service"
