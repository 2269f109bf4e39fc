"""Wait for the jobs of `gpuprov run` on nodes whose machines change next."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from provisioner.common.text import counted
from provisioner.lifecycle.jobs import on_nodes
from provisioner.lifecycle.slurm import CHANGES_MACHINE
from provisioner.rundir.fleet import Node
from provisioner.transport import process

if TYPE_CHECKING:
    from provisioner.common.events import Stage
    from provisioner.lifecycle.session import Cluster

POLL_S = 5.0


def await_jobs(cluster: Cluster, stage: Stage, nodes: Sequence[Node], action: str, deadline_s: float) -> dict[str, str]:
    """Wait until no job runs on these nodes, where the action changes their machines. Node → which job still runs. A
    node that does not answer has none to wait for."""
    if action not in CHANGES_MACHINE:
        return {}
    until, waiting, is_told = time.monotonic() + deadline_s, list(nodes), False
    while waiting:
        process.refuse_stopped()
        rows, _ = on_nodes.jobs_by_node(cluster, waiting)
        running = {name: job for name, jobs in rows.items() for job in jobs if job.state == "running"}
        waiting = [node for node in waiting if node.name in running]
        if waiting and time.monotonic() > until:
            return {node.name: f"job {running[node.name].id} still runs after {deadline_s:g} s" for node in waiting}
        if waiting and not is_told:
            ids = ", ".join(sorted({running[node.name].id for node in waiting}))
            message = f"waiting for {ids} to end on {counted(len(waiting), 'node')}"
            cluster.events(stage, "progress", message, until=time.time() + deadline_s)
            is_told = True
        if waiting:
            time.sleep(POLL_S)
    return {}
