"""What happened long ago, and totals that do not grow, are notes: findings are about today."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from provisioner.common.levels import Level
from provisioner.verify.bundle import Output
from provisioner.verify.expectations import Expected
from provisioner.verify.facts import read
from provisioner.verify.growth import looks
from provisioner.verify.parsers.last_look import FILE
from provisioner.verify.pytest_runner import Case
from provisioner.verify.results import CheckResult
from tests.support.healthy_bundle import bundle, expected, healthy
from tests.support.judging import judge

Texts = dict[str, str | Output]
DGX = "dgx-h100"
DAYS = 200 * 86_400
HUNG = "INFO: task kworker/1:2:4711 blocked for more than 120 seconds."


class Node:
    """A healthy node that has run for so many seconds."""

    def __init__(self, machine: str = DGX, up: float = DAYS, texts: Texts | None = None) -> None:
        self.machine, self.texts, self.up = machine, dict(texts or healthy(machine)), up
        host = self.host()
        host["files"]["proc/uptime"] = f"{up:.2f} 1000000.00"
        host["boots"] = [["boot", int(host["time"] - up)]]
        host["configured"] = host["time"] - up + 60
        self.write("host.json", host)

    def host(self) -> dict[str, Any]:
        return dict(json.loads(str(self.texts["host.json"])))

    def write(self, file: str, document: Any) -> None:
        self.texts[file] = json.dumps(document)

    def log(self, *lines: str, ago: float) -> Node:
        """Lines of the kernel, that many seconds ago."""
        for line in lines:
            self.texts["dmesg.txt"] = f"{self.texts['dmesg.txt']}\n[{self.up - ago:.6f}] {line}\n"
        return self

    def port(self, **counters: int) -> Node:
        """The counters of the first port of the first RDMA device."""
        document = json.loads(str(self.texts["rdma.json"]))
        device = next(iter(document["devices"].values()))
        next(iter(device["ports"].values()))["counters"].update({name: str(n) for name, n in counters.items()})
        for file in {"rdma.json", "rdma-after.json"} & self.texts.keys():
            self.write(file, document)
        return self

    def seen(self, seconds_ago: float) -> Node:
        """It is looked at, and this is what follows so many seconds later."""
        previous_looks = looks(read(bundle(self.texts)))
        assert previous_looks is not None
        for look in previous_looks.values():
            look["uptime"] -= seconds_ago
        self.write(FILE, previous_looks)
        return self

    def judged(self, level: Level = "quick", want: Expected | None = None) -> dict[str, CheckResult]:
        case = Case(bundle(self.texts), want or expected(self.machine, level))
        return {check.id: check for check in judge({"node": case})["node"].checks}


@pytest.mark.parametrize(
    ("line", "check"),
    [
        (HUNG, "log.hung_task"),
        ("watchdog: BUG: soft lockup - CPU#3 stuck for 22s! [python3:4711]", "log.soft_lockup"),
        ("nvme nvme0: I/O 12 QID 4 timeout, completion polled", "log.io_timeout"),
        ("nfs: server 10.0.0.4 not responding, still trying", "log.network_fs"),
        ("Out of memory: Killed process 4711 (python3) total-vm:1kB", "log.oom"),
    ],
)
def test_a_line_of_the_kernel_warns_for_a_day(line: str, check: str) -> None:
    assert Node().log(line, ago=3600).judged()[check].status == "fail"
    old = Node().log(line, ago=30 * 3600).judged()[check]
    assert (old.status, old.action) == ("note", "none")
    assert "more than 24 hours ago" in old.message
    repeated = Node().log(line, ago=30 * 3600).log(line, ago=60).judged()[check]
    assert repeated.status == "fail"


def test_a_line_without_a_time_is_one_of_now() -> None:
    node = Node()
    node.texts["dmesg.txt"] = f"{node.texts['dmesg.txt']}\n{HUNG}\n"
    assert node.judged()["log.hung_task"].status == "fail"
    node = Node().log(HUNG, ago=30 * 3600)
    del node.texts["host.json"]
    assert node.judged()["log.hung_task"].status == "fail"


def test_corrected_memory_errors_are_held_to_one_limit() -> None:
    check = "log.machine_check_corrected"
    line = "EDAC MC1: 1 CE memory scrubbing error on CPU_SrcID#1"
    assert Node().log(line, ago=60).judged()[check].status == "note"
    assert Node().log(*[line] * 1001, ago=60).judged()[check].status == "fail"
    assert Node().log(*[line] * 1001, ago=30 * 3600).judged()[check].status == "note"


@pytest.mark.parametrize(("days", "status"), [(1, "fail"), (6, "fail"), (8, "note"), (280, "note")])
def test_a_hard_power_off_warns_for_a_week(days: int, status: str) -> None:
    node = Node(up=days * 86_400)
    host = node.host()
    host["boots"] = [["boot", int(host["time"] - 300 * 86_400)], ["boot", int(host["time"] - days * 86_400)]]
    host["configured"] = host["time"] - 290 * 86_400
    node.write("host.json", host)
    assert node.judged()["host.uptime"].status == status


@pytest.mark.parametrize(
    ("node", "status"),
    [
        (Node().port(symbol_error=200), "pass"),  # one a day
        (Node(up=1800).port(symbol_error=200), "fail"),
        (Node(up=1800).port(symbol_error=100), "pass"),
        (Node().port(symbol_error=900_000), "fail"),
        (Node().port(symbol_error=900_000).seen(3600), "pass"),
        (Node().port(symbol_error=900_000).seen(3600).port(symbol_error=900_121), "fail"),
        (Node().port(symbol_error=900_000).seen(10 * 3600).port(symbol_error=900_121), "pass"),
        (Node().port(symbol_error=900_000).seen(3600).port(symbol_error=500), "fail"),  # the driver was loaded again
        (Node().port(local_link_integrity_errors=1), "fail"),
        (Node().port(local_link_integrity_errors=1).seen(3600), "pass"),
        (Node().port(link_downed=9).seen(20 * 3600).port(link_downed=13), "pass"),
        (Node().port(link_downed=9).seen(20 * 3600).port(link_downed=14), "fail"),
    ],
)
def test_errors_of_a_port_are_those_since_the_last_look(node: Node, status: str) -> None:
    check = node.judged()["rdma.errors"]
    assert check.status == status, check
    if status == "fail":
        assert "since the " in check.message


def test_a_look_of_another_boot_is_none() -> None:
    node = Node().port(symbol_error=900_000).seen(3600)
    host = node.host()
    host["files"]["proc/sys/kernel/random/boot_id"] = "00000000-e318-47e3-9ea6-a1e87037b350"
    node.write("host.json", host)
    assert "since the boot" in node.judged()["rdma.errors"].message


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        '{"hour": {}}',
        '{"hour": {"uptime": "x", "boot_id": "", "counters": {}, "read": []}}',
        '{"hour": {"uptime": -1e400, "boot_id": "", "counters": {}, "read": []}}',
    ],
)
def test_a_damaged_look_is_none(text: str) -> None:
    node = Node().port(symbol_error=200)
    node.texts[FILE] = text
    assert node.judged()["rdma.errors"].status == "pass"


def test_a_clock_that_is_set_between_two_looks_changes_nothing() -> None:
    for jump in (-7200, -1, 1, 400 * 86_400):
        node = Node().port(symbol_error=900_000).seen(3600).port(symbol_error=900_121)
        host = node.host()
        node.write("host.json", host | {"time": host["time"] + jump})
        check = node.judged()["rdma.errors"]
        assert (check.status, "in 1.0 h, since the last look" in check.message) == ("fail", True), (jump, check)


def test_what_the_earlier_look_did_not_read_has_not_grown_since_it() -> None:
    node = Node().port(symbol_error=900_000, local_link_integrity_errors=4)
    text = node.texts.pop("rdma.json")
    node.seen(600).texts["rdma.json"] = text
    checks = node.judged()
    assert (checks["rdma.errors"].status, checks["rdma.integrity"].status) == ("pass", "pass")
    saved_looks = looks(read(bundle(node.texts)))
    assert saved_looks is not None and 4 in saved_looks["hour"]["counters"].values(), "it begins with what it stands at"
    node.write(FILE, saved_looks)
    node.port(local_link_integrity_errors=5)
    assert node.judged()["rdma.integrity"].status == "fail"


def test_looks_stay_until_they_are_old_enough() -> None:
    node = Node().port(symbol_error=5).seen(1800).port(symbol_error=9)
    saved_looks = looks(read(bundle(node.texts)))
    assert saved_looks is not None
    assert {max(saved_looks[span]["counters"].values()) for span in ("hour", "day")} == {5}
    later = looks(read(bundle(node.seen(7200).port(symbol_error=11).texts)))
    assert later is not None
    name = next(name for name in later["hour"]["counters"] if name.endswith("symbol_error"))
    assert (later["hour"]["counters"][name], later["day"]["counters"][name]) == (11, 5)


def test_a_link_that_repeats_today_is_a_warning_and_one_of_the_past_a_note() -> None:
    def node(errors: int) -> Node:
        created = Node("p4d.24xlarge")
        text = str(created.texts["nvlink-errors.txt"])
        at = text.index("Replay Errors: 0")
        created.texts["nvlink-errors.txt"] = f"{text[:at]}Replay Errors: {errors}{text[at + len('Replay Errors: 0') :]}"
        return created

    assert node(1).judged()["nvlink.errors"].status == "note"
    assert node(1).seen(3600).judged()["nvlink.errors"].status == "note"
    grown = node(1).seen(3600)
    grown.texts["nvlink-errors.txt"] = node(3).texts["nvlink-errors.txt"]
    assert grown.judged()["nvlink.errors"].status == "fail"


def test_links_of_which_no_counter_was_read_are_unknown() -> None:
    node = Node("p4d.24xlarge")
    text = str(node.texts["nvlink-errors.txt"])
    node.texts["nvlink-errors.txt"] = text[: text.index("GPU 4: ")]
    checks = node.judged()
    assert (checks["nvlink.errors"].status, checks["nvlink.errors"].message) == (
        "unknown", "no link has a counter of GPU 4, 5, 6, 7"
    )  # fmt: skip


LATER = ("dcgmi-health.json", "mdstat.txt", "nvlink-errors.txt", "nvlink-errors-after.txt")


@pytest.mark.parametrize("machine", [DGX, "p4d.24xlarge"])
def test_what_an_older_bundle_lacks_condemns_nobody(machine: str) -> None:
    texts = {name: text for name, text in healthy(machine).items() if name not in LATER}
    older = replace(bundle(texts), collected=1_700_000_000.0)
    checks = judge({"node": Case(older, expected(machine, "quick"))})["node"].checks
    assert [check.id for check in checks if check.condemns] == []
    unknown_checks = {check.id: check for check in checks if check.status == "unknown"}
    assert unknown_checks["dcgm.health"].severity == "warn"
    assert unknown_checks["dcgm.health"].message.endswith("it was collected by an older gpuprov")


@pytest.mark.parametrize("missing", [*LATER, "nvidia-smi.xml"])
def test_what_was_asked_and_not_answered_condemns_as_before(missing: str) -> None:
    texts = dict(healthy(DGX))
    node = replace(bundle(texts), collected=1_700_000_000.0)
    without_file = replace(node, files={**node.files, missing: Output("", missing=True)})
    if missing == "nvidia-smi.xml":  # it is no file that an older gpuprov did not know
        without_file = replace(node, files={name: output for name, output in node.files.items() if name != missing})
    checks = judge({"node": Case(without_file, expected(DGX, "quick"))})["node"].checks
    assert any(check.condemns for check in checks)
