"""The simulation finds bugs that are planted in the code that it runs."""

from __future__ import annotations

import pytest

from tests.simulation.contracts import BrokenInvariant
from tests.simulation.machine import explore
from tests.simulation.planted import PLANTS, Plant

HISTORIES = 2000
"""Within which each is to be found; most are within a few dozen."""


FAST = ("skipped_drain", "lost_write")
"""Found within the first histories of the seed."""


@pytest.mark.parametrize(
    "plant",
    [pytest.param(plant, marks=() if plant.__name__ in FAST else pytest.mark.slow) for plant in PLANTS],
    ids=lambda plant: plant.__name__,
)
def test_a_planted_bug_is_found(plant: Plant) -> None:
    with plant(), pytest.raises(BrokenInvariant):
        explore(1, HISTORIES, minimise=False)
