"""Machines without a lock (`--host`, `--bundle`): what needs none is judged, and what does says why."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from provisioner.catalog import load
from provisioner.verify.bundle import Output
from provisioner.verify.expectations import Expected, expect
from provisioner.verify.pytest_runner import Case
from provisioner.verify.registry import declared
from provisioner.verify.request import request_for
from provisioner.verify.results import CheckResult
from tests.support.healthy_bundle import ALL, bundle, edit, expected, healthy
from tests.support.judging import judge

P4D, DGX, GB200, V100, B200 = "p4d.24xlarge", "dgx-h100", "p6e-gb200.36xlarge", "p3dn.24xlarge", "dgx-b200"
MACHINES = (*ALL, GB200, B200)
Texts = dict[str, str | Output]


def without_lock(machine: str) -> Expected:
    """As `--host` and `--bundle` expect it of a machine type."""
    catalog = load()
    row = catalog.machine(machine)
    return expect(row, catalog.gpu(row.gpu_model), None, None, catalog, level="stress")


def results(machine: str, texts: Texts, expectation: Expected | None = None) -> dict[str, CheckResult]:
    case = Case(bundle(texts), expectation or without_lock(machine), None)
    return {result.id: result for result in judge({"a": case})["a"].checks}


@pytest.fixture(scope="module")
def healthy_results() -> dict[str, dict[str, CheckResult]]:
    return {machine: results(machine, healthy(machine)) for machine in MACHINES}


@pytest.mark.parametrize("machine", MACHINES)
def test_a_healthy_machine_without_a_lock_fails_nothing(
    healthy_results: dict[str, dict[str, CheckResult]], machine: str
) -> None:
    wrong = {id: r.message for id, r in healthy_results[machine].items() if r.status not in ("pass", "skip", "note")}
    assert wrong == {}


@pytest.mark.parametrize("machine", MACHINES)
def test_what_only_a_lock_makes_judged_says_why(
    healthy_results: dict[str, dict[str, CheckResult]], machine: str
) -> None:
    locked, free = results(machine, healthy(machine), expected(machine, "stress")), healthy_results[machine]
    reasons = {check.id: check.lock for check in declared()}
    lost = {id for id in free if free[id].status == "skip" and locked[id].status != "skip"}
    assert {id for id in lost if not reasons[id]} == set()


def test_what_needs_a_lock_as_a_whole_is_judged_nowhere_without(
    healthy_results: dict[str, dict[str, CheckResult]],
) -> None:
    lock_checks = {check.id for check in declared() if check.lock and not check.without_lock}
    judged = {
        (machine, id)
        for machine, all_of in healthy_results.items()
        for id in lock_checks
        if all_of[id].status != "skip"
    }
    assert judged == set()


def test_a_part_that_is_judged_without_a_lock_belongs_to_a_check_that_says_what_is_not() -> None:
    assert [check.id for check in declared() if check.without_lock and not check.lock] == []


def host(change: Callable[[dict[str, Any]], object]) -> Callable[[Texts], None]:
    def breaks(texts: Texts) -> None:
        document = json.loads(str(texts["host.json"]))
        change(document)
        texts["host.json"] = json.dumps(document)

    return breaks


def text(file: str, old: str, new: str) -> Callable[[Texts], None]:
    def breaks(texts: Texts) -> None:
        assert re.search(old, str(texts[file])), (file, old)
        texts[file] = re.sub(old, new, str(texts[file]), count=1)

    return breaks


def unit(name: str, **values: str) -> Callable[[Texts], None]:
    def breaks(texts: Texts) -> None:
        blocks = str(texts["units.txt"]).split("\n\n")
        for number, block in enumerate(blocks):
            if f"Id={name}" in block:
                for key, value in values.items():
                    blocks[number] = re.sub(f"{key}=.*", f"{key}={value}", blocks[number])
        texts["units.txt"] = "\n\n".join(blocks)

    return breaks


def proprietary(texts: Texts) -> None:
    texts["nvidia-version.txt"] = str(texts["nvidia-version.txt"]).replace("Open Kernel Module", "Kernel Module")


def proprietary_without_peermem(texts: Texts) -> None:
    proprietary(texts)
    texts["modules.txt"] = re.sub("(?m)^nvidia_peermem .*\n", "", str(texts["modules.txt"]))


def one_gpu_less_in_torch(texts: Texts) -> None:
    document = json.loads(str(texts["framework.json"]))
    document["images"][0]["output"] = document["images"][0]["output"].replace('"gpus": 8', '"gpus": 7')
    texts["framework.json"] = json.dumps(document)


def test_a_machine_without_a_lock_is_asked_for_what_is_judged_there() -> None:
    request = request_for(without_lock(DGX))
    assert {"units.txt", "dcgmi-health.json", "modules.txt"} <= {*request.files}
    assert {"nvidia-fabricmanager.service", "slurmd.service", "kubelet.service"} <= {*request.units}
    gb200 = request_for(without_lock(GB200))
    assert "imex.json" in gb200.files and "nvidia-imex.service" in gb200.units
    cloud = request_for(without_lock(P4D))
    assert "maintenance.json" in cloud.files and cloud.maintenance is not None
    assert request.maintenance is None  # a DGX has no cloud to ask


@dataclass(frozen=True)
class Fault:
    """`breaks` changes a healthy machine's texts; then the check has that status, and nothing that is fatal fails."""

    machine: str
    check: str
    breaks: Callable[[Texts], object]
    says: str
    status: str = "fail"
    severity: str = "warn"


FAULTS = {
    "docker does not answer": Fault(
        DGX,
        "container.runtime",
        host(
            lambda d: d.update(
                docker={
                    "rc": 1,
                    "timed_out": False,
                    "seconds": 0.1,
                    "error": "Cannot connect to the Docker daemon",
                    "text": "",
                }
            )
        ),
        "Cannot connect",
    ),
    "GPUs are described to containers for another driver": Fault(
        DGX,
        "container.cdi",
        host(
            lambda d: d["cdi"].update(
                {
                    "/etc/cdi/nvidia.yaml": [
                        "kind: nvidia.com/gpu",
                        "- name: all",
                        "hostPath: /usr/lib/x86_64-linux-gnu/libcuda.so.570.86.15",
                    ]
                }
            )
        ),
        "570.86.15",
    ),
    "an image sees one GPU less": Fault(DGX, "framework.versions", one_gpu_less_in_torch, "7 GPUs of 8"),
    "the proprietary modules run on Blackwell": Fault(B200, "driver.module_flavour", proprietary, "proprietary"),
    "other GSP firmware than the driver's": Fault(
        DGX,
        "gpu.gsp_firmware",
        lambda t: t.update({"nvidia-smi.xml": edit(str(t["nvidia-smi.xml"]), 2, gsp_firmware_version="570.86.15")}),
        "GPU 2: 570.86.15",
    ),
    "persistence mode is off on all GPUs": Fault(
        DGX,
        "gpu.persistence",
        lambda t: t.update(
            {"nvidia-smi.xml": re.sub("(<persistence_mode>)Enabled", r"\1Disabled", str(t["nvidia-smi.xml"]))}
        ),
        "no cluster.yaml",
        status="skip",
    ),
    "persistence mode is off on one GPU": Fault(
        DGX,
        "gpu.persistence",
        lambda t: t.update({"nvidia-smi.xml": edit(str(t["nvidia-smi.xml"]), 3, persistence_mode="Disabled")}),
        "GPU 3",
    ),
    "an open bulletin is a note": Fault(
        DGX,
        "security.bulletins",
        text("packages.txt", r"(?m)^pciutils", "nvidia-container-toolkit\t1.16.0-1\tii \npciutils"),
        "container toolkit 1.16.0",
        status="note",
    ),
    "the exporter has no reading of a GPU": Fault(
        DGX,
        "dcgm.exporter",
        lambda t: t.update(
            {
                "dcgm-exporter.prom": "\n".join(
                    line for line in str(t["dcgm-exporter.prom"]).splitlines() if 'gpu="5"' not in line
                )
                + "\n"
            }
        ),
        "no reading of 1",
    ),
    "the exporter's readings stand still": Fault(
        DGX,
        "dcgm.fields",
        lambda t: t.update(
            {"dcgm-exporter.prom": re.sub(r"(?m)^(DCGM_FI_DEV_GPU_TEMP.*) 31$", r"\1 93", str(t["dcgm-exporter.prom"]))}
        ),
        "nvidia-smi says",
    ),
    "DCGM has seen a failure": Fault(
        DGX,
        "dcgm.health",
        lambda t: t.update({"dcgmi-health.json": json.dumps({"body": {"Overall Health": {"value": "Failure"}}})}),
        "overall health is Failure",
        severity="fatal",
    ),
    "neither dma-buf nor nvidia_peermem": Fault(DGX, "peermem.loaded", proprietary_without_peermem, "nvidia_peermem"),
    "a module of RDMA is not loaded": Fault(
        DGX, "rdma.modules", text("modules.txt", "(?m)^ib_umad .*\n", ""), "ib_umad"
    ),
    "nvlsm does not run": Fault(
        B200, "nvswitch.nvlsm", host(lambda d: d["processes"]["running"].remove("nvlsm")), "process nvlsm"
    ),
    "fabric manager does not start at boot": Fault(
        DGX, "services.expected", unit("nvidia-fabricmanager.service", UnitFileState="disabled"), "disabled at boot"
    ),
    "slurmd does not run": Fault(
        DGX, "services.jobs", unit("slurmd.service", ActiveState="failed"), "slurmd.service is failed"
    ),
    "the exporter's unit has failed": Fault(
        DGX,
        "services.failed",
        lambda t: t.update({"services.txt": "nvidia-dcgm-exporter.service loaded failed failed DCGM Exporter\n"}),
        "dcgm-exporter",
    ),
    "IMEX does not run": Fault(GB200, "services.imex", unit("nvidia-imex.service", ActiveState="inactive"), "inactive"),
    "NCCL is for a newer CUDA than the driver offers": Fault(
        DGX, "nccl.version", text("nvidia-smi.xml", "<cuda_version>[^<]*", "<cuda_version>12.4"), "12.4"
    ),
    "processors save power": Fault(
        DGX,
        "host.governor",
        host(lambda d: d.update(governors={"powersave": 224})),
        "224 processors on powersave",
        status="note",
    ),
    "the kernel moves pages": Fault(
        DGX,
        "host.numa_balancing",
        host(lambda d: d["files"].update({"proc/sys/kernel/numa_balancing": "1"})),
        "default",
        status="note",
    ),
    "EFA has no huge pages": Fault(
        P4D, "host.hugepages", host(lambda d: d["files"].update({"proc/sys/vm/nr_hugepages": "0"})), "EFA uses"
    ),
    "the cloud has scheduled a reboot": Fault(
        P4D,
        "cloud.maintenance",
        text(
            "maintenance.json",
            r'"\[\]"',
            json.dumps(
                json.dumps([{"Code": "system-reboot", "NotBefore": "21 Jan 2019 09:00:43 GMT", "State": "active"}])
            ).replace("\\", "\\\\"),
        ),
        "system-reboot",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_found_without_a_lock(name: str) -> None:
    fault = FAULTS[name]
    texts = healthy(fault.machine)
    fault.breaks(texts)
    by_check = results(fault.machine, texts)
    result = by_check[fault.check]
    assert (result.status, fault.says in result.message) == (fault.status, True), result.message
    if result.status == "fail":
        assert result.severity == fault.severity


@pytest.mark.parametrize(("id", "breaks"), [("rdma.modules", None), ("peermem.loaded", proprietary_without_peermem)])
def test_a_list_of_modules_that_somebody_copied_may_be_a_part(id: str, breaks: Callable[[Texts], None] | None) -> None:
    texts = healthy(DGX)
    if breaks is not None:
        breaks(texts)
    texts["modules.txt"] = "nvidia_uvm 1527808 4\nnvidia_modeset 1306624 1 nvidia_drm\nnvidia 56717312 188 nvidia_uvm\n"
    copied = replace(bundle(texts), collected=None)
    checks = judge({"a": Case(copied, without_lock(DGX), None)})["a"].checks
    assert next(check.status for check in checks if check.id == id) == "skip"


def test_what_could_not_be_read_without_a_lock_is_unknown_and_condemns_nobody() -> None:
    hung = Output("", timed_out=True, seconds=10.0)
    by_check = results(GB200, healthy(GB200) | {"units.txt": hung, "dcgmi-health.json": hung})
    for id in ("services.jobs", "services.expected", "services.imex", "dcgm.health"):
        assert (by_check[id].status, by_check[id].condemns) == ("unknown", False), id
    locked = results(GB200, healthy(GB200) | {"units.txt": hung}, expected(GB200, "stress"))
    assert locked["services.imex"].condemns
