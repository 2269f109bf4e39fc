"""A few examples of each target of `make fuzz`: none breaks its reader or its budget. What once did is in DEFECTS."""

from __future__ import annotations

import math

import pytest

from provisioner.verify.parsers.host_platform import read_stage
from provisioner.verify.parsers.topo import NVLINK, PIX
from tests.fuzz.__main__ import Totals, explore
from tests.fuzz.mutate import Case, Edit
from tests.fuzz.targets import BreachError, Target, targets, with_checksums

EXAMPLES = 5
TARGETS = targets()
RDMA = "dgx-h100/rdma-after.json"
DEFECTS = (
    ("parser rdma_sysfs.parse", Case(RDMA, RDMA, (Edit("repeat", 288, 512, 0, 2), Edit("repeat", 342, 4, 0, 5000)))),
)
"""Target and the edits that broke it."""


@pytest.mark.parametrize("name", TARGETS)
def test_edited_files_break_no_reader(name: str) -> None:
    totals = Totals()
    explore(name, TARGETS[name], 7, EXAMPLES, totals, slow_s=math.inf)
    assert totals.examples >= EXAMPLES


@pytest.mark.parametrize("piece", ["\n", " ", "PIX ", "\nPIX " + " " * 1000])
def test_the_legend_of_a_matrix_is_looked_for_in_one_pass(piece: str) -> None:
    """The square of four megabytes is hours."""
    text = piece * (4_000_000 // len(piece))
    assert PIX.search(text) is None and NVLINK.search(text) is None


def test_a_list_of_errors_that_is_none() -> None:
    assert read_stage('{"v1": {"a": {"recoverable_errors": {"ERROR": 7, "CRITICAL": {"x": 1}}}}}') == (None, ())


@pytest.mark.parametrize(("name", "case"), DEFECTS)
def test_what_broke_a_reader_once(name: str, case: Case) -> None:
    TARGETS[name].run(case.content(dict(TARGETS[name].corpus)))


def test_a_breach_is_reported_with_the_smallest_edits() -> None:
    def run(content: bytes) -> None:
        if len(content) > 100:
            raise BreachError("too much")

    with pytest.raises(BreachError) as caught:
        explore("x", Target({"a": b"abc"}, run), 1, 500, Totals())
    assert any("Edit" in note for note in caught.value.__notes__)


def test_each_parser_is_a_target() -> None:
    assert len([name for name in TARGETS if name.startswith("parser ")]) >= 45


def test_an_edited_tar_is_still_one() -> None:
    (name,) = list(TARGETS["bundle tar"].corpus)[:1]
    content = TARGETS["bundle tar"].corpus[name]
    assert with_checksums(content) == content
    edited = Edit("overwrite", 0, 12, 6).applied(content, b"")
    assert with_checksums(edited) != edited
