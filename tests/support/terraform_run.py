"""Terraform in a folder, as tests of modules call it."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path

from provisioner.machines.terraform.binary import find


def terraform(
    folder: Path, environment: Mapping[str, str], *arguments: str, check: bool = True, timeout_s: float = 240
) -> str:
    """Both outputs of one command. `environment` is its whole environment; `check`: it has to succeed."""
    done = subprocess.run(
        [*find().argv, *arguments], cwd=folder, env=environment, capture_output=True, text=True, timeout=timeout_s,
        check=False,
    )  # fmt: skip
    assert not check or done.returncode == 0, done.stdout[-6000:] + done.stderr[-6000:]
    return done.stdout + done.stderr
