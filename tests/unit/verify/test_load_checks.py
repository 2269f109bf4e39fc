"""The checks of a node at work: green on a healthy node of every kind, and each fault found by exactly its check."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from provisioner.catalog import load
from provisioner.spec.groups import GpuOptions, Group
from provisioner.verify.bundle import Output
from provisioner.verify.parsers.load import parse
from provisioner.verify.pytest_runner import Case, Judged
from tests.support.healthy_bundle import ALL, bundle, edit, expected, healthy
from tests.support.healthy_load import LOAD_CHECKS, REACH_CHECKS, ran, result, samples
from tests.support.judging import judge

P4D, DGX, RTX, G5 = "p4d.24xlarge", "dgx-h100", "workstation-rtx4090", "g5.48xlarge"
Texts = dict[str, str | Output]
XID = "[900.000001] NVRM: Xid (PCI:0000:03:00): {}, pid='<unknown>', name=<unknown>, {}"
ERROR = "Traceback (most recent call last):\n  File x\nRuntimeError: CUDA error: unspecified launch failure\nE0101 x\n"


@dataclass(frozen=True)
class Fault:
    """`breaks` changes a healthy node's texts; then exactly `fails` fail, with `says` in the message."""

    machine: str
    breaks: Callable[[Texts], object]
    fails: set[str]
    says: str = ""
    unknown: set[str] = field(default_factory=set)


def gpu(index: int, machine: str = P4D, **values: Any) -> Callable[[Texts], object]:
    """One GPU gave other values."""

    def change(texts: Texts) -> None:
        document = deepcopy(result(load().machine(machine)))
        document["gpus"][index].update(values)
        texts["load.json"] = ran(document)

    return change


def every(machine: str = P4D, **values: Any) -> Callable[[Texts], object]:
    """All GPUs gave other values."""

    def change(texts: Texts) -> None:
        document = deepcopy(result(load().machine(machine)))
        for gpu_row in document["gpus"]:
            gpu_row.update(values)
        texts["load.json"] = ran(document)

    return change


def result_with(machine: str = P4D, **values: Any) -> Callable[[Texts], object]:
    """The program's result has other values."""
    return lambda t: t.update({"load.json": ran(result(load().machine(machine)) | values)})


def program(**values: Any) -> Callable[[Texts], object]:
    """The program ended in another way, without a result."""
    return lambda t: t.update({"load.json": ran(None, **values)})


def smi(name: str, index: int, **values: str) -> Callable[[Texts], object]:
    return lambda t: t.update({name: edit(str(t[name]), index, **values)})


def after(line: str) -> Callable[[Texts], object]:
    return lambda t: t.update({"dmesg-after.txt": f"{t['dmesg.txt']}\n{line}\n"})


def both(*changes: Callable[[Texts], object]) -> Callable[[Texts], object]:
    return lambda t: [change(t) for change in changes]


def counted(texts: Texts) -> None:
    old = str(texts["nvlink-errors-after.txt"])
    texts["nvlink-errors-after.txt"] = old.replace("Replay Errors: 0", "Replay Errors: 7", 1)
    assert texts["nvlink-errors-after.txt"] != old


def wrong_sums(texts: Texts) -> None:
    document = json.loads(str(texts["load.json"]))
    document["output"] = document["output"].replace('"wrong": 0,', '"wrong": 512,')
    texts["load.json"] = json.dumps(document)


LINK = "pci__pci_gpu_link_info__"
REASON = "clocks_event_reasons__clocks_event_reason_hw_thermal_slowdown"
TRAIN = {"samples_per_s": 3600.0, "loss_first": 9.1}


def busy(**of: Any) -> str:
    return json.dumps({"state": "busy", "busy": [{"pid": 4711, "name": "python3", **of}]})


def port(**grown: int) -> Callable[[Texts], object]:
    """Counters of the first port stood at zero, and have grown under load."""

    def change(texts: Texts) -> None:
        for name, counted in (("rdma.json", dict.fromkeys(grown, 0)), ("rdma-after.json", grown)):
            document = json.loads(str(texts[name]))
            first = next(iter(document["devices"].values()))
            first["ports"]["1"]["counters"].update({k: str(v) for k, v in counted.items()})
            texts[name] = json.dumps(document)

    return change


def lossy(texts: Texts) -> None:
    """From now on one packet in fifty is lost; since boot that is one in two hundred."""
    document = json.loads(str(texts["interfaces-after.json"]))
    document["ens5"]["counts"].update(rx_packets="120000", rx_errors="600")
    texts["interfaces-after.json"] = json.dumps(document)


def slowed(texts: Texts) -> None:
    """Heat slowed a GPU down for seconds, at a time when nobody looked."""
    old = str(texts["nvidia-smi-after.xml"])
    texts["nvidia-smi-after.xml"] = old.replace("therm_slowdown>7 us", "therm_slowdown>4200007 us", 1)
    assert texts["nvidia-smi-after.xml"] != old


def warmed(index: int, degrees: int, memory: int) -> Callable[[Texts], object]:
    """A GPU was that warm at the last look but one."""

    def change(texts: Texts) -> None:
        row = load().machine(P4D if "A100" in str(texts["nvidia-smi.xml"]) else DGX)
        texts["nvidia-smi-samples.csv"] = samples(row, 3) + samples(row, 1, (index, degrees, memory)) + samples(row, 1)

    return change


def reached(**rows: Any) -> Callable[[Texts], object]:
    return lambda t: t.update({"reach.json": json.dumps({"addresses": rows, "proxy": False})})


def drawn(index: int, watts: float) -> Callable[[Texts], object]:
    """One GPU drew no more than that."""

    def change(texts: Texts) -> None:
        assert "\n3, 30, N/A, 1410 MHz, 391.20 W" in str(texts["nvidia-smi-samples.csv"])
        texts["nvidia-smi-samples.csv"] = re.sub(
            rf"(?m)^({index}, .*), 391.20 W", rf"\1, {watts:.2f} W", str(texts["nvidia-smi-samples.csv"])
        )

    return change


def pair(*wrong: tuple[int, int], machine: str = P4D) -> Callable[[Texts], object]:
    """Copies between those GPUs arrive wrong, from the first to the second."""
    pairs = result(load().machine(machine))["gpus"][0]["wrong_peers"]
    return gpu(0, machine, wrong_peers=[[i, j, 4096 * ((i, j) in wrong)] for i, j, _ in pairs])


FAULTS: dict[str, Fault] = {
    "copies to one GPU arrive wrong": Fault(
        P4D, pair(*((i, 3) for i in range(8))), {"load.copies"}, "GPU 0 to GPU 3: 4096 wrong bytes; GPU 1 to GPU 3"
    ),
    "copies arrive wrong in one direction only": Fault(
        DGX, pair((1, 0), machine=DGX), {"load.copies"}, "GPU 1 to GPU 0"
    ),
    "copies from the host arrive wrong": Fault(
        P4D, gpu(5, wrong_h2d=65536), {"load.copies"}, "host to GPU 5: 65536 wrong bytes"
    ),
    "wrong copies explain wrong sums": Fault(
        P4D,
        both(pair((1, 0), (2, 5)), lambda t: t.pop("all_reduce.txt"), wrong_sums),
        {"load.copies"},
        "GPU 1 to GPU 0: 4096 wrong bytes; GPU 2 to GPU 5",
        {"nccl.bandwidth"},
    ),
    "a registry is not reached": Fault(
        P4D,
        reached(**{"https://nvcr.io/v2/": {"status": None, "error": "gaierror: Name or service not known"}}),
        {"net.sources"},
        "https://nvcr.io/v2/: gaierror",
    ),
    "names take long": Fault(
        P4D,
        reached(**{"https://a.test/": {"status": 200, "resolve_seconds": 5.1}}),
        {"net.lookup"},
        "took 5.1 s",
    ),
    "P8 under load": Fault(
        P4D, smi("nvidia-smi-load.xml", 3, performance_state="P8"), {"load.pstate"}, "GPU 3 is in P8"
    ),
    "a locked clock": Fault(
        P4D, smi("nvidia-smi-load.xml", 3, clocks__sm_clock="705 MHz"), {"load.clock"}, "GPU 3: 705 of 1410 MHz"
    ),
    "little power": Fault(P4D, drawn(3, 110.0), {"load.power"}, "GPU 3: 110 W, median 391"),
    "little power everywhere": Fault(
        P4D,
        lambda texts: [drawn(gpu, 95.0)(texts) for gpu in (0, 1, 2, 4, 5, 6, 7, 3)],
        {"load.power"},
        "GPU 0: 95 W of 400",
    ),
    "one GPU hotter than the rest": Fault(P4D, warmed(3, 70, 40), {"load.temperature_spread"}, "GPU 3: 70 °C, median"),
    "slowed between the looks": Fault(DGX, slowed, {"load.slowed"}, "hw_thermal_slowdown for 4.2 s"),
    "a link went down under load": Fault(DGX, port(link_downed=1), {"load.rdma_link"}, "1 link_downed"),
    "an hour's symbol errors under load": Fault(DGX, port(symbol_error=4821), {"load.rdma_link"}, "4821 symbol_error"),
    "Ethernet that loses packets under load": Fault(P4D, lossy, {"load.net_errors"}, "600 errors in 30000 rx packets"),
    "retries under load": Fault(P4D, port(retrans_timeout_events=4711), {"load.rdma_retries"}, "4711 retrans"),
    "hot in the course of the load": Fault(P4D, warmed(3, 88, 40), {"load.temperature"}, "GPU 3: 1 °C left"),
    "hot memory in the course of the load": Fault(
        P4D, warmed(5, 40, 94), {"load.temperature"}, "memory of GPU 5: 1 °C left"
    ),
    "warm at the one look": Fault(
        P4D,
        both(lambda t: t.pop("nvidia-smi-samples.csv"), smi("nvidia-smi-load.xml", 3, temperature__gpu_temp="86 C")),
        {"load.temperature"},
        "GPU 3: 3 °C left",
    ),
    "a GPU that says how far it is from slowing down": Fault(
        DGX,
        both(smi("nvidia-smi-load.xml", 2, temperature__gpu_temp_tlimit="54 C"), warmed(2, 84, 40)),
        {"load.temperature"},
        "GPU 2: 3 °C left",
    ),
    "died": Fault(P4D, program(rc=1, error=ERROR), {"load.completes"}, "RuntimeError: CUDA error: unspecified"),
    "killed at its deadline": Fault(P4D, program(rc=None, timed_out=True), {"load.completes"}, "timed out after 61 s"),
    "no word": Fault(
        P4D, program(rc=125, output="", error="docker: no such image"), {"load.completes"}, "no such image"
    ),
    "result and then a bad end": Fault(
        P4D, lambda t: t.update({"load.json": ran(result(load().machine(P4D)), rc=1)}), {"load.completes"}
    ),
    "on the CPU": Fault(P4D, result_with(device="cpu"), {"load.completes"}, "ran on cpu"),
    "a GPU twice": Fault(
        P4D,
        result_with(gpus=result(load().machine(P4D))["gpus"][:7] + result(load().machine(P4D))["gpus"][:1]),
        {"load.completes"},
        "7 GPUs in 8 rows",
    ),
    "seven GPUs": Fault(
        P4D, result_with(gpus=result(load().machine(P4D))["gpus"][:7]), {"load.completes"}, "7 GPUs took part"
    ),
    "wrong product": Fault(P4D, gpu(3, wrong_products=2), {"load.results"}, "GPU 3: 2 wrong"),
    "other bits": Fault(P4D, gpu(3, digest=-78), {"load.results"}, "GPU 3"),
    "slow GPU": Fault(P4D, gpu(3, tflops=560.0, tflops_last=540.0), {"load.compute"}, "GPU 3: 540"),
    "slow memory": Fault(P4D, gpu(3, memory_gbps=2400.0), {"load.memory"}, "GPU 3"),
    "all GPUs multiply slowly": Fault(
        P4D, every(tflops=150.0, tflops_last=148.0), {"load.compute_rate"}, "187.2 expected"
    ),
    "an outlier": Fault(P4D, gpu(3, tflops=460.0, tflops_last=450.0), {"load.outlier"}, "GPU 3: 450", {"load.compute"}),
    "one GPU at a quarter": Fault(
        P4D, gpu(3, tflops=155.0, tflops_last=150.0), {"load.compute_rate"}, "GPU 3: 150", {"load.compute"}
    ),
    "all GPUs have slow memory": Fault(DGX, every(DGX, memory_gbps=1500.0), {"load.memory_rate"}, "2010 expected"),
    "falls back": Fault(RTX, gpu(0, RTX, tflops_last=430.0), {"load.sustained"}, "GPU 0: 430 after 640"),
    "slow to the GPU": Fault(DGX, gpu(3, DGX, h2d_gbps=30.0), {"load.host_copy"}, "GPU 3: 30.0"),
    "slow from the GPU": Fault(DGX, gpu(3, DGX, d2h_gbps=30.0), {"load.host_copy"}, "GPU 3: 30.0"),
    "half the lanes, no limit": Fault("p3dn.24xlarge", gpu(3, "p3dn.24xlarge", h2d_gbps=28.0), {"load.host_copy"}),
    "slow to the next GPU": Fault(P4D, gpu(3, peer_gbps=20.0), {"load.peer_copy"}, "GPU 3: 20.0"),
    "sockets": Fault(
        P4D, result_with(transports={"P2P": 120, "NET/Socket": 8}), {"nccl.transport"}, "8 channels via NET/Socket"
    ),
    "host memory": Fault(P4D, result_with(transports={"SHM": 128}), {"nccl.transport"}, "128 channels via SHM"),
    "slow all_reduce": Fault(
        P4D,
        both(result_with(all_reduce=[{"bytes": 1 << 33, "busbw_gbps": 90.0}]), lambda t: t.pop("all_reduce.txt")),
        {"nccl.bandwidth"},
        "90 GB/s at most",
    ),
    "wrong sums": Fault(
        P4D, both(result_with(wrong=3), lambda t: t.pop("all_reduce.txt")), {"nccl.bandwidth"}, "3 values"
    ),
    "loss rises": Fault(P4D, result_with(train={**TRAIN, "loss_last": 9.2}), {"load.training"}, "9.100 to 9.200"),
    "loss is no number": Fault(P4D, result_with(train={**TRAIN, "loss_last": float("nan")}), {"load.training"}),
    "hot under load": Fault(
        P4D, smi("nvidia-smi-load.xml", 3, **{REASON: "Active"}), {"load.throttle"}, "GPU 3: hw_thermal"
    ),
    "x8 under load": Fault(
        P4D,
        smi("nvidia-smi-load.xml", 3, **{LINK + "link_widths__current_link_width": "8x"}),
        {"load.pcie_link"},
        "x8 instead of x16",
    ),
    "generation 1 under load": Fault(
        RTX,
        smi("nvidia-smi-load.xml", 0, **{LINK + "pcie_gen__current_link_gen": "1"}),
        {"load.pcie_link"},
        "generation 1",
    ),
    "uncorrectable": Fault(
        P4D, smi("nvidia-smi-after.xml", 3, ecc_errors__volatile__dram_uncorrectable="1"), {"load.ecc"}
    ),
    "flood of corrected": Fault(
        P4D,
        smi("nvidia-smi-after.xml", 3, ecc_errors__aggregate__dram_correctable="17657"),
        {"load.ecc"},
        "17657 corrected",
    ),
    "links repeat": Fault(P4D, counted, {"load.nvlink"}, "7 replay"),
    "PCIe repeats": Fault(P4D, smi("nvidia-smi-after.xml", 3, pci__replay_counter="4000"), {"load.pcie_replay"}),
    "xid": Fault(P4D, after(XID.format(94, "Contained: SM")), {"load.xid"}, "Xid 94"),
    "xid not in the table": Fault(P4D, after(XID.format(997, "?")), {"load.xid"}, "Xid 997"),
    "gone after it, and the program with it": Fault(
        P4D,
        both(program(rc=1, error=ERROR), after(XID.format(79, "GPU has fallen off the bus."))),
        {"load.xid"},
        unknown={"load.completes"},
    ),
    "a process of nobody's": Fault(
        P4D,
        lambda t: t.update({"load.json": busy(cgroup="0::/user.slice/user-1000.slice/session-3.scope", parent=1)}),
        {"load.stray_process"},
        "python3 (pid 4711)",
    ),
    "lost without a word": Fault(
        P4D,
        smi("nvidia-smi-after.xml", 3, ecc_mode__current_ecc="GPU is lost"),
        {"load.survives"},
        "8 GPUs before the load, 7 after it",
    ),
}


@pytest.fixture(scope="module")
def judged() -> dict[str, Judged]:
    cases = {f"healthy {machine}": Case(bundle(healthy(machine)), expected(machine)) for machine in (*ALL, G5)}
    for name, fault in FAULTS.items():
        texts = healthy(fault.machine)
        fault.breaks(texts)
        cases[name] = Case(bundle(texts), expected(fault.machine))
    return judge(cases)


def ids(verdict: Judged, *status: str) -> set[str]:
    return {check.id for check in verdict.checks if check.status in status}


@pytest.mark.parametrize("name", list(FAULTS))
def test_a_fault_is_found_by_its_check_alone(judged: dict[str, Judged], name: str) -> None:
    fault, verdict = FAULTS[name], judged[name]
    assert ids(verdict, "fail") == fault.fails
    assert any(fault.says in check.message for check in verdict.checks if check.id in fault.fails)
    assert fault.unknown <= ids(verdict, "unknown")


@pytest.mark.parametrize("machine", [*ALL, G5])
def test_a_healthy_node_at_work(judged: dict[str, Judged], machine: str) -> None:
    assert ids(judged[f"healthy {machine}"], "fail", "unknown") & LOAD_CHECKS == set()


def test_every_check_has_a_green_and_a_red_input(judged: dict[str, Judged]) -> None:
    area_checks = LOAD_CHECKS | REACH_CHECKS
    green = set().union(*(ids(judged[f"healthy {machine}"], "pass") for machine in (*ALL, G5)))
    assert area_checks - green == set()
    assert area_checks - set().union(*(fault.fails for fault in FAULTS.values())) == set()


def test_a_job_is_not_disturbed_and_the_node_stays_healthy() -> None:
    texts = healthy(P4D)
    texts["load.json"] = json.dumps({"state": "busy", "busy": [{"pid": 4711, "name": "python3"}]})
    del texts["all_reduce.txt"]
    verdict = judge({"busy": Case(bundle(texts), expected(P4D))})["busy"]
    assert ids(verdict, "skip") >= LOAD_CHECKS - {"load.stray_process"}
    assert ids(verdict, "fail", "unknown") == set()
    assert "python3 (pid 4711)" in next(c.message for c in verdict.checks if c.id == "load.completes")


@pytest.mark.parametrize(
    ("cgroup", "parent", "stray"),
    [
        # Slurm's cgroup/v1 and cgroup/v2 plugins, kubelet with both drivers, docker, podman
        ("5:memory:/slurm/uid_1000/job_71/step_0/task_0", 900, False),
        ("0::/system.slice/slurmstepd.scope/job_71/step_0/user/task_0", 1, False),
        ("0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1.slice/cri-containerd-ab.scope", 1, False),
        ("11:pids:/kubepods/besteffort/pod1/ab", 1, False),
        ("0::/system.slice/docker-ab.scope", 1, False),
        ("0::/machine.slice/libpod-ab.scope/container", 1, False),
        ("0::/system.slice/train.service", 1, False),
        ("0::/user.slice/user-1000.slice/session-3.scope", 900, False),
        ("0::/user.slice/user-1000.slice/session-3.scope", 1, True),
        ("0::/user.slice/user-1000.slice/user@1000.service/app.slice/run.scope", 900, False),
        ("0::/user.slice/user-1000.slice/user@1000.service/app.slice/run.scope", 1, True),
        ("0::/", 1, True),
        ("0::/init.scope", 2, True),
        ("", 1, True),
        (None, None, False),
    ],
)
def test_whose_a_process_is(cgroup: str | None, parent: int | None, stray: bool) -> None:
    assert bool(parse(busy(cgroup=cgroup, parent=parent)).stray) is stray


def test_without_pytorch_a_locked_node_is_unknown_and_a_foreign_one_is_not_tested() -> None:
    texts = healthy(P4D)
    texts["load.json"] = json.dumps({"state": "absent", "why": "no locked image has PyTorch"})
    want = expected(P4D)
    verdicts = judge({
        "locked": Case(bundle(texts), want), "foreign": Case(bundle(texts), replace(want, images=None))
    })  # fmt: skip
    assert "load.completes" in ids(verdicts["locked"], "unknown")
    assert ids(verdicts["foreign"], "skip") >= LOAD_CHECKS


@pytest.mark.parametrize(
    "name",
    [
        "nvidia-smi-load.xml",
        "nvidia-smi-after.xml",
        "nvlink-errors-after.txt",
        "dmesg-after.txt",
        "rdma-after.json",
        "interfaces-after.json",
    ],
)
def test_what_was_not_seen_again_is_unknown(name: str) -> None:
    texts = healthy(P4D)
    texts[name] = Output("", timed_out=True, seconds=30.0)
    verdict = judge({"hung": Case(bundle(texts), expected(P4D))})["hung"]
    blind = {
        "nvidia-smi-load.xml": {
            "load.throttle",
            "load.pcie_link",
            "load.temperature",
            "load.pstate",
            "load.clock",
            "load.power",
            "load.temperature_spread",
        },
        "nvidia-smi-after.xml": {"load.survives", "load.ecc", "load.pcie_replay", "load.slowed"},
        "rdma-after.json": {"load.rdma_link", "load.rdma_retries"},
        "nvlink-errors-after.txt": {"load.nvlink"},
        "interfaces-after.json": {"load.net_errors"},
        "dmesg-after.txt": {"load.xid"},
    }
    assert ids(verdict, "unknown") == blind[name]


def test_gpus_that_are_cut_up_are_not_loaded_and_that_is_no_hole() -> None:
    mig = Group(machine=P4D, gpu=GpuOptions(mig="1g.5gb"))
    texts = {name: text for name, text in healthy(P4D).items() if "load" not in name and "after" not in name}
    del texts["all_reduce.txt"]
    verdict = judge({"cut": Case(bundle(texts), expected(P4D, group=mig))})["cut"]
    assert ids(verdict, "skip") >= LOAD_CHECKS | {"nccl.bandwidth"}
    assert not {check.id for check in verdict.checks if "load.json" in check.message}
