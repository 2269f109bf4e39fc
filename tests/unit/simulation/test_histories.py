"""The lifecycle's simulation: histories that broke an invariant once, and new ones drawn from fixed seeds."""

from __future__ import annotations

import fnmatch
import os
import re
import subprocess
import sys
import traceback
from pathlib import Path

import pytest

from provisioner.common.paths import RUNS
from provisioner.rundir.files import FILES
from tests.simulation.contracts import BrokenInvariant
from tests.simulation.machine import Totals, explore
from tests.simulation.replay import CORPUS, replay

pytestmark = pytest.mark.apart

HISTORIES = 300
"""GPUPROV_TEST_HISTORIES has another number."""
OF_A_SEED = 50
"""Histories of one seed."""
PARTS = 6
"""Which run at the same time; each has every sixth seed."""
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
    """Each seed by itself, so that one that breaks an invariant does not hide the others. Minimising takes minutes for
    each: only `make test`, with one seed for each part, does it."""
    seed_count = int(os.environ.get("GPUPROV_TEST_HISTORIES", HISTORIES)) // OF_A_SEED
    seeds = range(part, seed_count, PARTS)
    totals, broken = Totals(), []
    for seed in seeds:
        try:
            totals += explore(seed, OF_A_SEED, minimise=seed_count <= PARTS)
        except BrokenInvariant as error:
            broken.append(f"seed {seed}:\n{error}")
        except Exception:  # a crash, or a history that is not the same when it is run again
            broken.append(f"seed {seed}:\n{traceback.format_exc()}")
    print(totals)
    assert not broken, "\n\n".join(broken)
    assert totals.histories >= len(seeds) * OF_A_SEED
