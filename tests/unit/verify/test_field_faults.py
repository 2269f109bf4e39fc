"""Checks of what operators of GPU fleets have reported: green on a healthy node of every kind, each red on its
fault, and then it alone."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from provisioner.verify.bundle import Output
from provisioner.verify.pytest_runner import Case, Judged
from tests.support.field_checks import FIELD_CHECKS
from tests.support.healthy_bundle import ALL, bundle, capture, expected, healthy
from tests.support.judging import judge

P4D, DGX, NDV4, RTX = "p4d.24xlarge", "dgx-h100", "Standard_ND96asr_v4", "workstation-rtx4090"
Texts = dict[str, str | Output]
Change = Callable[[Texts], object]


@dataclass(frozen=True)
class Fault:
    """`breaks` changes a healthy node's texts; then exactly `fails` fail, with `says` in a message."""

    fails: set[str]
    breaks: Change
    says: str = ""
    machine: str = P4D
    unknown: set[str] = field(default_factory=set)


def both(*changes: Change) -> Change:
    return lambda texts: [change(texts) for change in changes]


def append(name: str, rows: str) -> Change:
    return lambda texts: texts.update({name: str(texts[name]) + rows})


def host(key: str, value: Any) -> Change:
    """One value of host.json, its parts between bars; None takes it away."""

    def change(texts: Texts) -> None:
        document = json.loads(str(texts["host.json"]))
        *parents, last = key.split("|")
        inner = document
        for parent in parents:
            inner = inner[parent]
        if value is None:
            del inner[last]
        else:
            inner[last] = value
        texts["host.json"] = json.dumps(document)

    return change


def tainted(value: int) -> Change:
    return host("files|proc/sys/kernel/tainted", str(value))


OE = 12288
"""A module from outside of the kernel's tree, without a signature: a healthy node's."""
FAULTS: dict[str, Fault] = {
    "an oops that the log has lost": Fault(
        {"host.kernel_taint"}, tainted(OE | 1 << 7), "D: the kernel hit a bug of its own"
    ),
    "a machine check and a lockup that the log has lost": Fault(
        {"host.kernel_taint"},
        tainted(OE | 1 << 4 | 1 << 14),
        "M: a processor reported a machine check; L: a CPU was stuck",
    ),
    "an oops that the log still has": Fault(
        {"log.kernel_bug"}, both(tainted(OE | 1 << 7), append("dmesg.txt", "[ 99.1] Oops: 0002 [#1] SMP PTI\n"))
    ),
    "a warning in the driver's code": Fault(
        {"log.driver_warning"},
        both(tainted(OE | 1 << 9), append("dmesg.txt", capture("dmesg/warning-in-the-driver.txt"))),
        "WARNING: CPU: 41 PID: 190233 at nvidia/nv.c:5461",
    ),
}
RIGHT: dict[str, tuple[str, Change]] = {
    "a warning of the kernel's own code": (
        P4D,
        both(tainted(OE | 1 << 9), append("dmesg.txt", capture("dmesg/warning-of-the-kernel-itself.txt"))),
    ),
    "an older probe": (P4D, host("files|proc/sys/kernel/tainted", None)),
}


def case(machine: str, change: Change) -> Case:
    texts = healthy(machine)
    change(texts)
    return Case(bundle(texts), expected(machine))


@pytest.fixture(scope="module")
def judged() -> dict[str, Judged]:
    cases = {f"healthy {machine}": case(machine, lambda _: None) for machine in ALL}
    cases |= {name: case(fault.machine, fault.breaks) for name, fault in FAULTS.items()}
    return judge(cases | {name: case(machine, change) for name, (machine, change) in RIGHT.items()})


def ids(result: Judged, status: str) -> set[str]:
    return {check.id for check in result.checks if check.status == status}


@pytest.mark.parametrize("name", list(FAULTS))
def test_one_reported_fault_fails_its_check_and_no_other(judged: dict[str, Judged], name: str) -> None:
    fault, result = FAULTS[name], judged[name]
    assert ids(result, "fail") == fault.fails, [(c.id, c.message) for c in result.checks if c.status == "fail"]
    assert fault.unknown <= ids(result, "unknown")
    assert any(fault.says in check.message for check in result.checks if check.status == "fail")


@pytest.mark.parametrize("name", list(RIGHT))
def test_what_healthy_nodes_show_is_no_fault(judged: dict[str, Judged], name: str) -> None:
    wrong = {c.id: c.message for c in judged[name].checks if c.id in FIELD_CHECKS and c.status in ("fail", "unknown")}
    assert wrong == {}


def test_every_check_of_this_file_is_red_once_and_green_once(judged: dict[str, Judged]) -> None:
    green = set().union(*(ids(judged[f"healthy {machine}"], "pass") for machine in ALL))
    assert FIELD_CHECKS - green == set()
    assert FIELD_CHECKS - set().union(*(fault.fails for fault in FAULTS.values())) == set()
