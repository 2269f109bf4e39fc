"""One cause is one row with one thing to do: what follows from a failure names it and does as it does, and what could
not be answered at all calls for a look, not for a reset or another machine."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import replace

import pytest
from rich.console import Console

from provisioner.verify.bundle import Output
from provisioner.verify.pytest_runner import Case
from provisioner.verify.registry import all_checks
from provisioner.verify.report.html import html
from provisioner.verify.report.terminal import problems, table
from provisioner.verify.results import NodeReport, Report
from tests.support.healthy_bundle import bundle, expected, healthy
from tests.support.judging import judge

P4D = "p4d.24xlarge"
NVIDIA_SMI = ("nvidia-smi.xml", "topo.txt", "nvlink.txt", "nvlink-errors.txt")
MISMATCH = "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 580.105\n"
NO_DRIVER = (
    "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the latest NVIDIA "
    "driver is installed and running.\n"
)


def judged(broken: Mapping[str, Output]) -> NodeReport:
    healthy_bundle = bundle(healthy(P4D))
    case = Case(replace(healthy_bundle, files={**healthy_bundle.files, **broken}), expected(P4D))
    return NodeReport("node", "", "", P4D, False, judge({"node": case})["node"].checks)


@pytest.mark.parametrize(
    ("broken", "cause", "action"),
    [
        (Output("", timed_out=True, seconds=30.0), "driver.responds", "reboot"),
        (Output(MISMATCH, rc=18), "driver.version", "reboot"),
        (Output(NO_DRIVER, rc=9), "driver.responds", "reconfigure"),
        (Output("", missing=True, error="nvidia-smi is not installed"), "driver.responds", "reconfigure"),
    ],
    ids=("hung", "mismatch", "no driver", "not installed"),
)
def test_a_silent_driver_is_one_row(broken: Output, cause: str, action: str) -> None:
    node = judged(dict.fromkeys(NVIDIA_SMI, broken))
    unknown = [check for check in node.checks if check.status == "unknown"]
    assert {"gpu.count", "nvlink.topology", "fleet.cloned", "gpu.ecc"} <= {check.id for check in unknown}
    assert {(check.explained_by, check.action) for check in unknown} == {(cause, action)}
    assert all(check.message.startswith(f"explained by {cause}: ") for check in unknown)
    assert [check.id for check, _ in problems(node)] == [cause]
    stream = io.StringIO()
    Console(file=stream, width=600).print(table(Report((node,), {}, 0.0)))
    assert f"({len(unknown)} more checks unknown because of it)" in " ".join(stream.getvalue().split())
    assert "replace" not in stream.getvalue()
    page = html(Report((node,), {}, 0.0))
    assert "--gpu-reset" not in page  # the procedures of other actions are not on the page
    assert "gpuprov replace" not in page


def test_a_file_that_cannot_be_read_calls_for_a_look() -> None:
    node = judged({"topo.txt": Output("nonsense", rc=0), "dmesg.txt": Output("", rc=0, unfit="a pipe")})
    unknown = {check.id: check for check in node.checks if check.status == "unknown"}
    assert {"nvlink.topology", "gpu.xid"} <= set(unknown)
    assert {check.action for check in unknown.values() if check.condemns} == {"reconfigure"}
    assert not any(check.explained_by for check in unknown.values())
    assert {check.id for check, _ in problems(node)} == {"nvlink.topology", "gpu.xid"}
    page = html(Report((node,), {}, 0.0))
    assert all(f"It could not be answered. If it failed: {check.says}" in page for check, _ in problems(node))


def test_another_failure_hides_no_unknown_from_the_page() -> None:
    """Only what follows from a failure is left out of what has to be done."""
    node = judged({"topo.txt": Output("nonsense", rc=0), "holds.txt": Output("", rc=0)})
    failed = [check.id for check in node.checks if check.status == "fail"]
    assert failed
    page = html(Report((node,), {}, 0.0)).partition('id="node-node"')[0]
    assert all(check_id in page for check_id in (*failed, "nvlink.topology"))


def test_files_that_a_check_silences_are_those_of_the_bundle() -> None:
    from provisioner.verify.tools import FILES

    assert {file for _, check in all_checks() for file in check.silences} <= set(FILES)


def test_words_and_action_of_a_lost_gpu_agree_on_every_machine() -> None:
    """Whoever rents a machine has no bare-metal host to reboot."""
    from provisioner.catalog import load

    advice = next(xid for xid in load().xids() if xid.code == 79)
    count = next(check for _, check in all_checks() if check.id == "gpu.count")
    assert "bare-metal host" not in advice.advice
    assert (count.action, "replace" in count.says.lower()) == ("replace", True)
    assert "Reboot the host" not in count.says


def test_a_finding_is_a_sentence_without_its_check_s_name() -> None:
    texts = healthy(P4D)
    packages = str(texts["packages.txt"]) + "gpuprov-unfinished\t1\tiU \nnothing\t\tiH \n"
    smi = str(texts["nvidia-smi.xml"])
    broken = {
        "packages.txt": Output(packages, rc=0),
        "nvidia-smi.xml": Output(smi.replace("<gpu_recovery_action>None<", "<gpu_recovery_action>Reset<", 1), rc=0),
    }
    messages = {check.id: check.message for check in judged(broken).checks if check.status == "fail"}
    assert messages["packages.unfinished"] == (
        "gpuprov-unfinished 1 is unpacked and not configured, nothing is half-installed"
    )
    assert messages["gpu.reset_required"] == "GPU 0: the driver asks for: Reset"
