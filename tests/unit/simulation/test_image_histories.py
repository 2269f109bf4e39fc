"""The simulation of golden images: histories that broke an invariant once, new ones drawn from fixed seeds, and bugs
that are planted."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.simulation.image_history import BrokenImageInvariant
from tests.simulation.image_machine import IMAGES, explore, replay
from tests.simulation.image_planted import IMAGE_PLANTS
from tests.simulation.planted import Plant

HISTORIES = 60
"""Of which each part has its share; GPUPROV_TEST_HISTORIES has another number."""
PARTS = 3
PLANTED_HISTORIES = 2000
"""Within which each planted bug is to be found."""
FAST = ("images_before_the_manifest",)
"""Found within the first histories of the seed."""


@pytest.mark.parametrize("file", sorted(IMAGES.glob("*.yaml")), ids=lambda file: file.stem)
def test_a_history_that_broke_an_invariant_once_breaks_none(file: Path, tmp_path: Path) -> None:
    replay(file, tmp_path)


@pytest.mark.parametrize("part", range(PARTS))
def test_no_history_breaks_an_invariant(part: int) -> None:
    histories = int(os.environ.get("GPUPROV_TEST_HISTORIES", HISTORIES)) // PARTS
    totals = explore(part, histories)
    print(totals)
    assert totals.histories >= histories


@pytest.mark.parametrize(
    "plant",
    [pytest.param(plant, marks=() if plant.__name__ in FAST else pytest.mark.slow) for plant in IMAGE_PLANTS],
    ids=lambda plant: plant.__name__,
)
def test_a_planted_bug_is_found(plant: Plant) -> None:
    with plant(), pytest.raises(BrokenImageInvariant):
        explore(1, PLANTED_HISTORIES, minimise=False)
