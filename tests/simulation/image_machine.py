"""Histories of golden images, as hypothesis draws and minimises them, and those that are written down."""

from __future__ import annotations

import tempfile
from pathlib import Path

import yaml
from hypothesis import note
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from tests.simulation import machine
from tests.simulation.image_edits import EDITS, EVENTS
from tests.simulation.image_history import ImageHistory
from tests.simulation.machine import Totals, memory, number
from tests.simulation.processes import KINDS, Fault
from tests.simulation.replay import CORPUS, do
from tests.simulation.simulation import Typed, remove

IMAGES = CORPUS / "images"
STEPS = 10
"""Rules in a history; its end adds some commands."""
COMMANDS = (
    *(("build",),) * 6, ("build", "--upgrade"), *(("nightly",),) * 4, ("nightly", "--force"), ("promote", "candidate"),
    ("promote", "candidate"), ("promote", "stable"), ("promote", "stable"), ("promote", "nightly"),
    ("promote", "candidate", "BUILD"), ("promote", "stable", "BUILD"),
    ("rollback", "stable"), ("rollback", "nightly"), *(("prune",),) * 4, ("list",), ("fleet", "nightly"),
    ("fleet", "stable"),
)  # fmt: skip
"""What people type, by how often they do."""
EFFECTS = {"build": 50, "nightly": 50, "prune": 12}
"""How many effects a command has, about; others have 5."""

fault = st.builds(Fault, at=st.integers(1, 60), kind=st.sampled_from(KINDS))
faults = st.one_of(st.just(()), st.tuples(fault), st.tuples(fault), st.tuples(fault, fault))


def within(arguments: tuple[str, ...], faults: tuple[Fault, ...]) -> tuple[Fault, ...]:
    """The faults, at effects that such a command has."""
    limit = EFFECTS.get(arguments[0], 5)
    return tuple(Fault((fault.at - 1) % limit + 1, fault.kind) for fault in faults)


class ImageLifecycle(RuleBasedStateMachine):
    """One history. See ImageHistory for what is checked after every step."""

    totals = Totals()

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="gpuprov-images-", dir=memory()))
        self.history = ImageHistory(self.folder)
        self.broken = False

    @rule(words=st.sampled_from(COMMANDS), build=number, faults=faults)
    def command(self, words: tuple[str, ...], build: int, faults: tuple[Fault, ...]) -> None:
        published = list(self.history.world.published)
        if words[-1] == "BUILD":  # whether it still exists or not
            words = (*words[:-1], published[build % len(published)] if published else "20260131-031500")
        self._run(Typed(words, within(words, faults)), picks=[])

    @rule(words=st.sampled_from((("build",), ("nightly",))), fault=fault)
    def struck_build(self, words: tuple[str, ...], fault: Fault) -> None:
        self._run(Typed(words, within(words, (fault,))), picks=[])

    @rule(
        first=st.sampled_from(COMMANDS), second=st.sampled_from(COMMANDS), faults=faults,
        picks=st.lists(number, min_size=2, max_size=40),
    )  # fmt: skip
    def two_commands(
        self, first: tuple[str, ...], second: tuple[str, ...], faults: tuple[Fault, ...], picks: list[int]
    ) -> None:
        """Two commands at the same time; the faults strike the first."""
        self._run(Typed(first, within(first, faults)), Typed(second), picks=picks)

    @rule(name=st.sampled_from(("put_back", *sorted(EDITS))), pick=number)
    def edit(self, name: str, pick: int) -> None:
        if name == "put_back":
            self.history.put_back()
        else:
            self.history.edit_by(name, [pick])

    @rule(name=st.sampled_from(sorted(EVENTS)), pick=number)
    def event(self, name: str, pick: int) -> None:
        self.history.happen(name, [pick])

    def teardown(self) -> None:
        try:
            if not self.broken:
                self.history.finish()
                self.totals.add(self.history)
        finally:
            note("\n".join(self.history.world.script))
            remove(self.folder)

    def _run(self, *commands: Typed, picks: list[int]) -> None:
        try:
            self.history.run(*commands, picks=picks)
        except BaseException:
            self.broken = True
            raise


def explore(number: int, histories: int, *, minimise: bool = True, steps: int = STEPS) -> Totals:
    """As machine.explore, with histories of golden images. Raises BrokenImageInvariant."""
    return machine.explore(number, histories, machine=ImageLifecycle, minimise=minimise, steps=steps)


def replay(file: Path, root: Path) -> ImageHistory:
    """Do a history that is written down, to its end. `root`: an empty folder. Raises BrokenImageInvariant."""
    history = ImageHistory(root)
    for step in yaml.safe_load(file.read_text(encoding="utf-8"))["steps"]:
        do(history, step, history.happen)
    history.finish()
    return history
