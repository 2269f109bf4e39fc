"""An apply that fails for want of machines: asked for again in another way, moved along, or taken back whole."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from provisioner.common.errors import Diagnostic, ProviderError
from provisioner.common.events import Events
from provisioner.common.preflight import Finding
from provisioner.machines.base import Planned
from provisioner.machines.providers import capacity as ways
from provisioner.machines.providers.base import Module, Place, Provider
from provisioner.machines.providers.capacity import Choices, Way, do_without
from provisioner.machines.providers.cloud_errors import AFTER, CloudError
from provisioner.machines.terraform.binary import Binary
from provisioner.machines.terraform.json_log import Changes
from provisioner.machines.terraform.workspace import Resource
from provisioner.machines.terraform_machines import Root, TerraformMachines
from provisioner.plan.models import Plan, PlannedGroup
from provisioner.stack.models import BaseImage
from tests.support import plans


@dataclass
class Terraform:
    """Fails as often as it is told to, each time with "address: class" of some resources; what it made is in its
    state."""

    path: Path
    fails: list[str]
    state: set[str]
    before: set[str]
    done: list[str] = field(default_factory=list)

    def apply(self) -> Changes:
        self.done.append("apply")
        assert len(self.done) < 50, "it does not end"
        if self.fails:
            message = self.fails.pop(0)
            failures = (
                [part.split(": ") for part in message.split(", ")] if ": " in message else [("node.train-0", message)]
            )
            diagnostics = [Diagnostic(kind, "no detail", address) for address, kind in failures]
            raise ProviderError(f"terraform apply failed: {message}", diagnostics=diagnostics)
        return Changes(1)

    def init(self) -> None:
        """Nothing is to be fetched."""

    def plan(self, *, replace: Collection[str] = ()) -> Changes:
        self.done.append(f"plan {' '.join(replace)}".strip())
        return Changes(1)

    def outputs(self) -> dict[str, Any]:
        raise ProviderError("")  # no machine is made here

    def resources(self) -> dict[str, Resource]:
        rows = self.state if self.done else self.before
        return {row.removesuffix(" tainted"): Resource({}, row.endswith(" tainted")) for row in sorted(rows)}

    def destroy(self, *, only: Collection[str] = ()) -> Changes:
        self.done.append(f"destroy {' '.join(only)}")
        return Changes(destroy=len(only))


class Nodes(Module):
    folder = "none"

    def inputs(self, plan: Plan) -> dict[str, Any]:
        return {}

    def address(self, node: str) -> str:
        return f"node.{node}"


@dataclass
class Zones:
    """Sells in so many zones, and is sold out where it says so."""

    count: int
    region: str = "here"

    def zones(self, plan: Plan) -> list[str]:
        return [f"zone-{n}" for n in range(self.count)]

    def error(self, diagnostic: Diagnostic, group: PlannedGroup | None, option: Way | None) -> CloudError:
        kind, _, then = diagnostic.summary.partition(" by ")
        then = then or AFTER.get(kind, "stop")  # type: ignore[call-overload]
        return CloudError(kind, kind.upper(), f"{kind} of {option}", diagnostic.address, f"mend {kind}", then=then)  # type: ignore[arg-type]

    def probe(self, plan: Plan, existing_nodes: Collection[str]) -> list[Finding]:
        return []

    def ends(self, plan: Plan) -> dict[str, datetime]:
        return {}


class Shop(Provider):
    name = "shop"

    def __init__(self, site_context: Place, zones: int) -> None:
        super().__init__(site_context)
        self.module = Nodes()
        self.capacity = Zones(zones)

    def base_image(self, system: str) -> BaseImage:
        raise NotImplementedError

    def preflight(self, plan: Plan, existing_nodes: Collection[str]) -> list[Finding]:
        raise NotImplementedError

    def clean(self, events: Events) -> list[str]:
        raise NotImplementedError


def applied(
    tmp_path: Path,
    fallback_count: int,
    *fails: str,
    state: Collection[str] = (),
    existing: Collection[str] = (),
    incomplete: Collection[str] = (),
    minimum: int | None = None,
) -> Any:
    plan = plans.plan(plans.cluster_spec("p4d.24xlarge", count=3))
    (group,) = plan.groups
    capacity = group.spec.capacity.model_copy(update={"min": minimum})
    plan = replace(plan, groups=(replace(group, spec=group.spec.model_copy(update={"capacity": capacity})),))
    site_context = Place("vision", "here", plan.spec.sites["here"], tmp_path)
    root = Root(key=str, identity=str)
    names = [address.removeprefix("node.") for address in incomplete]
    machines = TerraformMachines(
        Shop(site_context, fallback_count + 1), root, Binary(("false",), ""), Events(), incomplete=names
    )
    terraform = Terraform(tmp_path, list(fails), set(state), {*existing, *incomplete})
    machines._workspace = terraform  # type: ignore[assignment]
    machines._render = lambda _: None  # type: ignore[method-assign]
    try:
        machines.apply(plan, Planned("here", add=3))
        error, groups = "", {}
    except ProviderError as failure:
        error, groups = str(failure), getattr(failure, "groups", {})
    choices = Choices.read(tmp_path)
    settled = terraform.done[-1] == "apply" and not choices.tried
    return SimpleNamespace(
        done=terraform.done, settled=settled, error=error, without=choices.without, no_capacity=groups
    )  # fmt: skip


def test_what_goes_well_is_applied_once(tmp_path: Path) -> None:
    outcome = applied(tmp_path, 0)
    assert (outcome.done, outcome.settled, outcome.error) == (["apply"], True, "")


def test_machines_that_were_made_meanwhile_move_along_and_those_that_stood_stay(tmp_path: Path) -> None:
    state = ("node.train-0", "node.train-1", "vpc", "node.other-0")
    outcome = applied(tmp_path, 2, "shortage", "shortage", state=state, existing=("node.train-0",))
    assert outcome.done == ["apply", "plan node.train-1", "apply", "plan node.train-1", "apply"]
    assert outcome.settled


@pytest.mark.parametrize(
    ("errors", "is_capacity"),
    [
        (("shortage", "shortage"), True),
        (("quota",), True),
        (("unsupported", "shortage"), True),
        (("unsupported", "unsupported"), False),  # cluster.yaml asks for what the site does not sell
        (("network", "shortage"), False),
        (("transient", "transient", "shortage"), False),  # its machine may yet appear
        (("transient", "shortage", "shortage"), False),
    ],
)
def test_only_errors_of_capacity_let_a_group_go_to_another_site(
    tmp_path: Path, pauses: list[float], errors: tuple[str, ...], *, is_capacity: bool
) -> None:
    outcome = applied(tmp_path, 1, *errors)
    assert "no capacity for" in outcome.error
    assert list(outcome.no_capacity) == (["train"] if is_capacity else [])


def test_the_reason_names_each_attempt(tmp_path: Path) -> None:
    outcome = applied(tmp_path, 1, "unsupported", "shortage")
    assert outcome.no_capacity == {
        "train": "UNSUPPORTED (unsupported), on-demand in zone-0; SHORTAGE (shortage), on-demand in zone-1"
    }


def test_when_nothing_is_left_to_ask_half_a_group_goes_and_nothing_else(tmp_path: Path) -> None:
    state = ("node.train-0", "node.train-1", "vpc", "node.other-0")
    outcome = applied(tmp_path, 1, "shortage", "shortage", state=state, existing=("node.train-0",))
    assert outcome.done == ["apply", "plan node.train-1", "apply", "destroy node.train-1"]
    assert "here: no capacity for train\n    tried, in order:\n" in outcome.error
    for zone in ("zone-0", "zone-1"):
        assert f"train, on-demand in {zone}: SHORTAGE (shortage): shortage of on-demand in {zone}" in outcome.error
    assert "capacity.fallback" in outcome.error and "mend shortage" in outcome.error


def test_what_terraform_had_before_stays_whatever_nodes_json_says(tmp_path: Path) -> None:
    """nodes.json was removed: the machines are no less proven for that."""
    state = ("node.train-0", "node.train-1", "vpc")
    outcome = applied(tmp_path, 1, "shortage", "shortage", state=state, existing=("node.train-0", "node.train-1"))
    assert outcome.done == ["apply", "plan", "apply"]


def test_what_a_failed_apply_has_left_moves_along(tmp_path: Path) -> None:
    state = ("node.train-0", "node.train-1", "vpc")
    outcome = applied(tmp_path, 1, "shortage", state=state, existing=("node.train-0",), incomplete=("node.train-1",))
    assert outcome.done == ["apply", "plan node.train-1", "apply"]


def test_nothing_was_made_so_nothing_is_removed(tmp_path: Path) -> None:
    assert applied(tmp_path, 0, "shortage", state=("vpc",)).done == ["apply"]


@pytest.mark.parametrize("kind", ["unknown", "credentials", "denied", "image", "conflict", "terms"])
def test_what_another_way_would_not_help_is_said_at_once(tmp_path: Path, kind: str) -> None:
    outcome = applied(tmp_path, 5, kind)
    assert outcome.done == ["apply"]
    assert kind in outcome.error


def test_a_group_that_is_of_use_with_fewer_is_kept_as_it_is(tmp_path: Path) -> None:
    outcome = applied(tmp_path, 2, "shortage", state=("node.train-0", "node.train-2", "vpc"), minimum=2)
    assert outcome.done == ["apply", "plan", "apply"]
    assert outcome.without == {"train": ["train-1"]}
    assert outcome.settled and outcome.error == ""


def test_fewer_than_that_are_of_no_use(tmp_path: Path) -> None:
    outcome = applied(tmp_path, 0, "shortage", state=("node.train-0", "vpc"), minimum=2)
    assert outcome.done == ["apply", "destroy node.train-0"]
    assert outcome.without == {}


def test_a_machine_that_was_made_half_does_not_stand(tmp_path: Path) -> None:
    state = ("node.train-0", "node.train-1 tainted", "node.train-2")
    outcome = applied(tmp_path, 2, *["node.train-1: shortage"] * 40, state=state, minimum=2)
    assert outcome.without == {"train": ["train-1"]}
    assert outcome.done[:3] == ["apply", "plan", "apply"] and outcome.done.count("apply") < 6


def test_a_zone_without_machines_is_asked_once(tmp_path: Path) -> None:
    state = [f"node.train-{n} tainted" for n in range(3)]
    outcome = applied(tmp_path, 1, "shortage", state=state, minimum=2)
    assert (outcome.without, outcome.settled) == ({}, True)
    assert outcome.done.count("apply") == 2


def test_where_every_machine_stands_nothing_is_done_without_and_it_ends(tmp_path: Path) -> None:
    state = [f"node.train-{n}" for n in range(3)]
    outcome = applied(tmp_path, 1, *["shortage"] * 40, state=state, existing=state, minimum=2)
    assert (outcome.without, outcome.done.count("apply")) == ({}, 2)
    assert "no capacity for" in outcome.error


def test_a_group_keeps_doing_without_what_it_could_not_have(tmp_path: Path) -> None:
    assert do_without(tmp_path, {"train": ["train-1"]})
    assert not do_without(tmp_path, {"train": ["train-1"]})


def test_a_quota_names_itself_and_asks_in_no_other_zone(tmp_path: Path) -> None:
    outcome = applied(tmp_path, 5, "quota", state=("node.train-1",))
    assert outcome.done == ["apply", "destroy node.train-1"]
    assert "train, on-demand in zone-0: QUOTA (quota)" in outcome.error and "mend quota" in outcome.error
    assert "zone-1" not in outcome.error


@pytest.mark.parametrize("other", ["node.train-2: conflict", "address: quota", "vpc: shortage"])
def test_mixed_errors_drop_nothing(tmp_path: Path, other: str) -> None:
    """A quota of addresses, or a placement group in use, is not mended by another zone."""
    outcome = applied(tmp_path, 5, f"node.train-0: shortage, node.train-1: shortage, {other}")
    assert outcome.done == ["apply"]
    for kind in ("shortage", other.split(": ")[1]):
        assert f"{kind.upper()} ({kind})" in outcome.error and f"mend {kind}" in outcome.error


def test_what_was_asked_before_is_told_where_something_else_stops_the_run(tmp_path: Path) -> None:
    outcome = applied(tmp_path, 5, "shortage", "credentials")
    assert "CREDENTIALS (credentials)" in outcome.error
    assert "tried before, in order:\n    train, on-demand in zone-0: SHORTAGE (shortage)" in outcome.error


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    slept: list[float] = []
    monkeypatch.setattr("provisioner.machines.terraform_machines.time.sleep", slept.append)
    return slept


def test_throttling_neither_stops_nor_counts_as_a_shortage(tmp_path: Path, pauses: list[float]) -> None:
    outcome = applied(tmp_path, 5, "throttled", "node.train-0: throttled, rule: throttled", state=("node.train-1",))
    assert (outcome.done, outcome.settled) == (["apply", "plan", "apply", "plan", "apply"], True)
    assert pauses == [ways.PAUSE_S, 2 * ways.PAUSE_S]


def test_a_shortage_beside_throttling_goes_on(tmp_path: Path, pauses: list[float]) -> None:
    outcome = applied(tmp_path, 5, "node.train-0: shortage, node.train-1: throttled")
    assert outcome.done == ["apply", "plan", "apply"] and not pauses


def test_throttling_that_does_not_end_is_told(tmp_path: Path, pauses: list[float]) -> None:
    outcome = applied(tmp_path, 5, *["throttled"] * 9)
    assert outcome.done.count("apply") == ways.MOST_AGAIN + 1
    assert "THROTTLED (throttled)" in outcome.error and len(pauses) == ways.MOST_AGAIN


def test_a_network_of_the_operators_own_is_no_shortage(tmp_path: Path, pauses: list[float]) -> None:
    outcome = applied(tmp_path, 1, *["network by again"] * 9)
    assert outcome.done.count("apply") == ways.MOST_AGAIN + 1
    assert "NETWORK (network)" in outcome.error and "zone-1" not in outcome.error


def test_a_fault_of_the_clouds_own_is_asked_about_once_more_and_then_it_is_a_shortage(
    tmp_path: Path, pauses: list[float]
) -> None:
    outcome = applied(tmp_path, 1, "transient", "transient", state=("node.train-1",))
    assert outcome.done == ["apply", "plan", "apply", "plan node.train-1", "apply"]
    assert outcome.settled and len(pauses) == 1
