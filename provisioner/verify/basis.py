"""What each expected value rests on, and how a failing check comes to know it.

A value that follows from the catalogue's row of a machine type has the weakest basis of the keys that it is made of
(row_basis.FROM_ROW). Checks do not ask for it: they are given `watched(expected)`, which notes each unverified value
that is read, and check_runner lowers a failure after such a reading to a warning that names them.
"""

from __future__ import annotations

from typing import Any, cast

from provisioner.verify.check import NEEDS_MACHINE, Skipped, Unknown, seen
from provisioner.verify.expectations import Expected


class _Watched:
    """An Expected whose unverified values are noted when they are read, and that ends a check which asks for what
    follows from a machine type that nobody named: how many GPUs there must be decides whether a node is healthy."""

    __slots__ = ("_expected", "_unknown", "_unverified")

    def __init__(self, expected: Expected, unverified: frozenset[str]) -> None:
        self._expected, self._unverified, self._unknown = expected, unverified, frozenset(expected.unknown)

    def __getattr__(self, name: str) -> Any:
        if name == "gpu_count" and name in self._unknown:
            raise Unknown(NEEDS_MACHINE, action="none")
        if name in self._unknown:
            raise Skipped(NEEDS_MACHINE)
        if name in self._unverified:
            seen.unverified.add(name)
        return getattr(self._expected, name)


def watched(expected: Expected) -> Expected:
    """What a check is given: reading an unverified value of it is noted in check.seen; Skipped or Unknown for one that
    is not known."""
    unverified = frozenset(field for field, basis in expected.basis.items() if basis == "unverified")
    return cast("Expected", _Watched(expected, unverified)) if unverified or expected.unknown else expected
