"""The nearest right word: one rule for every error that has one, and no other code that guesses."""

from __future__ import annotations

import pytest

from provisioner.common.suggest import did_you_mean, nearest
from tests.support.sandbox_cluster import ROOT


@pytest.mark.parametrize(
    ("typed", "choices", "limit", "expected"),
    [
        ("statsu", ["up", "status"], 1, ["status"]),
        ("Train-0", ["train_0"], 1, ["train_0"]),
        ("p4d", ["p4d.24xlarge", "p5.48xlarge"], 3, ["p4d.24xlarge"]),
        ("p4", ["p4d.24xlarge"], 3, []),
        ("PL7", ["PL0", "PL1"], 1, []),
        ("status", ["status", "statusx"], 2, ["status"]),
        ("frobnicate", ["up", "down"], 2, []),
        ("", ["up"], 1, []),
        ("x" * 10_000, ["up"], 1, []),
    ],
)
def test_the_nearest_words(typed: str, choices: list[str], limit: int, expected: list[str]) -> None:
    assert nearest(typed, choices, limit) == expected


def test_the_question() -> None:
    assert did_you_mean("trian-1", ["train-0", "train-1"], 2) == "did you mean train-1 or train-0?"
    assert did_you_mean("x", ["train-0"]) == ""


def test_no_other_module_guesses_words() -> None:
    users = [
        file.name
        for file in (ROOT / "provisioner").rglob("*.py")
        if "from rapidfuzz import" in file.read_text(encoding="utf-8")
    ]
    assert users == ["suggest.py"]
