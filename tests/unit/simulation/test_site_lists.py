"""A group with two sites, the first of which has no machines: where it goes, what is told, and what a kill leaves."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.simulation.books import happen
from tests.simulation.machine import memory
from tests.simulation.processes import Fault
from tests.simulation.simulation import Simulation, Typed, remove

EAST, WEST = [0], [1]
"""Of `site_sells_out`."""
STEP = 9
"""Of a run's effects one in so many is struck; the histories of test_histories.py strike the others."""


def simulation(*, shared: bool = False) -> Simulation:
    """`train` may be at east, then west; `eval` is at west."""
    history = Simulation(Path(tempfile.mkdtemp(prefix="gpuprov-sites-", dir=memory())), sites=2, shared=shared)
    history.edit_by("group_at_several_sites", [1, 2])
    assert history.file.groups["train"]["next"] == ["west"]
    return history


@pytest.fixture
def history() -> Iterator[Simulation]:
    test_history = simulation()
    yield test_history
    remove(test_history.root)


def sites(history: Simulation) -> dict[str, str]:
    return {machine.node: machine.site for machine in history.world.cloud.running()}


def choices(history: Simulation) -> dict[str, Any]:
    (run,) = history.run_directories()
    recorded_choices: dict[str, Any] = json.loads((run / "intent.json").read_text(encoding="utf-8"))["choices"]
    return recorded_choices


def test_a_group_goes_to_its_next_site_where_the_first_has_no_machines(history: Simulation) -> None:
    happen(history, "site_sells_out", EAST)
    up = history.types("up")
    assert (up.code, sites(history)) == (0, {"train-0": "west", "train-1": "west", "eval-0": "west"})
    assert len(up.questions) == 1, "the answer to the first question holds for the next site"
    assert "train is at site west now; no capacity at east: InsufficientInstanceCapacity" in "".join(up.errors)
    assert list(choices(history)["train"]["refused"]) == ["east"]
    (run,) = history.run_directories()
    assert [path.name for path in (run / "sites").iterdir()] == ["west"]
    assert {network.site for network in history.world.cloud.running("network")} == {"west"}
    history.finish()


def test_it_stays_there_when_the_first_site_has_machines_again(history: Simulation) -> None:
    happen(history, "site_sells_out", EAST)
    history.types("up")
    happen(history, "zones_sell_again", [0])
    history.edit_by("count", [1, 2])
    assert history.types("up").code == 0
    assert set(sites(history).values()) == {"west"}
    history.finish()


def test_a_group_that_has_machines_does_not_move(history: Simulation) -> None:
    assert history.types("up").code == 0
    happen(history, "site_sells_out", EAST)
    history.edit_by("count", [1, 2])
    up = history.types("up")
    assert up.code != 0 and "no capacity for" in "".join(up.errors)
    assert sites(history) == {"train-0": "east", "train-1": "east", "eval-0": "west"}
    history.finish()


def test_where_no_site_has_machines_all_are_named_and_nothing_is_left(history: Simulation) -> None:
    for site in (EAST, WEST):
        happen(history, "site_sells_out", site)
    up = history.types("up")
    assert up.code != 0 and "train: no capacity at east, west" in "".join(up.errors)
    assert sites(history) == {} and choices(history)["train"]["site"] == "east"
    happen(history, "zones_sell_again", [0])
    assert history.types("up").code == 0
    assert sites(history)["train-0"] == "east", "the next run begins with the first site"
    history.finish()


def test_a_quota_that_preflight_finds_used_up_is_no_capacity(history: Simulation) -> None:
    happen(history, "quota_used_up", EAST)
    assert history.types("up").code == 0
    assert sites(history) == {"train-0": "west", "train-1": "west", "eval-0": "west"}
    assert choices(history)["train"]["refused"] == {"east": "quota: no more machines"}
    history.finish()


def test_a_site_that_a_group_cannot_leave_fails_as_a_whole(history: Simulation) -> None:
    """Preflight does not say for which group the quota is short."""
    history.edit("eval is at east alone", lambda file: file.groups["eval"].update(site="east"))
    happen(history, "quota_used_up", EAST)
    up = history.types("up")
    assert up.code != 0 and "quota: no more machines" in "".join(up.errors)
    assert sites(history) == {}
    happen(history, "zones_sell_again", [0])
    history.finish()


def test_with_one_site_named_no_other_is_tried(history: Simulation) -> None:
    happen(history, "site_sells_out", EAST)
    assert history.types("up", "east").code != 0
    assert sites(history) == {}
    history.finish()


def test_machines_that_no_file_records_are_found_at_the_other_site(history: Simulation) -> None:
    happen(history, "site_sells_out", EAST)
    history.types("up")
    (run,) = history.run_directories()
    for name in ("intent.json", "nodes.json"):
        (run / name).unlink()
    happen(history, "zones_sell_again", [0])
    assert history.types("up").code == 0
    assert sites(history) == {"train-0": "west", "train-1": "west", "eval-0": "west"}
    history.finish()


@pytest.mark.parametrize("kind", ["kill", "interrupt"])
@pytest.mark.parametrize("shared", [False, True], ids=["local", "shared"])
def test_a_run_that_ends_at_any_moment_is_gone_on_with(shared: bool, kind: str) -> None:
    for at in range(1, 400, STEP):
        test_history = simulation(shared=shared)
        try:
            happen(test_history, "site_sells_out", EAST)
            (process,) = test_history.run(Typed(("up",), (Fault(at, kind),)))
            if not process.met:
                break  # it has fewer effects
            test_history.run(Typed(("up",), operator=test_history.operators - 1))
            assert len({site for node, site in sites(test_history).items() if node.startswith("train")}) <= 1
            test_history.finish()
        finally:
            remove(test_history.root)
