"""Each bad/<case>.yaml gives exactly the problems in bad/<case>.txt: line:column, path, message and hint.

A new case is two files. `line:column path: message (hint)`, one problem a line, sorted by place.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from provisioner import spec
from provisioner.common.errors import InputError

BAD = sorted((Path(__file__).parent / "bad").glob("*.yaml"))


def lines(path: Path) -> list[str]:
    rows = []
    for p in spec.check(path):
        assert p.file == str(path)
        rows.append(f"{p.line}:{p.column} {p.path or '-'}: {p.message}" + (f" ({p.hint})" if p.hint else ""))
    return rows


@pytest.mark.parametrize("path", BAD, ids=lambda p: p.stem)
def test_problems_are_the_expected_ones(path: Path) -> None:
    assert lines(path) == path.with_suffix(".txt").read_text().splitlines()


@pytest.mark.parametrize("path", BAD, ids=lambda p: p.stem)
def test_load_refuses_with_all_of_them(path: Path) -> None:
    with pytest.raises(InputError) as caught:
        spec.load(path)
    assert [str(p) for p in caught.value.problems] == [str(p) for p in spec.check(path)]


@pytest.mark.parametrize("path", BAD, ids=lambda p: p.stem)
def test_every_problem_points_into_the_file(path: Path) -> None:
    text = path.read_text().splitlines()
    for problem in spec.check(path):
        assert 1 <= problem.line <= len(text) + 1
        assert 1 <= problem.column <= len([*text, ""][problem.line - 1]) + 1


def test_there_is_an_expectation_for_each_case_and_no_other() -> None:
    folder = Path(__file__).parent / "bad"
    assert {p.stem for p in folder.glob("*.txt")} == {p.stem for p in BAD}
    assert len(BAD) >= 30
