"""The commands of cluster.yaml that take nodes out of service and put them back: run on this machine, for AT_ONCE nodes
at a time, each with a deadline, what they say as events."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Literal

from provisioner.common.errors import GpuprovError
from provisioner.common.events import Events, Stage
from provisioner.common.text import counted
from provisioner.lifecycle import silencing
from provisioner.lifecycle.jobs.waiting import await_jobs
from provisioner.rundir.fleet import Node
from provisioner.transport import process

if TYPE_CHECKING:
    from provisioner.lifecycle.session import Cluster

HookStep = Literal["drain", "resume"]

Action = Literal["up", "upgrade", "quarantine", "release", "replace", "maintain"]
"""What a node is taken out of service, or put back, for."""

GRACE_S = 5.0
"""Seconds that a command may take to end when it is asked to."""

LINE = 500
"""Characters of a line that are passed on."""

AT_ONCE = 1000
"""Commands that run at once: each of them takes FILES_EACH of the open files that the system grants a process."""

FILES_EACH = 2
"""Open files of this process for one command: its output and its error output."""

REASON = 200
"""Characters of a reason that a command is told; Slurm and Kubernetes take longer ones, people don't."""


def call(
    cluster: Cluster, step: HookStep, nodes: Sequence[Node], action: Action, reasons: Mapping[str, str], *,
    share: bool = True,
) -> dict[str, str]:  # fmt: skip
    """`run` with what cluster.yaml has under `hooks`. `reasons`: node → why, for the command's environment. `share`:
    before a hook runs the other operators know who drains the nodes and why, or that they were proven: whatever happens
    to this run, they can go on."""
    settings, names = cluster.spec.hooks, [node.name for node in nodes]
    if step == "drain":
        silencing.begin(
            cluster, stage_of(action), {name: f"{action}: {reasons.get(name, '')}".strip(": ") for name in names}
        )
    is_slurm = cluster.spec.scheduler.slurm is not None
    if share and nodes and (is_slurm or (settings.drain if step == "drain" else settings.resume) is not None):
        cluster.share()
    bad = (
        _by_slurm(cluster, step, nodes, action, reasons)
        if is_slurm
        else run(
            step,
            settings.drain if step == "drain" else settings.resume,
            nodes,
            action=action,
            reasons=reasons,
            cluster=cluster.spec.name,
            folder=cluster.file.absolute().parent,
            deadline_s=settings.timeout_s,
            events=cluster.events,
        )
    )
    if step == "drain" and not is_slurm:
        drained = [node for node in nodes if node.name not in bad]
        bad |= await_jobs(cluster, stage_of(action), drained, action, settings.timeout_s)
    if step == "resume":
        silencing.end(cluster, stage_of(action), [name for name in names if name not in bad])
    return bad


def _by_slurm(
    cluster: Cluster, step: HookStep, nodes: Sequence[Node], action: Action, reasons: Mapping[str, str]
) -> dict[str, str]:
    from provisioner.lifecycle import slurm

    if step == "resume":
        return slurm.resume(cluster, stage_of(action), nodes)
    texts = {name: plain(text) for name, text in reasons.items()}
    return slurm.drain(cluster, stage_of(action), nodes, action, texts, cluster.spec.hooks.timeout_s)


def stage_of(action: Action) -> Stage:
    """The stage whose events tell of it."""
    return "quarantine" if action == "release" else "terraform" if action == "up" else action


def run(
    step: HookStep,
    command: str | None,
    nodes: Sequence[Node],
    *,
    action: Action,
    reasons: Mapping[str, str],
    cluster: str,
    folder: Path,
    deadline_s: float,
    events: Events,
) -> dict[str, str]:
    """Run the command once for every node, with GPUPROV_NODE, GPUPROV_ADDRESS, GPUPROV_GROUP, GPUPROV_CLUSTER,
    GPUPROV_STEP, GPUPROV_ACTION and GPUPROV_REASON in its environment: values get there as they are, read by no shell.
    Gives node → why it failed; nothing for those that it worked on, and for all where there is no command."""
    if command is None or not nodes:
        return {}
    process.allow_open_files(FILES_EACH * min(AT_ONCE, len(nodes)))
    bad: dict[str, str] = {}
    for first in range(0, len(nodes), AT_ONCE):
        bad |= _run_at_once(
            step, command, nodes[first : first + AT_ONCE], action=action, reasons=reasons, cluster=cluster,
            folder=folder, deadline_s=deadline_s, events=events,
        )  # fmt: skip
    return bad


def _run_at_once(
    step: HookStep,
    command: str,
    nodes: Sequence[Node],
    *,
    action: Action,
    reasons: Mapping[str, str],
    cluster: str,
    folder: Path,
    deadline_s: float,
    events: Events,
) -> dict[str, str]:
    children: dict[str, subprocess.Popen[str]] = {}
    readers: list[threading.Thread] = []
    last: dict[str, str] = {}
    stage = stage_of(action)

    def read(node: str, stream: IO[str]) -> None:
        for line in stream:
            if line.strip():
                last[node] = line.strip()[:LINE]
                events(stage, "log", f"{step}: {last[node]}", node=node)

    try:
        for node in nodes:
            environment = {
                **os.environ, "GPUPROV_NODE": node.name, "GPUPROV_ADDRESS": node.address, "GPUPROV_GROUP": node.group,
                "GPUPROV_CLUSTER": cluster, "GPUPROV_STEP": step, "GPUPROV_ACTION": action,
                "GPUPROV_REASON": plain(reasons.get(node.name, "")),
            }  # fmt: skip
            # one pipe for both, so that the last line is the last one
            argv = ["sh", "-c", f"exec 2>&1\n{command}"]
            child = children[node.name] = process.start(argv, cwd=folder, env=environment)
            readers.append(threading.Thread(target=read, args=(node.name, child.stdout), daemon=True))
            readers[-1].start()
        deadline = time.monotonic() + deadline_s
        events(
            stage,
            "progress",
            f"{step} command on {counted(len(nodes), 'node')}",
            until=time.time() + deadline_s,
        )
        bad = {}
        for name, child in children.items():
            try:
                child.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                bad[name] = f"the {step} command did not end within {deadline_s:g} s"
        process.stop_all([children[name] for name in bad], grace_s=GRACE_S)
    except BaseException:  # a command that runs on would drain a node that is put back meanwhile
        process.stop_all(children.values(), grace_s=GRACE_S)
        raise
    read_until = time.monotonic() + 1.0  # a process in the background may keep the output open
    for reader in readers:
        reader.join(timeout=max(0.0, read_until - time.monotonic()))
    for name, child in children.items():
        if name not in bad and child.returncode:
            detail = f": {last[name]}" if name in last else ""
            bad[name] = f"the {step} command ended with status {child.returncode}{detail}"
    return bad


def refusal(bad: Mapping[str, str], hint: str) -> GpuprovError:
    """The error of a command that can't go on because nodes could not be drained: node → why."""
    return GpuprovError("; ".join(f"{name}: {reason}" for name, reason in bad.items()), where="drain", hint=hint)


def plain(reason: str) -> str:
    """A reason as one line of printable characters, at most REASON of them: what a node or a person said goes into the
    environment of a command."""
    line = " ".join("".join(c if c.isprintable() else " " for c in reason).split())
    return line if len(line) <= REASON else line[: REASON - 1] + "…"
