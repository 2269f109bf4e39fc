"""Users' own checks that cannot be taken: a file that does not load, an id that another check has. Each is said with
its file and line, in a sentence that can stand as the reason of a quarantine."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import pytest

from provisioner.verify.merged_checks import by_id
from provisioner.verify.registry import all_checks

OURS = Path(__file__).parent / "checks"

Item = TypeVar("Item", bound=pytest.Item)


def broken(raised: BaseException | None, file: Path) -> dict[str, str]:
    """{"where", "message"} of what was raised while a file of checks was loaded; the place is the last line in that
    file that was at work."""
    cause = raised.__cause__ if isinstance(raised, pytest.Collector.CollectError) and raised.__cause__ else raised
    if isinstance(cause, SyntaxError) and cause.filename:
        return {
            "where": _location(Path(cause.filename), cause.lineno),
            "message": f"{type(cause).__name__}: {cause.msg}",
        }
    if cause is None:
        return {"where": _location(file, None), "message": "it could not be loaded"}
    lines = [frame.lineno for frame in traceback.extract_tb(cause.__traceback__) if frame.filename == str(file)]
    if isinstance(cause, SystemExit):
        message = f"it ends the program (sys.exit({cause.code!r})) while it is loaded"
    elif isinstance(cause, pytest.exit.Exception):
        message = f"it ends pytest while it is loaded: {cause}"
    else:
        message = f"{type(cause).__name__}: {cause}"[:500]
    return {"where": _location(file, lines[-1] if lines else None), "message": message}


def without_doubles(items: Sequence[Item], id_of: Callable[[Item], str]) -> tuple[list[Item], list[dict[str, str]]]:
    """The items without those whose id another check has, and what is to be said of these. gpuprov's own stay; of two
    declared by a user the first does."""
    theirs = any(not item.path.is_relative_to(OURS) for item in items)
    ours = {check.id: function.__module__.rpartition(".")[2] for function, check in all_checks()} if theirs else {}
    first: dict[str, str] = {}
    accepted: list[Item] = []
    refused: dict[str, dict[str, str]] = {}
    for item in items:
        name, location = id_of(item), _location(item.path, _line(item))
        if item.path.is_relative_to(OURS):
            accepted.append(item)
        elif name in ours or name in by_id():
            file = f" ({ours[name]}.py)" if name in ours else ""
            message = f"the id {name} is already a check of gpuprov{file}: give it another one"
            refused[location] = {"where": location, "message": message}
        elif hasattr(getattr(item, "function", None), "__check__") and first.setdefault(name, location) != location:
            message = f"the id {name} is that of the check at {first[name]}: give it another one"
            refused[location] = {"where": location, "message": message}
        else:
            accepted.append(item)
    return accepted, list(refused.values())


def _line(item: pytest.Item) -> int | None:
    code = getattr(getattr(item, "function", None), "__code__", None)
    return code.co_firstlineno if code is not None else None


def _location(file: Path, line: int | None) -> str:
    return f"{file.parent.name}/{file.name}" + (f":{line}" if line else "")
