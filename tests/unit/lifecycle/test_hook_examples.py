"""The hooks of examples/hooks against stand-ins of the schedulers' commands: what they call; twice is as once."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from provisioner.common.events import Events
from provisioner.lifecycle import hooks
from provisioner.rundir.fleet import Node
from tests.support.sandbox_cluster import ROOT

NODE = Node("train-0", "train", "here", "p4d.24xlarge", "i-0", "", "203.0.113.7", "10.0.0.7")
REASON = "gpu.count: 7 of 8; \"$(touch owned)\" `x` 'y'"

SLURM = {
    "sinfo": 'cat state; echo "sinfo $*" >> asked',
    "squeue": "cat jobs; : > jobs",
    "scontrol": """
echo "scontrol $*" >> calls
case "$*" in
*state=drain*) echo "drained|${4#reason=}" > state ;;
*state=resume*) grep -q '^d' state || { echo "Invalid node state specified" >&2; exit 1; }; echo "idle|none" > state ;;
esac
""",
    "sleep": "echo waited >> calls",
}
KUBERNETES = {
    "kubectl": """
case "$1 $*" in
get*unschedulable*) cat cordon ;;
get*cordoned*) test -e cordoned && echo yes || : ;;
get*taints*) test -e tainted && echo "other/taint gpuprov/out-of-service" || echo other/taint ;;
*)
  echo "kubectl $*" >> calls
  case "$*" in
  "taint "*-) rm tainted ;;
  "taint "*) touch tainted ;;
  *"gpuprov/cordoned=yes") touch cordoned ;;
  *cordoned-) rm -f cordoned ;;
  "drain "*) echo true > cordon ;;
  "uncordon "*) : > cordon ;;
  esac ;;
esac
"""
}


class Desk:
    """A folder with a hook of examples/hooks and stand-ins of commands in front of PATH."""

    def __init__(self, folder: Path, script: str, commands: dict[str, str]) -> None:
        self.folder, self.script = folder, script
        shutil.copy(ROOT / "examples" / "hooks" / script, folder)
        (folder / "bin").mkdir()
        for name, text in commands.items():
            (folder / "bin" / name).write_text(f"#!/bin/sh\n{text}\n")
            (folder / "bin" / name).chmod(0o755)

    def run(self, step: hooks.HookStep, action: hooks.Action) -> dict[str, str]:
        return hooks.run(
            step, f"PATH=$PWD/bin:$PATH; export PATH; sh {self.script}", [NODE], action=action,
            reasons={NODE.name: REASON}, cluster="told", folder=self.folder, deadline_s=30, events=Events(),
        )  # fmt: skip

    def write(self, **files: str) -> None:
        for name, text in files.items():
            (self.folder / name).write_text(text)

    def calls(self) -> list[str]:
        log = self.folder / "calls"
        lines = log.read_text().splitlines() if log.exists() else []
        log.unlink(missing_ok=True)
        assert not (self.folder / "owned").exists(), "a shell has read the reason"
        return lines


@pytest.fixture
def slurm(tmp_path: Path) -> Desk:
    desk = Desk(tmp_path, "slurm.sh", SLURM)
    desk.write(state="idle|none\n", jobs="")
    return desk


@pytest.fixture
def kubernetes(tmp_path: Path) -> Desk:
    desk = Desk(tmp_path, "kubernetes.sh", KUBERNETES)
    desk.write(cordon="")
    return desk


DRAIN = f"scontrol update nodename=train-0 state=drain reason=gpuprov quarantine: {REASON}"
RESUME = "scontrol update nodename=train-0 state=resume"


def test_slurm_there_and_back_each_twice(slurm: Desk) -> None:
    slurm.write(jobs="4711 train\n")
    for expected in ([DRAIN], [DRAIN]):
        assert slurm.run("drain", "quarantine") == {}
        assert slurm.calls() == expected, "a quarantine does not wait for the job"
    for expected in ([RESUME], []):
        assert slurm.run("resume", "release") == {}
        assert slurm.calls() == expected


@pytest.mark.parametrize("action", ["replace", "upgrade", "maintain"])
def test_slurm_waits_for_jobs_before_the_machine_is_changed(action: hooks.Action, slurm: Desk) -> None:
    slurm.write(jobs="4711 train\n")
    assert slurm.run("drain", action) == {}
    assert slurm.calls() == [DRAIN.replace("quarantine", action), "waited"]


@pytest.mark.parametrize(
    "state", ["mixed|none", "allocated|none", "down*|Not responding", "drained|gpuprov upgrade: x"]
)
def test_slurm_drains_what_is_in_service_gone_or_ours(state: str, slurm: Desk) -> None:
    slurm.write(state=state + "\n")
    assert slurm.run("drain", "quarantine") == {}
    assert slurm.calls() == [DRAIN]


def test_slurm_leaves_other_peoples_drains_alone(slurm: Desk) -> None:
    slurm.write(state="drained|ada: new fans\n")
    assert slurm.run("drain", "quarantine") == {}
    assert slurm.run("resume", "release") == {}
    assert slurm.calls() == []


def test_slurm_that_does_not_know_the_node_is_a_failure(slurm: Desk) -> None:
    slurm.write(state="")
    assert "does not know the state of train-0" in slurm.run("drain", "quarantine")["train-0"]


def test_kubernetes_there_and_back_each_twice(kubernetes: Desk) -> None:
    for _ in range(2):
        assert kubernetes.run("drain", "quarantine") == {}
        assert kubernetes.calls() == [
            "kubectl taint --overwrite node train-0 gpuprov/out-of-service=quarantine:NoSchedule",
            f"kubectl annotate --overwrite node train-0 gpuprov/reason={REASON}",
        ]
    annotate = "kubectl annotate node train-0 gpuprov/reason- gpuprov/cordoned-"
    for expected in ([annotate, "kubectl taint node train-0 gpuprov/out-of-service-"], [annotate]):
        assert kubernetes.run("resume", "release") == {}
        assert kubernetes.calls() == expected


def test_kubernetes_empties_a_node_that_is_to_be_replaced_and_uncordons_it(kubernetes: Desk) -> None:
    for _ in range(2):
        assert kubernetes.run("drain", "replace") == {}
        assert kubernetes.calls()[-1] == "kubectl drain train-0 --ignore-daemonsets --delete-emptydir-data"
    assert kubernetes.run("resume", "release") == {}
    assert kubernetes.calls()[0] == "kubectl uncordon train-0"


def test_kubernetes_leaves_other_peoples_cordons_alone(kubernetes: Desk) -> None:
    kubernetes.write(cordon="true")
    assert kubernetes.run("drain", "replace") == {}
    assert kubernetes.run("resume", "release") == {}
    assert "kubectl uncordon train-0" not in kubernetes.calls()
