"""Network namespaces of containers on this machine: the address of one, and whether anybody has it still."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from provisioner.sandbox import podman_commands
from provisioner.sandbox.backends import SandboxNetwork

FOLDER = Path("/run/netns")
PREFIX = "netns-"
"""podman's and buildah's names (containers/common, pkg/netns/netns_linux.go: NewNS)."""
MAKERS = frozenset(
    ["bud", "build", "cleanup", "clone", "init", "kube", "play", "restart", "restore", "run", "service", "start"]
)
"""podman's commands that can make a namespace; `cleanup` starts a container again that has ended (--restart)."""
DEADLINE_S = 30
_LOCAL = re.compile(r"\|-- ([0-9.]+)\n\s+/32 host LOCAL")
"""An address of this host in /proc/net/fib_trie."""


def paths() -> list[Path]:
    return sorted(FOLDER.iterdir()) if FOLDER.is_dir() else []


def address(namespace: Path, network: SandboxNetwork) -> str | None:
    """The address of a namespace in that network; None where it has none there, or is no namespace."""
    done = subprocess.run(
        ["nsenter", f"--net={namespace}", "cat", "/proc/self/net/fib_trie"],
        capture_output=True, text=True, encoding="utf-8", errors="replace", timeout=DEADLINE_S, check=False,
    )  # fmt: skip
    matches = (match for match in _LOCAL.findall(done.stdout) if match.startswith(f"{network.subnet}."))
    return next(matches, None)


def is_empty(namespace: Path, since: float, processes: Mapping[int, Sequence[str]]) -> bool:
    """Whether podman made it at `since` (Unix time) or later and none of these processes is in it."""
    entry = namespace.stat()
    if not namespace.name.startswith(PREFIX) or entry.st_ctime < since:
        return False
    return all(_inode(pid) != entry.st_ino for pid in processes)


def makers(namespace: Path, processes: Mapping[int, Sequence[str]]) -> dict[int, str]:
    """Those of these processes that may have made it and be about to start a container in it: id → command."""
    return podman_commands.older(namespace.stat().st_ctime, MAKERS, processes)


def _inode(pid: int) -> int | None:
    try:
        return Path(f"/proc/{pid}/ns/net").stat().st_ino
    except OSError:  # it has ended meanwhile
        return None
