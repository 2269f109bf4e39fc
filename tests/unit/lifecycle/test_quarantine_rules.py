"""A check that has several results has passed where all of them have."""

from __future__ import annotations

import pytest

from provisioner.lifecycle.quarantine.book import Book
from provisioner.verify.results import Status
from tests.unit.lifecycle.test_quarantine import entry, judge, result, verdict


@pytest.mark.parametrize(("second", "leaves"), [("pass", True), ("skip", False)])
def test_a_check_that_passed_for_some_of_its_subjects_only_still_has_to_pass(second: Status, leaves: bool) -> None:
    results = (result("gpu.count", "pass"), result("load.completes", "pass"), result("load.completes", second))
    decision = judge(Book({"train-0": entry("train-0")}), [verdict("train-0", *results)], 1)
    assert decision.release == (("train-0",) if leaves else ())
