"""A Slurm cluster of the sandbox's nodes: real slurmctld, slurmd, slurmdbd, MariaDB and munge of Debian. Nodes get jobs
once they are proven, and every way out of service has its way back."""

from __future__ import annotations

import base64
import os
from collections.abc import Iterator

import pytest

from tests.support.run_processes import until
from tests.support.sandbox_cluster import SandboxCluster

pytestmark = [pytest.mark.sandbox]

FILE = """\
name: {name}
sites: {{ ohio: {{ provider: aws, region: us-east-2 }} }}
scheduler: {{ slurm: {{ head: head, max_time: 7d }} }}
verify: {{ level: quick }}
groups:
  head: {{ machine: m6i.large }}
  train: {{ machine: p4d.24xlarge, count: 2 }}
"""
IDLE = {"train-0": ("IDLE", ""), "train-1": ("IDLE", "")}


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SandboxCluster]:
    folder = tmp_path_factory.mktemp("slurm")
    cluster = SandboxCluster(folder / "cluster.yaml", f"t-slurm-{os.getpid() % 10_000}")
    cluster.file.write_text(FILE.format(name=cluster.name))
    try:
        cluster.first = cluster.up()
        assert cluster.first.status == 0, cluster.first.stderr
        yield cluster
    finally:
        cluster.down()


def on(fleet: SandboxCluster, node: str, command: str) -> list[str]:
    """Lines that a command prints on a node, which has to succeed. The account has sudo."""
    done = fleet.run("exec", fleet.file, "--node", node, command)
    assert done.status == 0, done.stdout + done.stderr
    return [line.removeprefix(f"{node}: ") for line in done.stdout.splitlines()]


def scheduler(fleet: SandboxCluster) -> dict[str, tuple[str, str]]:
    """Node → state and reason in Slurm, by `gpuprov status`."""
    rows = fleet.run("status", fleet.file, "--json").json["nodes"]
    known = {row["name"]: row["scheduler"] for row in rows if row.get("scheduler")}
    assert all(row.get("error") is None for row in known.values()), known
    return {name: ("+".join(row["state"]), row.get("reason", "")) for name, row in known.items()}


def submit(fleet: SandboxCluster, options: str, script: str) -> str:
    """The id of a job."""
    (line,) = on(fleet, "head-0", f"cd /tmp && sbatch --parsable {options} --wrap '{script}'")
    return line


def jobs(fleet: SandboxCluster) -> dict[str, str]:
    """Job → state, as the accounting has it."""
    rows = on(fleet, "head-0", "sacct --allocations --allusers --noheader --parsable2 --format=jobid,state")
    return dict(row.split("|") for row in rows)


def ends(fleet: SandboxCluster, job: str, state: str = "COMPLETED") -> bool:
    return until(lambda: jobs(fleet).get(job) == state, 300)


def test_jobs_get_the_gpus_that_they_ask_for_and_are_accounted(fleet: SandboxCluster) -> None:
    assert scheduler(fleet) == IDLE
    job = submit(fleet, "--nodes=2 --gres=gpu:8", 'srun sh -c "hostname; echo \\$CUDA_VISIBLE_DEVICES"')
    assert ends(fleet, job), jobs(fleet)
    one = submit(fleet, "--gres=gpu:1", "echo $CUDA_VISIBLE_DEVICES $SLURM_CPUS_ON_NODE $SLURM_JOB_PARTITION")
    assert ends(fleet, one), jobs(fleet)
    (tres,) = on(fleet, "head-0", f"sacct -X -n -P -j {job} --format=alloctres")
    assert "gres/gpu=16" in tres
    (tres,) = on(fleet, "head-0", f"sacct -X -n -P -j {one} --format=alloctres")
    assert "cpu=12" in tres and "gres/gpu=1" in tres  # an eighth of the node
    assert "7-00:00:00" in on(fleet, "head-0", "sinfo --noheader --format=%l")


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


def test_somebody_elses_drain_stays(fleet: SandboxCluster) -> None:
    on(fleet, "head-0", "sudo scontrol update nodename=train-1 state=drain reason='cooling works'")
    assert fleet.verify().status == 0
    assert scheduler(fleet)["train-1"] == ("IDLE+DRAIN", "cooling works")
    shown = fleet.run("status", fleet.file).stdout
    assert "train-1: Slurm has it IDLE+DRAIN by root: cooling works" in shown
    on(fleet, "head-0", "sudo scontrol update nodename=train-1 state=resume")
    assert until(lambda: scheduler(fleet) == IDLE, 200)


def test_killed_daemons_are_back_and_no_job_is_lost(fleet: SandboxCluster) -> None:
    job = submit(fleet, "--nodelist=train-0 --gres=gpu:1", "while [ ! -e /tmp/over ]; do sleep 0.2; done")
    assert until(lambda: jobs(fleet).get(job) == "RUNNING", 200)
    on(fleet, "head-0", "sudo pkill -KILL slurmctld")
    on(fleet, "train-0", "sudo pkill -KILL --exact slurmd")
    assert until(lambda: on(fleet, "train-0", "systemctl is-active slurmd || true") == ["active"], 200)
    assert until(lambda: on(fleet, "head-0", "scontrol ping || true") == ["Slurmctld(primary) at head-0 is UP"], 200)
    on(fleet, "train-0", "touch /tmp/over")
    assert ends(fleet, job), jobs(fleet)


def test_another_key_of_munge_is_put_right(fleet: SandboxCluster) -> None:
    skew = "head -c 128 /dev/urandom | sudo tee /etc/munge/munge.key > /dev/null; sudo systemctl restart munge; "
    on(fleet, "train-0", f"{skew} sudo systemctl restart slurmd || true")
    on(fleet, "head-0", "sudo scontrol update nodename=train-0 state=down reason='Not responding'")
    assert fleet.verify().status == 0
    assert scheduler(fleet) == IDLE


def test_a_machine_is_replaced_after_its_jobs_and_a_head_node_not_before(fleet: SandboxCluster) -> None:
    job = submit(fleet, "--nodelist=train-1 --gres=gpu:1", "while [ ! -e /tmp/over ]; do sleep 0.2; done")
    assert until(lambda: jobs(fleet).get(job) == "RUNNING", 200)
    refused = fleet.run("replace", fleet.file, "head-0", "--even-if-healthy", "--sandbox", "--yes")
    assert refused.status != 0
    assert "Slurm has 1 job, which would be lost" in refused.stderr
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
    assert scheduler(fleet) == dict.fromkeys(IDLE, ("IDLE+DRAIN", "gpuprov: proving")) or scheduler(
        fleet
    ) == dict.fromkeys(IDLE, ("UNKNOWN+DRAIN+NOT_RESPONDING", "gpuprov: proving"))
    assert fleet.run("sandbox", "fault", fleet.file, "train-0", "gpu-lost").status == 0
    assert fleet.verify().status == 1
    states = scheduler(fleet)
    assert states["train-1"] == ("IDLE", "")
    assert "DRAIN" in states["train-0"][0]
    assert fleet.run("sandbox", "clear", fleet.file, "train-0").status == 0
    assert fleet.verify("--level", "standard").status == 0
    assert scheduler(fleet) == IDLE


def test_an_up_that_is_killed_leaves_no_node_in_service_unproven(fleet: SandboxCluster) -> None:
    fleet.file.write_text(fleet.file.read_text().replace("count: 2", "count: 3"))
    run = fleet.start("up", fleet.file, "--sandbox", "--yes")
    assert run.stderr is not None
    for line in run.stderr:
        if "configured node with the lock" in line:  # the roles have run, nothing is proven
            run.kill()
            break
    run.communicate(timeout=200)
    assert "train-2" not in {name for name, (state, _) in scheduler(fleet).items() if state == "IDLE"}
    assert fleet.up().status == 0
    assert scheduler(fleet) == IDLE | {"train-2": ("IDLE", "")}


def test_without_a_scheduler_its_daemons_stop(fleet: SandboxCluster) -> None:
    text = fleet.file.read_text()
    fleet.file.write_text(text.replace("scheduler: { slurm: { head: head, max_time: 7d } }\n", ""))
    assert fleet.up().status == 0
    assert on(fleet, "train-0", "systemctl is-active slurmd || true") == ["inactive"]
    assert on(fleet, "head-0", "systemctl is-active slurmctld || true") == ["inactive"]
