"""What a person reads below the table of nodes: counts that add up, commands that can be typed, and what was wanted."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from provisioner.output.report import QuarantineOutput
from provisioner.verify.check import Action
from provisioner.verify.report.html import html
from provisioner.verify.report.terminal import MOST_STEPS, next_steps, problems, summary, table, unknown_warnings
from provisioner.verify.results import Breaker, CheckResult, NodeReport, Report, Status
from provisioner.verify.runbook import COMMANDS, STEPS


def check(id: str, status: Status = "pass", action: Action = "replace", **more: Any) -> CheckResult:
    return CheckResult(id, more.pop("severity", "fatal"), status, action, message=f"{id} said so", **more)


def node(name: str, *checks: CheckResult, **more: Any) -> NodeReport:
    return NodeReport(name, "train", "here", "p4d.24xlarge", True, (check("gpu.count"), *checks), **more)


def printed(report: Report, width: int = 250, **options: Any) -> str:
    stream = io.StringIO()
    Console(file=stream, width=width).print(table(report, **options))
    return stream.getvalue()


def report(*nodes: NodeReport, **more: Any) -> Report:
    return Report(nodes, {}, 0.0, **more)


def test_each_action_has_its_command_with_the_file_and_the_node() -> None:
    broken_node = node("train-1", check("gpu.ecc", "fail"), check("driver.loaded", "fail", "reboot"))
    text = printed(report(broken_node), file="my/cluster.yaml")
    assert "replace train-1: gpuprov replace my/cluster.yaml train-1\n" in text
    assert "reboot train-1: gpuprov exec my/cluster.yaml --node train-1 sudo systemctl reboot; if it stays" in text


def test_a_warning_names_its_command_only_where_nothing_fatal_does() -> None:
    warning = check("host.ntp", "fail", "reconfigure", severity="warn")
    assert next_steps(report(node("a", warning)), "c.yaml") == ["reconfigure a: gpuprov up c.yaml"]
    assert next_steps(report(node("a", warning, check("gpu.ecc", "fail"))), "c.yaml") == [
        "replace a: gpuprov replace c.yaml a"
    ]


def test_many_nodes_get_a_few_commands() -> None:
    nodes = [node(f"n-{number}", check("gpu.ecc", "fail")) for number in range(MOST_STEPS + 3)]
    steps = next_steps(report(*nodes), "c.yaml")
    assert len(steps) == MOST_STEPS + 1 and steps[-1] == "replace 3 more nodes: the same command with their names"
    absent = [node(f"n-{number}", error="missing", absent=True) for number in range(6)]
    assert next_steps(report(*absent), "c.yaml") == ["reconfigure n-0, n-1, n-2, n-3 and 2 more: gpuprov up c.yaml"]


def test_machines_of_no_fleet_get_no_commands() -> None:
    assert "what to do next" not in printed(report(node("a", check("gpu.ecc", "fail"))))


def test_every_action_but_none_has_a_command() -> None:
    assert {*COMMANDS, "none"} == {*STEPS}


def test_the_way_out_of_quarantine_names_the_file() -> None:
    quarantine = QuarantineOutput(owner="gpuprov", reason="gpu.count: 7", since="2026-11-21T10:00:00Z", checks=[])
    assert "`gpuprov release my.yaml a`" in printed(report(node("a", quarantine=quarantine)), file="my.yaml")


def test_a_narrow_terminal_gets_a_paragraph_for_each_row() -> None:
    wrong = (check("log.machine_check_corrected", "fail"), check("driver.loaded", "unknown", "none"))
    lines = [line.rstrip() for line in printed(report(node("pasted", *wrong)), 80).splitlines()]
    first = lines.index("log.machine_check_corrected  FAIL  do: replace")
    assert lines[first + 1 : first + 4] == [
        "    log.machine_check_corrected said so", "driver.loaded  UNKNOWN", "    driver.loaded said so"
    ]  # fmt: skip
    several = printed(report(node("pasted", *wrong), node("other", *wrong)), 80)
    assert "other: driver.loaded  UNKNOWN\n" in several.replace(" \n", "\n")
    assert "do: replace" not in printed(report(node("pasted", *wrong)), 120), "a table"


def test_a_warning_is_counted_as_a_warning() -> None:
    warning = check("host.ntp", "fail", severity="warn")
    assert summary(node("a", warning)) == "1 passed, 1 warning"
    assert summary(node("a", warning, warning, check("gpu.ecc", "fail"))) == "1 passed, 1 failed, 2 warnings"
    page = html(report(node("a", warning, check("gpu.ecc", "fail"))))
    assert "1 passed, 1 failed, 1 warning<" in page


def test_the_unknown_checks_of_the_rows_are_those_of_the_summary() -> None:
    cause = check("driver.responds", "fail", "reboot")
    explained = [
        check("gpu.ecc", "unknown", explained_by=cause.id),
        check("gpu.clocks", "unknown", explained_by=cause.id, severity="warn"),
    ]
    apart = [check("efa.devices", "unknown"), check("host.ntp", "unknown", severity="warn")]
    broken_node = node("a", cause, *explained, *apart)
    rows = problems(broken_node)
    more = sum(int(match[1]) for _, text in rows if (match := re.search(r"(\d+) more", text)))
    named_count = sum(row.status == "unknown" for row, _ in rows) + unknown_warnings(report(broken_node)).count(".")
    assert f"{more + named_count} unknown" in summary(broken_node)


@pytest.mark.parametrize(
    ("unverified", "options", "lowered", "is_explained"),
    [
        (3, {}, False, False),
        (3, {"explains": True}, False, True),
        (3, {}, True, True),
        (0, {"explains": True}, True, False),
    ],
)
def test_what_limits_rest_on_is_explained_where_it_matters(
    unverified: int, options: dict[str, Any], lowered: bool, is_explained: bool
) -> None:
    warned_node = node("a", check("gpu.temp", "fail", severity="warn", lowered=lowered))
    text = printed(report(warned_node, limits=9, unverified=unverified), **options)
    assert ("3 of the 9 limits for these machines have no measurement" in text) is is_explained
    assert ("`gpuprov docs evidence`" in text) is is_explained


def test_the_last_line_counts_the_nodes_that_are_wanted() -> None:
    assert "\n1 of 1 node healthy (SIMULATED" in printed(report(node("a")))
    text = printed(report(node("a"), node("b")), absent=["infer-0"])
    assert "2 of 3 nodes healthy (SIMULATED hardware); not verified: infer-0\n" in text


def test_why_a_quick_look_was_enough_stands_below_the_verdict() -> None:
    text = printed(report(node("a"), level="quick"), quick_note="quick was enough: nothing differs")
    assert text.endswith("healthy at level quick (SIMULATED hardware)\nquick was enough: nothing differs\n")


def test_a_breaker_says_one_at_a_time_and_the_steps_name_each() -> None:
    bad = [node("a", check("gpu.ecc", "fail")), node("b", check("efa.devices", "fail"))]
    tripped = Breaker(("a", "b"), 0, 1, 3, "gpu.ecc", 1)
    text = printed(replace(report(*bad), breaker=tripped), file="c.yaml")
    assert "one node at a time" in text and "gpuprov replace c.yaml b\n" in text


def test_what_could_not_be_answered_asks_for_nothing_beside_a_failure() -> None:
    unknown = check("gpu.model", "unknown", "reconfigure")
    assert next_steps(report(node("a", check("gpu.ecc", "fail"), unknown)), "c.yaml") == [
        "replace a: gpuprov replace c.yaml a"
    ]
    assert next_steps(report(node("a", unknown)), "c.yaml") == ["reconfigure a: gpuprov up c.yaml"]
