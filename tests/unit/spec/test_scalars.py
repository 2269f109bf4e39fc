"""Plain words and numbers: what they are, and which of them nobody may write."""

from __future__ import annotations

import pytest

from provisioner.spec.scalars import read_scalar

VALUES = {
    "": None, "~": None, "null": None, "Null": None, "NULL": None, "nUll": "nUll",
    "true": True, "True": True, "TRUE": True, "tRue": "tRue", "false": False, "False": False,
    "0": 0, "1": 1, "-1": -1, "+1": 1, "580": 580, "2.10": 2.1, "1.": 1.0, ".5": 0.5, "1e3": 1000.0, "1E-2": 0.01,
    "1.2.3": "1.2.3", "0.1": 0.1, "-": "-", "+": "+", ".": ".", "-x": "-x", "1a": "1a", "y": "y", "n": "n", "=": "=",
    "us-east-1a": "us-east-1a", "203.0.113.0/24": "203.0.113.0/24", "2001:db8::/32": "2001:db8::/32", "100%": "100%",
    "p4d.24xlarge": "p4d.24xlarge", "1g.5gb": "1g.5gb", "a:1": "a:1",
}  # fmt: skip
REFUSED = [
    "yes", "Yes", "YES", "no", "No", "on", "ON", "off", "Off",
    "017", "00", "0o17", "0x1F", "0b101", "-0x1", "1_000", "1_0.5", "1:30", "190:20:30", "190:20:30.15",
    "2025-01-02", "2025-1-2", "2025-01-02T03:04:05Z", "2025-01-02 03:04:05",
    ".inf", "-.inf", ".nan", ".NaN", "1e999", "9" * 19, "9" * 5000, "0." + "1" * 30,
]  # fmt: skip


@pytest.mark.parametrize("text", VALUES)
def test_plain_value(text: str) -> None:
    scalar = read_scalar(text, plain=True)
    assert scalar.problem == ""
    assert scalar.value == VALUES[text]
    assert type(scalar.value) is type(VALUES[text])


@pytest.mark.parametrize("text", REFUSED, ids=lambda t: t[:20])
def test_plain_refused(text: str) -> None:
    scalar = read_scalar(text, plain=True)
    assert scalar.problem
    assert scalar.value == text


@pytest.mark.parametrize("text", [*VALUES, *REFUSED], ids=lambda t: t[:20])
def test_quoted_is_text_always(text: str) -> None:
    assert read_scalar(text, plain=False).value == text
    assert read_scalar(text, plain=False).problem == ""
