"""Runs that are killed, interrupted or refused: the next one goes on, and nothing is left behind."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.support.rehearsal import Rehearsal

pytestmark = pytest.mark.sandbox

KILLS = int(os.environ.get("GPUPROV_TEST_KILLS", "1"))
"""Moments at which `up` is killed; `GPUPROV_TEST_KILLS=20` for the long run."""

SEED = 20261121
STAGES = ("configure", "terraform", "verify")
STAGE_S = 12.0
"""Of a stage, from its first line on, a random moment within so many seconds."""


def left_over(rehearsal: Rehearsal) -> list[str]:
    """Everything of this cluster that a `down` should have removed."""
    found = rehearsal.containers()
    found += [str(path) for path in (rehearsal.file.parent / ".gpuprov").glob("**/*")]
    octets = Path("/var/lib/gpuprov/sandbox/octets")
    found += [str(o) for o in octets.glob("*/workspace") if str(rehearsal.file.parent) in o.read_text()]
    return found


def test_interrupted_and_killed_the_next_up_finishes(tmp_path: Path) -> None:
    """Ctrl-C first, which says how to go on; then a run that is killed; then one to the end, and `down`."""
    rehearsal = Rehearsal.of_example("rtx4090", tmp_path, count=1)
    dice = random.Random(SEED)
    for attempt in range(KILLS):
        interrupt(rehearsal, ("terraform", "configure")[attempt % 2])
        process = rehearsal.start("up", rehearsal.file, "--sandbox", "--yes")
        reached(process, STAGES[attempt % len(STAGES)])
        time.sleep(dice.uniform(0, STAGE_S))
        process.kill()
        process.communicate()
        again = rehearsal.up()
        assert again.status == 0, again.stderr
        assert again.json["ok"]
        gone = rehearsal.down()
        assert gone.status == 0, gone.stderr
        assert left_over(rehearsal) == []


def reached(process: subprocess.Popen[str], stage: str) -> None:
    """Wait until a run says that it has come to that stage."""
    assert process.stderr is not None
    assert any(f" {stage}:" in line for line in process.stderr), f"it ended before its {stage}"


def interrupt(rehearsal: Rehearsal, stage: str) -> None:
    """Ctrl-C as soon as `up` has come to that stage; it says how to go on."""
    process = rehearsal.start("up", rehearsal.file, "--sandbox", "--yes")
    reached(process, stage)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 130, said
    assert f"gpuprov up {rehearsal.file} --sandbox" in said
    assert "Traceback" not in said


def test_down_of_nothing_is_fine(tmp_path: Path) -> None:
    rehearsal = Rehearsal.of_example("rtx4090", tmp_path)
    assert rehearsal.down().status == 0
    assert left_over(rehearsal) == []


def test_plan_leaves_nothing_behind(tmp_path: Path) -> None:
    rehearsal = Rehearsal.of_example("rtx4090", tmp_path, count=1)
    document = rehearsal.run("plan", rehearsal.file, "--sandbox", "--json")
    assert document.status == 0, document.stderr
    assert sum(site["add"] for site in document.json["changes"].values()) == 2
    assert left_over(rehearsal) == []


def test_without_a_terminal_nobody_is_asked(tmp_path: Path) -> None:
    rehearsal = Rehearsal.of_example("rtx4090", tmp_path, count=1)
    said = rehearsal.run("up", rehearsal.file, "--sandbox")
    assert said.status == 2
    assert "--yes" in said.stderr
    assert rehearsal.containers() == []
    assert rehearsal.down().status == 0


def test_a_cloud_without_a_module_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    rehearsal = Rehearsal.of_example("azure-ndv4", tmp_path)
    said = rehearsal.run("up", rehearsal.file, "--yes")
    assert said.status == 2
    assert "--sandbox" in said.stderr
    assert left_over(rehearsal) == []
