"""Layers of podman's storage that a killed podman left: it makes a container's layer before the container."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

from provisioner.errors import ProviderError
from provisioner.sandbox.podman_state import processes

IMAGES = "localhost/gpuprov-"
CHANGING = frozenset({"build", "commit", "create", "import", "load", "pull", "rm", "rmi", "run"})
"""Commands of podman's that make or remove layers."""
DEADLINE_S = 60


def remove_unused() -> None:
    """Remove layers on top of the sandbox's images that no container has: podman was killed between the two. podman
    itself has a command for them since 5.2 alone (`podman system check`); containers-storage deletes none that is in
    use. Nothing happens where that is not installed, or where podman is at work."""
    if shutil.which("containers-storage") is None:
        return
    layers, images, containers = (_storage(kind) for kind in ("layers", "images", "containers"))
    if any(Path(arguments[0]).name == "podman" and CHANGING & {*arguments} for arguments in processes().values()):
        return
    bases = {row["layer"] for row in images if any(name.startswith(IMAGES) for name in row.get("names") or ())}
    in_use = {row.get("parent") for row in layers} | {row.get("layer") for row in (*images, *containers)}
    for layer in layers:
        if layer.get("parent") in bases and layer["id"] not in in_use:
            argv = ["containers-storage", "delete-layer", str(layer["id"])]
            subprocess.run(argv, capture_output=True, timeout=DEADLINE_S, check=False)


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
