"""`gpuprov exec`: one command on many nodes at once, over the pinned host keys."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from provisioner.common.errors import Interrupted
from provisioner.common.paths import ClusterPaths
from provisioner.rundir.fleet import PARALLEL
from provisioner.transport import ssh, ssh_failure

LOOK_S = 0.3
"""Between two looks whether Ctrl-C was pressed."""
GRACE_S = 1.0
"""For an ssh that was asked to end."""
TIMED_OUT = 124
"""As timeout(1) has it."""
PIECE = 1 << 16
LEAST_OUTPUT, MOST_OUTPUT, TOTAL_OUTPUT = 64 << 10, 8 << 20, 256 << 20
"""Bytes of output that are shown: of each node at least and at most, and of all together (10,000 nodes have some more).
They are held in memory until the nodes before have answered."""


def run_on(
    paths: ClusterPaths,
    nodes: Sequence[str],
    command: Sequence[str],
    show: Callable[[str, int, str], None],
    *,
    timeout_s: float,
) -> int:
    """Run a command on these nodes; the highest exit status. `show` gets node, exit status and output (both streams),
    in the order of `nodes`. A node that takes longer than `timeout_s` seconds has status 124. Ctrl-C ends every ssh
    that was started, and no other is. Of output that is longer than a node's share the beginning is given."""
    sessions = _Sessions()
    share = max(LEAST_OUTPUT, min(MOST_OUTPUT, TOTAL_OUTPUT // max(1, len(nodes))))

    def run(node: str) -> tuple[int, str]:
        argv = ssh.argv(paths, node)
        child = sessions.start([*argv, *command])
        output = _Output(child, share)
        deadline = time.monotonic() + timeout_s
        while True:
            # Not one long wait: ssh's shared connection holds the pipe as long as the remote command runs, so that its
            # end does not come when the child of ours is ended.
            remaining_s = deadline - time.monotonic()
            if output.read(max(0.0, min(LOOK_S, remaining_s))):
                with contextlib.suppress(subprocess.TimeoutExpired):
                    code, text = child.wait(timeout=max(0.0, min(LOOK_S, remaining_s))), output.text()
                    silent = not text.strip() or ssh_failure.has_no_greeting(text)
                    if silent and ssh_failure.is_own(argv, code):
                        text = f"ssh: {ssh_failure.explain(argv, text)}"
                    return code, text
            if sessions.ended:
                raise Interrupted("interrupted") from None
            if remaining_s <= 0:
                sessions.end([child])
                return TIMED_OUT, f"no answer within {timeout_s:g} s"

    worst = 0
    with ThreadPoolExecutor(max_workers=PARALLEL) as pool, sessions.of(pool):
        for node, (status, text) in zip(nodes, pool.map(run, nodes), strict=True):
            show(node, status, text)
            worst = max(worst, status)
    return worst


class _Output:
    """What a child prints, its first `limit` bytes: the rest is read, so that the command goes on, and left out."""

    def __init__(self, child: subprocess.Popen[bytes], limit: int) -> None:
        assert child.stdout is not None
        self._stream, self._limit = child.stdout, limit
        self._content, self._omitted, self._ended = bytearray(), 0, False
        os.set_blocking(self._stream.fileno(), False)
        self._ready = selectors.DefaultSelector()
        self._ready.register(self._stream, selectors.EVENT_READ)

    def read(self, timeout_s: float) -> bool:
        """Wait for more, take what is there; whether its end has come."""
        if not self._ended and self._ready.select(timeout_s):
            piece = os.read(self._stream.fileno(), PIECE)
            if not piece:
                self._ended = True
                self._ready.close()
                self._stream.close()
            room = self._limit - len(self._content)
            self._content += piece[:room]
            self._omitted += max(0, len(piece) - room)
        return self._ended

    def text(self) -> str:
        text = self._content.decode("utf-8", "replace")
        if self._omitted:
            text += f"\n[{self._omitted} bytes more were left out: redirect them to a file on the node]"
        return text


class _Sessions:
    """The ssh processes of one call: none of them outlives what keeps the call from going on (Ctrl-C)."""

    def __init__(self) -> None:
        self._lock, self._running, self._ended = threading.Lock(), list[subprocess.Popen[bytes]](), False

    @property
    def ended(self) -> bool:
        """Whether the call has ended, and these with it."""
        with self._lock:
            return self._ended

    def start(self, argv: list[str]) -> subprocess.Popen[bytes]:
        """Raises Interrupted where the call has ended."""
        with self._lock:
            if self._ended:
                raise Interrupted("interrupted")
            child = subprocess.Popen(
                argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                start_new_session=True, bufsize=0,
            )  # fmt: skip
            self._running.append(child)
        return child

    def end(self, children: Sequence[subprocess.Popen[bytes]]) -> None:
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
                self._ended = True
            self.end(self._running)
            raise
