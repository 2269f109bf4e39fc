"""Questions about jobs, and orders, to nodes: on_node.py as root, on all of them at once."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from pydantic import BaseModel, TypeAdapter, ValidationError

from provisioner.common import bounded
from provisioner.common.errors import GpuprovError
from provisioner.common.text import printable
from provisioner.lifecycle.jobs.on_node import ROOT
from provisioner.output.job import JobState
from provisioner.rundir.fleet import PARALLEL, Node
from provisioner.transport import root_program, ssh, ssh_failure

if TYPE_CHECKING:
    from provisioner.lifecycle.session import Cluster

ASK_S, START_S = 60.0, 180.0
SEND_S = 900.0
"""Seconds for the folder of a job: 256 MiB over a slow uplink."""


class NodeJob(BaseModel):
    """A job as one node describes it (on_node.py, `jobs`)."""

    id: str
    name: str
    owner: str
    command: list[str]
    nodes: list[str]
    state: JobState
    status: int | None
    reason: str
    began: float
    ended: float | None
    pid: int | None
    log_bytes: int


_JOBS: TypeAdapter[list[NodeJob]] = TypeAdapter(list[NodeJob])


@cache
def source(name: str) -> str:
    """A program of this folder that runs on nodes."""
    return files("provisioner.lifecycle.jobs").joinpath(name).read_text(encoding="utf-8")


def ask(cluster: Cluster, node: str, request: Mapping[str, Any], deadline_s: float = ASK_S) -> dict[str, Any]:
    """The answer of one node. Raises GpuprovError."""
    return root_program.ask(cluster.paths, node, source("on_node.py"), request, deadline_s=deadline_s)


def ask_all(
    cluster: Cluster, requests: Mapping[str, Mapping[str, Any]], deadline_s: float = ASK_S
) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
    """Node → answer, and node → why there is none."""

    def answer(name: str) -> dict[str, Any] | str:
        try:
            return ask(cluster, name, requests[name], deadline_s)
        except GpuprovError as error:
            return str(error.message)

    with ThreadPoolExecutor(PARALLEL) as pool:
        answers = dict(zip(requests, pool.map(answer, requests), strict=True))
    errors = {name: value for name, value in answers.items() if isinstance(value, str)}
    return {name: value for name, value in answers.items() if isinstance(value, dict)}, errors


def jobs_by_node(cluster: Cluster, nodes: Sequence[Node]) -> tuple[dict[str, list[NodeJob]], dict[str, str]]:
    """Node → its jobs, the newest first, and node → why it does not answer."""
    answers, silent = ask_all(cluster, {node.name: {"do": "list"} for node in nodes})
    rows: dict[str, list[NodeJob]] = {}
    for name, answer in answers.items():
        try:
            rows[name] = _JOBS.validate_python(answer.get("jobs"))
        except ValidationError as error:
            silent[name] = f"its answer is not understood: {str(error)[:200]}"
    return rows, silent


def send_all(cluster: Cluster, nodes: Sequence[Node], archive: Path, job_id: str) -> dict[str, str]:
    """Unpack an archive as the working folder of a job on each node. Node → why it did not work."""
    folder = f"{ROOT}/{job_id}/work"
    unpack = f"exec tar --extract --gzip --no-same-owner --directory {folder}"
    command = f"sudo -n sh -c 'umask 077 && mkdir -p {folder} && {unpack}'"

    def send(node: Node) -> str:
        argv = ssh.argv(cluster.paths, node.name)
        with archive.open("rb") as content:
            status, output = _run_with(content, [*argv, command])
        if status is None:
            return f"the folder was not sent within {SEND_S:.0f} s"
        if ssh_failure.is_own(argv, status):
            return f"ssh fails: {ssh_failure.explain(argv, output)}"
        return f"the folder was not unpacked: {output or f'exit status {status}'}" if status else ""

    with ThreadPoolExecutor(PARALLEL) as pool:
        answers = dict(zip([node.name for node in nodes], pool.map(send, nodes), strict=True))
    return {name: reason for name, reason in answers.items() if reason}


def _run_with(content: IO[bytes], argv: Sequence[str]) -> tuple[int | None, str]:
    """Run a command with a file as its standard input: its exit status, None after SEND_S seconds, and the end of what
    it prints."""
    child = subprocess.Popen(
        list(argv), stdin=content, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
    )
    assert child.stdout is not None
    tail, is_late = bounded.Tail(500), threading.Event()

    def end() -> None:
        is_late.set()
        child.kill()

    timer = threading.Timer(SEND_S, end)
    timer.start()
    try:
        while piece := child.stdout.read1(1 << 16):  # type: ignore[attr-defined]
            tail.add(piece)
        status = child.wait()
    finally:
        timer.cancel()
        child.kill()
    return None if is_late.is_set() else status, str(printable(tail.text().strip()))
