"""gpuprov's own checks as functions, found by importing them."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterator
from functools import cache

from provisioner.verify import check_runner, checks
from provisioner.verify.check import Check

Function = Callable[..., None]


@cache
def all_checks() -> tuple[tuple[Function, Check], ...]:
    """Every check of provisioner/verify/checks, with its declaration."""
    return tuple(_imported_checks())


def _imported_checks() -> Iterator[tuple[Function, Check]]:
    for info in sorted(pkgutil.iter_modules(checks.__path__), key=lambda info: info.name):
        module = importlib.import_module(f"{checks.__name__}.{info.name}")
        for value in vars(module).values():
            declared = getattr(value, "__check__", None)
            if isinstance(declared, Check) and value.__module__ == module.__name__:
                yield value, declared


@cache
def plain_checks() -> tuple[tuple[Function, Check], ...]:
    """Those that need neither pytest nor a connection."""
    return tuple((function, check) for function, check in all_checks() if check_runner.plain(function) is not None)


@cache
def declared() -> tuple[Check, ...]:
    """Every check in provisioner/verify/checks, in the order of their ids."""
    return tuple(sorted((check for _, check in all_checks()), key=lambda c: c.id))
