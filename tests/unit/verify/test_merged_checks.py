"""Several checks under one name: one cause has one voice, and nothing is lost by it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from provisioner.verify.merged_checks import MERGED, by_id, by_part, merge, reported
from provisioner.verify.registry import declared
from provisioner.verify.report.document import check_document
from provisioner.verify.results import CheckResult

PART = CheckResult("host.governor", "warn", "pass", "reconfigure", "The governor is another one.")


def part(id: str, status: str, message: str = "", **changed: object) -> CheckResult:
    return replace(PART, id=id, status=status, message=message, **changed)  # type: ignore[arg-type]


def merge_into_one(*parts: CheckResult) -> CheckResult:
    (result,) = merge(parts)
    return result


def test_parts_are_checks_that_condemn_nobody_and_belong_to_one_name() -> None:
    checks = {check.id: check for check in declared()}
    parts = [name for merged in MERGED for name in merged.parts]
    assert len(parts) == len(set(parts))
    assert {checks[name].severity for name in parts} == {"warn", "info"}
    for id in by_id():  # a name that a check has too is that of one of its parts
        assert id not in checks or by_part()[id].id == id, id


def test_an_on_call_engineer_has_at_most_150_names_that_warn_or_inform() -> None:
    assert len({reported(check.id) for check in declared() if check.severity != "fatal"}) <= 150


def test_a_failure_stands_for_all_with_its_own_sentence() -> None:
    merged = merge_into_one(
        part("host.governor", "pass"), part("host.thp", "fail", "always", says="Huge pages.", actual="always")
    )
    assert (merged.id, merged.status, merged.severity) == ("host.settings", "fail", "warn")
    assert (merged.message, merged.says, merged.actual, merged.parts) == (
        "always",
        "Huge pages.",
        "always",
        ("host.thp",),
    )


def test_several_failures_are_one_with_the_strongest_action() -> None:
    merged = merge_into_one(
        part("driver.vermagic", "fail", "module of 5.15"),
        part("host.reboot_required", "fail", "libc6", action="reboot"),
        part("kernel.hold", "unknown", "not read"),
    )
    assert (merged.id, merged.action) == ("host.next_boot", "reboot")
    assert merged.message == "module of 5.15; libc6"
    assert merged.says == by_id()["host.next_boot"].says
    assert merged.parts == ("driver.vermagic", "host.reboot_required")


def test_what_could_not_be_observed_is_not_a_pass() -> None:
    merged = merge_into_one(
        part("host.governor", "pass"), part("host.thp", "unknown", "host.json is not there", unread="host.json")
    )
    assert (merged.status, merged.message, merged.unread) == ("unknown", "host.json is not there", "host.json")
    assert check_document(merged).to_json()["parts"] == ["host.thp"]


def test_what_only_informs_is_a_note() -> None:
    merged = merge_into_one(
        part("host.load", "fail", "load 90", severity="info"), part("host.users", "pass", severity="info")
    )
    assert (merged.id, merged.status, merged.severity, merged.action) == ("host.busy", "note", "info", "none")
    (alone,) = merge([part("log.segfault", "fail", "python3", severity="info", action="vendor")])
    assert (alone.id, alone.status, alone.action, alone.warns) == ("log.segfault", "note", "none", False)


def test_a_note_beside_a_failure_is_told_and_decides_nothing() -> None:
    merged = merge_into_one(
        part("log.nic_warning", "fail", "queue stood still", action="vendor"),
        part("log.nic_power", "fail", "25 W", severity="info", action="reboot"),
    )
    assert (merged.status, merged.severity, merged.action) == ("fail", "warn", "vendor")
    assert merged.message == "queue stood still (1 note beside it)"
    assert merged.actual == {"log.nic_warning": None, "log.nic_power": "25 W"}


def test_a_part_that_a_higher_level_answers_is_later_unless_another_passed() -> None:
    later = part("load.memory", "skip", "only from level standard on")
    assert merge_into_one(later, part("fleet.slow_memory", "skip", "for nvidia GPUs")).later
    assert merge_into_one(later, part("fleet.slow_memory", "pass")).status == "pass"


def test_what_all_parts_owe_to_another_check_is_explained_by_it() -> None:
    explained = part("load.memory", "unknown", "explained by load.completes", explained_by="load.completes")
    assert merge_into_one(explained).explained_by == "load.completes"
    assert merge_into_one(explained, part("baseline.memory", "unknown", "not read")).explained_by == ""


@pytest.mark.parametrize("status", ["fail", "unknown"])
def test_what_condemns_is_left_alone(status: str) -> None:
    fatal = part("gpu.count", status, severity="fatal", action="replace")
    assert merge([fatal, part("host.governor", "pass")])[0] == fatal
