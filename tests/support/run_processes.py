"""What a run of gpuprov leaves while it works and after it was killed: its processes, its keeper, its files."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from provisioner.transport.keeper import NAME
from tests.support.sandbox_cluster import SandboxCluster


def left_over(sandbox_cluster: SandboxCluster) -> list[str]:
    """Everything of this cluster that a `down` should have removed."""
    remaining = sandbox_cluster.containers()
    remaining += [str(path) for path in (sandbox_cluster.file.parent / ".gpuprov").glob("**/*")]
    octets = Path("/var/lib/gpuprov/sandbox/octets")
    remaining += [str(o) for o in octets.glob("*/workspace") if str(sandbox_cluster.file.parent) in o.read_text()]
    return remaining + processes(sandbox_cluster.file.parent)


def scratch_of(run: str) -> list[Path]:
    return list(Path(tempfile.gettempdir()).glob(f"gpuprov-*{run}*")) if run else []


def processes(folder: Path, run: str = "") -> list[str]:
    """What runs for a cluster in this folder: by its arguments, its directory, the run that started it, or the sockets
    of its shared connections. Monitors of containers are not processes of a run."""
    rows = []
    config = next(folder.glob(".gpuprov/*/ssh/config"), None)
    control_path = re.search(r'ControlPath "(.*)/%C"', config.read_text()) if config else None
    sockets = control_path[1].replace("%i", "0") if control_path else str(folder)
    for entry in Path("/proc").iterdir():
        try:
            if not entry.name.isdigit() or (entry / "comm").read_text() == "conmon\n" or int(entry.name) == os.getpid():
                continue
            line = (entry / "cmdline").read_bytes().decode(errors="replace").replace("\0", " ")
            belongs = str(folder) in line or sockets in line or (entry / "cwd").readlink().is_relative_to(folder)
            belongs = belongs or (run != "" and f"{NAME}={run}\0".encode() in (entry / "environ").read_bytes())
        except OSError:  # gone meanwhile
            continue
        rows += [f"{entry.name} {line}"] if belongs else []
    return rows


def until(true: Callable[[], bool], seconds: float = 120) -> bool:
    deadline = time.monotonic() + seconds
    while not true():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def keeper_of(process: subprocess.Popen[str]) -> str:
    """The name of a run, from the arguments of its keeper; "" where it ended before it had one."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")

    def keeper_names() -> list[str]:
        try:
            lines = [Path(f"/proc/{pid}/cmdline").read_text().split("\0") for pid in children.read_text().split()]
        except OSError:
            return []
        return [line[-2] for line in lines if any(argument.endswith("keeper.py") for argument in line)]

    until(lambda: bool(keeper_names()) or process.poll() is not None)
    return (keeper_names() or [""])[0]


def has_processes(run: str) -> bool:
    """Whether a process of that run is alive: one that it started, its keeper, or a shared connection of its own."""
    for entry in Path("/proc").iterdir():
        try:
            if not entry.name.isdigit():
                continue
            line, environment = (entry / "cmdline").read_text(errors="replace"), (entry / "environ").read_bytes()
        except OSError:  # gone meanwhile
            continue
        if f"/{run[:8]}/" in line or run in line or f"{NAME}={run}\0".encode() in environment:
            return True
    return False
