"""Every check has exactly one table of faults, and the file of that table names it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from provisioner.verify.registry import declared
from tests.support import check_tables
from tests.support.check_tables import ALONE, AREAS, tables_of

FOLDER = Path(__file__).parent
IDS = [check.id for check in declared()]


@pytest.mark.parametrize("check", IDS)
def test_a_check_is_in_exactly_one_table(check: str) -> None:
    (file,) = tables_of(check)
    text = (FOLDER / file).read_text(encoding="utf-8")
    # test_baseline.py and test_fio.py name a baseline by its measure.
    names = [check, check.partition(".")[2]] if check.startswith("baseline.") else [check]
    assert any(re.search(rf'"{re.escape(name)}"', text) for name in names), f"{file} does not name {check}"


def test_the_lists_name_checks_that_exist() -> None:
    assert {*ALONE}.union(*AREAS.values()) - {*IDS} == set()


def test_a_check_of_two_lists_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(check_tables.ALONE, "gpu.lanes", "test_gpu_checks.py")
    monkeypatch.setitem(check_tables.AREAS, "test_fio.py", {"gpu.lanes"})
    assert tables_of("gpu.lanes") == ["test_fio.py", "test_gpu_checks.py"]
