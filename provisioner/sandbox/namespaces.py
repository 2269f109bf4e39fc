"""Network namespaces of containers on this machine: the address of one, and whether anybody has it still."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Collection, Mapping, Sequence
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


def addresses(namespace: Path) -> list[str]:
    """IPv4 addresses of a namespace but those of its loopback; none where it is no namespace."""
    done = subprocess.run(
        ["nsenter", f"--net={namespace}", "cat", "/proc/self/net/fib_trie"],
        capture_output=True, text=True, encoding="utf-8", errors="replace", timeout=DEADLINE_S, check=False,
    )  # fmt: skip
    return sorted({match for match in _LOCAL.findall(done.stdout) if not match.startswith("127.")})


def address(namespace: Path, network: SandboxNetwork) -> str | None:
    """Its address in that network; None where it has none there."""
    return next((text for text in addresses(namespace) if text.startswith(f"{network.subnet}.")), None)


def is_podmans(namespace: Path) -> bool:
    """By its name, and no link: people make those for the namespaces of their processes."""
    return namespace.name.startswith(PREFIX) and not namespace.is_symlink()


def is_empty(namespace: Path, since: float, processes: Collection[int]) -> bool:
    """Whether podman made it at `since` (Unix time) or later, it has no address, and none of these processes is in
    it."""
    if not is_podmans(namespace) or namespace.stat().st_ctime < since:
        return False
    return not addresses(namespace) and not occupants(namespace, processes)


def occupants(namespace: Path, processes: Collection[int]) -> list[int]:
    """Those of these processes that are in it."""
    inode = namespace.stat().st_ino
    return [pid for pid in processes if _inode(pid) == inode]


def makers(namespace: Path, processes: Mapping[int, Sequence[str]]) -> frozenset[int]:
    """Those of these processes that may have made it and be about to start a container in it."""
    return podman_commands.users(namespace.stat().st_ctime, MAKERS, processes)


def _inode(pid: int) -> int | None:
    try:
        return Path(f"/proc/{pid}/ns/net").stat().st_ino
    except OSError:  # it has ended meanwhile
        return None
