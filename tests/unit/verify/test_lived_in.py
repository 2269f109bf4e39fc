"""A node that has run for months, and what such a one has met: one finding about the next boot, and the faults of
today."""

from __future__ import annotations

import re
from typing import Any

import pytest

from provisioner.catalog import load
from provisioner.verify.expectations import Expected
from provisioner.verify.merged_checks import merge
from tests.support.healthy_bundle import expected, healthy
from tests.unit.verify import test_checks, test_field_faults, test_gpu_checks, test_host_checks
from tests.unit.verify.test_age import DAYS, HUNG, Node, Texts

MACHINES = [machine.name for machine in load().machines() if not machine.retired]

LIVED = (
    HUNG,
    "nvme nvme0: I/O 12 QID 4 timeout, completion polled",
    "nfs: server 10.0.0.4 not responding, still trying",
    "EDAC MC1: 1 CE memory scrubbing error on CPU_SrcID#1",
    "watchdog: BUG: soft lockup - CPU#3 stuck for 22s! [cc:4711]",
    "Out of memory: Killed process 4711 (python3) total-vm:1kB",
    "python3[4711]: segfault at 0 ip 0 sp 0 error 4 in libc",
    "pcieport 0000:00:1c.0: AER: Corrected error received: 0000:00:1c.0",
)


def lived_in(machine: str, texts: Texts | None = None) -> Node:
    """A node that has run for 200 days, with what such a one has met. `texts`: of a healthy one."""
    node = Node(machine, texts=texts).log(*LIVED, ago=100 * 86_400)
    host = node.host()
    host["boots"] = [["boot", int(host["time"] - 280 * 86_400)], ["boot", int(host["time"] - DAYS)]]
    host["configured"] = host["time"] - 290 * 86_400
    for name in host["interfaces"]:
        host["interfaces"][name]["carrier_down_count"] = "6"
    node.write("host.json", host)
    services = str(node.texts["services.txt"]).rstrip("\n")
    node.texts["services.txt"] = f"{services}\nfwupd-refresh.service loaded failed failed Refresh firmware\n".lstrip()
    if "nvlink-errors.txt" in node.texts:
        text = str(node.texts["nvlink-errors.txt"])
        node.texts["nvlink-errors.txt"] = text.replace("Replay Errors: 0", "Replay Errors: 1", 1)
    if "rdma.json" in node.texts and load().machine(machine).network.kind in ("infiniband", "roce"):
        node.port(symbol_error=200, link_downed=6)
    node.texts["reboot.txt"] = "libc6\n"
    return node


@pytest.mark.parametrize("machine", MACHINES)
def test_a_node_that_has_run_for_months_has_at_most_two_findings(machine: str) -> None:
    checks = merge(lived_in(machine).judged().values())
    failed = {check.id: check.message for check in checks if check.status == "fail"}
    assert len(failed) <= 2 and set(failed) <= {"host.next_boot"}, failed
    assert not [check.id for check in checks if check.condemns]


def failing(node: Node, want: Expected) -> set[str]:
    return {check.id for check in node.judged(want=want).values() if check.status == "fail"}


def of_today(node: Node, healthy_node: Node) -> None:
    """The last line that a fault has brought to the kernel's log is a minute old, the others as much older as they
    were."""
    log, old = str(node.texts["dmesg.txt"]).splitlines(), set(str(healthy_node.texts["dmesg.txt"]).splitlines())
    times = [float(match[1]) for line in log if line not in old and (match := TIME.match(line))]

    def later(match: re.Match[str]) -> str:
        return f"[{node.up - 60 - (max(times) - float(match[1])):.6f}]"

    lines = [line if line in old else TIME.sub(later, line) for line in log]
    node.texts["dmesg.txt"] = "".join(f"{line}\n" for line in lines)


TIME = re.compile(r"^\[ *([\d.]+)\]")
TEXTS: dict[str, Any] = test_checks.FAULTS | test_gpu_checks.FAULTS | test_field_faults.FAULTS
BEFORE_LAST_LOOK = {"one replay", "crc flit", "one bad link", "one link that recovers", "all links alike", "flaps"}
"""Counters since the boot: those of today are what grew since the last look (test_age.py)."""
OTHERWISE = {
    "a B200 soon after boot", "days before the hang of day 66", "the hang of day 66",
    "a machine check and a lockup that the log has lost",
}  # fmt: skip
"""Faults of a node that has run for another time, or whose log has another beginning."""


NOTES = {"EDAC CE", "MCE logged"}
"""What is no finding on any node: it was corrected, and once."""


def takes_part(name: str, fault: Any) -> bool:
    """Whether nothing but the node's outputs is otherwise: neither what is expected of it nor the time."""
    special = any(getattr(fault, field, None) for field in ("mig", "group", "locked"))
    return not (special or name in BEFORE_LAST_LOOK | OTHERWISE | NOTES or name.startswith("NVLink 5: "))


@pytest.mark.parametrize("name", [name for name, fault in TEXTS.items() if takes_part(name, fault)])
def test_a_fault_of_today_on_such_a_node_is_found_as_on_a_new_one(name: str) -> None:
    fault = TEXTS[name]
    want, healthy_node, node = expected(fault.machine, "stress"), lived_in(fault.machine), lived_in(fault.machine)
    fault.breaks(node.texts)
    of_today(node, healthy_node)
    failing_without_fault = failing(healthy_node, want)
    assert failing(node, want) - failing_without_fault == fault.fails - failing_without_fault


HOST = test_host_checks.FAULTS
TODAY = [name for name, fault in HOST.items() if takes_part(name, fault) and fault.received == test_host_checks.NOW]


@pytest.mark.parametrize("name", TODAY)
def test_a_fault_of_the_host_on_such_a_node_is_found_as_on_a_new_one(name: str) -> None:
    fault = HOST[name]
    texts = healthy(fault.machine) | test_host_checks.files(fault.machine)
    want = test_host_checks.want(fault.machine)
    healthy_node, node = (lived_in(fault.machine, texts) for _ in range(2))
    host = node.host()
    fault.breaks(host)
    node.write("host.json", host)
    fault.texts(node.texts)
    of_today(node, healthy_node)
    failing_without_fault = failing(healthy_node, want)
    assert failing(node, want) - failing_without_fault == fault.fails - failing_without_fault
