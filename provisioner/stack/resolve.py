"""One consistent set of versions, by resolvelib: what is asked for at the start, what each choice asks for in turn."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from resolvelib import AbstractProvider, BaseReporter, ResolutionImpossible, Resolver

from provisioner.stack.candidates import ORDER, Candidate, Spec, pinned, within
from provisioner.stack.components import label

ChoiceT = TypeVar("ChoiceT")

ROUNDS = 20_000
"""Steps after which resolvelib gives up; a set has some fifteen components, and most are chosen once."""


@dataclass(frozen=True, slots=True)
class Need:
    """What is asked of one component. `pin` is what cluster.yaml says, as it says it; `build` the CUDA (major.minor)
    that a framework's build must have; `path` the key of cluster.yaml that asks, empty where a candidate does; `reason`
    a sentence for what the machine asks."""

    name: str
    spec: Spec = ""
    pin: str | None = None
    build: str | None = None
    path: str = ""
    says: str = ""
    reason: str = ""

    def met_by(self, candidate: Candidate) -> bool:
        if self.pin is not None:
            return pinned(candidate, self.pin)
        if self.build is not None:
            return str(candidate.facts.get("cuda", "")).startswith(self.build)
        return within(candidate.version, self.spec)

    def __str__(self) -> str:
        spec = " or ".join(self.spec) if isinstance(self.spec, tuple) else self.spec
        return label(self.name, str(self.pin or spec))


@dataclass(frozen=True, slots=True)
class Problem:
    """What is to be solved: `needs` at the start, and every component's candidates. A component that is not in
    `candidates` is not part of the stack, and nothing is asked of it."""

    needs: tuple[Need, ...]
    candidates: Mapping[str, Sequence[Candidate]]
    only_for: Mapping[str, str] = field(default_factory=dict)
    """Component → the key of cluster.yaml without which it would not be part of the stack."""
    keep: Mapping[str, str] = field(default_factory=dict)
    """Component → the version that stays where it goes with what is asked for: a lock's."""
    near: str = ""
    """A component whose candidates are taken in their own order, whatever others wish: the nearest to a pin."""

    def with_need(self, need: Need) -> Problem:
        """The problem with one more requirement."""
        return replace(self, needs=(*self.needs, need))

    def without(self, path: str, *, keep_component: bool = False) -> Problem:
        """The problem as if cluster.yaml did not have that key."""
        dropped_names = set() if keep_component else {name for name, key in self.only_for.items() if key == path}
        needs = tuple(n for n in self.needs if n.path != path and n.name not in dropped_names)
        return replace(
            self, needs=needs, candidates={k: v for k, v in self.candidates.items() if k not in dropped_names}
        )


class Unsolvable(Exception):
    """No set of versions satisfies a problem. `causes`: what the last attempt failed on, (need, who asked)."""

    def __init__(self, causes: list[tuple[Need, Candidate | None]]) -> None:
        super().__init__("unsolvable")
        self.causes = causes


def resolve(problem: Problem) -> dict[str, Candidate]:
    """Component → the candidate that was chosen. Raises Unsolvable."""
    problem = replace(problem, candidates=_possible(problem))
    resolver: Any = Resolver(_Provider(problem), BaseReporter())
    requirements = [*problem.needs, *(Need(name) for name in problem.candidates)]
    try:
        result = resolver.resolve(requirements, max_rounds=ROUNDS)
    except ResolutionImpossible as error:
        raise Unsolvable([(cause.requirement, cause.parent) for cause in error.causes]) from None
    chosen: dict[str, Candidate] = {name: result.mapping[name] for name in problem.candidates}
    return chosen


def _possible(problem: Problem) -> dict[str, list[Candidate]]:
    """Every component's candidates without those that ask for something that no other candidate is (again and again,
    since one that goes takes others with it). It keeps an unsolvable problem from being searched through, and says
    why it is one. Raises Unsolvable where a component has no candidate left."""
    remaining = {
        name: [c for c in some if all(need.met_by(c) for need in problem.needs if need.name == name)]
        for name, some in problem.candidates.items()
    }
    reasons: dict[str, list[tuple[Need, Candidate | None]]] = {name: [] for name in remaining}
    # What a machine image holds is there whatever else is chosen: without this, a search would try all else first.
    images = remaining.get("vendor_image", [])
    for name, some in remaining.items():
        requirements = [(need, image) for image in images for need in _asked_by(image, remaining) if need.name == name]
        if len(requirements) == len(images) > 0:
            some[:] = [candidate for candidate in some if any(need.met_by(candidate) for need, _ in requirements)]
            reasons[name] += requirements
    is_changed = True
    while is_changed:
        is_changed = False
        for name, some in remaining.items():
            for candidate in tuple(some):
                need = next(
                    (n for n in _asked_by(candidate, remaining) if not any(map(n.met_by, remaining[n.name]))), None
                )
                if need is not None:
                    some.remove(candidate)
                    reasons[name].append((need, candidate))
                    is_changed = True
            if not some:
                raise Unsolvable(reasons[name])
    return remaining


def _asked_by(candidate: Candidate, components: Mapping[str, object]) -> Iterator[Need]:
    return (Need(name, spec) for name, spec in candidate.needs.items() if name in components)


def solvable(problem: Problem) -> bool:
    """Whether there is an answer."""
    try:
        resolve(problem)
    except Unsolvable:
        return False
    return True


class InOrder(Sequence[ChoiceT]):
    """Candidates that are put in order each time that they are gone through: wishes depend on what has been chosen by
    the time that their component's turn comes."""

    def __init__(self, choices: list[ChoiceT], order: Callable[[ChoiceT], Any]) -> None:
        self._found, self._order = choices, order

    def __len__(self) -> int:
        return len(self._found)

    def __getitem__(self, index: Any) -> Any:
        return sorted(self._found, key=self._order)[index]

    def __iter__(self) -> Iterator[ChoiceT]:
        return iter(sorted(self._found, key=self._order))


@dataclass(slots=True)
class _Provider(AbstractProvider):  # type: ignore[type-arg]
    problem: Problem
    chosen: Mapping[str, Candidate] = field(default_factory=dict)
    asked: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        self.asked = frozenset(need.name for need in self.problem.needs if need.path.startswith("stack."))

    def identify(self, requirement_or_candidate: Need | Candidate) -> str:
        return requirement_or_candidate.name

    def get_preference(
        self,
        identifier: str,
        resolutions: Mapping[str, Candidate],
        candidates: Mapping[str, Iterator[Candidate]],  # noqa: ARG002
        information: Mapping[str, Iterator[Any]],  # noqa: ARG002
        backtrack_causes: Sequence[Any],  # noqa: ARG002
    ) -> tuple[bool, int]:
        self.chosen = resolutions
        position = ORDER.index(identifier) if identifier in ORDER else 0
        return identifier != self.problem.near and identifier not in self.asked, position

    def find_matches(
        self,
        identifier: str,
        requirements: Mapping[str, Iterator[Need]],
        incompatibilities: Mapping[str, Iterator[Candidate]],
    ) -> InOrder[Candidate]:
        needs = [need for need in requirements[identifier] if need != Need(need.name)]
        refused = {id(candidate) for candidate in incompatibilities[identifier]}
        matches = [
            candidate
            for candidate in self.problem.candidates.get(identifier, ())
            if id(candidate) not in refused and all(need.met_by(candidate) for need in needs)
        ]
        return InOrder(matches, self._order)

    def _order(self, candidate: Candidate) -> tuple[Any, ...]:
        broken = sum(not need.met_by(self.chosen[need.name]) for need in _asked_by(candidate, self.chosen))
        unmet = sum(
            not within(candidate.version, other.prefers[candidate.name])
            for other in self.chosen.values()
            if candidate.name in other.prefers
        )
        unmet += sum(
            not within(self.chosen[name].version, spec)
            for name, spec in candidate.prefers.items()
            if name in self.chosen
        )
        moved = self.problem.keep.get(candidate.name, candidate.version) != candidate.version
        return broken, moved, 0 if candidate.name == self.problem.near else unmet, candidate.rank

    def is_satisfied_by(self, requirement: Need, candidate: Candidate) -> bool:
        return requirement == Need(requirement.name) or requirement.met_by(candidate)

    def get_dependencies(self, candidate: Candidate) -> Iterable[Need]:
        return list(_asked_by(candidate, self.problem.candidates))
