"""The tables of known faults and of security bulletins: sound rows, and versions that are compared as versions."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from provisioner.catalog import load
from provisioner.catalog.known_bad import Bulletin, KnownBad
from provisioner.verify.versions import contains, first_fixed, numbers

ROW = {
    "id": "x", "happens": "it hangs for good", "advice": "reboot it in time", "action": "reboot", "basis": "documented",
    "source": "github a/b#1", "driver": ">=570.1,<580",
}  # fmt: skip
BULLETIN = {"part": "driver", "id": "1", "published": "2025-01", "fixed": ["535.1.2"], "source": "github a/b#1"}


def test_every_row_names_a_report_and_a_gpu_that_exists() -> None:
    rows = load().known_bad
    assert len({row.id for row in rows}) == len(rows) >= 5
    assert all("#" in row.source and row.basis == "documented" for row in rows)
    assert any(row.uptime_days for row in rows)


def test_bulletins_go_up_in_each_branch() -> None:
    last: dict[tuple[str, int], tuple[int, ...]] = {}
    for row in sorted(load().bulletins, key=lambda row: row.published):
        for version in row.fixed:
            value = numbers(version)
            assert value is not None
            key = (row.part, value[0])
            assert value > last.get(key, (0,)), f"{row.id}: {version}"
            last[key] = value


@pytest.mark.parametrize(
    "change",
    [{"driver": "570"}, {"driver": ">=570 <580"}, {"driver": None}, {"id": "A b"}, {"gpus": "b200"}, {"uptime_days": 0},
     {"action": "pray"}, {"sources": "x"}, {"source": ""}],
    ids=str,
)  # fmt: skip
def test_a_row_that_says_nothing_or_more_than_is_known_is_refused(change: dict[str, object]) -> None:
    KnownBad.model_validate(ROW)
    with pytest.raises(ValidationError):
        KnownBad.model_validate(ROW | change)


@pytest.mark.parametrize(
    "change",
    [{"fixed": []}, {"fixed": ["535"]}, {"published": "2025"}, {"cves": ["2025-1"]}, {"part": "cuda"}],
    ids=str,
)
def test_a_bulletin_without_versions_is_refused(change: dict[str, object]) -> None:
    Bulletin.model_validate(BULLETIN)
    with pytest.raises(ValidationError):
        Bulletin.model_validate(BULLETIN | change)


def test_versions_are_compared_by_their_numbers() -> None:
    assert contains(">570.86.15,<=570.148.08", "570.148.08") is True
    assert contains(">570.86.15,<=570.148.08", "570.86.15") is False
    assert contains("<=2.22.3", "2.22.3-1+cuda12.5") is True
    assert contains("<=2.22.3", "2.3.1") is True
    assert contains(">=6.8,<6.9", "6.8.0-1024-aws") is True
    assert contains(">=1", "none") is None
    assert numbers("9" * 400) is not None
    assert first_fixed("x", ("1.2",), by_branch=False) is None
    assert first_fixed("1.17.7-1", ("1.17.8",), by_branch=False) == "1.17.8"
    assert first_fixed("1.18.0", ("1.17.8",), by_branch=False) is None
    assert first_fixed("560.35.03", ("535.1", "570.2", "580.3"), by_branch=True) == "570.2"
    assert first_fixed("580.3.1", ("535.1", "570.2", "580.3"), by_branch=True) is None
    assert first_fixed("590.1", ("535.1", "570.2", "580.3"), by_branch=True) is None
