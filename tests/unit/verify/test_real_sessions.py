"""What people have pasted into public issues: the fault in it is told, and nothing of it is healthy."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from provisioner.catalog import load
from provisioner.verify.expectations import expect
from provisioner.verify.facts import read as read_facts
from provisioner.verify.health import judge
from provisioner.verify.support_bundle import read

HERE = Path(__file__).parent / "sessions"


@dataclass(frozen=True)
class Session:
    source: str
    machine: str
    fails: set[str]
    placed: set[str]
    says: str = ""


SESSIONS = {
    "akash-209-off-the-bus": Session(
        "github.com/akash-network/support/issues/209", "dgx-a100-80gb", {"gpu.count"},
        {"nvidia-smi.xml", "dmesg.txt", "modules.txt"}, "lost: 0000:a1:00",
    ),
    # 94 is contained: the job ends, the GPU goes on (NVIDIA's catalogue); an excerpt proves no health either
    "akash-244-xid-94": Session(
        "github.com/akash-network/support/issues/244", "dgx-h100", {"gpu.xid_program"},
        {"dmesg.txt"}, "Xid 94",
    ),
    "okm-1150-xid-149": Session(
        "github.com/NVIDIA/open-gpu-kernel-modules/issues/1150", "dgx-b200", {"gpu.xid"}, {"dmesg.txt"}, "Xid 149",
    ),
    "gpud-46-user-xids": Session(
        "github.com/leptonai/gpud/pull/46", "dgx-h100", {"gpu.xid", "log.peermem"}, {"dmesg.txt"}, "Xid 109",
    ),
    "gpu-operator-610-fabric-manager": Session(
        "github.com/NVIDIA/gpu-operator/issues/610", "dgx-a100-80gb", {"nvswitch.fabric"},
        {"fabricmanager.txt", "fabricmanager.log"}, "is failed",
    ),
    "open-kernel-modules": Session(
        "a public note on an RTX 5090, driver 580.105.08", "workstation-rtx4090", {"log.rm_init"}, {"dmesg.txt"},
    ),
    "wpr2-gsp": Session("a public note on WPR2, driver 580", "dgx-h100", {"log.rm_init"}, {"dmesg.txt"}),
    "amd-smi-static-mi350x": Session(
        "github.com/ROCm/rocm-systems/pull/2987", "amd-mi300x-node", {"gpu.count", "gpu.model"}, {"rocm-smi.json"},
        "AMD Instinct MI350X",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SESSIONS)
def test_the_fault_of_a_real_session_is_told(name: str) -> None:
    session = SESSIONS[name]
    supplied = read(HERE / f"{name}.txt")
    assert {file for _, file in supplied.placed} == session.placed, supplied.unplaced
    row = load().machine(session.machine)
    expected = expect(row, load().gpu(row.gpu_model), None, None, load(), level="quick")
    report = judge(read_facts(supplied.bundle), expected)
    failed = {check.id: check.message for check in report.checks if check.status == "fail"}
    assert set(failed) == session.fails
    assert session.says in "; ".join(failed.values())
    assert not report.ok
