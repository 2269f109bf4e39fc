"""Machines that stand and that Terraform's state lacks: which of them a site takes in, and which it refuses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from provisioner.common.errors import ProviderError
from provisioner.common.events import Event, Events
from provisioner.machines.providers.base import Module, Place, Standing
from provisioner.machines.terraform.binary import Binary
from provisioner.machines.terraform.json_log import Changes
from provisioner.machines.terraform.workspace import Resource
from provisioner.machines.terraform_machines import Root, TerraformMachines
from provisioner.plan.models import Plan
from tests.support import plans


class Nodes(Module):
    folder = "none"

    def __init__(self, machines: Sequence[Standing]) -> None:
        self.machines = list(machines)

    def inputs(self, plan: Plan) -> dict[str, Any]:
        return {}

    def address(self, node: str) -> str:
        return f"node.{node}"

    def standing(self) -> list[Standing]:
        return self.machines


@dataclass
class State:
    """Terraform's state as address → id of a machine."""

    rows: dict[str, str]
    calls: list[str] = field(default_factory=list)

    def damage(self, *, repair: bool) -> None:
        """It is whole."""

    def init(self, *, repair: bool) -> None:
        """It is initialised."""

    def save_errored(self, *, repair: bool) -> None:
        """All of it is saved."""

    def recorded(self) -> set[str]:
        return set(self.rows.values())

    def resources(self) -> dict[str, Resource]:
        return {address: Resource({"id": id}, False) for address, id in self.rows.items()}

    def forget(self, address: str) -> None:
        self.calls.append(f"forget {address}")

    def adopt(self, address: str, id: str) -> None:
        self.calls.append(f"adopt {address} {id}")

    def plan(self, *, replace: Sequence[str] = ()) -> Changes:
        return Changes()


@dataclass
class Site:
    machines: TerraformMachines
    plan: Plan
    state: State
    seen: list[Event]

    def run(self, *, repair: bool = True) -> list[str]:
        """Plan, and give what was changed in the state."""
        self.machines.plan(self.plan, repair=repair)
        return self.state.calls


def site(tmp_path: Path, rows: dict[str, str], *instances: Standing) -> Site:
    plan = plans.plan(plans.cluster_spec("p4d.24xlarge", count=3))
    provider = SimpleNamespace(
        place=Place("vision", "here", plan.spec.sites["here"], tmp_path), module=Nodes(instances), simulated=False,
        capacity=None,
    )  # fmt: skip
    events, heard, state = Events(), [], State(rows)
    events.subscribe(heard.append)
    machines = TerraformMachines(provider, Root(key=str, identity=str), Binary(("false",), ""), events)  # type: ignore[arg-type]
    machines._workspace = state  # type: ignore[assignment]
    machines._render = lambda _: None  # type: ignore[method-assign]
    return Site(machines, plan, state, heard)


ROWS = {"node.train-0": "i-0"}
FIRST = Standing("train-0", "i-0", ours=True)
OURS = Standing("train-1", "i-1", ours=True)
FOREIGN = Standing("train-2", "i-2", ours=False)


def test_a_machine_that_a_killed_run_made_is_taken_in(tmp_path: Path) -> None:
    test_site = site(tmp_path, ROWS, FIRST, OURS)
    assert test_site.run() == ["adopt node.train-1 i-1"]
    assert [(event.kind, event.node) for event in test_site.seen] == [("warning", "train-1")]


def test_a_plan_says_what_would_be_taken_in_and_changes_nothing(tmp_path: Path) -> None:
    test_site = site(tmp_path, ROWS, FIRST, OURS)
    assert test_site.run(repair=False) == []
    assert "`gpuprov up` takes it in as train-1" in test_site.seen[0].message


@pytest.mark.parametrize("instances", [(FOREIGN,), (OURS, FOREIGN), (FOREIGN, OURS)])
def test_a_machine_of_another_folder_beside_ours_is_refused_and_none_is_taken_in(
    tmp_path: Path, instances: Sequence[Standing]
) -> None:
    test_site = site(tmp_path, ROWS, FIRST, *instances)
    with pytest.raises(ProviderError, match=r"created from another folder: .*i-2 \(train-2\)"):
        test_site.run()
    assert test_site.state.calls == []


def test_where_the_state_knows_no_machine_it_is_lost_and_nothing_is_taken_in(tmp_path: Path) -> None:
    test_site = site(tmp_path, {}, OURS)
    with pytest.raises(ProviderError, match=r"Terraform's state does not have: i-1 \(train-1\)"):
        test_site.run()
    assert test_site.state.calls == []


def test_what_the_state_has_is_left_alone(tmp_path: Path) -> None:
    test_site = site(tmp_path, ROWS, FIRST)
    assert (test_site.run(), test_site.seen) == ([], [])


def test_a_machine_whose_place_has_another_living_machine_is_refused(tmp_path: Path) -> None:
    test_site = site(tmp_path, ROWS, FIRST, Standing("train-0", "i-9", ours=True))
    with pytest.raises(ProviderError, match="i-9 is tagged as train-0, and Terraform's state has another machine"):
        test_site.run()
    assert test_site.state.calls == []


def test_a_machine_takes_the_place_of_one_that_is_gone(tmp_path: Path) -> None:
    test_site = site(tmp_path, {**ROWS, "node.train-1": "i-gone"}, FIRST, OURS)
    assert test_site.run() == ["forget node.train-1", "adopt node.train-1 i-1"]


def test_a_plan_forgets_no_machine_that_is_gone(tmp_path: Path) -> None:
    test_site = site(tmp_path, {**ROWS, "node.train-1": "i-gone"}, FIRST, OURS)
    with pytest.raises(ProviderError, match="i-1 is tagged as train-1"):
        test_site.run(repair=False)
    assert test_site.state.calls == []


def test_two_machines_of_one_name_are_refused_once_the_first_is_taken_in(tmp_path: Path) -> None:
    test_site = site(tmp_path, ROWS, FIRST, OURS, Standing("train-1", "i-9", ours=True))
    with pytest.raises(ProviderError, match="i-9 is tagged as train-1"):
        test_site.run()
    assert test_site.state.calls == ["adopt node.train-1 i-1"]


def test_a_machine_of_a_node_that_cluster_yaml_does_not_name_is_refused(tmp_path: Path) -> None:
    test_site = site(tmp_path, ROWS, FIRST, Standing("head-0", "i-7", ours=True))
    with pytest.raises(ProviderError, match=r"i-7 was made .*, and cluster\.yaml no longer has head-0"):
        test_site.run()


def test_five_machines_are_named_and_the_others_counted(tmp_path: Path) -> None:
    foreign = [Standing(f"train-{n}", f"i-x{n}", ours=False) for n in range(7)]
    with pytest.raises(ProviderError, match=r"i-x4 \(train-4\) and 2 more\n") as caught:
        site(tmp_path, ROWS, FIRST, *foreign).run()
    assert "i-x5" not in str(caught.value)
    with pytest.raises(ProviderError, match=r"i-x4 \(train-4\) and 1 more\n"):
        site(tmp_path, ROWS, FIRST, *foreign[:6]).run()
    with pytest.raises(ProviderError, match=r"i-x4 \(train-4\)\n"):
        site(tmp_path, ROWS, FIRST, *foreign[:5]).run()
