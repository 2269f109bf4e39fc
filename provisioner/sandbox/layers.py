"""Layers of podman's storage that a killed podman left: it makes a container's layer before the container."""

from __future__ import annotations

import json
import shutil
import subprocess
from datetime import datetime
from typing import Any

from provisioner.common.errors import ProviderError
from provisioner.sandbox import podman_commands
from provisioner.sandbox.podman_state import processes

IMAGES = "localhost/gpuprov-"
CHANGING = frozenset(
    ["auto-update", "bud", "build", "clone", "commit", "create", "from", "import", "kube", "load", "play", "pull",
     "restore", "rm", "rmi", "run", "scp", "service"]
)  # fmt: skip
"""Commands of podman's and buildah's that make or remove layers."""
DEADLINE_S = 60


def remove_unused() -> None:
    """Remove layers on top of the sandbox's images that no container has: podman was killed between the two. podman
    itself has a command for them since 5.2 alone (`podman system check`); containers-storage deletes none that is in
    use. Nothing happens where that is not installed. One that a podman at work may be about to use is left to the next
    call. Raises ProviderError where containers-storage fails."""
    if shutil.which("containers-storage") is None:
        return
    unused, users = _unused()
    if users:
        podman_commands.wait_for_end(users)
        unused, _ = _unused()
    for layer in unused:
        argv = ["containers-storage", "delete-layer", layer]
        subprocess.run(argv, capture_output=True, timeout=DEADLINE_S, check=False)


def _unused() -> tuple[list[str], set[int]]:
    """Layers that nobody has, and processes that may be about to use others."""
    layers, images, containers = (_storage(kind) for kind in ("layers", "images", "containers"))
    running = processes()
    bases = {row["layer"] for row in images if any(name.startswith(IMAGES) for name in row.get("names") or ())}
    in_use = {row.get("parent") for row in layers} | {row.get("layer") for row in (*images, *containers)}
    unused, users = list[str](), set[int]()
    for layer in layers:
        if layer.get("parent") in bases and layer["id"] not in in_use:
            created = datetime.fromisoformat(layer["created"]).timestamp()
            of_layer = podman_commands.users(created, CHANGING, running)
            users |= of_layer
            unused += [] if of_layer else [str(layer["id"])]
    return unused, users


def _storage(kind: str) -> list[dict[str, Any]]:
    argv = ["containers-storage", kind, "--json"]
    done = subprocess.run(argv, capture_output=True, timeout=DEADLINE_S, check=False)
    try:
        rows = json.loads(done.stdout or "[]")
    except ValueError:
        rows = None
    if done.returncode or not isinstance(rows, list):
        raise ProviderError(f"containers-storage {kind} failed", hint="run it to see why")
    return rows
