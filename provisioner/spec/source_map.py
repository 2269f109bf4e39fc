"""Where things stand in cluster.yaml, and what is wrong there. Positions start at 1."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from provisioner.common.errors import Problem

MAX_PROBLEMS = 100

Loc = tuple[str | int, ...]
"""Where in the tree: ("groups", "train", "count"), list items by their index."""


class Finding(NamedTuple):
    """Something that cannot work: where, what, what instead. `at_key` points at the key, not at its value."""

    loc: Loc
    message: str
    hint: str = ""
    at_key: bool = False


@dataclass(frozen=True, slots=True)
class Mark:
    """Positions of one value and of its key (the same for the root and for list items), as (line, column)."""

    key: tuple[int, int]
    value: tuple[int, int]
    raw: str | None = None
    """The text of a plain scalar as it stands in the file (2.10, not 2.1); None for quoted ones and collections."""


@dataclass(slots=True)
class Source:
    """One file as read: its value, the marks of everything in it, what is wrong with it so far."""

    file: str
    value: Any = None
    marks: dict[Loc, Mark] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    broken: set[Loc] = field(default_factory=set)
    """Values that have their problem already and need no second one."""
    partial: set[Loc] = field(default_factory=set)
    """Blocks with a key that could not be taken: nothing may be said about what is missing in them."""
    complete: bool = True
    """False where reading stopped early: then nothing may be said about what is missing."""

    def mark(self, loc: Loc) -> Mark:
        """The mark of a place, or of the nearest one around it."""
        while loc and loc not in self.marks:
            loc = loc[:-1]
        return self.marks.get(loc, Mark((1, 1), (1, 1)))

    def report(self, position: tuple[int, int], loc: Loc, message: str, hint: str = "") -> None:
        """Adds a problem; beyond 100 only that there are more."""
        if len(self.problems) < MAX_PROBLEMS:
            self.problems.append(Problem(self.file, *position, dotted(loc), message, hint))
        elif len(self.problems) == MAX_PROBLEMS:
            self.problems.append(Problem(self.file, *position, "", "more problems follow", "fix these first"))

    def stop(self, position: tuple[int, int], message: str, hint: str = "") -> None:
        """Adds a problem after which nothing more can be read."""
        self.complete = False
        self.report(position, (), message, hint)


def dotted(loc: Loc) -> str:
    """groups.train.zones[0]"""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in loc).removeprefix(".")


def shown(text: str, limit: int = 60) -> str:
    """A text of the user's as it may stand in a message: quoted, one line, cut."""
    clean = text if len(text) <= limit else text[: limit - 1] + "…"
    return repr(clean) if not clean.isprintable() else f'"{clean}"'
