"""A Slurm cluster of the sandbox's nodes whose daemons, keys and machines go: no job is lost, and no node gets one
before it is proven."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.run_processes import until
from tests.support.sandbox_cluster import SandboxCluster
from tests.support.slurm_cluster import IDLE, ends, jobs, on, scheduler, slurm_cluster, submit

pytestmark = [pytest.mark.sandbox, pytest.mark.slow]


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SandboxCluster]:
    with slurm_cluster(tmp_path_factory.mktemp("slurm")) as cluster:
        yield cluster


def test_killed_daemons_are_back_and_no_job_is_lost(fleet: SandboxCluster) -> None:
    job = submit(fleet, "--nodelist=train-0 --gres=gpu:1", "while [ ! -e /tmp/over ]; do sleep 0.2; done")
    assert until(lambda: jobs(fleet).get(job) == "RUNNING", 200)
    # slurmctld saves its jobs a few seconds after a change: what is killed before has no record of this one.
    saved = "sudo stat --format %Y /var/lib/slurm/slurmctld/job_state"
    begun = f'date --date "$(squeue --noheader --job {job} --format %S)" +%s'
    assert until(lambda: int(on(fleet, "head-0", saved)[0]) > int(on(fleet, "head-0", begun)[0]), 200)
    on(fleet, "head-0", "sudo pkill -KILL slurmctld")
    on(fleet, "train-0", "sudo pkill -KILL --exact slurmd")
    assert until(lambda: on(fleet, "train-0", "systemctl is-active slurmd || true") == ["active"], 200)
    assert until(lambda: on(fleet, "head-0", "scontrol ping || true") == ["Slurmctld(primary) at head-0 is UP"], 200)
    on(fleet, "train-0", "touch /tmp/over")
    assert ends(fleet, job), jobs(fleet)


def test_another_key_of_munge_is_put_right(fleet: SandboxCluster) -> None:
    skew = "head -c 128 /dev/urandom | sudo tee /etc/munge/munge.key > /dev/null; sudo systemctl restart munge; "
    on(fleet, "train-0", f"{skew} sudo systemctl restart slurmd || true")
    down = "sudo -u slurm scontrol update nodename=train-0 state=down reason='Not responding'"  # as slurmctld does
    on(fleet, "head-0", down)
    assert fleet.verify().status == 0
    assert scheduler(fleet) == IDLE


def test_a_machine_is_replaced_after_its_jobs_and_a_head_node_not_before(fleet: SandboxCluster) -> None:
    job = submit(fleet, "--nodelist=train-1 --gres=gpu:1", "while [ ! -e /tmp/over ]; do sleep 0.2; done")
    assert until(lambda: jobs(fleet).get(job) == "RUNNING", 200)
    refused = fleet.run("replace", fleet.file, "head-0", "--even-if-healthy", "--sandbox", "--yes")
    assert refused.status != 0
    assert "Slurm has 1 job, which would be lost" in refused.stderr
    assert fleet.run("release", fleet.file, "head-0", "--sandbox").status == 0
    container = fleet.container("train-1")
    replacing = fleet.start("replace", fleet.file, "train-1", "--even-if-healthy", "--sandbox", "--yes")
    assert until(lambda: scheduler(fleet)["train-1"][0] == "MIXED+DRAIN", 200)
    assert container in fleet.containers()
    on(fleet, "train-1", "touch /tmp/over")
    _, error = replacing.communicate(timeout=1200)
    assert replacing.returncode == 0, error
    assert ends(fleet, job), jobs(fleet)
    assert scheduler(fleet) == IDLE


def test_a_new_head_node_gives_jobs_to_proven_nodes_alone(fleet: SandboxCluster) -> None:
    done = fleet.run("replace", fleet.file, "head-0", "--even-if-healthy", "--sandbox", "--yes")
    assert done.status == 0, done.stderr
    for state, reason in scheduler(fleet).values():
        assert "DRAIN" in state
        assert reason == "gpuprov: proving"
    assert fleet.run("sandbox", "fault", fleet.file, "train-0", "gpu-lost").status == 0
    assert fleet.verify().status == 1
    states = scheduler(fleet)
    assert states["train-1"] == ("IDLE", "")
    assert "DRAIN" in states["train-0"][0]
    assert fleet.run("sandbox", "clear", fleet.file, "train-0").status == 0
    assert fleet.verify("--level", "standard").status == 0
    assert scheduler(fleet) == IDLE


def test_a_training_waits_in_the_queue_and_scancel_ends_it_on_all_nodes(fleet: SandboxCluster) -> None:
    endless = ("ddp", "--", "--size", "tiny", "--steps", "1000000", "--checkpoint-every", "10")
    first = fleet.run("run", fleet.file, "--detach", "--gpus-per-node", "1", "--name", "first", *endless)
    assert first.status == 0, first.stderr

    def by_state() -> dict[str, str]:
        rows = fleet.run("run", fleet.file, "--list", "--json").json["jobs"]
        return {row["state"]: row["id"] for row in rows}

    assert until(lambda: "running" in by_state(), 120)
    second = fleet.run("run", fleet.file, "--detach", "--gpus-per-node", "1", "--name", "second", *endless)
    assert second.status == 0, second.stderr
    waiting = by_state()["queued"]
    assert fleet.run("run", fleet.file, "--stop", waiting).status == 0
    assert "queued" not in by_state()
    on(fleet, "head-0", f"sudo scancel --name={by_state()['running']}")
    assert until(lambda: "running" not in by_state(), 200)
    assert "stopped" in by_state()
    for node in IDLE:
        assert on(fleet, node, "sudo docker ps --all --quiet") == []


def test_an_up_that_is_killed_leaves_no_node_in_service_unproven(fleet: SandboxCluster) -> None:
    fleet.file.write_text(fleet.file.read_text().replace("count: 2", "count: 3"))
    run = fleet.start("up", fleet.file, "--sandbox", "--yes")
    assert run.stderr is not None
    for line in run.stderr:
        if "configured node with the lock" in line:  # the roles have run, nothing is proven
            run.kill()
            break
    run.communicate(timeout=200)
    is_proven = '"train-2"' in (fleet.root / "applied.json").read_text()
    assert is_proven or scheduler(fleet)["train-2"][0] != "IDLE"
    assert fleet.up().status == 0
    assert scheduler(fleet) == IDLE | {"train-2": ("IDLE", "")}
