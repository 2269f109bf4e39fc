"""Wait for jobs on nodes whose machines change next: those of `gpuprov run`, and, for lifecycle/slurm.py, Slurm's."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from provisioner.common.errors import GpuprovError
from provisioner.common.text import counted
from provisioner.lifecycle.jobs import on_nodes
from provisioner.rundir.fleet import Node
from provisioner.transport import process

if TYPE_CHECKING:
    from provisioner.common.events import Stage
    from provisioner.lifecycle.session import Cluster

POLL_S = 5.0
"""Between two questions whether jobs have ended."""
CHANGES_MACHINE = ("up", "upgrade", "replace", "maintain")
"""Actions before which the jobs of a node must have ended: its machine changes, or goes."""


def await_jobs(cluster: Cluster, stage: Stage, nodes: Sequence[Node], action: str, deadline_s: float) -> dict[str, str]:
    """Wait until no job runs on these nodes, where the action changes their machines. Node → which job still runs. A
    node that does not answer has none to wait for."""
    if action not in CHANGES_MACHINE:
        return {}
    by_name = {node.name: node for node in nodes}

    def running(names: Sequence[str]) -> dict[str, list[str]]:
        rows, _ = on_nodes.jobs_by_node(cluster, [by_name[name] for name in names])
        ids = {name: [job.id for job in jobs if job.state == "running"] for name, jobs in rows.items()}
        return {name: jobs for name, jobs in ids.items() if jobs}

    def message(jobs: Mapping[str, Sequence[str]]) -> str:
        ids = sorted({job for names in jobs.values() for job in names})
        return f"waiting for {', '.join(ids)} to end on {counted(len(jobs), 'node')}"

    return until_ended(cluster, stage, [*by_name], running, message, deadline_s)


def until_ended(
    cluster: Cluster,
    stage: Stage,
    names: Sequence[str],
    running: Callable[[Sequence[str]], Mapping[str, Sequence[str]]],
    message: Callable[[Mapping[str, Sequence[str]]], str],
    deadline_s: float,
) -> dict[str, str]:
    """Wait until `running` gives no job of these nodes. Node → which job still runs, or why nobody can tell. `message`:
    what is said once, of the jobs that are waited for."""
    until = time.monotonic() + deadline_s
    waiting, is_told = list(names), False
    while waiting:
        process.refuse_stopped()
        try:
            jobs = running(waiting)
        except GpuprovError as error:
            return dict.fromkeys(waiting, error.message)
        waiting = [name for name in waiting if name in jobs]
        if waiting and time.monotonic() > until:
            return {name: f"job {', '.join(jobs[name][:3])} still runs after {deadline_s:g} s" for name in waiting}
        if waiting and not is_told:
            cluster.events(
                stage, "progress", message({name: jobs[name] for name in waiting}), until=time.time() + deadline_s
            )
            is_told = True
        if waiting:
            time.sleep(POLL_S)
    return {}
