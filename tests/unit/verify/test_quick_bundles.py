"""What lies in a bundle is judged whatever the level: `gpuprov verify --bundle` looks at level quick, and each failing
input of the tests of checks fails the same checks there."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from provisioner.catalog import load
from provisioner.verify import check_runner
from provisioner.verify.bundle import Bundle, Output
from provisioner.verify.check_runner import NodeUnderTest
from provisioner.verify.facts import read
from provisioner.verify.parsers.nccl_tests import parse
from provisioner.verify.peers import Peers
from provisioner.verify.pytest_runner import Case
from provisioner.verify.registry import plain_checks
from provisioner.verify.results import CheckResult, blame
from tests.support.healthy_bundle import bundle, capture, expected, healthy, without_gpu
from tests.support.healthy_fabric import fabric_json
from tests.support.healthy_fio import fio_json
from tests.unit.verify import test_checks, test_fabric_checks, test_fio, test_gpu_checks, test_load_checks

pytestmark = pytest.mark.heavy

P4D = "p4d.24xlarge"


def of_checks() -> Iterator[tuple[str, Case, set[str]]]:
    for name, fault in test_checks.FAULTS.items():
        yield name, test_checks.case(fault), fault.fails


def of_gpus() -> Iterator[tuple[str, Case, set[str]]]:
    for name, fault in test_gpu_checks.FAULTS.items():
        texts = healthy(fault.machine)
        fault.breaks(texts)
        yield name, Case(bundle(texts), test_gpu_checks.want(fault)), fault.fails


def of_load() -> Iterator[tuple[str, Case, set[str]]]:
    for name, fault in test_load_checks.FAULTS.items():
        texts = healthy(fault.machine)
        fault.breaks(texts)
        yield name, Case(bundle(texts), expected(fault.machine)), fault.fails


def of_fabric() -> Iterator[tuple[str, Case, set[str]]]:
    for name, fault in test_fabric_checks.FAULTS.items():
        yield name, test_fabric_checks.case(P4D, fabric_json(load().machine(P4D), **fault.values)), {fault.fails}


def of_fio() -> Iterator[tuple[str, Case, set[str]]]:
    for name, fault in test_fio.FAULTS.items():
        yield name, test_fio.case(P4D, fio_json(**fault.values)), {fault.fails}


def judged(case: Case, level: str) -> dict[str, CheckResult]:
    node = NodeUnderTest("a", read(case.bundle), replace(case.expected, level=level), None)  # type: ignore[arg-type]
    peers = Peers({"a": node.facts})
    results, followed, silenced = {}, {}, {}
    for function, declared in plain_checks():
        outcome = check_runner.run(function, declared, node, peers)
        results[declared.id] = CheckResult(
            declared.id, declared.severity, outcome.status, outcome.action or declared.action,  # type: ignore[arg-type]
            message=outcome.message, unread=outcome.unread,
        )  # fmt: skip
        followed[declared.id], silenced[declared.id] = declared.follows, declared.silences
    return {result.id: result for result in blame(results, followed, silenced)}


def failing(case: Case, level: str) -> set[str]:
    return {id for id, result in judged(case, level).items() if result.status in ("fail", "note")}


@pytest.mark.parametrize("faults", [of_checks, of_gpus, of_load, of_fabric, of_fio])
def test_a_failing_input_fails_at_level_quick_too(faults: Callable[[], Iterator[tuple[str, Case, set[str]]]]) -> None:
    """Name, node, and the checks that fail on it where a level runs them."""
    wrong = {
        name: (failing_checks, fails)
        for name, case, fails in faults()
        if (failing_checks := failing(case, "quick")) != fails
    }
    assert not wrong


def alone(**files: str) -> dict[str, CheckResult]:
    """A bundle of these files, put together by hand."""
    texts = {name.replace("__", "."): Output(text) for name, text in files.items()}
    texts = {name.replace("_", "-"): output for name, output in texts.items()}
    return judged(Case(Bundle(texts), expected(P4D)), "quick")


def test_a_driver_that_no_file_tells_of_is_not_called_unloaded() -> None:
    listed = "GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-00000000-0000-0000-0000-000000000000)\n"
    check = alone(nvidia_smi__xml=listed, packages__txt="nvidia-open\t580.173.02-0ubuntu1\tii \n")[
        "driver.loaded_is_installed"
    ]
    assert check.status == "unknown"
    assert check.message.endswith("nvidia-version.txt is not in the bundle")


def test_a_lost_gpu_explains_that_containers_have_none() -> None:
    texts = healthy("workstation-rtx4090")
    texts["nvidia-smi.xml"] = without_gpu(str(texts["nvidia-smi.xml"]), 0)
    texts["host.json"] = json.dumps(json.loads(str(texts["host.json"])) | {"cdi": {}})
    want = replace(expected("workstation-rtx4090"), units=("gpuprov-cdi.service",))
    checks = judged(Case(bundle(texts), want), "quick")
    assert (checks["gpu.count"].status, checks["container.cdi"].status) == ("fail", "unknown")
    assert checks["container.cdi"].explained_by == "gpu.count"


def test_a_diagnosis_alone_is_judged() -> None:
    checks = alone(dcgmi_diag__json=capture("dcgmi_diag/diag-r1-json-dcgm3-fail.json"))
    assert checks["dcgm.diag"].status == "fail"


def test_wrong_values_alone_are_judged() -> None:
    text = capture("nccl_tests/a100-8gpu-1node.txt")
    wrong = text.replace("Out of bounds values : 0 OK", "Out of bounds values : 3 FAILED")
    assert parse(wrong).out_of_bounds_ok is False
    check = judged(Case(Bundle({"all_reduce.txt": Output(wrong)}), expected(P4D)), "quick")["nccl.bandwidth"]
    assert (check.status, check.action) == ("fail", "replace")


SAMPLE = 'DCGM_FI_DEV_XID_ERRORS{{gpu="{}",UUID="GPU-{}"{}}} {}\n'
"""DCGM_FI_DEV_XID_ERRORS as in captures/dcgm_exporter; err_code and err_msg are dcgm-exporter's labels since 3.3.6."""


@pytest.mark.parametrize(
    ("samples", "status", "message"),
    [
        (SAMPLE.format(3, "d", "", 79), "fail", "GPU 3: Xid 79"),
        (SAMPLE.format(3, "d", ',err_code="48",err_msg="DBE"', 48), "fail", "GPU 3: Xid 48"),
        (SAMPLE.format(3, "d", "", 0), "pass", ""),
        (SAMPLE.format(3, "d", "", 31), "pass", ""),
        (SAMPLE.format(3, "d", "", 9223372036854775794), "pass", ""),
        (SAMPLE.format(3, "d", "", 997), "unknown", "Xid 997"),
        ("", "skip", "no sample"),
    ],
)
def test_an_xid_of_the_exporter_is_judged(samples: str, status: str, message: str) -> None:
    text = 'DCGM_FI_DEV_GPU_TEMP{gpu="0",UUID="GPU-a"} 31\n' + samples
    check = alone(dcgm_exporter__prom=text)["dcgm.xid"]
    assert check.status == status
    assert message in check.message
