"""An apply that fails for want of machines: asked for again in another way, moved along, or taken back whole."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from provisioner.errors import ProviderError
from provisioner.events import Events
from provisioner.lifecycle import machines
from provisioner.lifecycle.machines import SitePlan
from provisioner.providers.base import Instead
from provisioner.workspace.terraform import Changes
from tests.support import plans


@dataclass
class Terraform:
    """Fails as often as it is told to; what it made is in its state."""

    path: Path
    fails: list[str]
    state: set[str]
    done: list[str] = field(default_factory=list)

    def apply(self) -> Changes:
        self.done.append("apply")
        if self.fails:
            raise ProviderError(self.fails.pop(0))
        return Changes(1)

    def addresses(self) -> list[str]:
        return sorted(self.state)

    def destroy(self, *, only: Collection[str] = ()) -> Changes:
        self.done.append(f"destroy {' '.join(only)}")
        return Changes(destroy=len(only))


@dataclass
class Provider:
    """Knows so many other ways."""

    ways: int
    settled: bool = False
    without: dict[str, Collection[str]] = field(default_factory=dict)

    def address(self, node: str) -> str:
        return f"node.{node}"

    def instead(self, plan: Any, site: str, workspace: Path, error: str) -> Instead | None:
        if "sold out" not in error:
            return None
        self.ways -= 1
        return Instead("another zone", ("train",) if self.ways >= 0 else (), ("train",))

    def do_without(self, workspace: Path, nodes: Mapping[str, Collection[str]]) -> None:
        self.without.update(nodes)

    def settle(self, workspace: Path) -> None:
        self.settled = True


def applied(
    tmp_path: Path,
    ways: int,
    *fails: str,
    state: Collection[str] = (),
    there: Collection[str] = (),
    least: int | None = None,
) -> Any:
    plan = plans.plan(plans.cluster_spec("p4d.24xlarge", count=3))
    (group,) = plan.groups
    capacity = group.spec.capacity.model_copy(update={"min": least})
    plan = replace(plan, groups=(replace(group, spec=group.spec.model_copy(update={"capacity": capacity})),))
    terraform, provider = Terraform(tmp_path, list(fails), set(state)), Provider(ways)

    def again(addresses: Collection[str]) -> Changes:
        terraform.done.append(f"plan {' '.join(addresses)}".strip())
        return Changes(1)

    site = SitePlan("here", provider, terraform, Changes(3), again, frozenset(there))  # type: ignore[arg-type]
    try:
        machines._apply(plan, site, Events())
        error = ""
    except ProviderError as failure:
        error = str(failure)
    return SimpleNamespace(done=terraform.done, settled=provider.settled, error=error, without=provider.without)


def test_what_goes_well_is_applied_once(tmp_path: Path) -> None:
    found = applied(tmp_path, 0)
    assert (found.done, found.settled, found.error) == (["apply"], True, "")


def test_machines_that_were_made_meanwhile_move_along_and_those_that_stood_stay(tmp_path: Path) -> None:
    state = ("node.train-0", "node.train-1", "vpc", "node.other-0")
    found = applied(tmp_path, 2, "sold out", "sold out", state=state, there=("node.train-0",))
    assert found.done == ["apply", "plan node.train-1", "apply", "plan node.train-1", "apply"]
    assert found.settled


def test_when_nothing_is_left_to_ask_half_a_group_goes_and_nothing_else(tmp_path: Path) -> None:
    state = ("node.train-0", "node.train-1", "vpc", "node.other-0")
    found = applied(tmp_path, 1, "sold out", "sold out", state=state, there=("node.train-0",))
    assert found.done == ["apply", "plan node.train-1", "apply", "destroy node.train-1"]
    assert "another zone" in found.error
    assert "capacity.fallback" in found.error


def test_nothing_was_made_so_nothing_is_removed(tmp_path: Path) -> None:
    assert applied(tmp_path, 0, "sold out", state=("vpc",)).done == ["apply"]


@pytest.mark.parametrize("said", ["state is locked", "VcpuLimitExceeded"])
def test_what_another_way_would_not_help_is_said_at_once(tmp_path: Path, said: str) -> None:
    found = applied(tmp_path, 5, said)
    assert found.done == ["apply"]
    assert said in found.error


def test_a_group_that_is_of_use_with_fewer_is_kept_as_it_is(tmp_path: Path) -> None:
    found = applied(tmp_path, 2, "sold out", state=("node.train-0", "node.train-2", "vpc"), least=2)
    assert found.done == ["apply", "plan", "apply"]
    assert found.without == {"train": ["train-1"]}
    assert found.settled and found.error == ""


def test_fewer_than_that_are_of_no_use(tmp_path: Path) -> None:
    found = applied(tmp_path, 0, "sold out", state=("node.train-0", "vpc"), least=2)
    assert found.done == ["apply", "destroy node.train-0"]
    assert found.without == {}
