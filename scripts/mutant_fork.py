"""How a mutant is tried: which lines a test reaches, a fork of this process, and the mutant's code in the place of the
module's own."""

from __future__ import annotations

import contextlib
import functools
import os
import select
import shutil
import signal
import sys
import tempfile
import threading
import types
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from _pytest.runner import runtestprotocol

from scripts.mutations import Mutation, scopes

ROOT = Path(__file__).resolve().parent.parent
GRACE_S = 3.0
"""A test of a mutant may take ten times as long as on the original, and this much more."""

Keys = dict[types.CodeType, tuple[str, int]]
"""Code of a module → its qualified name, and which of that name it is."""


@dataclass(slots=True)
class Test:
    """`reached`: file → lines that it runs; `seconds`: how long it took on the original; `kills`: mutants so far."""

    item: pytest.Item
    seconds: float
    reached: dict[str, set[int]]
    kills: int = 0


@contextlib.contextmanager
def reached_lines(files: dict[str, str]) -> Iterator[dict[str, set[int]]]:
    """File → lines that run meanwhile, in all threads; `files`: path → its name in the result."""
    reached: dict[str, set[int]] = {}

    def on_call(frame: types.FrameType, _event: str, _argument: object) -> Callable[..., Any] | None:
        name = files.get(frame.f_code.co_filename)
        if name is None:
            return None
        lines = reached.setdefault(name, set())
        lines.add(frame.f_lineno)

        def on_line(frame: types.FrameType, _event: str, _argument: object) -> Callable[..., Any]:
            lines.add(frame.f_lineno)
            return on_line

        return on_line

    threading.settrace(on_call)
    sys.settrace(on_call)
    try:
        yield reached
    finally:
        sys.settrace(None)
        threading.settrace(None)  # type: ignore[arg-type]


def in_fork(tests: Sequence[Test], prepare: Callable[[], None]) -> int | None:
    """Run tests in a fork of this process after `prepare`, until one fails. Gives the index of that test, -1 - index
    where it did not end in time, None where all pass."""
    reader, writer = os.pipe()
    folder = Path(tempfile.mkdtemp(prefix="mut-"))
    pid = os.fork()
    if pid == 0:
        try:
            _child(tests, prepare, writer, folder)
        finally:
            os._exit(1)
    os.close(writer)
    index, timed_out = 0, False
    try:
        while True:
            limit_s = GRACE_S + 10 * tests[index].seconds
            if not select.select([reader], [], [], limit_s)[0]:
                timed_out = True
                break
            answer = os.read(reader, 4)
            if not answer:
                break
            index = int.from_bytes(answer)
    finally:
        os.close(reader)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
        status = os.waitpid(pid, 0)[1]
        shutil.rmtree(folder, ignore_errors=True)
    if timed_out:
        return -1 - index
    return None if os.WIFEXITED(status) and os.WEXITSTATUS(status) == 0 else index


def _child(tests: Sequence[Test], prepare: Callable[[], None], writer: int, folder: Path) -> None:
    os.setsid()
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    factory = getattr(tests[0].item.config, "_tmp_path_factory", None)
    if factory is not None:
        factory._basetemp = folder
    prepare()
    for index, test in enumerate(tests):
        os.write(writer, index.to_bytes(4))
        after = tests[index + 1].item if index + 1 < len(tests) else None
        if not passes(test.item, after):
            os._exit(1)
    os._exit(0)


def passes(item: pytest.Item, after: pytest.Item | None) -> bool:
    return not any(report.failed for report in runtestprotocol(item, log=False, nextitem=after))


def replace_code(mutation: Mutation, keys: Keys, functions: Iterable[types.FunctionType]) -> None:
    """Put the mutant in the place of the module in this process. `keys` and `functions` are the original module's. Its
    functions keep their identity, because others have imported them; a constant is replaced wherever it is imported."""
    path = str(ROOT / mutation.file)
    module = sys.modules[module_name(mutation.file)]
    clear_caches(module)
    mutated = compile(mutation.source, path, "exec", dont_inherit=True)
    if not mutation.runtime:
        _replace_definitions(module, mutated)
        return
    codes = {key: code for code, key in keys_of(mutated).items()}
    for function in functions:
        key = keys.get(function.__code__)
        if key in codes and codes[key] != function.__code__:
            function.__code__ = codes[key]


def clear_caches(module: types.ModuleType) -> None:
    """Have the module's cached functions run again."""
    for value in vars(module).values():
        if isinstance(value, functools._lru_cache_wrapper):
            value.cache_clear()


def keys_of(code: types.CodeType) -> Keys:
    counts: Counter[str] = Counter()
    keys: Keys = {}
    for name, inner in scopes(code):
        keys[inner] = name, counts[name]
        counts[name] += 1
    return keys


def _replace_definitions(module: types.ModuleType, mutated: types.CodeType) -> None:
    """Run the mutated module beside the original; take over its constants and the defaults of its functions."""
    scratch = dict.fromkeys(("__name__", "__file__", "__package__", "__doc__", "__spec__"))
    scratch.update({name: getattr(module, name) for name in scratch})
    exec(mutated, scratch)  # noqa: S102 - the repository's own module, mutated
    for name, new in list(scratch.items()):
        old = vars(module).get(name)
        if name.startswith("__") or isinstance(new, types.ModuleType):
            continue
        if isinstance(new, types.FunctionType) and isinstance(old, types.FunctionType):
            old.__defaults__, old.__kwdefaults__ = new.__defaults__, new.__kwdefaults__
        elif isinstance(new, type) and isinstance(old, type):
            if new.__module__ == module.__name__:
                _replace_members(old, new)
        elif not callable(new):
            for other in [m for m in sys.modules.values() if isinstance(m, types.ModuleType)]:
                if vars(other).get(name) is old:
                    setattr(other, name, new)


def _replace_members(old: type, new: type) -> None:
    for name, member in vars(new).items():
        former = vars(old).get(name)
        if isinstance(member, types.FunctionType) and isinstance(former, types.FunctionType):
            former.__defaults__, former.__kwdefaults__ = member.__defaults__, member.__kwdefaults__
            if former.__code__.co_freevars == member.__code__.co_freevars:  # what dataclasses have written
                former.__code__ = member.__code__
        elif not name.startswith("__") and isinstance(member, bool | int | float | str | tuple | frozenset):
            setattr(old, name, member)


def module_name(file: str) -> str:
    return file.removesuffix(".py").replace("/", ".")
