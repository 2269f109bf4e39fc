"""A Slurm cluster of the sandbox's nodes: real slurmctld, slurmd, slurmdbd, MariaDB and munge of Debian. Nodes get jobs
once they are proven. What goes wrong with the daemons is test_slurm_faults.py's."""

from __future__ import annotations

import base64
from collections.abc import Iterator

import pytest

from tests.support.run_processes import until
from tests.support.sandbox_cluster import SandboxCluster
from tests.support.slurm_cluster import IDLE, ends, jobs, on, scheduler, slurm_cluster, submit

pytestmark = [pytest.mark.sandbox]


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SandboxCluster]:
    with slurm_cluster(tmp_path_factory.mktemp("slurm")) as cluster:
        yield cluster


def test_jobs_get_the_gpus_that_they_ask_for_and_are_accounted(fleet: SandboxCluster) -> None:
    assert scheduler(fleet) == IDLE
    job = submit(fleet, "--nodes=2 --gres=gpu:8", 'srun sh -c "hostname; echo \\$CUDA_VISIBLE_DEVICES"')
    assert ends(fleet, job), jobs(fleet)
    small = submit(fleet, "--gres=gpu:1", "echo $CUDA_VISIBLE_DEVICES $SLURM_CPUS_ON_NODE $SLURM_JOB_PARTITION")
    assert ends(fleet, small), jobs(fleet)
    (tres,) = on(fleet, "head-0", f"sacct -X -n -P -j {job} --format=alloctres")
    assert "gres/gpu=16" in tres
    (tres,) = on(fleet, "head-0", f"sacct -X -n -P -j {small} --format=alloctres")
    assert "cpu=12" in tres and "gres/gpu=1" in tres  # an eighth of the node
    assert "7-00:00:00" in on(fleet, "head-0", "sinfo --noheader --format=%l")


def test_a_training_goes_through_the_queue(fleet: SandboxCluster) -> None:
    """Two ranks of real torchrun, on processors."""
    tiny = ("--gpus-per-node", "1", "ddp", "--", "--size", "tiny", "--steps", "10")
    done = fleet.run("run", fleet.file, *tiny)
    assert done.status == 0, done.stdout + done.stderr
    assert "is Slurm job" in done.stderr and "train-0: [rank 0] step 10: loss" in done.stdout
    (row,) = fleet.run("run", fleet.file, "--list", "--json").json["jobs"]
    assert (row["state"], row["nodes"]) == ("completed", ["train-0", "train-1"])
    assert on(fleet, "head-0", f"sacct -X -n -P --allusers --name={row['id']} --format=state") == ["COMPLETED"]


def test_a_second_up_changes_nothing(fleet: SandboxCluster) -> None:
    second = fleet.run("up", fleet.file, "--sandbox", "--yes")
    assert second.status == 0
    assert "nothing changed" in second.stdout


def test_the_key_is_in_no_file_of_gpuprov_and_for_munge_alone(fleet: SandboxCluster) -> None:
    digests = {on(fleet, node, "sudo sha256sum /etc/munge/munge.key")[0] for node in ("head-0", "train-0", "train-1")}
    assert len(digests) == 1
    (key,) = on(fleet, "head-0", "sudo base64 -w0 /etc/munge/munge.key")
    raw = base64.b64decode(key)
    files = [path for path in fleet.root.rglob("*") if path.is_file() and not path.is_symlink()]
    assert [path for path in files if raw in path.read_bytes() or key.encode() in path.read_bytes()] == []
    assert on(fleet, "train-0", "sudo stat -c '%U %a' /etc/munge/munge.key") == ["munge 400"]


def test_a_bad_node_is_drained_and_comes_back_once_it_is_proven(fleet: SandboxCluster) -> None:
    assert fleet.run("sandbox", "fault", fleet.file, "train-0", "gpu-lost").status == 0
    assert fleet.verify().status == 1
    state, reason = scheduler(fleet)["train-0"]
    assert state == "IDLE+DRAIN"
    assert reason.startswith("gpuprov quarantine: gpu.count: 7 of 8 GPUs answer")
    job = submit(fleet, "--gres=gpu:8", "hostname")  # the other one works on
    assert ends(fleet, job), jobs(fleet)
    assert fleet.run("sandbox", "clear", fleet.file, "train-0").status == 0
    assert fleet.verify("--level", "standard").status == 0
    assert scheduler(fleet) == IDLE


def look(fleet: SandboxCluster, *nodes: str) -> None:
    """What timers and slurmd do by themselves: the node's checks, its word to slurmctld, the watch of the head node."""
    for node in nodes:
        on(fleet, node, "sudo systemctl start gpuprov-health.service")
        on(fleet, node, f"sudo env -i SLURMD_NODENAME={node} /usr/local/lib/gpuprov-slurm-health")
    on(fleet, "head-0", "sudo systemctl start gpuprov-slurm-watch.service")


def test_a_node_that_finds_itself_bad_gets_no_jobs_until_it_is_proven(fleet: SandboxCluster) -> None:
    assert fleet.run("sandbox", "fault", fleet.file, "train-0", "gpu-lost").status == 0
    look(fleet, "train-0")
    state, reason = scheduler(fleet)["train-0"]
    assert state == "IDLE+DRAIN"
    assert reason.startswith("gpuprov health: gpu.count")
    assert fleet.run("sandbox", "clear", fleet.file, "train-0").status == 0
    look(fleet, "train-0", "train-1")
    assert scheduler(fleet)["train-0"][0] == "IDLE+DRAIN"  # its own word does not bring it back
    assert fleet.verify().status == 0
    look(fleet, "train-0")
    assert scheduler(fleet) == IDLE


def test_many_bad_nodes_at_once_are_left_to_people(fleet: SandboxCluster) -> None:
    on(fleet, "head-0", "sudo systemctl stop gpuprov-slurm-watch.timer")  # or it sees the first of them alone
    for node in IDLE:
        assert fleet.run("sandbox", "fault", fleet.file, node, "gpu-lost").status == 0
    look(fleet, *IDLE)
    assert scheduler(fleet) == IDLE
    assert any(
        "2 bad nodes and 0 out of service, at most 1" in line
        for line in on(fleet, "head-0", "sudo journalctl --no-pager --output cat --unit gpuprov-slurm-watch.service")
    )
    for node in IDLE:
        assert fleet.run("sandbox", "clear", fleet.file, node).status == 0
    look(fleet, *IDLE)
    on(fleet, "head-0", "sudo systemctl start gpuprov-slurm-watch.timer")
    assert scheduler(fleet) == IDLE


def test_somebody_elses_drain_stays(fleet: SandboxCluster) -> None:
    on(fleet, "head-0", "sudo scontrol update nodename=train-1 state=drain reason='cooling works'")
    assert fleet.verify().status == 0
    assert scheduler(fleet)["train-1"] == ("IDLE+DRAIN", "cooling works")
    printed = fleet.run("status", fleet.file).stdout
    assert "train-1: Slurm has it IDLE+DRAIN by root: cooling works" in printed
    on(fleet, "head-0", "sudo scontrol update nodename=train-1 state=resume")
    assert until(lambda: scheduler(fleet) == IDLE, 200)


def test_without_a_scheduler_its_daemons_stop(fleet: SandboxCluster) -> None:
    text = fleet.file.read_text()
    fleet.file.write_text(text.replace("scheduler: { slurm: { head: head, max_time: 7d } }\n", ""))
    assert fleet.up().status == 0
    assert on(fleet, "train-0", "systemctl is-active slurmd || true") == ["inactive"]
    assert on(fleet, "head-0", "systemctl is-active slurmctld || true") == ["inactive"]
