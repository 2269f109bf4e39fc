"""`dcgmi health -c` in both forms, and which run level of `dcgmi diag` is asked for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from provisioner.verify.parsers import Unreadable, dcgmi_health
from provisioner.verify.parsers.dcgmi_health import Incident
from provisioner.verify.pytest_runner import Case
from provisioner.verify.request import load_request
from provisioner.verify.support_bundle import read
from tests.support.healthy_bundle import bundle, diag, expected, healthy
from tests.support.judging import judge

P4D = "p4d.24xlarge"
TREE = """\
+---------------------------+----------------------------------------------------------+
| Health Monitor Report                                                                |
+===========================+==========================================================+
| Overall Health            | Failure                                                  |
| GPU                       |                                                          |
| -> 0                      | Warning                                                  |
|    -> Errors              |                                                          |
|       -> PCIe system      | Warning                                                  |
|                           | Detected more than 8 PCIe replays per minute for GPU 0 : |
|                           | 13 Reconnect PCIe card.                                  |
| -> 3                      | Failure                                                  |
|    -> Errors              |                                                          |
|       -> NVLINK system    | Failure                                                  |
|                           | GPU 3's NvLink link 2 is currently down                  |
+---------------------------+----------------------------------------------------------+
"""
"""Health::GenerateOutputFromResponse and DcgmiOutputTree::str of NVIDIA/DCGM (widths 28 and 60)."""


def test_the_tree_says_what_the_json_says() -> None:
    health = dcgmi_health.parse(TREE)
    assert health.overall == "Failure"
    assert health.incidents == (
        Incident("GPU 0", "PCIe system", "Warning",
                 "Detected more than 8 PCIe replays per minute for GPU 0 : 13 Reconnect PCIe card."),
        Incident("GPU 3", "NVLINK system", "Failure", "GPU 3's NvLink link 2 is currently down"),
    )  # fmt: skip


@pytest.mark.parametrize("text", ["", "Error: unable to connect", "{}", '{"body": {"Overall Health": {"value": "?"}}}'])
def test_what_is_no_report_is_not_read(text: str) -> None:
    with pytest.raises(Unreadable):
        dcgmi_health.parse(text)


def test_a_bundle_is_judged_by_it(tmp_path: Path) -> None:
    (tmp_path / "health.out").write_text(TREE)
    supplied = read(tmp_path)
    assert supplied.placed == (("health.out", "dcgmi-health.json"),)
    verdict = judge({"n": Case(supplied.bundle, expected(P4D))})["n"]
    check = next(c for c in verdict.checks if c.id == "dcgm.health")
    assert check.status == "fail" and "GPU 3: NVLINK system" in check.message


def test_the_run_level_can_be_chosen() -> None:
    expectation = replace(expected(P4D, "standard"), diag=4)
    request = load_request(expectation)
    assert request is not None and request.diag == 4 and request.files["dcgmi-diag.json"] == 9000.0
    standard = load_request(expected(P4D, "standard"))
    assert standard is not None and standard.diag == 1
    texts = dict(healthy(P4D)) | {"dcgmi-diag.json": diag()}
    verdict = judge({"n": Case(bundle(texts), expectation)})["n"]
    check = next(c for c in verdict.checks if c.id == "dcgm.diag")
    assert check.status == "unknown" and "-r 4 did not run memtest; pulse_test" in check.message
