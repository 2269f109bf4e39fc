"""gpuprov's own checks as functions, found by importing them."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterator

from provisioner.verify import checks, item
from provisioner.verify.check import Check

Function = Callable[..., None]


def plain_checks() -> Iterator[tuple[Function, Check]]:
    """Every check of provisioner/verify/checks that needs neither pytest nor a connection, with its declaration."""
    for info in sorted(pkgutil.iter_modules(checks.__path__), key=lambda info: info.name):
        module = importlib.import_module(f"{checks.__name__}.{info.name}")
        for value in vars(module).values():
            declared = item.plain(value)
            if declared is not None and value.__module__ == module.__name__:
                yield value, declared
