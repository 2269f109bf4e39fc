"""The lifecycle's simulation: histories that broke an invariant once, and new ones drawn from fixed seeds."""

from __future__ import annotations

import fnmatch
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from provisioner.common.paths import RUNS
from provisioner.rundir.files import FILES
from tests.simulation.machine import explore
from tests.simulation.replay import CORPUS, replay

HISTORIES = 300
"""Of which each part has its share; GPUPROV_TEST_HISTORIES has another number."""
PARTS = 6
ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("file", sorted(CORPUS.glob("*.yaml")), ids=lambda file: file.stem)
def test_a_history_that_broke_an_invariant_once_breaks_none(file: Path, tmp_path: Path) -> None:
    replay(file, tmp_path)
    assert [name for name in names(tmp_path) if not any(fits(name, row.pattern) for row in FILES)] == []


def names(folder: Path) -> list[str]:
    """The files in all run directories below a folder, as rundir/files.py has them; not those that a write was about to
    put into their place when it was killed."""
    paths = [path.relative_to(folder).parts for path in folder.rglob("*") if not path.is_dir()]
    below = ["/".join(parts[parts.index(RUNS) + 2 :]) for parts in paths if RUNS in parts[:-2]]
    return [name for name in below if not re.search(r"(^|/)\.[\w.-]+\.[0-9a-f]{12}$", name)]


def fits(name: str, pattern: str) -> bool:
    """Whether a pattern names a file, or the folder that it is in."""
    parts, patterns = name.split("/"), pattern.split("/")
    return len(parts) >= len(patterns) and all(map(fnmatch.fnmatchcase, parts, patterns))


def test_a_seed_gives_the_same_histories_in_every_process() -> None:
    """Whatever other modules it has loaded, and in whatever order its sets are."""
    totals = explore(77, 10)
    drawn = f"{totals.histories} histories, {totals.steps} steps, {totals.commands.total()} commands"
    program = "from tests.simulation.machine import explore; print(explore(77, 10))"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT, timeout=600,
        env={**os.environ, "PYTHONHASHSEED": "7"},
    )  # fmt: skip
    assert drawn in done.stdout


@pytest.mark.parametrize("part", range(PARTS))
def test_no_history_breaks_an_invariant(part: int) -> None:
    histories = int(os.environ.get("GPUPROV_TEST_HISTORIES", HISTORIES)) // PARTS
    totals = explore(part, histories)
    print(totals)
    assert totals.histories >= histories
