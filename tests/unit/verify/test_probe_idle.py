"""Whether a node is idle, by what schedulers leave on a node: processes, control groups, files, squeue."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from provisioner.verify.probe import idle, runner

POD = "9a422c32-4fc2-11e9-bb64-505dac4c3a38"
CHECKPOINT = {
    "Checksum": 3364951114,
    "Data": {"PodDeviceEntries": [{
        "AllocResp": "CkIKFk5WSURJQV9WSVNJQkxFX0RFVklDRVMSKEdQVS1hZDYzYzY4NC01NTkzLTExMWEtY2JiMS1jMTQ1MWViY2QwYWE=",
        "ContainerName": "notebook", "DeviceIDs": ["GPU-ad63c684-5593-111a-cbb1-c1451ebcd0aa"], "PodUID": POD,
        "ResourceName": "nvidia.com/gpu",
    }]},
}  # fmt: skip
"""github kubernetes/kubernetes#75880, where kubectl's users show it."""
SYSTEM = (
    "0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod368e63c4_2d97_11e9_8954_505dac4a7d28.slice/x"
)
BY_SYSTEMD = f"0::/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{POD.replace('-', '_')}.slice/c"
BY_CGROUPFS = f"4:memory:/kubepods/besteffort/pod{POD}/0b2f\n0::/"


class Node:
    """Processes and files of a node, in a folder."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.pids = folder, 100
        for name, value in {
            "PROCESSES": folder / "proc", "KUBELET": folder / "kubelet", "PBS_JOBS": folder / "mom_priv/jobs",
        }.items():  # fmt: skip
            monkeypatch.setattr(idle, name, str(value))
        monkeypatch.setattr(runner, "PATH", f"{folder / 'bin'}:/usr/bin:/bin")
        self.holders: list[dict[str, Any]] | None = []
        monkeypatch.setattr(idle, "busy", lambda vendor: self.holders if vendor == "nvidia" else None)
        self.runs("systemd", "/sbin/init", "0::/init.scope")

    def runs(self, name: str, *rows: str) -> None:
        arguments, cgroup = (*rows, "0::/system.slice/x.service")[:2] if rows else (name, "0::/system.slice/x.service")
        self.pids += 1
        process_folder = self.folder / "proc" / str(self.pids)
        process_folder.mkdir(parents=True)
        (process_folder / "comm").write_text(name + "\n")
        (process_folder / "cmdline").write_bytes(
            b"".join(argument.encode() + b"\0" for argument in arguments.split(" "))
        )
        (process_folder / "cgroup").write_text(cgroup + "\n")

    def has(self, name: str, text: str = "") -> None:
        file = self.folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        file.chmod(0o755)

    @property
    def reason(self) -> str:
        return idle.job_reason("nvidia")


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    return Node(tmp_path, monkeypatch)


def test_a_node_without_a_scheduler_is_idle_where_no_process_has_its_gpus(node: Node) -> None:
    assert node.reason == ""
    node.holders = [{"pid": 7, "name": "python3"}]
    assert node.reason == "a job is using the GPUs: python3 (pid 7)"
    node.holders = None
    assert node.reason == "cannot tell whether a job is using the GPUs"


def test_a_node_whose_processes_cannot_be_listed_has_a_job(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idle, "PROCESSES", str(node.folder / "nowhere"))
    assert node.reason == "cannot tell what runs on it"


@pytest.mark.parametrize(
    ("arguments", "busy"),
    [
        ("/usr/sbin/slurmstepd infinity", False),  # holds the scope of slurmd, without a job
        ("/usr/sbin/slurmstepd infinity 4711", True),  # the external step of job 4711
        ("slurmstepd: [614.0]", True),
        ("slurmstepd: [614.extern]", True),
    ],
)
def test_a_step_of_slurm_is_a_job_though_it_uses_no_gpu(node: Node, arguments: str, busy: bool) -> None:
    node.runs("slurmstepd", arguments)
    assert bool(node.reason) == busy
    assert not busy or "Slurm has a job on it: " in node.reason


def test_a_job_of_gpuprov_run_is_a_job_before_it_uses_a_gpu(node: Node) -> None:
    node.runs("python3", "/usr/bin/python3 -I /var/lib/gpuprov/jobs/ddp-1a2b3c/supervisor.py /var/lib/gpuprov/jobs/x")
    assert node.reason == "job ddp-1a2b3c of gpuprov runs on it"


@pytest.mark.parametrize(
    ("squeue", "reason"),
    [
        ("exit 0", ""),
        ("echo 614; echo 615_3", "Slurm has allocated it: job 614, 615_3"),
        ("echo 'slurm_load_jobs error: Unable to contact slurm controller (connect failure)' >&2; exit 1",
         "slurmd runs on it, and squeue does not list its jobs: slurm_load_jobs error: Unable to contact slurm "
         "controller (connect failure)"),
        ("echo 'squeue: error: Invalid node name localhost' >&2; exit 1",
         "slurmd runs on it, and squeue does not list its jobs: squeue: error: Invalid node name localhost"),
        (None, "slurmd runs on it, and squeue does not list its jobs: squeue is not installed"),
    ],
)  # fmt: skip
def test_slurm_is_asked_for_the_jobs_that_have_the_node(node: Node, squeue: str | None, reason: str) -> None:
    """An allocation without a step has no process on the node. Messages: SchedMD/slurm src/squeue/opts.c, libslurm."""
    node.runs("slurmd", "/usr/sbin/slurmd --systemd")
    if squeue is not None:
        argument_check = f'test "$*" = "{" ".join(idle.SQUEUE[1:])}" || exit 3'
        node.has("bin/squeue", f"#!/bin/sh\n{argument_check}\n{squeue}\n")
    assert node.reason == reason


@pytest.mark.parametrize(
    ("kubelet", "cgroup", "busy"),
    [
        ("kubelet", BY_SYSTEMD, True),
        ("k3s-server", BY_CGROUPFS, True),
        ("kubelet", SYSTEM, False),  # a living pod without a device; the one that has it has ended (kubernetes#137010)
        (None, BY_SYSTEMD, False),
    ],
)
def test_a_pod_that_lives_and_holds_a_device_is_a_job(node: Node, kubelet: str | None, cgroup: str, busy: bool) -> None:
    if kubelet is not None:
        node.runs(kubelet)
    node.runs("pause", "/pause", cgroup)
    assert node.reason == "", "kubelet writes the file with the first device"
    node.has("kubelet/device-plugins/kubelet_internal_checkpoint", json.dumps(CHECKPOINT))
    assert node.reason == (f"Kubernetes has given a device to pod {POD}" if busy else "")


def test_a_list_of_devices_that_cannot_be_read_is_a_job(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    node.runs("kubelet")
    (node.folder / "kubelet/device-plugins/kubelet_internal_checkpoint").mkdir(parents=True)
    assert "its list of allocated devices cannot be read: " in node.reason
    (node.folder / "kubelet/device-plugins/kubelet_internal_checkpoint").rmdir()
    node.has("kubelet/dra_manager_state", "x" * 100)
    monkeypatch.setattr(idle, "CHECKPOINT", 99)
    assert "too long" in node.reason


def test_a_job_of_pbs_outlives_its_daemon(node: Node) -> None:
    (node.folder / "mom_priv/jobs").mkdir(parents=True)
    assert node.reason == ""
    node.has("mom_priv/jobs/5.sp-03.JB")
    assert node.reason == "PBS has a job on it: 5.sp-03"


def test_jobs_of_pbs_and_of_htcondor(node: Node) -> None:
    node.runs("pbs_mom", "/opt/pbs/sbin/pbs_mom")
    assert node.reason.startswith("pbs_mom runs on it, and its jobs are not in ")
    node.has("mom_priv/mom.lock", "293302\n")
    (node.folder / "mom_priv/jobs").mkdir()
    assert node.reason == ""
    node.has("mom_priv/jobs/5.sp-03.JB")
    assert node.reason == "PBS has a job on it: 5.sp-03"
    node.runs("condor_starter", "condor_starter -f slot1")
    assert node.reason == "HTCondor has a job on it (condor_starter)"
