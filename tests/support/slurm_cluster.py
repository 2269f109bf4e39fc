"""A Slurm cluster of the sandbox's nodes, as a person sees it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from provisioner.cli.sandbox import PYTORCH
from provisioner.sandbox import pytorch
from tests.support.run_processes import until
from tests.support.sandbox_cluster import SandboxCluster

FILE = """\
name: {name}
sites: {{ ohio: {{ provider: aws, region: us-east-2 }} }}
scheduler: {{ slurm: {{ head: head, max_time: 7d }} }}
verify: {{ level: quick }}
groups:
  head: {{ machine: m6i.large }}
  train: {{ machine: p4d.24xlarge, count: 2 }}
stack: {{ containers: ["nvcr.io/nvidia/pytorch:25.10-py3"] }}
"""
IDLE = {"train-0": ("IDLE", ""), "train-1": ("IDLE", "")}


@contextmanager
def slurm_cluster(folder: Path) -> Iterator[SandboxCluster]:
    """A head node and two nodes of eight GPUs."""
    cluster = SandboxCluster(folder / "cluster.yaml", f"t-slurm-{os.getpid() % 10_000}")
    cluster.file.write_text(FILE.format(name=cluster.name))
    pytorch.install(PYTORCH)
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
