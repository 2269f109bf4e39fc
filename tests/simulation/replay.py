"""A history that is written down, done again: the steps that a broken invariant prints, as a file of the corpus."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from tests.simulation.books import happen
from tests.simulation.processes import Fault
from tests.simulation.simulation import Simulation, Typed

CORPUS = Path(__file__).parent / "corpus"
"""Histories that broke an invariant once. `finding`: what went wrong; `bug`: its number in a review, if it has one."""


def replay(file: Path, root: Path) -> Simulation:
    """Do it all again, to its end. `root`: an empty folder. Raises BrokenInvariant."""
    steps = yaml.safe_load(file.read_text(encoding="utf-8"))["steps"]
    history = Simulation(root, **steps[0]["start"])
    for step in steps[1:]:
        do(history, step, partial(happen, history))
    history.finish()
    return history


def do(history: Any, step: Mapping[str, Any], happen: Callable[[str, Sequence[int]], object]) -> None:
    """One step of a history. `happen`: an event of its world, by name."""
    picks = step.get("picks", ())
    if "run" in step:
        history.run(*map(typed, step["run"]), picks=picks)
    elif step.get("edit") == "put_back":
        history.put_back()
    elif "edit" in step:
        history.edit_by(step["edit"], picks)
    else:
        happen(step["event"], picks)


def typed(command: Mapping[str, Any]) -> Typed:
    return Typed(
        tuple(command["words"].split()), tuple(map(_fault, command.get("faults", ()))), command.get("operator", 0),
        held=command.get("held", False),
    )  # fmt: skip


def _fault(text: str) -> Fault:
    """ "kill at 2 cloud create train-0": the second effect of that name."""
    kind, _, location = text.partition(" at ")
    number, _, name = location.partition(" ")
    return Fault(int(number), kind, name)
