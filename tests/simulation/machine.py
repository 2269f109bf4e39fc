"""Histories, as hypothesis draws and minimises them: a rule for each thing that people, faults and the world do."""

from __future__ import annotations

import contextlib
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol
from unittest import mock

from hypothesis import HealthCheck, Phase, note, seed, settings
from hypothesis import strategies as st
from hypothesis.internal.conjecture import providers
from hypothesis.internal.conjecture.providers import AVAILABLE_PROVIDERS, Constants, HypothesisProvider
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from tests.simulation.books import EVENTS, happen
from tests.simulation.edits import EDITS
from tests.simulation.processes import KINDS, Fault
from tests.simulation.simulation import Simulation, Typed, remove

STEPS = 12
"""Rules in a history; its end adds some commands."""
COMMANDS = (
    *(("up",),) * 6, *(("verify",),) * 2, *(("upgrade",),) * 3, ("upgrade", "--again"), ("upgrade", "--rollback-all"),
    ("maintain",), ("maintain",),
    ("replace",), ("replace",), ("replace", "--even-if-healthy"), ("quarantine",), ("release",), ("down",), ("plan",),
    ("status",), ("unlock",), ("gc",), ("verify", "standard"), ("exec",),
)  # fmt: skip
"""What people type, by how often they do."""
NAMES_A_NODE = ("replace", "quarantine", "release")
PROVE = (("up",), ("verify",), ("verify", "standard"), ("upgrade",), ("replace",), ("maintain",))
"""What ends with a verdict."""
SLOW = (("up",), ("up",), ("upgrade",), ("down",), ("verify", "standard"), ("quarantine",), ("replace",))
JOURNALS = (
    ("upgrade",), ("upgrade",), ("quarantine",), ("replace",), ("replace", "--even-if-healthy"), ("up",), ("maintain",),
)  # fmt: skip
"""What writes down how far it is."""
LOST = (
    "book_damaged", "book_damaged", "book_removed", "helpful_file_damaged", "helpful_file_removed", "backup_restored",
)  # fmt: skip
SILENT = ("heartbeat hangs", "heartbeat hangs", "heartbeat dies", "late", "delayed")
LATEST_EFFECT = 60
"""An `up` of two machines has some 90 effects, one with nothing to do 25."""

fault = st.builds(Fault, at=st.integers(1, LATEST_EFFECT), kind=st.sampled_from(KINDS))
signalled_twice = st.builds(
    lambda at, first, later, second: (Fault(at, first), Fault(at + later, second)),
    st.integers(1, LATEST_EFFECT), st.sampled_from(("interrupt", "terminate", "terminate after")), st.integers(1, 8),
    st.sampled_from(("interrupt", "kill", "power")),
)  # fmt: skip
"""A person who presses Ctrl-C again, or a service manager that sends SIGKILL a while after SIGTERM."""
faults = st.one_of(st.just(()), st.tuples(fault), st.tuples(fault), st.tuples(fault, fault), signalled_twice)
number = st.integers(0, 11)


class Counted(Protocol):
    """A history that is over, with what it did."""

    steps: int
    faults: Counter[str]
    commands: Counter[str]
    changes: Counter[str]
    states: set[str]


class IndependentDraws(HypothesisProvider):
    """As a backend of its own, so that each history is drawn for itself: hypothesis varies those that it has drawn, and
    the histories of one seed are alike."""


AVAILABLE_PROVIDERS["independent"] = IndependentDraws


@dataclass
class Totals:
    """What all histories of a run did."""

    histories: int = 0
    steps: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    commands: Counter[str] = field(default_factory=Counter)
    changes: Counter[str] = field(default_factory=Counter)
    states: set[str] = field(default_factory=set)

    def add(self, history: Counted) -> None:
        self += Totals(1, history.steps, history.faults, history.commands, history.changes, history.states)

    def __iadd__(self, other: Totals) -> Totals:
        self.histories += other.histories
        self.steps += other.steps
        self.faults += other.faults
        self.commands += other.commands
        self.changes += other.changes
        self.states |= other.states
        return self

    def __str__(self) -> str:
        return (
            f"{self.histories} histories, {self.steps} steps, {sum(self.commands.values())} commands, "
            f"{sum(self.faults.values())} faults, {len(self.states)} distinct states"
        )


class Lifecycle(RuleBasedStateMachine):
    """One history. See Simulation for what is checked after every step."""

    totals = Totals()

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="gpuprov-simulation-", dir=memory()))
        self.history: Simulation | None = None
        self.broken = False

    @initialize(
        sites=st.sampled_from((1, 2, 2)), shared=st.booleans(), hooks=st.sampled_from((True, True, False)),
        metal=st.sampled_from((0, 0, 1, 2)), began=st.booleans(),
    )  # fmt: skip
    def begin(self, *, sites: int, shared: bool, hooks: bool, metal: int, began: bool) -> None:
        self.history = Simulation(self.folder, sites=sites, shared=shared, hooks=hooks, metal=min(metal, sites))
        if began:
            self._run(Typed(("up",)))

    @rule(
        words=st.sampled_from(COMMANDS),
        target_node=number,
        operator=number,
        faults=faults,
        picks=st.lists(number, max_size=4),
    )
    def command(
        self, words: tuple[str, ...], target_node: int, operator: int, faults: tuple[Fault, ...], picks: list[int]
    ) -> None:
        self._run(self._typed(words, target_node, operator, faults), picks=picks)

    @rule(
        first=st.sampled_from(COMMANDS), second=st.sampled_from(COMMANDS), nodes=st.tuples(number, number),
        operators=st.tuples(number, number), faults=faults, picks=st.lists(number, min_size=2, max_size=40),
    )  # fmt: skip
    def two_commands(
        self, first: tuple[str, ...], second: tuple[str, ...], nodes: tuple[int, int], operators: tuple[int, int],
        faults: tuple[Fault, ...], picks: list[int],
    ) -> None:  # fmt: skip
        """Two commands at the same time; the faults strike the first."""
        typed = [self._typed(first, nodes[0], operators[0], faults), self._typed(second, nodes[1], operators[1], ())]
        self._run(*typed, picks=picks)

    @rule(
        beside=st.sampled_from(PROVE), at=st.integers(1, 4), signal=st.sampled_from(("kill", "kill", "terminate")),
        operators=st.tuples(number, number), picks=st.lists(number, min_size=8, max_size=40),
    )  # fmt: skip
    def exec_is_killed(
        self, beside: tuple[str, ...], at: int, signal: str, operators: tuple[int, int], picks: list[int]
    ) -> None:
        """`exec` ends in the middle, beside a command that proves nodes."""
        killed = self._typed(("exec",), 0, operators[0], (Fault(at, signal),))
        self._run(killed, self._typed(beside, 0, operators[1], ()), picks=picks)

    @rule(
        first=st.sampled_from(SLOW), at=st.integers(1, LATEST_EFFECT), kind=st.sampled_from(SILENT),
        later=st.integers(1, 40), answer=st.sampled_from(("late", "delayed")), second=st.sampled_from(SLOW),
        picks=st.lists(number, min_size=30, max_size=60),
    )  # fmt: skip
    def taken_over(
        self, first: tuple[str, ...], at: int, kind: str, later: int, answer: str, second: tuple[str, ...],
        picks: list[int],
    ) -> None:  # fmt: skip
        """A command whose answers are late, or whose heartbeat is; meanwhile the other operator takes over."""
        assert self.history is not None
        slow = self._typed(first, 0, 0, (Fault(at, kind), Fault(at + later, answer)))
        arguments = ("unlock", "&&", *self._typed(second, 0, 1, ()).words)
        self._run(slow, Typed(arguments, operator=1 % self.history.operators, held=True), picks=picks)

    @rule(
        begun=st.sampled_from(JOURNALS), driver=number, at=st.integers(1, LATEST_EFFECT),
        kind=st.sampled_from(("kill", "power", "interrupt", "refused")), lost=st.sampled_from(LOST), nodes=number,
        picks=st.lists(number, min_size=2, max_size=2), following=st.sampled_from(COMMANDS), operator=number,
    )  # fmt: skip
    def record_lost(
        self, begun: tuple[str, ...], driver: int, at: int, kind: str, lost: str, nodes: int, picks: list[int],
        following: tuple[str, ...], operator: int,
    ) -> None:  # fmt: skip
        """What a command has written down is damaged, removed, or older again; then another command."""
        assert self.history is not None
        if lost == "backup_restored":
            happen(self.history, "backup_made", picks)
        if begun == ("upgrade",):
            self.history.edit_by("lock", [driver])
        self._run(self._typed(begun, nodes, operator, (Fault(at, kind),)))
        happen(self.history, lost, picks)
        self._run(self._typed(following, nodes, operator, ()))

    @rule(
        group=number, operators=st.tuples(number, number), faults=faults, again=st.booleans(),
        following=st.sampled_from(COMMANDS), picks=st.lists(number, min_size=2, max_size=2),
        lacking=st.sampled_from(("site_sells_out", "site_sells_out", "quota_used_up")),
    )  # fmt: skip
    def first_site_without_capacity(
        self, group: int, operators: tuple[int, int], faults: tuple[Fault, ...], following: tuple[str, ...],
        picks: list[int], lacking: str, *, again: bool,
    ) -> None:  # fmt: skip
        """A group may be at two sites, and the first of them has no machines; then another command."""
        assert self.history is not None
        self.history.edit_by("group_at_several_sites", [group, 2])
        happen(self.history, lacking, picks)
        self._run(self._typed(("up",), 0, operators[0], faults))
        if again:
            happen(self.history, "zones_sell_again", picks)
        self._run(self._typed(following, 0, operators[1], ()))

    @rule(driver=number, operator=number, faults=faults, bad=st.booleans())
    def another_lock(self, driver: int, operator: int, faults: tuple[Fault, ...], *, bad: bool) -> None:
        """A lock with another driver, which may be a bad one, and the upgrade to it."""
        assert self.history is not None
        self.history.edit_by("lock", [driver])
        if bad:
            happen(self.history, "driver_turns_out_bad", [driver - 1])
        self._run(self._typed(("upgrade",), 0, operator, faults))

    @rule(name=st.sampled_from(sorted(EDITS)), picks=st.lists(number, min_size=2, max_size=2))
    def edit(self, name: str, picks: list[int]) -> None:
        assert self.history is not None
        self.history.edit_by(name, picks)

    @rule(
        name=st.sampled_from(sorted(EDITS)), picks=st.lists(number, min_size=2, max_size=2),
        following=st.sampled_from(COMMANDS), operator=number, faults=faults,
    )  # fmt: skip
    def edit_and_command(
        self, name: str, picks: list[int], following: tuple[str, ...], operator: int, faults: tuple[Fault, ...]
    ) -> None:
        self.edit(name, picks)
        self._run(self._typed(following, picks[0], operator, faults))

    @rule()
    def put_back(self) -> None:
        assert self.history is not None
        self.history.put_back()

    @rule(name=st.sampled_from(sorted(EVENTS)), picks=st.lists(number, min_size=2, max_size=2))
    def event(self, name: str, picks: list[int]) -> None:
        assert self.history is not None
        happen(self.history, name, picks)

    @rule(
        name=st.sampled_from(sorted(EVENTS)), picks=st.lists(number, min_size=2, max_size=2),
        following=st.sampled_from(COMMANDS), operator=number, faults=faults,
    )  # fmt: skip
    def event_and_command(
        self, name: str, picks: list[int], following: tuple[str, ...], operator: int, faults: tuple[Fault, ...]
    ) -> None:
        self.event(name, picks)
        self._run(self._typed(following, picks[0], operator, faults))

    def teardown(self) -> None:
        history = self.history
        try:
            if history is not None and not self.broken:
                history.finish()
                self.totals.add(history)
        finally:
            if history is not None:
                note("\n".join(history.world.script))
            remove(self.folder)

    def _typed(self, arguments: tuple[str, ...], node: int, operator: int, faults: tuple[Fault, ...]) -> Typed:
        assert self.history is not None
        nodes = self.history.file.nodes
        names = (nodes[node % len(nodes)],) if arguments[0] in NAMES_A_NODE else ()
        return Typed((*arguments, *names), faults, operator % self.history.operators)

    def _run(self, *typed: Typed, picks: list[int] | None = None) -> None:
        assert self.history is not None
        try:
            self.history.run(*typed, picks=picks or ())
        except BaseException:
            self.broken = True
            raise


def memory() -> str | None:
    """A folder in memory, where there is one: a history writes some hundred files."""
    shm = Path("/dev/shm")
    return str(shm) if shm.is_dir() else None


def explore(
    number: int, histories: int, *, machine: type[RuleBasedStateMachine] = Lifecycle, minimise: bool = True,
    steps: int = STEPS,
) -> Totals:  # fmt: skip
    """Run that many histories, all drawn from one seed. Raises BrokenInvariant with the shortest history that breaks
    one. `machine`: its `totals` count what the histories did."""
    totals = Totals()
    drawn: Any = type(machine.__name__, (machine,), {"totals": totals})
    phases = (Phase.generate, Phase.shrink) if minimise else (Phase.generate,)
    with _without_constants():
        run_state_machine_as_test(
            seed(number)(drawn),
            settings=settings(
                max_examples=histories, stateful_step_count=steps, database=None, deadline=None, phases=phases,
                suppress_health_check=list(HealthCheck), report_multiple_bugs=False, print_blob=False,
                backend="independent",
            ),
        )  # fmt: skip
    return totals


@contextlib.contextmanager
def _without_constants() -> Iterator[None]:
    """hypothesis also draws constants that the source of loaded modules has (constants_ast.py): a seed would give other
    histories with every edit of the code, and in every process that has loaded other modules."""
    with mock.patch.object(providers, "_get_local_constants", Constants):
        providers.CONSTANTS_CACHE.cache.clear()
        yield
    providers.CONSTANTS_CACHE.cache.clear()
