"""The environment of a job on this node, as role pytorch_images wrote it for users: what verify measures with.

/etc/gpuprov/images.json has it (ansible/roles/pytorch_images/library/container_options.py is the only place that
decides it). Standard library only, Python 3.8 or newer.
"""

from __future__ import annotations

import json
from typing import Any

IMAGES = "/etc/gpuprov/images.json"
NETWORK = "--network=host"


def job_options(image: str, network: bool = True) -> list[str] | None:
    """The options of `docker run` for a job with this image on this node; without the node's network where `network` is
    False. None where the role has written none."""
    try:
        with open(IMAGES, encoding="utf-8") as stream:  # noqa: PTH123 (a plain script)
            rows: list[dict[str, Any]] = json.load(stream)
        row = next(row for row in rows if row["pull"] == image)
        options = [str(option) for option in row["docker_run"] if str(option).startswith("--")]
    except (OSError, ValueError, LookupError, TypeError, StopIteration):
        return None
    if not network:
        options = [option for option in options if option != NETWORK] + ["--network=none"]
    return options


def unwritten(image: str) -> str:
    """Why nothing can run in the environment of a job."""
    return f"{IMAGES} has no docker_run of {image}: `gpuprov up` writes the environment of a job"
