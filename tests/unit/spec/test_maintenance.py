"""The window of `maintenance:`: which days and hours, across midnight and across the change of the clocks."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from provisioner.spec.maintenance import Maintenance, Window


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


@pytest.mark.parametrize(
    ("moment", "closes"),
    [
        ("2026-11-29T00:59", None),
        ("2026-11-29T01:00", "2026-11-29T05:00"),
        ("2026-11-29T04:59", "2026-11-29T05:00"),
        ("2026-11-29T05:00", None),
        ("2026-11-28T01:00", None),
    ],
)
def test_hours_are_of_the_zone(moment: str, closes: str | None) -> None:
    window = Window(days=("sun",), hours="02:00-06:00", zone="Europe/Berlin")
    assert window.closes(at(moment)) == (at(closes) if closes else None)


@pytest.mark.parametrize(
    ("moment", "is_open"),
    [
        ("2026-11-28T21:59", False),
        ("2026-11-28T22:00", True),
        ("2026-11-29T03:59", True),
        ("2026-11-29T04:00", False),
        ("2026-11-29T22:30", False),
    ],
)
def test_a_window_over_midnight_belongs_to_the_day_on_which_it_opens(moment: str, is_open: bool) -> None:
    window = Window(days=("sat",), hours="22:00-04:00", zone="UTC")
    assert (window.closes(at(moment)) is not None) is is_open


def test_it_is_an_hour_shorter_where_the_clocks_go_forward() -> None:
    window = Window(days=("sun",), hours="01:00-06:00", zone="Europe/Berlin")
    opens = window.opens(at("2026-03-28T12:00"))
    closes = window.closes(opens)
    assert closes is not None
    assert (closes.astimezone(UTC) - opens.astimezone(UTC)).total_seconds() == 4 * 3600


def test_the_next_one_is_within_a_week() -> None:
    window = Window(days=("sun",), hours="02:00-06:00", zone="UTC")
    assert window.opens(at("2026-11-29T02:00")) == at("2026-12-06T02:00")
    assert window.opens(at("2026-11-28T12:00")) == at("2026-11-29T02:00")


def test_by_default_there_is_no_window() -> None:
    assert Maintenance().window is None
