"""Ports of a node's loopback, as ports of this computer's, for as long as they are needed."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from provisioner.common.errors import GpuprovError
from provisioner.common.paths import ClusterPaths
from provisioner.common.text import counted
from provisioner.transport import process, ssh, ssh_config

READY_S = 30.0
"""Seconds until ssh has logged in: twice its ConnectTimeout."""
PAUSE_S, GRACE_S = 0.05, 5.0
LOOPBACK = "127.0.0.1"


@contextlib.contextmanager
def tunnel(
    paths: ClusterPaths, node: str, ports: Sequence[int], first_port: int | None = None
) -> Iterator[tuple[int, ...]]:
    """Local ports that lead to these ports of a node's 127.0.0.1, in their order. It is the same port where that is
    free here, or `first_port` and those after it. On this very machine they are the node's own. Raises GpuprovError."""
    if node in ssh_config.local(paths):
        yield tuple(ports)
        return
    local_ports = _free_ports(ports) if first_port is None else _these_ports(first_port, len(ports))
    pairs = zip(local_ports, ports, strict=True)
    forwards = [f"-L{LOOPBACK}:{local_port}:{LOOPBACK}:{port}" for local_port, port in pairs]
    options = (*ssh.UNSHARED, "-N", "-oExitOnForwardFailure=yes", "-oBatchMode=yes", *forwards)
    child = process.start(ssh.argv(paths, node, *options), cwd=Path("/"))
    try:
        _wait(child, node, local_ports)
        yield local_ports
    finally:
        process.stop(child, grace_s=GRACE_S)


def _wait(child: subprocess.Popen[str], node: str, ports: Sequence[int]) -> None:
    until = time.monotonic() + READY_S
    while not all(map(_listens, ports)):
        if child.poll() is not None:
            assert child.stderr is not None
            lines = child.stderr.read().strip().splitlines()
            raise GpuprovError(f"ssh to {node} failed: {lines[-1] if lines else f'exit status {child.returncode}'}")
        if time.monotonic() > until:
            raise GpuprovError(f"no answer from {node} in {READY_S:g} s")
        time.sleep(PAUSE_S)


def _listens(port: int) -> bool:
    try:
        with socket.create_connection((LOOPBACK, port), timeout=1.0):
            return True
    except OSError:
        return False


def _free_ports(requested: Sequence[int]) -> tuple[int, ...]:
    """The requested ports; for one that something here listens on, or may have, another that is free."""
    with contextlib.ExitStack() as stack:
        return tuple(_free_port(port, stack) for port in requested)


def _these_ports(first: int, count: int) -> tuple[int, ...]:
    """Ports that somebody has chosen."""
    ports = tuple(range(first, first + count))
    for port in ports:
        with socket.socket() as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                listener.bind((LOOPBACK, port))
            except (OSError, OverflowError) as error:
                reason = getattr(error, "strerror", None) or "there is no such port"
                raise GpuprovError(
                    f"cannot listen on port {port} of this computer: {reason}",
                    hint=f"choose {counted(count, 'free port')} in a row; `ss -ltnp` shows who has one",
                ) from None
    return ports


def _free_port(requested: int, stack: contextlib.ExitStack) -> int:
    for port in (requested, 0):
        listener = stack.enter_context(socket.socket())
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with contextlib.suppress(OSError):
            listener.bind((LOOPBACK, port))
            return int(listener.getsockname()[1])
    raise GpuprovError(f"no port of {LOOPBACK} is free")
