"""The simulation finds bugs that are planted in the code that it runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.simulation.contracts import BrokenInvariant
from tests.simulation.machine import explore
from tests.simulation.planted import PLANTS, Plant, drained_for_good
from tests.simulation.replay import CORPUS, replay

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


def test_a_planted_bug_is_found_by_a_kept_history(tmp_path: Path) -> None:
    """It takes a kill, a verdict and a second maintenance in this order, which few drawn histories have."""
    with drained_for_good(), pytest.raises(BrokenInvariant, match="train-0 is maintained and was not drained"):
        replay(CORPUS / "maintained_node_put_back_by_a_verdict.yaml", tmp_path)
