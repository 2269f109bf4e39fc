"""Sizes and durations as people write them, and the errors for what is none."""

from __future__ import annotations

import pytest

from provisioner.common.errors import GpuprovError
from provisioner.workloads.quantities import count, days, short


@pytest.mark.parametrize(
    ("text", "value"), [("13B", 13e9), ("760M", 7.6e8), ("1.5T", 1.5e12), ("13 b", 13e9), ("500000000", 5e8)]
)
def test_counts(text: str, value: float) -> None:
    assert count(text, "--params", "13B", 1e8, 1e13) == value


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("13X", "X is not a unit"),
        ("-13B", "the number is negative"),
        ("", "not a number"),
        ("B", "not a number"),
        ("1e9", "not a number"),
        ("0B", "outside 100M to 10T"),
        ("13", "outside 100M to 10T"),
        ("900T", "outside 100M to 10T"),
        ("nan", "not a number"),
        ("\u0661\u0663B", "not a number"),
        ("9" * 400, "not a number"),
    ],
)
def test_bad_counts(text: str, problem: str) -> None:
    with pytest.raises(GpuprovError) as raised:
        count(text, "--params", "13B", 1e8, 1e13)
    assert problem in raised.value.message and raised.value.message.startswith("--params")
    assert "--params 13B" in raised.value.hint


@pytest.mark.parametrize(("text", "value"), [("36h", 1.5), ("14d", 14), ("6w", 42)])
def test_days(text: str, value: float) -> None:
    assert days(text, "--deadline") == value


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("14", "the unit is missing"),
        ("14m", "m is not a unit"),
        ("0d", "outside"),
        ("-1d", "negative"),
        ("soon", "not a number"),
        ("9999w", "outside"),
    ],
)
def test_bad_days(text: str, problem: str) -> None:
    with pytest.raises(GpuprovError) as raised:
        days(text, "--deadline")
    assert problem in raised.value.message and "--deadline 14d" in raised.value.hint


def test_short() -> None:
    assert [short(value) for value in (13e9, 8030261248, 3e11, 1.5e12, 999)] == ["13B", "8.03B", "300B", "1.5T", "999"]
