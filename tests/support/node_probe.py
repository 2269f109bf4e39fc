"""Whether the probe of a `gpuprov verify` runs on a sandbox node at this moment."""

from __future__ import annotations

import os
import subprocess
from contextlib import suppress
from pathlib import Path

PROBE = b"python3\0-I\0-\0"
"""The command line of the probe on a node (verify/collect.py)."""


def namespace_of(container: str) -> str:
    """The namespace of a container's processes."""
    argv = ["podman", "container", "inspect", "--format", "{{.State.Pid}}", container]
    first = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=60).stdout.strip()
    return os.readlink(f"/proc/{first}/ns/pid")  # noqa: PTH115 - a link that leads nowhere


def probes(namespace: str) -> bool:
    """Whether the probe runs in that namespace of processes."""
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # gone meanwhile
            if (entry / "cmdline").read_bytes() == PROBE and os.readlink(entry / "ns" / "pid") == namespace:  # noqa: PTH115
                return True
    return False
