"""Checks of what operators of GPU fleets have reported: green on a healthy node of every kind, each red on its
fault, and then it alone."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from provisioner.catalog import load
from provisioner.verify.bundle import Output
from provisioner.verify.checks import cabling
from provisioner.verify.expectations import Expected
from provisioner.verify.parsers.ib_switches import Link
from provisioner.verify.pytest_runner import Case, Judged
from tests.support.field_checks import FIELD_CHECKS
from tests.support.healthy_bundle import ALL, DRIVER, bundle, capture, expected, healthy, nth
from tests.support.judging import judge

P4D, DGX, NDV4, RTX = "p4d.24xlarge", "dgx-h100", "Standard_ND96asr_v4", "workstation-rtx4090"
ROCE = next(machine.name for machine in load().machines() if machine.network.kind == "roce")
Texts = dict[str, str | Output]
Change = Callable[[Texts], object]


B200 = "dgx-b200"


@dataclass(frozen=True)
class Fault:
    """`breaks` changes a healthy node's texts; then exactly `fails` fail, with `says` in a message. `locked`
    replaces versions of the lock: old → new."""

    fails: set[str]
    breaks: Change
    says: str = ""
    machine: str = P4D
    unknown: set[str] = field(default_factory=set)
    locked: dict[str, str] = field(default_factory=dict)


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


def driver(version: str, flavour: str = "Open Kernel Module") -> Change:
    """Another driver, whole: nvidia-smi, the module and the file on disk."""

    def change(texts: Texts) -> None:
        for name, output in texts.items():
            texts[name] = str(output).replace(DRIVER, version)
        texts["nvidia-version.txt"] = (
            f"NVRM version: NVIDIA UNIX {flavour} for x86_64  {version}  Release Build  (buildmeister@x)\n"
        )

    return change


def versions(old: str, new: str) -> Change:
    """Another version of one part, wherever it stands."""
    return lambda texts: texts.update({name: str(output).replace(old, new) for name, output in texts.items()})


def light(port: int, reading: str, replacement: str) -> Change:
    """mlxlink reads that of the port in the machine's order, in place of a healthy one."""

    def change(texts: Texts) -> None:
        document = json.loads(str(texts["mlxlink.json"]))
        card = [*document["cards"].values()][port]
        document["cards"][[*document["cards"]][port]] = card | {"output": card["output"].replace(reading, replacement)}
        assert json.dumps(document) != texts["mlxlink.json"]
        texts["mlxlink.json"] = json.dumps(document)

    return change


def file(name: str, path: str) -> Change:
    return lambda texts: texts.update({name: capture(path)})


def storage(path: str, packages: str = "nvidia-fs\t2.24.3-1\tii \n") -> Change:
    """GPUDirect Storage is installed, and gdscheck says that."""
    return both(append("packages.txt", packages), file("gds.txt", path))


def qos(device: int | None, old: str, new: str) -> Change:
    """One card, or all, is set otherwise."""

    def change(texts: Texts) -> None:
        document = json.loads(str(texts["roce-qos.json"]))
        for index, (name, card) in enumerate(document["cards"].items()):
            if device in (index, None):
                assert any(old in value for value in card.values())
                document["cards"][name] = {key: value.replace(old, new) for key, value in card.items()}
        texts["roce-qos.json"] = json.dumps(document)

    return change


def uptime(days: float) -> Change:
    return host("files|proc/uptime", f"{days * 86400:.2f} 1000000.00")


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
    "days before the hang of day 66": Fault(
        {"driver.known_bad", "security.bulletins"},
        both(driver("580.105.08"), uptime(61.2)),
        "hang for good 66 days and 12 hours after boot (up for 61 days). Drain and reboot",
        B200,
        locked={DRIVER: "580.105.08"},
    ),
    "a B200 soon after boot": Fault(
        {"security.bulletins"}, both(driver("580.105.08"), uptime(59.0)), machine=B200, locked={DRIVER: "580.105.08"}
    ),
    "the hang of day 66": Fault(
        {"driver.known_bad", "driver.responds"},
        both(driver("580.105.08"), uptime(66.6), lambda t: t.update({"nvidia-smi.xml": Output("", timed_out=True)})),
        "(up for 67 days)",
        B200,
        locked={DRIVER: "580.105.08"},
    ),
    "an NCCL that does not know nvidia-peermem": Fault(
        {"driver.known_bad"},
        both(
            driver(DRIVER, "x86_64 Kernel Module"),
            versions("2.27.7", "2.21.5"),
            append("modules.txt", "nvidia_peermem 16384 0 - Live 0x0000000000000000 (OE)\n"),
        ),
        "NCCL does not look for nvidia-peermem",
        NDV4,
        locked={"2.27.7": "2.21.5", '"open"': '"proprietary"'},
    ),
    "a driver from before a bulletin": Fault(
        {"security.bulletins"},
        driver("580.105.08"),
        "driver 580.105.08 is older than 580.159.03 (2026-05: CVE-2026-24187, CVE-2026-24190, CVE-2026-24192 and 9",
        locked={DRIVER: "580.105.08"},
    ),
    "a driver of a branch without fixes, and an old toolkit": Fault(
        {"security.bulletins"},
        both(driver("545.23.08"), append("packages.txt", "nvidia-container-toolkit\t1.16.1-1\tii \n")),
        "container toolkit 1.16.1-1 is older than 1.17.8 (2025-07: CVE-2025-23266), and 1 older bulletin",
        locked={DRIVER: "545.23.08"},
    ),
    "one lane of a fibre gets little light": Fault(
        {"rdma.optics"},
        light(2, "1.886,1.989", "1.886,-11.9"),
        ": received power -11.9 dBm, -10.41 at least",
        DGX,
    ),
    "a transceiver is too hot": Fault(
        {"rdma.optics"}, light(1, "54 [-5..75]", "76 [-5..75]"), ": temperature 76 °C, 75 at most", DGX
    ),
    "no light on an Ethernet port": Fault(
        {"net.optics"},
        file("ethtool-modules.json", "ethtool_modules/sfp-lr-no-light.json"),
        "enp134s0f0: received power -40 dBm, -13.1 at least",
        DGX,
    ),
    "a hot transceiver of an Ethernet port": Fault(
        {"net.optics"},
        file("ethtool-modules.json", "ethtool_modules/qsfp-hot-and-one-lane-dark.json"),
        "ens2np0: temperature 81.5 °C, 75 at most",
        DGX,
    ),
    "GPUDirect Storage in compatibility mode": Fault(
        {"storage.gds"},
        storage("gds/l40s-nothing-direct.txt"),
        "no route is direct (nvidia-fs is not loaded)",
    ),
    "GPUDirect Storage for NFS alone": Fault(
        {"storage.gds"},
        both(
            storage("gds/l40s-nothing-direct.txt"),
            lambda t: t.update(
                {
                    "gds.txt": str(t["gds.txt"])
                    .replace("NFS                : Un", "NFS                : ")
                    .replace("NFS                : s", "NFS                : S")
                }
            ),
        ),
        "local NVMe is not direct, only NFS",
    ),
    "compatibility mode is forced": Fault(
        {"storage.gds"},
        both(
            storage("gds/l40s-p2pdma.txt"),
            lambda t: t.update(
                {"gds.txt": str(t["gds.txt"]).replace("force_compat_mode : false", "force_compat_mode : true")}
            ),
        ),
        "forces compatibility mode",
    ),
    "a GPU that cannot take part in GPUDirect Storage": Fault(
        {"storage.gds"},
        both(
            storage("gds/a100-nvidia-fs.txt"),
            lambda t: t.update({"gds.txt": str(t["gds.txt"]).replace("65536 supports GDS\n ==", "256 \n ==")}),
        ),
        "GPU 1 cannot take part",
    ),
    "a RoCE card trusts the other field": Fault(
        {"rdma.qos"}, qos(2, "trust state: dscp", "trust state: pcp"), ": trust pcp, PFC 3", ROCE
    ),
    "NCCL's traffic is not in the lossless class": Fault(
        {"rdma.qos"},
        qos(None, "tclass=106", "tclass=0"),
        "traffic class 0 has priority 0 on ",
        ROCE,
    ),
    "nobody marks RoCE traffic": Fault(
        {"rdma.qos"},
        both(
            qos(None, "Global tclass=106", ""),
            lambda t: t.update({"roce-qos.json": str(t["roce-qos.json"]).replace("NCCL_IB_TC=106", "NCCL_IB_SL=3")}),
        ),
        "PFC is on for 3 alone",
        ROCE,
    ),
    "a process of the job on this node is gone": Fault(
        {"nccl.ras"},
        both(file("nccl-ras.txt", "nccl_ras/process-missing.txt"), host("addresses", ["10.0.3.17", "172.16.64.213"])),
        "process 3487984 on 172.16.64.213 with GPU 5 does not answer",
    ),
}
RIGHT: dict[str, tuple[str, Change]] = {
    "a warning of the kernel's own code": (
        P4D,
        both(tainted(OE | 1 << 9), append("dmesg.txt", capture("dmesg/warning-of-the-kernel-itself.txt"))),
    ),
    "a B200 with a newer driver": (B200, uptime(99.0)),
    "a toolkit that is fixed": (P4D, append("packages.txt", "nvidia-container-toolkit\t1.17.8-1\tii \n")),
    "GPUDirect Storage through nvidia-fs": (P4D, storage("gds/a100-nvidia-fs.txt")),
    "GPUDirect Storage through P2PDMA": (P4D, storage("gds/l40s-p2pdma.txt", "nvidia-gds-13-0\t1.15.0-1\tii \n")),
    "RoCE without PFC": (ROCE, qos(None, "enabled     0   0   0   1", "enabled     0   0   0   0")),
    "RoCE marked by NCCL alone": (ROCE, qos(None, "Global tclass=106", "")),
    "RoCE cards of a driver that does not tell": (ROCE, file("roce-qos.json", "roce_qos/no-driver.json")),
    "RoCE alike": (ROCE, lambda _: None),
    "a process of the job on another node is gone": (P4D, file("nccl-ras.txt", "nccl_ras/process-missing.txt")),
    "a job at work": (P4D, file("nccl-ras.txt", "nccl_ras/busy-with-mismatch.txt")),
    "a job that runs": (P4D, file("nccl-ras.txt", "nccl_ras/running-2.30.txt")),
    "no job": (P4D, lambda t: t.update({"nccl-ras.txt": ""})),
    "copper without readings": (
        DGX,
        both(
            file("mlxlink.json", "mlxlink/osfp-copper-without-limits.json"),
            lambda t: t.update({"ethtool-modules.json": '{"ports": {"ens1": {"rc": 92, "text": ""}}}'}),
        ),
    ),
    "an older probe": (P4D, host("files|proc/sys/kernel/tainted", None)),
}


def swap(first: int, second: int) -> Change:
    """The cables of two rails are swapped."""

    def change(texts: Texts) -> None:
        document = json.loads(str(texts["ib-switches.json"]))
        a, b = [*document["ports"]][first], [*document["ports"]][second]
        ports = document["ports"]
        ports[a], ports[b] = ports[b], ports[a]
        texts["ib-switches.json"] = json.dumps(document)

    return change


FLEETS: dict[str, tuple[str, Change]] = {
    "fleet.cabling": (DGX, swap(2, 3)),
    "fleet.qos": (ROCE, qos(None, "enabled     0   0   0   1   0", "enabled     0   0   0   1   1")),
}


def case(machine: str, change: Change, locked: dict[str, str] | None = None) -> Case:
    texts = healthy(machine)
    change(texts)
    want = json.dumps(expected(machine).to_json())
    for old, new in (locked or {}).items():
        want = want.replace(old, new)
    return Case(bundle(texts), Expected.from_json(json.loads(want)))


@pytest.fixture(scope="module")
def judged() -> dict[str, Judged]:
    cases = {f"healthy {machine}": case(machine, lambda _: None) for machine in ALL}
    cases |= {name: case(fault.machine, fault.breaks, fault.locked) for name, fault in FAULTS.items()}
    return judge(cases | {name: case(machine, change) for name, (machine, change) in RIGHT.items()})


@pytest.fixture(scope="module")
def fleets() -> dict[str, list[Judged]]:
    """Four nodes of a group for each, of which the third is set otherwise."""
    cases: dict[str, Case] = {}
    for check, (machine, breaks) in FLEETS.items():
        for number in range(4):
            texts: Texts = dict(nth(machine, number))
            if number == 2:
                breaks(texts)
            cases[f"{check} {number}"] = Case(bundle(texts), expected(machine), group=check)
    judged = judge(cases)
    return {check: [judged[f"{check} {number}"] for number in range(4)] for check in FLEETS}


@pytest.mark.parametrize("check", list(FLEETS))
def test_the_node_that_differs_from_its_group_is_named(fleets: dict[str, list[Judged]], check: str) -> None:
    statuses = [next(c.status for c in node.checks if c.id == check) for node in fleets[check]]
    assert statuses == ["pass", "pass", "fail", "pass"]


LEAVES = [(f"mlx5_{i}/1", f"leaf-{i}") for i in range(8)]


@pytest.mark.parametrize(
    ("own", "group", "misplaced"),
    [
        (("mlx5_2/1", "leaf-3"), [LEAVES] * 4, "mlx5_3/1"),
        (("mlx5_3/1", "leaf-3"), [LEAVES] * 4, None),
        # another unit of the fabric, with leaves of its own
        (("mlx5_2/1", "leaf-20"), [LEAVES] * 4, None),
        # one switch for all rails of a node
        (("mlx5_2/1", "top"), [[(port, "top") for port, _ in LEAVES]] * 4, None),
        # two rails on one switch
        (("mlx5_2/1", "leaf-0"), [[("mlx5_0/1", "leaf-0"), ("mlx5_1/1", "leaf-0")]] * 4, None),
        # two nodes prove nothing
        (("mlx5_2/1", "leaf-3"), [LEAVES] * 2, None),
    ],
)
def test_a_rail_is_misplaced_where_its_switch_is_another_rails_alone(
    own: tuple[str, str], group: list[list[tuple[str, str]]], misplaced: str | None
) -> None:
    holders: dict[tuple[str, str], list[str]] = {}
    for number, cables in enumerate(group):
        for cable in cables:
            holders.setdefault(cable, []).append(f"n{number}")
    if own not in holders:
        holders[own] = ["own"]
    assert cabling.misplaced(Link(*own), holders) == misplaced


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
    healthy_names = [*(f"healthy {machine}" for machine in ALL), *RIGHT]
    alone = FIELD_CHECKS - set(FLEETS)
    assert alone - set().union(*(ids(judged[name], "pass") for name in healthy_names)) == set()
    assert alone - set().union(*(fault.fails for fault in FAULTS.values())) == set()
