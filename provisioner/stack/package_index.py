"""What the vendors' repositories have: a package's versions, what each needs, provides and conflicts with.

A list has some ten thousand paragraphs and a lock needs a hundred of them, so they are found by name first, and only
those that are asked for are read.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, cmp_to_key, lru_cache
from typing import Any

from debian_inspector.debcon import get_paragraph_data
from debian_inspector.deps import parse_depends
from debian_inspector.version import Version, compare_version_objects, eval_constraint

ARCHITECTURES = ("amd64", "all")

_NAME = re.compile(r"^Package:[ \t]*(\S+)[ \t]*$", re.MULTILINE | re.IGNORECASE)
_PROVIDES = re.compile(r"^Provides:(.*(?:\n[ \t].*)*)", re.MULTILINE | re.IGNORECASE)
_VIRTUAL = re.compile(r"(?:^|,)\s*([^\s,(:]+)")
_PACKAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9+._-]*")
_VERSION = re.compile(
    r"(?:([0-9]{1,9}):)?([0-9][0-9A-Za-z.+~-]{0,200}(?=-)|[0-9][0-9A-Za-z.+~]{0,200})(?:-([0-9A-Za-z.+~]{1,100}))?"
)
_OPERATORS = ("<<", "<=", "=", ">=", ">>", "<", ">")


@dataclass(frozen=True, slots=True)
class Relation:
    """One package, or its versions: libnccl2 (>= 2.27). `operator` is empty where any version will do."""

    name: str
    operator: str = ""
    version: str = ""

    def holds(self, version: str) -> bool:
        return not self.operator or _compare(version, self.operator, self.version)

    def __str__(self) -> str:
        return f"{self.name} ({self.operator} {self.version})" if self.operator else self.name


@dataclass(frozen=True, eq=False)
class Entry:
    """One version of a package in one repository. `needs`: all of these, of each group one; `unreadable`: why what it
    needs can't be read, then nothing may be said about it."""

    name: str
    version: str
    repository: str
    needs: tuple[tuple[Relation, ...], ...] = ()
    against: tuple[Relation, ...] = ()
    provides: tuple[Relation, ...] = ()
    unreadable: str = ""

    def gives(self, relation: Relation) -> bool:
        """Whether it is what a relation asks for, by its own name or a virtual one."""
        if self.name == relation.name:
            return relation.holds(self.version)
        return any(
            p.name == relation.name and (not relation.operator or (bool(p.version) and relation.holds(p.version)))
            for p in self.provides
        )

    def __str__(self) -> str:
        return f"{self.name} {self.version}"


@dataclass(eq=False)
class PackageIndex:
    """All repositories of a stack, by name, in the order in which they are preferred."""

    lists: Mapping[str, tuple[str, ...]]
    """Repository → the texts of its lists."""
    _read: dict[str, tuple[Entry, ...]] = field(default_factory=dict)

    def entries(self, name: str) -> tuple[Entry, ...]:
        """Every version of a package, the newest first; empty where no repository has it."""
        if name not in self._read:
            by_version: dict[tuple[str, str], Entry] = {}
            for repository, paragraph in self._paragraphs.get(name, ()):
                entry = read(paragraph, repository)
                if entry is not None and entry.name == name:
                    by_version.setdefault((entry.version, entry.repository), entry)
            self._read[name] = tuple(sorted(by_version.values(), key=lambda e: newest_first(e.version)))
        return self._read[name]

    def providers(self, virtual: str) -> tuple[str, ...]:
        """Names of packages of which some version provides a virtual one, in a stable order."""
        return self._providers.get(virtual, ())

    def names(self, repository: str) -> tuple[str, ...]:
        """Every package of a repository."""
        return tuple(name for name, some in self._paragraphs.items() if any(origin == repository for origin, _ in some))

    @cached_property
    def _paragraphs(self) -> dict[str, list[tuple[str, str]]]:
        by_name: dict[str, list[tuple[str, str]]] = defaultdict(list)
        for repository, texts in self.lists.items():
            for text in texts:
                for paragraph in _paragraphs(text):
                    if name := _NAME.search(paragraph):
                        by_name[name[1]].append((repository, paragraph))
        return dict(by_name)

    @cached_property
    def _providers(self) -> dict[str, tuple[str, ...]]:
        by_virtual_name: dict[str, dict[str, None]] = defaultdict(dict)
        for name, paragraphs in self._paragraphs.items():
            for _, paragraph in paragraphs:
                if "rovides:" in paragraph and (provides := _PROVIDES.search(paragraph)):
                    for virtual in _VIRTUAL.findall(provides[1]):
                        if virtual != name:
                            by_virtual_name[virtual][name] = None
        return {virtual: tuple(sorted(names)) for virtual, names in by_virtual_name.items()}


def _paragraphs(text: str) -> Iterable[str]:
    return (text.replace("\r\n", "\n") if "\r" in text else text).split("\n\n")


def read(paragraph: str, repository: str) -> Entry | None:
    """One paragraph of a list; None where it is no package of this architecture with a version."""
    fields = get_paragraph_data(paragraph.strip("\n") + "\n")
    name, version = _single_line(fields, "package"), _single_line(fields, "version")
    if (
        not _PACKAGE.fullmatch(name)
        or not is_version(version)
        or _single_line(fields, "architecture") not in ARCHITECTURES
    ):
        return None
    try:
        needs = (*relations(_single_line(fields, "pre-depends")), *relations(_single_line(fields, "depends")))
        against = (*relations(_single_line(fields, "conflicts")), *relations(_single_line(fields, "breaks")))
        provides = tuple(group[0] for group in relations(_single_line(fields, "provides")))
        return Entry(name, version, repository, needs, tuple(r for group in against for r in group), provides)
    except ValueError as error:
        return Entry(name, version, repository, unreadable=str(error))


def _single_line(fields: Mapping[str, Any], key: str) -> str:
    return " ".join(str(fields.get(key, "")).split())


@lru_cache(maxsize=20_000)
def relations(text: str) -> tuple[tuple[Relation, ...], ...]:
    """A dependency field: groups that all have to hold, of each one alternative. Raises ValueError for what is no
    such field; qualifiers (python3:any) are left out."""
    groups = []
    for part in " ".join(text.split()).split(","):
        if part.strip():
            groups.append(tuple(_relation(alternative.strip()) for alternative in part.split("|")))
    return tuple(groups)


def _relation(text: str) -> Relation:
    try:
        (parsed,) = parse_depends(text)
    except (ValueError, AttributeError, TypeError):
        raise ValueError(f"{text[:80]!r} is not a dependency") from None
    name, _, _ = str(parsed.name).partition(":")
    relation = Relation(name, getattr(parsed, "operator", ""), getattr(parsed, "version", ""))
    # The library reads as far as it understands; what is behind that must not be dropped.
    is_complete = str(parsed).replace(" ", "") == text.replace(" ", "")
    if not is_complete or parsed.architectures or not _PACKAGE.fullmatch(name):
        raise ValueError(f"{text[:80]!r} is not a dependency")
    if relation.operator and (relation.operator not in _OPERATORS or not is_version(relation.version)):
        raise ValueError(f"{text[:80]!r} is not a dependency")
    return relation


@lru_cache(maxsize=50_000)
def _version(text: str) -> Version:
    """A version in its parts. The library's own reader does not take those that end in ~, which Debian is full of."""
    match = _VERSION.fullmatch(text)
    if not match:
        raise ValueError(f"{text[:80]!r} is not a version")
    return Version(int(match[1] or 0), match[2], match[3] or "0")


def is_version(text: str) -> bool:
    """Whether Debian's policy takes it for a version."""
    return bool(_VERSION.fullmatch(text))


@lru_cache(maxsize=200_000)
def _compare(version: str, operator: str, other: str) -> bool:
    if operator == "=" and version == other:
        return True
    return bool(eval_constraint(_version(version), operator, _version(other)))


_key = cmp_to_key(lambda first, second: compare_version_objects(second, first))


@lru_cache(maxsize=50_000)
def newest_first(version: str) -> Any:
    """A sort key in Debian's order of versions, turned round."""
    return _key(_version(version))


def release(version: str) -> tuple[int, str, str]:
    """What a package's maker released: epoch, upstream version, and what stands behind a + of the revision
    (2.27.7-1+cuda13.0 is another release than 2.27.7-1+cuda12.9, and 580.65.06-0ubuntu1 the same as 580.65.06-1)."""
    parts = _version(version)
    return parts.epoch, parts.upstream, str(parts.revision or "").partition("+")[2]
