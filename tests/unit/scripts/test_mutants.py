"""The mutations of `make mutants`: what is changed, and what is left alone."""

from __future__ import annotations

import pytest
import yaml

from scripts.mutant_fork import ROOT
from scripts.mutants import EQUIVALENT, changed_lines, is_equivalent, test_files
from scripts.mutations import mutations

LISTED = yaml.safe_load(EQUIVALENT.read_text(encoding="utf-8"))


@pytest.mark.parametrize("file", LISTED)
def test_what_is_listed_as_equivalent_is_a_mutant(file: str) -> None:
    source = (ROOT / file).read_text(encoding="utf-8")
    every = mutations(file, source)
    missing = [row for row in LISTED[file] if not any(is_equivalent(mutation, source, [row]) for mutation in every)]
    assert not missing


def mutants(source: str) -> list[str]:
    """The mutated lines of a module, without indentation."""
    return [changed_lines(mutation.diff(source))[1] for mutation in mutations("module.py", source)]


@pytest.mark.parametrize(
    ("line", "mutated"),
    [
        ("x = a <= b", ["x = a < b"]),
        ("x = a is not b", ["x = a is b"]),
        ("x = (a) == 'b'", ["x = (a) != 'b'", "x = (a) == 'XXb'"]),
        ("x = a and not b", ["x = (a)", "x = (not b)", "x = a and (b)", "x = a or not b"]),
        ("x = a in ('b', c)", ["x = a in ('XXb', c)", "x = a not in ('b', c)"]),
        ("x = call(1, key=True)", ["x = call(1, )", "x = call(1, key=False)", "x = call(2, key=True)"]),
        ("x = call(key=y, other=z)", ["x = call( other=z)", "x = call(key=y, )"]),
        ("x = any(y for y in z if y)", ["x = all(y for y in z if y)", "x = any(y for y in z if True)"]),
        ("x = a | b", ["x = (a)", "x = (b)"]),
        ("x.y = z", ["pass"]),
        ("x: int = 5", ["x: int = 6"]),
        ("call()", ["pass"]),
        ("raise SomeError('a text', hint=a or b)", ["pass"]),
        ("x = SomeError(a or b)", []),
        ("x = f'{1 + 1}'", []),
        ("x = 'a text'", []),
        ("from a import b", []),
        ("assert a or b", []),
    ],
)
def test_a_line_is_mutated(line: str, mutated: list[str]) -> None:
    assert sorted(mutants(line + "\n")) == mutated


def test_blocks_are_mutated() -> None:
    source = '''
def first(x: int = 1) -> int:
    """A docstring with 1 == 2."""
    try:
        if x:
            return second()
    except (A, B):
        yield 5
'''
    assert sorted(mutants(source)) == [
        "() if True else (yield)",
        "def first(x: int = 2) -> int:",
        "except (A,):",
        "except (B,):",
        "if not (x):",
        "raise",
        "return None",
        "yield 6",
    ]


def test_a_mutation_knows_whether_it_runs_at_import_and_the_lines_of_its_statement() -> None:
    source = "x = 1\n\n\ndef f():\n    return (\n        2\n    )\n"
    actual = mutations("module.py", source)
    assert [(list(m.lines), m.runtime) for m in actual] == [([1], False), ([5, 6, 7], True), ([5, 6, 7], True)]


def test_positions_count_characters_that_are_several_bytes() -> None:
    assert sorted(mutants("x = 'ä→' == y < 1\n")) == [
        "x = 'XXä→' == y < 1", "x = 'ä→' != y < 1", "x = 'ä→' == y < 2", "x = 'ä→' == y <= 1"
    ]  # fmt: skip


def test_a_mutant_that_nobody_can_tell_is_known_by_its_line_and_the_one_before() -> None:
    source = "def f():\n    a()\n    return\n\n\ndef g():\n    b()\n    return\n"
    returns = [mutation for mutation in mutations("module.py", source) if mutation.lines.start in (3, 8)]
    row = {"line": "return", "mutant": "pass", "reason": "nothing follows"}
    assert [is_equivalent(mutation, source, [row]) for mutation in returns] == [True, True]
    assert [is_equivalent(mutation, source, [{**row, "after": "b()"}]) for mutation in returns] == [False, True]
    assert [is_equivalent(mutation, source, [{**row, "mutant": "x"}]) for mutation in returns] == [False, False]


def test_tests_that_import_a_module_or_lie_beside_it_are_chosen() -> None:
    chosen = test_files(["provisioner/lifecycle/sharing/lease.py"])
    assert {"tests/unit/lifecycle/sharing/test_lease.py", "tests/unit/lifecycle/sharing/test_lease_rules.py"} <= {
        *chosen
    }
    assert "tests/unit/machines/test_mounts.py" not in chosen


test_files.__test__ = False  # type: ignore[attr-defined]  # it is no test
