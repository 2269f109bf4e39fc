"""Debian's dependencies as resolvelib's questions: what a package needs, what it can't be beside, and what there is.

A dependency with alternatives is a choice of its own (Either → Way); a conflict asks that a package be absent or
another version (Against → Nothing). What no repository here has is the distribution's, and nothing is asked of it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from resolvelib import AbstractProvider

from provisioner.common.errors import GpuprovError
from provisioner.stack.package_index import Entry, PackageIndex, Relation, newest_first, release
from provisioner.stack.resolve import InOrder


@dataclass(frozen=True, slots=True)
class Want:
    """A package must be there, as what `relation` asks for. `versions`: one of these alone."""

    name: str
    relation: Relation
    repository: str | None = None
    versions: tuple[str, ...] = ()

    def met_by(self, candidate: object) -> bool:
        return (
            isinstance(candidate, Entry)
            and candidate.name == self.name
            and self.repository in (None, candidate.repository)
            and (not self.versions or candidate.version in self.versions)
            and candidate.gives(self.relation)
        )


@dataclass(frozen=True, slots=True)
class Against:
    """If a package is there, then not as what `relation` names."""

    name: str
    relation: Relation

    def met_by(self, candidate: object) -> bool:
        return not (isinstance(candidate, Entry) and candidate.gives(self.relation))


@dataclass(frozen=True, slots=True)
class Nothing:
    """The choice that a package is not there."""

    name: str


@dataclass(frozen=True, slots=True)
class Way:
    """One way to meet a dependency with alternatives; `want` None leaves it to the distribution."""

    group: str
    want: Want | None


@dataclass(frozen=True, slots=True)
class Either:
    """One of these ways. `group` is the dependency as it is written."""

    group: str
    ways: tuple[Way, ...]

    def met_by(self, candidate: object) -> bool:
        return candidate in self.ways


Requirement = Want | Against | Either
Candidate = Entry | Nothing | Way


class Dependencies(AbstractProvider[Any, Any, str]):
    """resolvelib's questions, answered from the packages that are available. `keep`: name → the version that comes
    first; after it come those of `releases`, then the newest."""

    def __init__(
        self, available: PackageIndex, keep: Mapping[str, str], releases: Collection[tuple[int, str, str]]
    ) -> None:
        self.available, self.keep, self.releases = available, keep, releases
        self.chosen: dict[str, Entry] = {}
        """What was chosen last of each name; it may have been given up since, and only orders what is tried."""
        self.owners: dict[str, Entry] = {}
        """The dependency with alternatives → who has it."""
        self.because: dict[str, Entry] = {}
        """A package that is pulled in → the first that does."""

    def identify(self, requirement_or_candidate: Requirement | Candidate) -> str:
        if isinstance(requirement_or_candidate, Either | Way):
            return f"| {requirement_or_candidate.group}"
        return requirement_or_candidate.name

    def get_preference(
        self,
        identifier: str,
        resolutions: Mapping[str, Any],  # noqa: ARG002
        candidates: Any,  # noqa: ARG002
        information: Mapping[str, Any],
        backtrack_causes: Any,  # noqa: ARG002
    ) -> int:
        # What is certain first: then a choice sees what is there already, and absence is the last to be decided.
        if identifier.startswith("| "):
            return 1
        return 0 if any(isinstance(i.requirement, Want) for i in information[identifier]) else 2

    def find_matches(
        self, identifier: str, requirements: Mapping[str, Iterator[Requirement]], incompatibilities: Mapping[str, Any]
    ) -> Sequence[Candidate]:
        needs, refused = list(requirements[identifier]), list(incompatibilities[identifier])
        if isinstance(needs[0], Either):
            return InOrder([option for option in needs[0].ways if option not in refused], self._there_already)
        if any(isinstance(need, Want) for need in needs):
            entries = [
                e for e in self.available.entries(identifier) if all(n.met_by(e) for n in needs) and e not in refused
            ]
            return sorted(entries, key=self._order)
        return [Nothing(identifier)] if Nothing(identifier) not in refused else []

    def _there_already(self, option: Way) -> bool:
        """Sorts first what is chosen already; what is left keeps the order in which it is written."""
        return not (option.want is not None and option.want.met_by(self.chosen.get(option.want.name)))

    def _order(self, entry: Entry) -> tuple[Any, ...]:
        is_retained = self.keep.get(entry.name) == entry.version
        return not is_retained, release(entry.version) not in self.releases, newest_first(entry.version)

    def is_satisfied_by(self, requirement: Requirement, candidate: Candidate) -> bool:
        return requirement.met_by(candidate)

    def get_dependencies(self, candidate: Candidate) -> Iterable[Requirement]:
        if isinstance(candidate, Nothing):
            return []
        if isinstance(candidate, Way):
            return [candidate.want] if candidate.want is not None else []
        if candidate.unreadable:
            raise GpuprovError(
                f"repository {candidate.repository}: invalid dependencies of {candidate}: {candidate.unreadable}",
                hint="report it to the repository's maintainer; until it is fixed, pin another version",
            )
        self.chosen[candidate.name] = candidate
        needs = [need for group in candidate.needs if (need := self.need(group, candidate)) is not None]
        for need in needs:
            for want in (need,) if isinstance(need, Want) else (option.want for option in need.ways if option.want):
                self.because.setdefault(want.name, candidate)
        return [*needs, *self._conflicts(candidate)]

    def need(self, group: Sequence[Relation], by: Entry) -> Want | Either | None:
        """A dependency as a requirement; None where no repository of the stack has anything of it."""
        text = " | ".join(map(str, group))
        alternatives, distribution = [], False
        for relation in group:
            if by.gives(relation):  # it is what it needs
                return None
            names = ([relation.name] if self.available.entries(relation.name) else []) + [
                name for name in self.available.providers(relation.name) if name != relation.name
            ]
            distribution = distribution or not names
            alternatives += [Want(name, relation) for name in names]
        if not alternatives:
            return None
        # What no version meets is kept only where there is nothing else: then it is what the error is about.
        alternatives = [
            want for want in alternatives if any(map(want.met_by, self.available.entries(want.name)))
        ] or alternatives
        if len(alternatives) == 1 and not distribution:
            return alternatives[0]
        self.owners.setdefault(text, by)
        last = (Way(text, None),) if distribution else ()
        return Either(text, (*(Way(text, want) for want in alternatives), *last))

    def _conflicts(self, by: Entry) -> Iterator[Against]:
        for relation in by.against:
            for name in (relation.name, *self.available.providers(relation.name)):
                if name != by.name and self.available.entries(name):
                    yield Against(name, relation)
