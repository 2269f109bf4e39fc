"""Mutation testing: which small changes of a module does no unit test notice?

    make mutants ONLY=provisioner/lifecycle/sharing

    python -m scripts.mutants [--sample N] [--seed N] [--seconds S] [PATH…] [--tests PATH…]

Imports modules and tests once, runs the tests and records which lines each of them reaches. Then each mutant is a fork
of that process: the code of the module's functions is replaced, and the tests that reach the mutated lines run, the
fastest first, until one fails. A mutant without a failing test survives. equivalent_mutants.yaml lists those that no
test can tell from the original. A test that starts another process runs the original there.
"""

from __future__ import annotations

import argparse
import ast
import gc
import importlib
import os
import random
import sys
import time
import types
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

import pytest
import yaml

from scripts.mutant_fork import (
    ROOT,
    Keys,
    Test,
    clear_caches,
    in_fork,
    keys_of,
    module_name,
    passes,
    reached_lines,
    replace_code,
)
from scripts.mutations import Mutation, mutations

DEFAULT = ("lifecycle", "machines", "configure/drift.py")
"""What spends, removes, takes over or recovers; below provisioner/."""
EQUIVALENT = Path(__file__).parent / "equivalent_mutants.yaml"


@dataclass(slots=True)
class Score:
    """Of one module: result → number of mutants."""

    results: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        counts, total = self.results, self.results.total()
        tested = total - counts["equivalent"]
        killed = counts["killed"] + counts["timeout"]
        share = f"{killed / tested:4.0%}" if tested else "   –"
        survivors = (
            f"{counts['survived']:4} survived {counts['equivalent']:4} equivalent {counts['timeout']:4} timed out"
        )
        return f"{share}  {total:4} mutants {killed:4} killed {survivors}"


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
        plugin.print_line(f"{len(every)} mutants of {len(files)} modules, tests of {len(tests)} files")
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
    unit = ROOT / "tests" / "unit"
    areas = {area_of(file, unit) for file in files} - {Path("configure")}  # its tests of roles start Ansible
    names = {file.removesuffix(".py").replace("/", ".") for file in files}
    candidates = []
    for file in sorted(unit.rglob("test_*.py")):
        tree = ast.parse(file.read_bytes())
        imports: set[str] = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                imports |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                imports |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        if areas.intersection(file.relative_to(unit).parents) or names & imports:
            candidates.append(str(file.relative_to(ROOT)))
    return candidates


def area_of(file: str, unit: Path) -> Path:
    """The folder of tests that is called as the module's own, or as the nearest one above it."""
    folders = Path(file).relative_to("provisioner").parents
    return next((folder for folder in folders if folder.name and (unit / folder).is_dir()), Path("none"))


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

    def print_line(self, message: str) -> None:
        """Write a line with the time."""
        self._stream.write(f"{time.strftime('%H:%M:%S')} {message}\n")

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Try every mutant."""
        if session.testsfailed:
            return False
        for file in self._files:  # not each of them is imported by a test
            importlib.import_module(module_name(file))
            for row in self._equivalent.get(file, ()):
                file_mutations = [mutation for mutation in self._all if mutation.file == file]
                if not any(is_equivalent(mutation, self._sources[file], [row]) for mutation in file_mutations):
                    self.print_line(f"{EQUIVALENT.name}: {file} has no such mutant: {row['mutant']}")
        tests = self._baseline(session)
        gc.unfreeze()  # else it would not list what tests/conftest.py has frozen
        for function in [item for item in gc.get_objects() if type(item) is types.FunctionType]:
            self._functions.setdefault(function.__code__.co_filename, []).append(function)
        self._keys = {
            file: keys_of(compile(source, str(ROOT / file), "exec", dont_inherit=True))
            for file, source in self._sources.items()
        }
        gc.freeze()
        for number, mutation in enumerate(self._every, 1):
            result, reaching = self._try(mutation, tests)
            score = self.scores[mutation.file]
            score.results[result] += 1
            if result == "survived":
                diff = mutation.diff(self._sources[mutation.file])
                location = f"{mutation.file}:{mutation.lines.start}"
                self._stream.write("\n".join([f"\n{location} survives {reaching} tests", *diff, "", ""]))
            counts = sum((score.results for score in self.scores.values()), Counter[str]())
            if number % 50 == 0 or number == len(self._every):
                reported = ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))
                self.print_line(f"{number}/{len(self._every)}: {reported}")
        self.done = True
        return True

    def _baseline(self, session: pytest.Session) -> list[Test]:
        """The tests that pass, here and in a fork of this process."""
        tests, failed = [], []
        last: Any = types.SimpleNamespace(listchain=lambda: [session])
        for item, after in zip(session.items, [*session.items[1:], last], strict=True):
            for file in self._files:
                clear_caches(sys.modules[module_name(file)])  # else one test alone would reach what is cached
            began = time.monotonic()
            with reached_lines({str(ROOT / file): file for file in self._files}) as reached:
                passed = passes(item, after)
            if passed:
                tests.append(Test(item, time.monotonic() - began, dict(reached)))
            elif not passed:
                failed.append(item.nodeid)
        tests.sort(key=lambda test: test.seconds)
        while tests and (index := in_fork(tests, lambda: None)) is not None:
            failed.append(tests.pop(index if index >= 0 else -1 - index).item.nodeid)
        self.print_line(f"{len(tests)} tests pass, in {sum(test.seconds for test in tests):.0f} s")
        for nodeid in failed:
            self.print_line(f"left out, because it fails on the original: {nodeid}")
        return tests

    def _try(self, mutation: Mutation, tests: Sequence[Test]) -> tuple[str, int]:
        """What becomes of a mutant, and how many tests reach it."""
        if is_equivalent(mutation, self._sources[mutation.file], self._equivalent.get(mutation.file, ())):
            return "equivalent", 0
        lines = set(mutation.lines)
        if mutation.runtime:
            candidates = [test for test in tests if test.reached.get(mutation.file, set()) & lines]
        else:  # also those that look at a constant and run no line
            candidates = [test for test in tests if mutation.file in test.reached or not test.reached]
        reaching, total = [], 0.0
        for test in candidates:
            if total < self._most_s:
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


if __name__ == "__main__":
    sys.exit(main())
