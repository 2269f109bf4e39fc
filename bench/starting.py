"""How long `gpuprov --help` takes, against `pcluster version`: the least that either can do."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from bench.measure import run, take_turns
from bench.promises import Promise

RIVAL = "aws-parallelcluster"


def measure(runs: int) -> list[Promise]:
    gpuprov, pcluster = Path(sys.executable).with_name("gpuprov"), install()
    ours, theirs = take_turns(
        lambda: run([str(gpuprov), "--help"]), lambda: run([str(pcluster), "version"]), runs=runs, warm_up=2
    )
    return [
        Promise(
            "`gpuprov --help`", "at most 0.25 × `pcluster version`", f"{ours} against {theirs}",
            ours.median / theirs.median, 0.25, numbers={"ours": ours.runs, "theirs": theirs.runs},
        )
    ]  # fmt: skip


def install() -> Path:
    """The rival's command, in a virtual environment of its own that is kept for the next time."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    venv = cache / "gpuprov-bench" / RIVAL
    command = venv / "bin" / "pcluster"
    if not command.exists():
        run([sys.executable, "-m", "venv", "--clear", str(venv)])
        run([str(venv / "bin" / "pip"), "install", "--quiet", "--disable-pip-version-check", RIVAL])
    return command
