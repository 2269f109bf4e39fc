"""Mutation testing: which small changes of a module does no unit test notice? `make mutants ONLY=provisioner/state`.

    python -m scripts.mutants [--sample N] [--seed N] [PATH…]

Imports modules and tests once, runs the tests and records which lines each of them reaches. Then each mutant is a fork
of that process: the code of the module's functions is replaced, and the tests that reach the mutated lines run, the
fastest first, until one fails. A mutant without a failing test survives. equivalent_mutants.yaml lists those that no
test can tell from the original. A test that starts another process runs the original there.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import functools
import gc
import importlib
import os
import random
import select
import shutil
import signal
import sys
import tempfile
import threading
import time
import types
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

import pytest
import yaml
from _pytest.runner import runtestprotocol

from scripts.mutations import Mutation, mutations, scopes

ROOT = Path(__file__).resolve().parent.parent
DEFAULT = ("lifecycle", "machines", "state", "workspace", "configure/drift.py")
"""What spends, removes, takes over or recovers; below provisioner/."""
EQUIVALENT = Path(__file__).parent / "equivalent_mutants.yaml"
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


@dataclass(slots=True)
class Score:
    """Of one module: result → number of mutants."""

    results: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        counts, total = self.results, self.results.total()
        tested = total - counts["equivalent"]
        killed = counts["killed"] + counts["timeout"]
        share = f"{killed / tested:4.0%}" if tested else "   –"
        rest = f"{counts['survived']:4} survived {counts['equivalent']:4} equivalent {counts['timeout']:4} timed out"
        return f"{share}  {total:4} mutants {killed:4} killed {rest}"


def main() -> int:
    """Run it. The exit status is 1 where mutants survive."""
    parser = argparse.ArgumentParser(description="Test the tests: mutate modules and see whether a test fails.")
    parser.add_argument("--sample", type=int, default=0, help="Test only so many mutants, chosen at random.")
    parser.add_argument("--seed", type=int, default=1, help="Seed of the choice.")
    parser.add_argument(
        "--seconds", type=float, default=20, help="Run the fastest tests up to so many seconds per mutant."
    )
    parser.add_argument("--tests", nargs="+", default=[], help="Run these tests only, not all that import the modules.")
    parser.add_argument("paths", nargs="*", type=Path, help="Modules, or folders of them.")
    options = parser.parse_args()
    if os.environ.get("PYTHONHASHSEED") != "0":  # the same order of sets in each run
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, "-m", "scripts.mutants", *sys.argv[1:]])  # noqa: S606
    files = modules(options.paths or [ROOT / "provisioner" / name for name in DEFAULT])
    every = [mutation for file in files for mutation in mutations(file, (ROOT / file).read_text(encoding="utf-8"))]
    known = every
    if 0 < options.sample < len(every):
        generator = random.Random(options.seed)  # noqa: S311 - no secret
        chosen = sorted(generator.sample(range(len(every)), options.sample))
        every = [every[index] for index in chosen]
    tests = options.tests or test_files(files)
    with os.fdopen(os.dup(1), "w", buffering=1, encoding="utf-8") as stream:  # pytest captures what is printed
        plugin = Plugin(files, known, every, options.seconds, stream)
        plugin.tell(f"{len(every)} mutants of {len(files)} modules, tests of {len(tests)} files")
        return run(plugin, tests)


def run(plugin: Plugin, tests: Sequence[str]) -> int:
    """Collect the tests and try the mutants."""
    arguments = ["-qq", "--no-header", "--no-summary", "-m", "not slow", "-p", "no:cacheprovider", *tests]
    code = pytest.main(arguments, plugins=[plugin])
    if not plugin.done:
        print(f"The tests could not be collected: pytest ends with {code}", file=sys.stderr)
        return 2
    return report(plugin.scores)


def modules(paths: Iterable[Path]) -> list[str]:
    """The modules of these paths, relative to the repository."""
    files = [file for path in paths for file in (sorted(path.rglob("*.py")) if path.is_dir() else [path])]
    return [str(file.resolve().relative_to(ROOT)) for file in files if file.name != "__init__.py"]


def test_files(files: Sequence[str]) -> list[str]:
    """Files of tests/unit that lie in the folders of the same name or import one of the modules."""
    areas = {file.split("/")[1].removesuffix(".py") for file in files}
    names = {file.removesuffix(".py").replace("/", ".") for file in files}
    candidates = []
    for file in sorted((ROOT / "tests" / "unit").rglob("test_*.py")):
        tree = ast.parse(file.read_bytes())
        imports: set[str] = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                imports |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                imports |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        area = file.relative_to(ROOT / "tests" / "unit").parts[0]
        if (area in areas and area != "configure") or names & imports:
            candidates.append(str(file.relative_to(ROOT)))
    return candidates


class Plugin:
    """Runs in place of pytest's own loop."""

    def __init__(
        self, files: Sequence[str], known: Sequence[Mutation], every: Sequence[Mutation], most_s: float, stream: TextIO
    ) -> None:  # fmt: skip
        self.done = False
        self._stream, self._most_s = stream, most_s
        self.scores: dict[str, Score] = {file: Score() for file in files}
        self._files, self._all, self._every = files, known, every
        self._sources = {file: (ROOT / file).read_text(encoding="utf-8") for file in files}
        self._equivalent: dict[str, list[dict[str, str]]] = yaml.safe_load(EQUIVALENT.read_text(encoding="utf-8"))
        self._functions: dict[str, list[types.FunctionType]] = {}
        self._keys: dict[str, Keys] = {}

    def tell(self, message: str) -> None:
        """Write a line with the time."""
        self._stream.write(f"{time.strftime('%H:%M:%S')} {message}\n")

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Try every mutant."""
        if session.testsfailed:
            return False
        for file in self._files:  # not each of them is imported by a test
            importlib.import_module(_module_name(file))
            for row in self._equivalent.get(file, ()):
                own = [mutation for mutation in self._all if mutation.file == file]
                if not any(is_equivalent(mutation, self._sources[file], [row]) for mutation in own):
                    self.tell(f"{EQUIVALENT.name}: {file} has no such mutant: {row['mutant']}")
        tests = self._baseline(session)
        gc.unfreeze()  # else it would not list what tests/conftest.py has frozen
        for function in [item for item in gc.get_objects() if type(item) is types.FunctionType]:
            self._functions.setdefault(function.__code__.co_filename, []).append(function)
        self._keys = {
            file: _by_position(compile(source, str(ROOT / file), "exec", dont_inherit=True))
            for file, source in self._sources.items()
        }
        gc.freeze()
        for number, mutation in enumerate(self._every, 1):
            result, reaching = self._try(mutation, tests)
            score = self.scores[mutation.file]
            score.results[result] += 1
            if result == "survived":
                diff = mutation.diff(self._sources[mutation.file])
                where = f"{mutation.file}:{mutation.lines.start}"
                self._stream.write("\n".join([f"\n{where} survives {reaching} tests", *diff, "", ""]))
            counts = sum((score.results for score in self.scores.values()), Counter[str]())
            if number % 50 == 0 or number == len(self._every):
                reported = ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))
                self.tell(f"{number}/{len(self._every)}: {reported}")
        self.done = True
        return True

    def _baseline(self, session: pytest.Session) -> list[Test]:
        """The tests that pass, here and in a fork of this process."""
        tests, failed = [], []
        last: Any = types.SimpleNamespace(listchain=lambda: [session])
        for item, after in zip(session.items, [*session.items[1:], last], strict=True):
            began = time.monotonic()
            with reached_lines({str(ROOT / file): file for file in self._files}) as reached:
                passed = _passes(item, after)
            if passed and reached:
                tests.append(Test(item, time.monotonic() - began, dict(reached)))
            elif not passed:
                failed.append(item.nodeid)
        tests.sort(key=lambda test: test.seconds)
        while tests and (index := in_fork(tests, lambda: None)) is not None:
            failed.append(tests.pop(index if index >= 0 else -1 - index).item.nodeid)
        self.tell(f"{len(tests)} tests reach them, in {sum(test.seconds for test in tests):.0f} s")
        for nodeid in failed:
            self.tell(f"left out, because it fails on the original: {nodeid}")
        return tests

    def _try(self, mutation: Mutation, tests: Sequence[Test]) -> tuple[str, int]:
        """What becomes of a mutant, and how many tests reach it."""
        if is_equivalent(mutation, self._sources[mutation.file], self._equivalent.get(mutation.file, ())):
            return "equivalent", 0
        lines = set(mutation.lines)
        reaching, total = [], 0.0
        for test in tests:
            reached = test.reached.get(mutation.file, set())
            if (reached & lines if mutation.runtime else reached) and total < self._most_s:
                reaching.append(test)
                total += test.seconds
        reaching.sort(key=lambda test: -test.kills)  # which tends to fail for the next one, too
        keys, functions = self._keys[mutation.file], self._functions.get(str(ROOT / mutation.file), [])
        failing = in_fork(reaching, lambda: replace_code(mutation, keys, functions)) if reaching else None
        if failing is None:
            return "survived", len(reaching)
        if failing < 0:
            return "timeout", len(reaching)
        reaching[failing].kills += 1
        return "killed", len(reaching)


def changed_lines(diff: Sequence[str]) -> tuple[str, str]:
    """The text that a mutation replaces, and what by; whitespace does not count."""
    return tuple(" ".join(" ".join(line[1:] for line in diff if line[0] == sign).split()) for sign in "-+")  # type: ignore[return-value]


def is_equivalent(mutation: Mutation, original: str, rows: Iterable[Mapping[str, str]]) -> bool:
    """Whether one of the rows of equivalent_mutants.yaml is this mutant. `after`: the line before it, where a module
    has several of its text."""
    lines = original.splitlines()
    former = " ".join(lines[mutation.lines.start - 2].split()) if mutation.lines.start > 1 else ""
    change = changed_lines(mutation.diff(original))
    return any(
        change == (" ".join(row["line"].split()), " ".join(row["mutant"].split()))
        and row.get("after", former) == former
        for row in rows
    )


def report(scores: dict[str, Score]) -> int:
    """Print each module's score."""
    print()
    for file, score in scores.items():
        if score.results:
            print(f"{score}  {file}")
    total = Score(sum((score.results for score in scores.values()), Counter[str]()))
    print(f"{total}  in all")
    return 1 if total.results["survived"] else 0


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
            word = os.read(reader, 4)
            if not word:
                break
            index = int.from_bytes(word)
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
        if not _passes(test.item, after):
            os._exit(1)
    os._exit(0)


def _passes(item: pytest.Item, after: pytest.Item | None) -> bool:
    return not any(report.failed for report in runtestprotocol(item, log=False, nextitem=after))


def replace_code(mutation: Mutation, keys: Keys, functions: Iterable[types.FunctionType]) -> None:
    """Put the mutant in the place of the module in this process. `keys` and `functions` are the original module's. Its
    functions keep their identity, because others have imported them; a constant is replaced wherever it is imported."""
    path = str(ROOT / mutation.file)
    module = sys.modules[_module_name(mutation.file)]
    for value in vars(module).values():
        if isinstance(value, functools._lru_cache_wrapper):
            value.cache_clear()
    mutated = compile(mutation.source, path, "exec", dont_inherit=True)
    if not mutation.runtime:
        _replace_definitions(module, mutated)
        return
    codes = {key: code for code, key in _by_position(mutated).items()}
    for function in functions:
        key = keys.get(function.__code__)
        if key in codes and codes[key] != function.__code__:
            function.__code__ = codes[key]


def _by_position(code: types.CodeType) -> Keys:
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


def _module_name(file: str) -> str:
    return file.removesuffix(".py").replace("/", ".")


if __name__ == "__main__":
    sys.exit(main())
