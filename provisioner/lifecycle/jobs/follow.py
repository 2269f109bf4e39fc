"""Follow a job: the logs of its nodes as they grow, and how it ends."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from provisioner.common.errors import GpuprovError
from provisioner.common.suggest import did_you_mean
from provisioner.common.text import printable
from provisioner.lifecycle.jobs import on_nodes
from provisioner.lifecycle.jobs.on_node import ROOT
from provisioner.lifecycle.jobs.on_nodes import NodeJob
from provisioner.output.job import JobRow
from provisioner.rundir.fleet import Node
from provisioner.transport import ssh

if TYPE_CHECKING:
    from provisioner.lifecycle.session import Cluster

RECONNECT_S = 5.0
"""Between two attempts to reach a node whose connection broke."""
PROGRESS_S = 5.0
"""Between two states of a progress bar that are shown."""
OTHERS_S = 30.0
"""For the logs of the other nodes, once one has seen the end of the job."""
LOOK_S = 0.1
LINE = 1 << 16
"""Bytes of a line that are printed in one piece."""
Show = Callable[[str, str], None]
"""Gets node and line."""


class Follower:
    """The logs of a job. `show` gets each line, in one thread for each node, one after the other."""

    def __init__(
        self, cluster: Cluster, job_id: str, nodes: Sequence[Node], pids: Mapping[str, int | None], show: Show
    ) -> None:
        self._cluster, self._id, self._nodes, self._show = cluster, job_id, nodes, show
        self._pids = dict(pids)
        self._over, self._lock = threading.Event(), threading.Lock()
        self._finished: list[str] = []
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self._threads = [threading.Thread(target=self._follow, args=(node.name,), daemon=True) for node in nodes]

    def begin(self) -> None:
        """Start to print what comes."""
        for thread in self._threads:
            if thread.ident is None:
                thread.start()

    def follow(self) -> None:
        """Print what comes until the job has ended on a node that answers. Ctrl-C goes on to the caller, who may call
        again."""
        self.begin()
        # Not Thread.join: an exception of a signal within it marks a thread that runs as stopped (bpo-45274).
        while not self._finished:
            time.sleep(LOOK_S)
        until = time.monotonic() + OTHERS_S
        while len(self._finished) < len(self._threads) and time.monotonic() < until:
            time.sleep(LOOK_S)
        self.end()

    def end(self) -> None:
        """Let go of the nodes; the job goes on."""
        self._over.set()
        with self._lock:
            for child in self._children.values():
                child.kill()

    def _follow(self, name: str) -> None:
        position = 0
        while not self._over.is_set():
            position, is_end = self._read(name, position)
            if is_end:
                self._finished.append(name)
                return
            if self._over.wait(RECONNECT_S):
                return
            self._pids[name] = self._ask_pid(name)

    def _ask_pid(self, name: str) -> int | None:
        """The process to wait for after a connection broke; None where the job has ended, or nobody can tell."""
        node = next(node for node in self._nodes if node.name == name)
        rows, _ = on_nodes.jobs_by_node(self._cluster, [node])
        return next((job.pid for job in rows[name] if job.id == self._id), None) if name in rows else self._pids[name]

    def _read(self, name: str, position: int) -> tuple[int, bool]:
        """Print the log from a byte on. Where it was read to, and whether that is its end."""
        pid = self._pids[name]
        follow = f"--follow --pid={pid} " if pid is not None else ""
        command = f"sudo -n tail --bytes=+{position + 1} {follow}{ROOT}/{self._id}/log"
        child = subprocess.Popen(
            [*ssh.argv(self._cluster.paths, name), command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        with self._lock:
            self._children[name] = child
            if self._over.is_set():
                child.kill()
        assert child.stdout is not None
        lines = Lines()
        while piece := child.stdout.read1(LINE):  # type: ignore[attr-defined]
            position += len(piece)
            for line in lines.add(piece):
                with self._lock:
                    self._show(name, str(printable(line)))
        is_end = child.wait() == 0
        if not is_end:
            return position - len(lines.unfinished), False  # the next connection begins with it
        if lines.unfinished:
            self._show(name, str(printable(lines.unfinished.decode("utf-8", "replace"))))
        return position, True


class Lines:
    """The lines of a stream. A progress bar writes its line again and again, each time behind a carriage return: of a
    whole line the last state counts, of one that goes on a state is shown every PROGRESS_S seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.unfinished = b""
        self._clock, self._displayed = clock, clock() - PROGRESS_S

    def add(self, piece: bytes) -> list[str]:
        """What can be shown now; a line of more than LINE bytes in pieces."""
        *complete, self.unfinished = (self.unfinished + piece).split(b"\n")
        lines = [text.removesuffix(b"\r").rpartition(b"\r")[2] for text in complete]
        states, has_states, remaining = self.unfinished.rpartition(b"\r")
        if has_states and remaining:
            self.unfinished = remaining
            if self._clock() >= self._displayed + PROGRESS_S:
                self._displayed = self._clock()
                lines.append(states.rpartition(b"\r")[2])
        while len(self.unfinished) > LINE:
            lines.append(self.unfinished[:LINE])
            self.unfinished = self.unfinished[LINE:]
        return [line.decode("utf-8", "replace") for line in lines]


def rows_of(cluster: Cluster, nodes: Sequence[Node]) -> tuple[list[JobRow], dict[str, str]]:
    """The jobs that these nodes know, the newest first, and the nodes that do not answer."""
    by_node, silent = on_nodes.jobs_by_node(cluster, nodes)
    merged: dict[str, dict[str, NodeJob]] = {}
    for node, jobs in by_node.items():
        for job in jobs:
            merged.setdefault(job.id, {})[node] = job
    rows = [merge(jobs) for jobs in merged.values()]
    return sorted(rows, key=lambda row: row.began, reverse=True), silent


def row_of(cluster: Cluster, job_id: str, nodes: Sequence[Node]) -> JobRow:
    """A job as these nodes describe it. Raises GpuprovError where none of them knows it any more."""
    rows, silent = rows_of(cluster, nodes)
    for row in rows:
        if row.id == job_id:
            return row
    raise GpuprovError(f"no node knows {job_id} any more" + (f": {next(iter(silent.values()))}" if silent else ""))


def await_end(cluster: Cluster, job_id: str, nodes: Sequence[Node]) -> JobRow:
    """A job whose log has ended: the last node may take a moment longer."""
    until = time.monotonic() + OTHERS_S
    while True:
        row = row_of(cluster, job_id, nodes)
        if row.state != "running" or time.monotonic() > until:
            return row
        time.sleep(0.5)


def queued_rows(cluster: Cluster) -> list[JobRow]:
    """Jobs of `gpuprov run` that wait in Slurm's queue, and other people's jobs there."""
    from provisioner.lifecycle.jobs import slurm_submit

    rows = []
    for name, (number, reason) in slurm_submit.queued(cluster).items():
        row = JobRow(
            id=name, name=name.rpartition("-")[0] or name, state="queued", status=None, owner="", command=[], nodes=[],
            reason=f"Slurm job {number} waits: {reason}", missing=[], began=time.time(), ended=None,
        )  # fmt: skip
        rows.append(row)
    return rows


def merge(jobs: Mapping[str, NodeJob]) -> JobRow:
    """One row of what several nodes say of the same job: it runs where it runs on any. The first node is the hub, and
    knows the outcome; where it does not answer, another one does."""
    names = next(iter(jobs.values())).nodes
    known = [jobs[name] for name in names if name in jobs] or list(jobs.values())
    running = [job for job in known if job.state == "running"]
    ended = [job for job in known if job.state in ("completed", "failed", "stopped")]
    chosen = (running or ended or known)[0]
    return JobRow(
        id=chosen.id,
        name=chosen.name,
        state=chosen.state,
        status=None if running else chosen.status,
        reason="" if running else chosen.reason,
        owner=chosen.owner,
        command=chosen.command,
        nodes=names,
        missing=[name for name in names if name not in jobs],
        began=chosen.began,
        ended=None if running else chosen.ended,
    )


def find(cluster: Cluster, job_id: str, wait_s: float = 0.0) -> tuple[JobRow, list[Node], dict[str, int | None]]:
    """A job by its id, its nodes that know it, and the process of each. Raises GpuprovError where no node knows it.
    `wait_s`: seconds until all of its nodes know it."""
    nodes, until = cluster.nodes(), time.monotonic() + wait_s
    while True:
        by_node, silent = on_nodes.jobs_by_node(cluster, nodes)
        known = {name: job for name, jobs in by_node.items() for job in jobs if job.id == job_id}
        if any(len(known) == len(job.nodes) for job in known.values()) or time.monotonic() > until:
            break
        time.sleep(1.0)
    if not known:
        ids = sorted({job.id for jobs in by_node.values() for job in jobs})
        hint = did_you_mean(job_id, ids) or f"`gpuprov run {cluster.typed_file} --list` has all jobs"
        extra = f"; {', '.join(silent)} did not answer" if silent else ""
        raise GpuprovError(f"there is no job {job_id}{extra}", where=cluster.spec.name, hint=hint)
    pids = {name: job.pid for name, job in known.items()}
    return merge(known), [node for node in nodes if node.name in known], pids


def stop(cluster: Cluster, nodes: Sequence[Node], job_id: str, reason: str) -> dict[str, str]:
    """Ask a job to stop, on every node that answers: the first that hears of it tells the others. Node → why not."""
    request = {"do": "stop", "id": job_id, "reason": reason}
    return on_nodes.ask_all(cluster, {node.name: request for node in nodes})[1]
