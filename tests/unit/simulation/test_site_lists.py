"""A group with two sites, the first of which has no machines: where it goes, what is told, and what a kill leaves."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from provisioner.stack import lockfile
from tests.simulation.books import happen
from tests.simulation.machine import memory
from tests.simulation.processes import Fault
from tests.simulation.simulation import Simulation, Typed, remove

EAST, WEST = [0], [1]
"""Of `site_sells_out`."""
STEP = 9
"""Of a run's effects one in so many is struck; the histories of test_histories.py strike the others."""


MACHINES = {"aws": "g5.xlarge", "azure": "Standard_ND96asr_v4"}


def simulation(*, shared: bool = False, two_clouds: bool = False) -> Simulation:
    """`train` may be at east, then west; `eval` is at west. `two_clouds`: west is Azure's, and train's machine type
    depends on the site."""
    history = Simulation(Path(tempfile.mkdtemp(prefix="gpuprov-sites-", dir=memory())), sites=2, shared=shared)
    if two_clouds:
        history.edit_by("provider", [1, 1])
        assert history.file.sites["west"]["provider"] == "azure"
    history.edit_by("group_at_several_sites", [1, 2])
    assert history.file.groups["train"]["next"] == ["west"]
    return history


@pytest.fixture
def history() -> Iterator[Simulation]:
    test_history = simulation()
    yield test_history
    remove(test_history.root)


@pytest.fixture
def two_clouds() -> Iterator[Simulation]:
    test_history = simulation(two_clouds=True)
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


def machines(history: Simulation) -> dict[str, str]:
    """Node → its machine type, as nodes.json has it."""
    (run,) = history.run_directories()
    rows: list[dict[str, str]] = json.loads((run / "nodes.json").read_text(encoding="utf-8"))
    return {row["name"]: row["machine"] for row in rows}


def test_it_goes_to_another_cloud_with_the_machine_type_of_the_site_there(two_clouds: Simulation) -> None:
    happen(two_clouds, "site_sells_out", EAST)
    up = two_clouds.types("up")
    assert (up.code, sites(two_clouds)) == (0, {"train-0": "west", "train-1": "west", "eval-0": "west"})
    assert machines(two_clouds) == dict.fromkeys(("train-0", "train-1", "eval-0"), MACHINES["azure"])
    (run,) = two_clouds.run_directories()
    (kept_lock,) = (run / "locks").iterdir()
    lock = lockfile.read(kept_lock)
    assert lock is not None and sorted(lock.groups) == ["eval", "train"], "its nodes run the stack of their site"
    assert two_clouds.types("up").code == 0
    two_clouds.finish()


def test_with_capacity_at_the_first_cloud_it_has_that_ones_machine_type(two_clouds: Simulation) -> None:
    assert two_clouds.types("up").code == 0
    assert sites(two_clouds)["train-0"] == "east" and machines(two_clouds)["train-0"] == MACHINES["aws"]
    two_clouds.finish()


def test_a_fleet_at_its_second_site_is_upgraded_by_the_stack_of_that_site(two_clouds: Simulation) -> None:
    happen(two_clouds, "site_sells_out", EAST)
    two_clouds.types("up")
    two_clouds.edit_by("lock", [1])
    assert two_clouds.types("upgrade").code == 0
    assert two_clouds.types("up").code == 0
    assert set(sites(two_clouds).values()) == {"west"}
    two_clouds.finish()


@pytest.mark.parametrize("kind", ["kill", "interrupt"])
@pytest.mark.parametrize(
    ("shared", "two_clouds"), [(False, False), (True, False), (True, True)], ids=["local", "shared", "two clouds"]
)
def test_a_run_that_ends_at_any_moment_is_gone_on_with(shared: bool, two_clouds: bool, kind: str) -> None:
    for at in range(1, 400, STEP * 3 if two_clouds else STEP):
        test_history = simulation(shared=shared, two_clouds=two_clouds)
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
