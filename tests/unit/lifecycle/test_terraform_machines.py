"""What Terraform's state says of a site's machines, whatever cluster.yaml and nodes.json say."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from provisioner.common.events import Events
from provisioner.machines.base import Planned
from provisioner.machines.providers.base import Module, Place, Standing
from provisioner.machines.terraform.binary import Binary
from provisioner.machines.terraform.json_log import Changes
from provisioner.machines.terraform.workspace import Resource
from provisioner.machines.terraform_machines import Root, TerraformMachines
from provisioner.plan.models import Plan
from tests.support import plans
from tests.unit.lifecycle.test_capacity import Shop

PLAN = plans.plan(plans.cluster_spec("p4d.24xlarge", count=2))


class Instances(Module):
    folder = "none"
    running: tuple[str, ...] = ()

    def inputs(self, plan: Plan) -> dict[str, Any]:
        return {}

    def address(self, node: str) -> str:
        return f'module.site.instance.node["{node}"]'

    def described(self, attributes: Mapping[str, Any]) -> dict[str, Any] | None:
        return dict(attributes)

    def standing(self) -> list[Standing]:
        return [Standing("", id, ours=True) for id in self.running]


class State:
    """A workspace of these resources, whose machines have these addresses now."""

    def __init__(self, *, tainted: str = "") -> None:
        self.addresses = dict.fromkeys(("train-0", "train-1", "train-7"), "10.0.0.7")
        self.tainted, self.applied = tainted, 0

    def resources(self) -> dict[str, Resource]:
        vpc = {"module.site.vpc": Resource({"id": "vpc-1"}, tainted=False)}
        return vpc | {
            f'module.site.instance.node["{name}"]': Resource(row(name, address), tainted=name == self.tainted)
            for name, address in self.addresses.items()
        }

    def outputs(self) -> dict[str, Any]:
        rows = {name: row(name, self.addresses[name]) for name in ("train-0", "train-1")}
        return {"nodes": {"value": rows}}

    def apply(self) -> Changes:
        self.applied += 1
        return Changes()


def row(name: str, address: str) -> dict[str, Any]:
    return {"group": "train", "machine": "p4d.24xlarge", "id": f"i-{name}", "private_ip": address}


def machines(folder: Path, state: State, **known: Any) -> TerraformMachines:
    provider = Shop(Place("vision", "here", PLAN.spec.sites["here"], folder), 1)
    provider.module = Instances()
    site = TerraformMachines(provider, Root(key=str, identity=str), Binary(("false",), ""), Events(), **known)
    site._workspace = state  # type: ignore[assignment]
    site._render = lambda _: None  # type: ignore[method-assign]
    return site


def test_every_machine_of_the_state_stands_whoever_wants_or_knows_it(tmp_path: Path) -> None:
    """train-7 is of a count or a group that cluster.yaml had before; its removal has failed."""
    existing = machines(tmp_path, State(), known=["train-0"]).existing_nodes()
    assert [(node.name, node.id) for node in existing] == [
        ("train-0", "i-train-0"), ("train-1", "i-train-1"), ("train-7", "i-train-7"),
    ]  # fmt: skip


def test_a_machine_whose_making_failed_stands_where_its_provider_says_so(tmp_path: Path) -> None:
    site = machines(tmp_path, State(tainted="train-1"))
    assert [node.name for node in site.existing_nodes()] == ["train-0", "train-7"]
    site._module.running = ("i-train-1",)  # type: ignore[attr-defined]
    assert [node.name for node in site.existing_nodes()] == ["train-0", "train-1", "train-7"]


def test_an_address_that_changed_by_itself_is_taken_on(tmp_path: Path) -> None:
    """Terraform plans no action for it, only another output; its state has it after an apply."""
    state = State()
    site = machines(tmp_path, state)
    changed = site._planned(PLAN, Changes(outputs=True), {})
    assert (changed.total, changed.outputs) == (0, True)
    site.apply(PLAN, changed)
    assert state.applied == 1
    site.apply(PLAN, Planned("here"))
    assert state.applied == 1, "where nothing differs nothing is applied"
