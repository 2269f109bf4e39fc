"""gpuprov-mig on simulated GPUs: layouts, what a reboot leaves to do, GPUs that are in use."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest

from provisioner.sandbox.node import smi_mig, state
from tests.support.role_script import load, on_node
from tests.support.sandbox_node import MakeNode, Node
from tests.unit.sandbox.conftest import make_node

__all__ = ["make_node"]  # the fixture of the simulator's own tests


class Mig:
    """The script on a node whose units are `active`."""

    def __init__(self, node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
        self.node, self.monkeypatch = node, monkeypatch
        self.active: set[str] = set()
        self.module = load("mig", "files/gpuprov_mig.py")
        self.called = on_node(node, monkeypatch, self.module, systemctl=self.systemctl)

    def systemctl(self, command: list[str]) -> subprocess.CompletedProcess[str]:
        verb, unit = command[1], command[-1]
        if verb == "is-active":
            is_active = unit in self.active
            return subprocess.CompletedProcess(
                command, 0 if is_active else 3, "active\n" if is_active else "inactive\n", ""
            )
        if verb in ("stop", "start"):
            (self.active.discard if verb == "stop" else self.active.add)(unit)
        return subprocess.CompletedProcess(command, 0, "", "")

    def run(self, profile: str = "1g.5gb", instances: int = 7, gpus: int = 8) -> tuple[int, str, str]:
        self.called.clear()
        self.node.capsys.readouterr()
        code = self.module.main(["--profile", profile, "--instances", str(instances), "--gpus", str(gpus)])
        captured = self.node.capsys.readouterr()
        return code, captured.out.strip(), captured.err

    def layout(self) -> list[int]:
        """MIG devices of each GPU."""
        return [len(profiles) for profiles in self.module.layouts().values()]

    def changes(self) -> list[list[str]]:
        changing_words = ("-mig", "-cgi", "-dci", "-dgi", "--gpu-reset", "stop", "start")
        return [call for call in self.called if set(call) & set(changing_words)]


@pytest.fixture
def mig(make_node: MakeNode, monkeypatch: pytest.MonkeyPatch) -> Mig:
    return Mig(make_node("p4d.24xlarge"), monkeypatch)


def test_every_gpu_gets_the_instances_and_a_second_run_changes_nothing(mig: Mig) -> None:
    code, out, err = mig.run()
    assert (code, err) == (0, "")
    assert out == "changed: 7 x 1g.5gb on GPU 0,1,2,3,4,5,6,7"
    assert mig.layout() == [7] * 8
    assert mig.run()[:2] == (0, "unchanged")
    assert mig.changes() == []


def test_another_profile_replaces_the_first_one(mig: Mig) -> None:
    mig.run()
    assert mig.run("3g.20gb", 2)[0] == 0
    assert mig.layout() == [2] * 8


def test_only_the_gpu_that_differs_is_touched(mig: Mig) -> None:
    mig.run("3g.20gb", 2)
    mig.node.says("nvidia-smi", "mig", "-i", "5", "-dci")
    assert mig.run("3g.20gb", 2)[1] == "changed: 2 x 3g.20gb on GPU 5"
    assert all("5" in call for call in mig.changes())


def test_off_takes_everything_away(mig: Mig) -> None:
    assert mig.run("off", 0)[:2] == (0, "unchanged")
    mig.run()
    assert mig.run("off", 0)[0] == 0
    assert {mode for mode, _ in mig.module.modes().values()} == {"Disabled"}


def test_off_is_fine_on_gpus_without_mig(make_node: MakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    assert Mig(make_node("workstation-rtx4090"), monkeypatch).run("off", 0, 1)[:2] == (0, "unchanged")


@pytest.mark.parametrize(("machine", "mode_after_boot"), [("p4d.24xlarge", "Enabled"), ("dgx-h100", "Disabled")])
def test_after_a_reboot_the_layout_is_made_again(
    make_node: MakeNode, monkeypatch: pytest.MonkeyPatch, machine: str, mode_after_boot: str
) -> None:
    mig = Mig(make_node(machine), monkeypatch)
    profile = "1g.5gb" if machine == "p4d.24xlarge" else "1g.10gb"
    mig.run(profile)
    (mig.node.root / state.MIG).unlink()
    smi_mig.at_boot(state.hardware())
    assert {mode for mode, _ in mig.module.modes().values()} == {mode_after_boot}
    assert mig.run(profile)[0] == 0
    assert mig.layout() == [7] * 8


def test_monitoring_stands_aside_and_comes_back(mig: Mig) -> None:
    """DCGM's host engine keeps the mode from changing while it runs."""
    mig.monkeypatch.setattr(smi_mig.state, "hostengine_runs", lambda: "nvidia-dcgm.service" in mig.active)
    mig.active = {"nvidia-dcgm.service", "nvidia-dcgm-exporter.service"}
    assert mig.run()[0] == 0
    assert mig.layout() == [7] * 8
    assert mig.active == {"nvidia-dcgm.service", "nvidia-dcgm-exporter.service"}


def test_a_pending_mode_is_brought_about_by_a_reset(mig: Mig) -> None:
    mig.monkeypatch.setattr(smi_mig.state, "hostengine_runs", lambda: True)
    mig.node.says("nvidia-smi", "-mig", "1")
    mig.monkeypatch.setattr(smi_mig.state, "hostengine_runs", lambda: False)
    mig.monkeypatch.setattr(smi_mig, "set_mode", lambda *_: None)  # nvidia-smi says that it is set already
    assert mig.run()[0] == 0
    assert ["nvidia-smi", "--gpu-reset", "-i", "0,1,2,3,4,5,6,7"] in mig.called
    assert mig.layout() == [7] * 8


def test_a_reset_that_is_refused_says_what_to_do(mig: Mig) -> None:
    mig.monkeypatch.setattr(smi_mig.state, "hostengine_runs", lambda: True)  # somebody else's, which no unit started
    code, _, err = mig.run()
    assert code == 1
    assert "waits for a reset of GPU 0,1,2" in err
    assert "reboot the node" in err


def test_a_job_is_named_and_nothing_is_changed(mig: Mig) -> None:
    (mig.node.root / "proc/4711").mkdir(parents=True)
    (mig.node.root / smi_mig.USERS).write_text(json.dumps([{"gpu": 3, "pid": 4711, "name": "python3"}]))
    code, _, err = mig.run()
    assert code == 1
    assert "python3 (pid 4711)" in err
    assert mig.changes() == []


def test_a_missing_gpu_is_refused(mig: Mig) -> None:
    machine = state.hardware()
    machine["gpus"][3]["present"] = False
    state.write(state.HARDWARE, machine)
    assert "lists 7 GPUs, this machine type has 8" in mig.run()[2]


def test_too_many_instances_fail_in_the_tools_own_words(mig: Mig) -> None:
    code, _, err = mig.run("1g.5gb", 8)
    assert code == 1
    assert "Insufficient Resources" in err


def test_what_is_there_afterwards_is_looked_at(mig: Mig) -> None:
    def forgets(*_: Any, **__: Any) -> int:
        return 0

    mig.monkeypatch.setattr(smi_mig, "_create", forgets)
    code, _, err = mig.run()
    assert code == 1
    assert "asked for 7 x 1g.5gb on every GPU, and GPU 0 has none" in err


def test_no_driver(make_node: MakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (
        "couldn't communicate with the NVIDIA driver"
        in Mig(make_node("p4d.24xlarge", loaded=False), monkeypatch).run()[2]
    )
