"""Nodes of a Slurm cluster go out of service and come back: by scontrol on the head node, which is reached through ssh.

A node that no run has proven has no slurmd (role slurm_node); the first resume takes it in. `settle` follows each
verdict: whatever killed a run or emptied the controller, nodes in service are those that gpuprov's records say.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from provisioner.common import paths
from provisioner.common.errors import GpuprovError, LockedError
from provisioner.common.levels import LEVELS
from provisioner.common.text import counted
from provisioner.lifecycle.jobs.waiting import CHANGES_MACHINE, until_ended
from provisioner.lifecycle.replace import journal as replace_journal
from provisioner.lifecycle.upgrade import journal as upgrade_journal
from provisioner.rundir.fleet import PARALLEL, Node
from provisioner.rundir.release import Ledger
from provisioner.scheduler import on_head, slurm_files
from provisioner.transport import root_program

if TYPE_CHECKING:
    from provisioner.common.events import Stage
    from provisioner.common.levels import Level
    from provisioner.lifecycle.session import Cluster
    from provisioner.verify.results import Report

ASK_S, JOIN_S = 90.0, 300.0
"""Seconds for one answer of the head node, and until a node has started slurmd."""
REGISTER_S = 60.0
"""Seconds until a slurmd that was started has answered slurmctld."""
MARKER = "/var/lib/gpuprov/slurm-in-service"
"""Role slurm_node's slurm_node_in_service."""
ENDS_MACHINE = ("up", "replace")
"""Actions with which the queue of a head node ends, too."""
FUTURE = "from __future__ import annotations\n"


def head_of(cluster: Cluster) -> Node | None:
    """The head node, once it was proven: before, Slurm gives jobs to no node."""
    head = slurm_files.head_node(cluster.spec, cluster.nodes())
    return head if head is not None and Ledger(cluster.paths).of(head) is not None else None


def drain(
    cluster: Cluster, stage: Stage, nodes: Sequence[Node], action: str, reasons: Mapping[str, str], deadline_s: float
) -> dict[str, str]:
    """Have Slurm start no more jobs on these nodes, and wait for those that run where the machine changes next. Gives
    node → why it is not drained."""
    # Also a head node that no record has as proven: it may give jobs, and one without Slurm says so.
    head, names = slurm_files.head_node(cluster.spec, cluster.nodes()), _names(cluster, nodes)
    if head is None:
        return {}
    if action in ENDS_MACHINE and head in nodes and (refused := _refuse_queue(cluster, stage, head)):
        return {head.name: refused}
    if not names:
        return {}
    request = {"do": "drain", "nodes": {name: f"{action}: {reasons.get(name, '')}".strip(": ") for name in names}}
    try:
        answer = _ask(cluster, head, request)
    except GpuprovError as error:
        return dict.fromkeys(names, f"Slurm on {head.name}: {error.message}")
    _tell_foreign(cluster, stage, answer)
    failed = _texts(answer, "failed")
    if action not in CHANGES_MACHINE:
        return failed
    waiting = [name for name in names if name not in failed]
    return failed | _await_jobs(cluster, stage, head, waiting, deadline_s)


def resume(cluster: Cluster, stage: Stage, nodes: Sequence[Node]) -> dict[str, str]:
    """Have Slurm start jobs on these nodes: with slurmd and the cluster's key where they have none. A drain that
    somebody else ordered stays. Gives node → why it is not in service."""
    names = _names(cluster, nodes)
    if not names:
        return {}
    head = head_of(cluster)
    if head is None:
        return dict.fromkeys(names, "the head node of Slurm is not proven")
    present = {node.name for node in cluster.nodes()}
    try:
        failed = _join(cluster, head, [name for name in names if name in present])
        ready = [name for name in names if name not in failed]
        deadline_s = REGISTER_S if {*ready} & present else 0.0
        answer = _ask(cluster, head, {"do": "resume", "nodes": ready, "wait_s": deadline_s}, ASK_S + deadline_s)
    except GpuprovError as error:
        return dict.fromkeys(names, f"Slurm on {head.name}: {error.message}")
    _tell_foreign(cluster, stage, answer)
    departed = {*names} - present  # Slurm need not know a node whose machine is gone
    return failed | {name: reason for name, reason in _texts(answer, "failed").items() if name not in departed}


def settle(cluster: Cluster, report: Report, nodes: Sequence[Node], level: Level, *, holding: bool) -> None:
    """After a verdict: drain what gpuprov's records have out of service, and take in what this verdict found healthy,
    is recorded as proven and is in service by those records. `nodes`: the machines that were judged; `holding`: the
    caller holds the cluster's lock. What fails is a warning: the next verdict tries again."""
    if cluster.spec.scheduler.slurm is None:
        return
    head = head_of(cluster)
    if head is None:
        if waiting := [node.name for node in nodes if _is_worker(cluster, node)]:
            message = f"the head node of Slurm is not proven: {counted(len(waiting), 'node')} without jobs"
            cluster.events("quarantine", "warning", message)
        return
    try:
        due = _due(cluster, head, report, nodes, level)
        if due and holding:
            _settle(cluster, due)
        elif due:
            with cluster.exclusively("verify"):  # as it is now that nobody else is at work
                _settle(cluster, _due(cluster, head, report, nodes, level))
    except LockedError as error:
        cluster.events("quarantine", "warning", f"Slurm is as it was: {error.message}")
    except GpuprovError as error:
        cluster.events("quarantine", "warning", f"Slurm may be out of date: {error}")


def states(cluster: Cluster, deadline_s: float) -> dict[str, dict[str, Any]]:
    """Node → its `state`, `reason` and `user` in Slurm; empty where there is no controller yet. Raises GpuprovError."""
    head = head_of(cluster)
    return _states(cluster, head, deadline_s) if head is not None else {}


def _settle(cluster: Cluster, due: Mapping[str, str]) -> None:
    """Drain and take in what `_due` gave."""
    by_name = {node.name: node for node in cluster.nodes()}
    to_drain = {name: reason for name, reason in due.items() if reason}
    to_resume = [by_name[name] for name, reason in due.items() if not reason]
    bad = drain(cluster, "quarantine", [by_name[name] for name in to_drain], "quarantine", to_drain, ASK_S)
    bad |= resume(cluster, "quarantine", to_resume)
    for name, message in bad.items():
        cluster.events("quarantine", "warning", f"Slurm: {message}", node=name)
    if taken := [node.name for node in to_resume if node.name not in bad]:
        cluster.events("quarantine", "done", f"Slurm gives jobs to {', '.join(taken)}")


def _due(cluster: Cluster, head: Node, report: Report, nodes: Sequence[Node], level: Level) -> dict[str, str]:
    """What Slurm has otherwise than the records: node → the reason to drain it, or "" to take it in."""
    from provisioner.lifecycle.quarantine import book

    known, ledger = _states(cluster, head), Ledger(cluster.paths)
    out = dict.fromkeys(upgrade_journal.load(cluster.paths).out_of_service(), "an upgrade has it out of service")
    out |= dict.fromkeys(replace_journal.load(cluster).nodes, "its machine is being replaced")
    out |= {name: entry.reason for name, entry in book.load(cluster.paths).nodes.items()}
    is_deep = LEVELS.index(level) >= LEVELS.index(cluster.spec.verify.level)
    judged, healthy = {node.name: node.id for node in nodes}, {row.name for row in report.nodes if row.ok}
    due: dict[str, str] = {}
    for node in cluster.nodes():
        if not _is_worker(cluster, node):
            continue
        state = known.get(node.name)
        if node.name in out:
            if state is not None and "DRAIN" not in state["state"]:
                due[node.name] = out[node.name]
            continue
        is_proven = node.name in healthy and judged.get(node.name) == node.id and ledger.of(node) is not None
        if is_deep and is_proven and (state is None or _is_out(state)):
            due[node.name] = ""
    return due


def _is_out(state: Mapping[str, Any]) -> bool:
    """Whether the node gets no jobs by gpuprov's or Slurm's own doing, or is about to: it has called itself bad."""
    node = dict(state)
    if on_head.is_in_service(node):
        return str(node["comment"]).startswith(on_head.BAD)
    return not on_head.is_foreign(node)


def _join(cluster: Cluster, head: Node, names: Sequence[str]) -> dict[str, str]:
    """slurmd and the cluster's key on these nodes. Gives node → why not. Raises GpuprovError where the head node does
    not give the key."""
    if not names:
        return {}
    key = _ask(cluster, head, {"do": "key"}).get("key")
    if not isinstance(key, str) or not key:
        raise GpuprovError("munge has no key there")
    source = _join_source()

    def join(name: str) -> str:
        try:
            root_program.ask(cluster.paths, name, source, {"key": key, "marker": MARKER}, deadline_s=JOIN_S)
        except GpuprovError as error:
            return str(error.message)
        return ""

    with ThreadPoolExecutor(max_workers=PARALLEL) as pool:
        return {name: message for name, message in zip(names, pool.map(join, names), strict=True) if message}


def _refuse_queue(cluster: Cluster, stage: Stage, head: Node) -> str:
    """Why the machine of the head node must not go: jobs that run and wait are known to it alone. "" where there are
    none, and where it does not answer: then they are lost already."""
    try:
        jobs = _ask(cluster, head, {"do": "queue"}).get("queue", [])
    except GpuprovError as error:
        cluster.events(stage, "warning", f"jobs of Slurm end with this machine: {error.message}", node=head.name)
        return ""
    if not jobs:
        return ""
    return f"Slurm has {counted(len(jobs), 'job')}, which would be lost: let them end, or cancel them (`scancel`)"


def _join_source() -> str:
    """on_node.py, behind the module that keeps what a machine of one's own had before."""
    record = (paths.data("ansible") / "plugins" / "module_utils" / "gpuprov_record.py").read_text(encoding="utf-8")
    parts = (text.replace(FUTURE, "") for text in (record, slurm_files.source("on_node.py")))
    return "\n".join([FUTURE, *parts])


def _await_jobs(cluster: Cluster, stage: Stage, head: Node, names: Sequence[str], deadline_s: float) -> dict[str, str]:
    """Wait until no job has these nodes. Gives node → which jobs still run."""

    def running(waiting: Sequence[str]) -> Mapping[str, Sequence[str]]:
        try:
            jobs: Mapping[str, Sequence[str]] = _ask(cluster, head, {"do": "jobs", "nodes": waiting}).get("jobs", {})
        except GpuprovError as error:
            raise GpuprovError(f"Slurm on {head.name}: {error.message}") from None
        return jobs

    def message(jobs: Mapping[str, Sequence[str]]) -> str:
        return f"waiting for the jobs of {counted(len(jobs), 'node')} to end"

    return until_ended(cluster, stage, names, running, message, deadline_s)


def _states(cluster: Cluster, head: Node, deadline_s: float = ASK_S) -> dict[str, dict[str, Any]]:
    answer = _ask(cluster, head, {"do": "states"}, deadline_s).get("nodes")
    if not isinstance(answer, dict):
        raise GpuprovError("Slurm does not tell its nodes", where=head.name)
    return answer


def _ask(cluster: Cluster, head: Node, request: Mapping[str, Any], deadline_s: float = ASK_S) -> dict[str, Any]:
    return root_program.ask(cluster.paths, head.name, slurm_files.source("on_head.py"), request, deadline_s=deadline_s)


def _names(cluster: Cluster, nodes: Sequence[Node]) -> list[str]:
    """Those that jobs run on."""
    return [node.name for node in nodes if _is_worker(cluster, node)]


def _is_worker(cluster: Cluster, node: Node) -> bool:
    return node.group != cluster.spec.scheduler.head


def _texts(answer: Mapping[str, Any], key: str) -> dict[str, str]:
    rows = answer.get(key)
    return {str(name): str(text) for name, text in rows.items()} if isinstance(rows, dict) else {}


def _tell_foreign(cluster: Cluster, stage: Stage, answer: Mapping[str, Any]) -> None:
    for name, reason in _texts(answer, "foreign").items():
        cluster.events(stage, "warning", f"drained in Slurm by {reason}; that is left as it is", node=name)
