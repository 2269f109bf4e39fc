"""`ssh` and `exec`: reach one node or all of them, over the pinned host keys."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated

import typer

from provisioner.cli.options import File, Sandbox
from provisioner.errors import GpuprovError, Interrupted
from provisioner.printable import printable

EXEC_DEADLINE_S = 600.0
LONGEST_S = 7 * 86400.0
LOOK_S = 0.3
"""Between two looks whether Ctrl-C was pressed."""
GRACE_S = 1.0
"""For an ssh that was asked to end."""


def ssh(
    file: File,
    node: Annotated[str, typer.Argument(metavar="NODE")],
    command: Annotated[list[str] | None, typer.Argument(metavar="[COMMAND]…")] = None,
    sandbox: Sandbox = None,
) -> None:
    """Log in to a node, or run one command there, as ssh would. Exits as the remote does."""
    from provisioner import process
    from provisioner import ssh as openssh
    from provisioner.session import open_cluster

    cluster = open_cluster(file, sandbox=sandbox)
    found = cluster.node(node)
    # A connection of its own: a command that is killed ends the ones that are shared, and a login must not go with it.
    own = ("-o", "ControlMaster=no", "-o", "ControlPath=none")
    argv = openssh.argv(cluster.paths, found.name, *own, *([] if command else ["-t"]))
    sys.stdout.flush()
    process.release()
    os.execvp(argv[0], [*argv, *(command or [])])  # noqa: S606 - no shell is started


def exec_(
    file: File,
    command: Annotated[list[str], typer.Argument(metavar="COMMAND…")],
    node: Annotated[list[str] | None, typer.Option("--node", help="Only there; may be given several times.")] = None,
    sandbox: Sandbox = None,
    timeout: Annotated[float, typer.Option(help="Seconds that a node may take.")] = EXEC_DEADLINE_S,
) -> None:
    """Run a command on all nodes at once; each line is headed by its node. Exits with the highest status."""
    from provisioner import ssh as openssh
    from provisioner.fleet import PARALLEL
    from provisioner.session import open_cluster

    if not 0 < timeout <= LONGEST_S:  # also what is no number: nan
        raise GpuprovError(f"--timeout {timeout:g}: a number of seconds, at most {LONGEST_S:.0f}")
    cluster = open_cluster(file, sandbox=sandbox)
    names = [cluster.node(name).name for name in node] if node else [n.name for n in cluster.nodes()]

    def run(name: str) -> tuple[int, str]:
        child = children.start([*openssh.argv(cluster.paths, name), *command])
        deadline = time.monotonic() + timeout
        while True:
            # Not one long wait: ssh's shared connection holds the pipe as long as the remote command runs, so that its
            # end does not come when the child of ours is ended.
            left = deadline - time.monotonic()
            try:
                text, _ = child.communicate(timeout=max(0.0, min(LOOK_S, left)))
            except subprocess.TimeoutExpired:
                if children.over:
                    raise Interrupted("interrupted") from None
                if left <= 0:
                    children.end([child])
                    return 124, f"no answer within {timeout:g} s"
                continue
            return child.returncode, text

    worst, children = 0, _Children()
    with ThreadPoolExecutor(max_workers=PARALLEL) as pool, children.of(pool):
        for name, (status, text) in zip(names, pool.map(run, names), strict=True):
            for line in text.splitlines():
                typer.echo(f"{name}: {printable(line)}")
            if status:
                typer.echo(f"{name}: exit status {status}", err=True)
            worst = max(worst, status)
    if not names:
        typer.echo("no nodes", err=True)
    raise typer.Exit(worst)


class _Children:
    """The ssh processes of one call: none of them outlives what keeps the call from going on (Ctrl-C)."""

    def __init__(self) -> None:
        self._lock, self._running, self._over = threading.Lock(), list[subprocess.Popen[str]](), False

    @property
    def over(self) -> bool:
        """Whether the call has ended, and these with it."""
        with self._lock:
            return self._over

    def start(self, argv: list[str]) -> subprocess.Popen[str]:
        """Raises Interrupted where the call is over."""
        with self._lock:
            if self._over:
                raise Interrupted("interrupted")
            child = subprocess.Popen(
                argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, text=True,
                encoding="utf-8", errors="replace", start_new_session=True,
            )  # fmt: skip
            self._running.append(child)
        return child

    def end(self, children: Sequence[subprocess.Popen[str]]) -> None:
        """End these, and what they started."""
        for sign in (signal.SIGTERM, signal.SIGKILL):
            living = [child for child in children if child.poll() is None]
            for child in living:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(child.pid, sign)
            until = time.monotonic() + GRACE_S
            for child in living:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    child.wait(timeout=max(0.0, until - time.monotonic()))

    @contextlib.contextmanager
    def of(self, pool: ThreadPoolExecutor) -> Iterator[None]:
        """What ends the block early ends the children, and those that wait for their turn."""
        try:
            yield
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            with self._lock:
                self._over = True
            self.end(self._running)
            raise
