"""A site that Terraform makes: what is asked of Terraform in which order, and what its answers mean for nodes."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from provisioner.common.errors import Diagnostic, ProviderError
from provisioner.common.events import Event, Events
from provisioner.common.paths import ERRORED
from provisioner.machines import terraform_machines as terraform
from provisioner.machines.base import Action, DestroyRefusedError, PartlyMadeError, Planned
from provisioner.machines.providers.base import Module, Place, Standing
from provisioner.machines.terraform.binary import Binary
from provisioner.machines.terraform.json_log import Changes
from provisioner.machines.terraform.workspace import Resource
from provisioner.machines.terraform_machines import Root, TerraformMachines
from provisioner.plan.models import Plan
from tests.support import plans
from tests.unit.lifecycle.test_capacity import Zones

PLAN = plans.plan(plans.cluster_spec("p4d.24xlarge", count=2))


class Nodes(Module):
    folder = "sandbox"
    shared = ("mirror",)
    data_resources = ("disk",)
    lost_nodes: tuple[str, ...] = ()
    machines: tuple[Standing, ...] = ()

    def inputs(self, plan: Plan) -> dict[str, Any]:
        return {}

    def address(self, node: str) -> str:
        return f'node["{node}"]'

    def attached(self, node: str) -> Collection[str]:
        return (f'volume["{node}"]',)

    def lost(self, known: Collection[str]) -> list[str]:
        return [self.address(name) for name in self.lost_nodes if name in known]

    def standing(self) -> list[Standing]:
        return list(self.machines)

    def described(self, attributes: Mapping[str, Any]) -> dict[str, Any] | None:
        return attributes.get("row")

    def environment(self) -> Mapping[str, str]:
        return {"PROFILE": "fleet"}


class Terraform:
    """A workspace that writes down what it is asked. `changes`: what each plan says; `rows`: the output `nodes`."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.damaged: str | None = None
        self.changes = Changes()
        self.rows: dict[str, Any] = {}
        self.state: dict[str, Resource] = {}
        self.refused: ProviderError | None = None
        self.short: list[str] = []
        """Nodes for which there is no machine: one `apply` each."""
        self.kind = "shortage"
        self.made_with: dict[str, Any] = {}

    def make(self, path: Path, binary: Binary, events: Events, **options: Any) -> Terraform:
        self.made_with = options
        return self

    def damage(self, *, repair: bool = True) -> str | None:
        return self.damaged

    def init(self, *, repair: bool = True) -> None:
        self.calls.append(f"init {repair}")

    def save_errored(self, *, repair: bool) -> None:
        self.calls.append(f"save {repair}")

    def plan(self, *, replace: Collection[str] = ()) -> Changes:
        self.calls.append(" ".join(["plan", *replace]))
        return self.changes

    def forcing(self, addresses: Collection[str]) -> dict[str, list[str]]:
        self.calls.append(f"forcing {' '.join(addresses)}")
        return {address: ["ami", "user_data"] for address in addresses}

    def apply(self) -> Changes:
        self.calls.append("apply")
        if self.short:
            diagnostics = [Diagnostic(self.kind, "", f'node["{name}"]') for name in self.short.pop(0).split()]
            raise ProviderError("terraform apply failed: no capacity", hint="wait", diagnostics=diagnostics)
        return self.changes

    def adopt(self, address: str, id: str) -> None:
        self.calls.append(f"adopt {address} {id}")
        self.state = {**self.state, address: Resource({"id": id}, False)}

    def destroy(self, *, only: Collection[str] = ()) -> Changes:
        self.calls.append(" ".join(["destroy", *only]))
        if self.refused:
            raise self.refused
        return Changes(destroy=5)

    def outputs(self) -> dict[str, Any]:
        return {"nodes": {"value": self.rows}}

    def resources(self) -> dict[str, Resource]:
        return dict(self.state)

    def recorded(self) -> set[str]:
        return {str(row.attributes.get("id")) for row in self.state.values()}


class Site:
    """TerraformMachines over a fake Terraform."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.module, self.terraform = folder, Nodes(), Terraform()
        self.cleaned: list[object] = []
        self.events_seen: list[Event] = []
        self.provider = SimpleNamespace(
            place=Place("vision", "here", PLAN.spec.sites["here"], folder), module=self.module, simulated=False,
            capacity=None, clean=self.cleaned.append,
        )  # fmt: skip
        monkeypatch.setattr(terraform, "Workspace", self.terraform.make)

    def machines(self, *, backend: bool = False, **options: Any) -> TerraformMachines:
        remote = (lambda: ("s3", {"bucket": "states"})) if backend else None
        root = Root(key=lambda: "ssh-ed25519 AAAA", identity=lambda: "aaaaaaaaaaaa", backend=remote)
        events = Events(self.events_seen.append)
        return TerraformMachines(self.provider, root, Binary(("false",), ""), events, **options)  # type: ignore[arg-type]

    def text(self) -> str:
        return (self.folder / "main.tf").read_text()


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    return Site(tmp_path / "here", monkeypatch)


def row(name: str, **changed: Any) -> dict[str, Any]:
    return {"group": "train", "machine": "p4d.24xlarge", "id": f"i-{name}", "private_ip": "10.0.0.7", **changed}


# plan


def test_a_plan_renders_the_root_module_puts_the_state_in_order_and_asks_terraform(site: Site) -> None:
    site.terraform.changes = Changes(1, 2, 3)
    planned = site.machines().plan(PLAN)
    assert (planned.site, planned.add, planned.change, planned.destroy) == ("here", 1, 2, 3)
    assert site.terraform.calls == ["init True", "save True", "plan"]
    assert "ssh-ed25519 AAAA" in site.text() and "aaaaaaaaaaaa" in site.text() and "states" not in site.text()
    assert site.folder.stat().st_mode & 0o777 == 0o700


def test_a_plan_that_may_not_repair_says_so_to_terraform(site: Site) -> None:
    site.machines(backend=True).plan(PLAN, repair=False)
    assert site.terraform.calls == ["init False", "save False", "plan"]
    assert '"states"' in site.text()


def test_lost_and_replaced_machines_are_made_anew_once(site: Site) -> None:
    site.module.lost_nodes = ("train-0", "train-1")
    site.machines(known={"train-0"}).plan(PLAN, replace=["train-1", "train-0"])
    assert site.terraform.calls[-1] == 'plan node["train-0"] node["train-1"]'


def test_each_action_is_of_the_node_whose_machine_or_attachment_it_is(site: Site) -> None:
    names = ['node["train-0"]', 'volume["train-1"]', 'node["old-0"]', 'volume["old-0"]', 'volume["known-0"]',
             'volume["other-0"]', "mirror", "network"]  # fmt: skip
    site.terraform.changes = Changes(actions=tuple((name, "replace") for name in names), outputs=True)
    planned = site.machines(known={"known-0"}).plan(PLAN)
    assert planned.outputs
    assert planned.actions == (
        Action("replace", 'node["train-0"]', "train-0"),
        Action("replace", 'volume["train-1"]', "train-1", attached=True),
        Action("replace", 'node["old-0"]', "old-0"),
        Action("replace", 'volume["old-0"]', "old-0", attached=True),
        Action("replace", 'volume["known-0"]', "known-0", attached=True),
        Action("replace", 'volume["other-0"]', ""),
        Action("replace", "mirror", shared=True),
        Action("replace", "network"),
    )


def test_a_replacement_says_why(site: Site) -> None:
    names = [f'node["train-{number}"]' for number in range(4)]
    reasons = dict(zip(names, ("cannot_update", "tainted", "requested", "requested"), strict=True))
    reasons['volume["train-0"]'] = "cannot_update"
    actions = (*((name, "replace") for name in names), ('volume["train-0"]', "replace"))
    site.terraform.changes = Changes(actions=actions, reasons=reasons)
    site.module.lost_nodes = ("train-2",)
    planned = site.machines(known={"train-2"}).plan(PLAN, replace=["train-3"])
    assert [action.reason for action in planned.actions] == [
        "ami, user_data changed", "its creation had failed", "its machine is gone", "", ""
    ]  # fmt: skip
    assert site.terraform.calls[-1] == 'forcing node["train-0"]'


def test_what_belongs_to_nodes_of_other_sites_is_of_no_node_here(site: Site) -> None:
    site.terraform.changes = Changes(actions=(('volume["train-0"]', "delete"),))
    site.provider.place = Place("vision", "there", PLAN.spec.sites["here"], site.folder)
    machines = site.machines()
    machines._render = lambda _: None  # type: ignore[method-assign]
    assert machines.plan(PLAN).actions == (Action("delete", 'volume["train-0"]'),)


@pytest.mark.parametrize("action", ["delete", "replace"])
def test_a_plan_that_would_remove_data_is_refused(site: Site, action: str) -> None:
    site.terraform.changes = Changes(actions=(("disk.data", action),))
    with pytest.raises(ProviderError, match=r"disk\.data would be removed with its data"):
        site.machines().plan(PLAN)


@pytest.mark.parametrize("repair", [True, False])
@pytest.mark.parametrize("simulated", [True, False])
def test_a_damaged_state_stops_all_but_a_sandbox_that_may_repair(site: Site, repair: bool, simulated: bool) -> None:
    site.provider.simulated, site.terraform.damaged = simulated, "the state is cut off"
    site.folder.mkdir()
    state = site.folder / "terraform.tfstate"
    state.write_text('{"half')
    if not (repair and simulated):
        with pytest.raises(ProviderError, match="the state is cut off") as caught:
            site.machines().plan(PLAN, repair=repair)
        assert ("your own backup" in caught.value.hint) != simulated
        assert (site.cleaned, site.terraform.calls, state.exists()) == ([], [], True)
        return
    site.machines().plan(PLAN)
    assert len(site.cleaned) == 1 and not state.exists()
    assert site.terraform.calls == ["init True", "save True", "plan"]
    assert [(event.kind, event.message.split(":")[0]) for event in site.events_seen] == [
        ("warning", "the state is cut off")
    ]


def test_a_sandbox_whose_state_is_gone_is_made_again(site: Site) -> None:
    site.provider.simulated, site.terraform.damaged = True, "the state is cut off"
    site.machines().plan(PLAN)
    assert len(site.cleaned) == 1


def test_terraforms_log_and_the_credentials_of_the_provider_are_passed_on(site: Site, tmp_path: Path) -> None:
    site.machines(log=tmp_path / "log")
    assert site.terraform.made_with["log"] == tmp_path / "log"
    assert site.terraform.made_with["environment"]() == {"PROFILE": "fleet"}


# apply


@pytest.mark.parametrize(
    ("planned", "always", "applied"),
    [
        (Planned("here"), False, False),
        (Planned("here"), True, True),
        (Planned("here", add=1), False, True),
        (Planned("here", change=1), False, True),
        (Planned("here", destroy=1), False, True),
        (Planned("here", outputs=True), False, True),
    ],
)
def test_terraform_applies_only_what_has_something_to_do(
    site: Site, planned: Planned, always: bool, applied: bool
) -> None:
    site.terraform.rows = {name: row(name) for name in ("train-0", "train-1")}
    nodes = site.machines().apply(PLAN, planned, always=always)
    assert site.terraform.calls == (["apply"] if applied else [])
    assert [(node.name, node.site, node.id) for node in nodes] == [
        (name, "here", f"i-{name}") for name in ("train-0", "train-1")
    ]


def test_an_output_without_a_planned_node_is_refused(site: Site) -> None:
    site.terraform.rows = {"train-0": row("train-0")}
    with pytest.raises(ProviderError, match="missing train-1"):
        site.machines().apply(PLAN, Planned("here"))


# capacity


def short(site: Site, *names: str, zones: int = 2) -> None:
    """There is no machine for these nodes, one apply each."""
    site.folder.mkdir()
    site.terraform.short = list(names)
    site.provider.capacity = Zones(zones)
    site.terraform.rows = {name: row(name) for name in ("train-0", "train-1")}


def test_a_machine_whose_answer_was_lost_is_taken_in_before_another_is_asked_for(site: Site) -> None:
    """It would be made, and paid, once more. With its group it moves to the other zone."""
    short(site, "train-1")
    site.terraform.state = {'node["train-0"]': resource("train-0")}
    site.module.machines = tuple(Standing(name, f"i-{name}", ours=True) for name in ("train-0", "train-1"))
    site.machines().apply(PLAN, Planned("here", add=2))
    assert site.terraform.calls == ["apply", 'adopt node["train-1"] i-train-1', "init True",
                                    'plan node["train-1"]', "apply"]  # fmt: skip


def test_each_way_that_is_asked_is_reported(site: Site) -> None:
    short(site, "train-1")
    site.machines().apply(PLAN, Planned("here", add=2))
    (event,) = site.events_seen
    assert (event.kind, event.message) == (
        "warning",
        "train: SHORTAGE for on-demand in zone-0, now on-demand in zone-1",
    )


def test_a_request_that_is_repeated_is_reported_and_rendered_again(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(terraform.time, "sleep", pauses.append)
    short(site, "train-1")
    site.terraform.kind = "throttled"
    site.machines().apply(PLAN, Planned("here", add=2))
    assert site.terraform.calls == ["apply", "init True", "plan", "apply"]
    assert [event.kind for event in site.events_seen] == ["warning"] and len(pauses) == 1
    assert "asked once more" in site.events_seen[0].message
    assert (site.folder / "main.tf").exists()


def test_machines_of_a_group_that_is_not_complete_are_removed_in_their_order(site: Site) -> None:
    short(site, "train-0", zones=1)
    machines = site.machines()
    previous, created = {}, {f'node["train-{n}"]': resource(f"train-{n}") for n in (1, 0)}
    answers = iter([previous, created])
    site.terraform.resources = lambda: next(answers)  # type: ignore[method-assign]
    with pytest.raises(ProviderError, match="no capacity for train") as caught:
        machines.apply(PLAN, Planned("here", add=2))
    assert site.terraform.calls == ["apply", 'destroy node["train-0"] node["train-1"]']
    assert [event.message for event in site.events_seen] == [
        "removing what was begun of train, which would not be complete: 2 machines"
    ]
    assert [item.summary for item in caught.value.diagnostics] == ["shortage"]


def test_an_error_begins_with_the_command_that_failed(site: Site) -> None:
    short(site, "train-0")
    site.terraform.short = ["nobody"]
    with pytest.raises(ProviderError) as caught:
        site.machines().apply(PLAN, Planned("here", add=2))
    assert caught.value.message.startswith("terraform apply failed:\n    ")
    assert caught.value.hint.endswith("wait")


def test_an_error_that_no_provider_reads_is_passed_on_as_it_is(site: Site) -> None:
    site.terraform.short = ["train-0"]
    with pytest.raises(ProviderError, match="terraform apply failed: no capacity") as caught:
        site.machines().apply(PLAN, Planned("here", add=2))
    assert caught.value.hint == "wait"


# standing


def resource(name: str, *, tainted: bool = False, **changed: Any) -> Resource:
    return Resource({"id": f"i-{name}", "row": row(name, **changed)}, tainted)


def test_machines_of_the_state_stand_whether_cluster_yaml_names_them_or_not(site: Site) -> None:
    site.terraform.state = {
        'node["train-0"]': resource("train-0"),
        'node["old-0"]': resource("old-0"),
        'volume["train-1"]': resource("train-1"),
        "network": resource("network"),
    }
    assert [node.name for node in site.machines().existing_nodes()] == ["old-0", "train-0"]


def test_a_machine_that_was_made_half_stands_only_where_the_provider_says_so(site: Site) -> None:
    site.terraform.state = {
        'node["train-0"]': resource("train-0", tainted=True),
        'node["train-1"]': resource("train-1", tainted=True),
        'node["train-2"]': resource("train-2"),
    }
    site.module.machines = (Standing("train-1", "i-train-1", ours=True),)
    assert [node.name for node in site.machines().existing_nodes()] == ["train-1", "train-2"]


def test_the_provider_is_asked_only_where_a_machine_was_made_half(site: Site) -> None:
    def refuse() -> list[Standing]:
        raise AssertionError

    site.module.standing = refuse  # type: ignore[method-assign]
    site.terraform.state = {'node["train-0"]': resource("train-0")}
    assert [node.name for node in site.machines().existing_nodes()] == ["train-0"]


@pytest.mark.parametrize("changed", [{"id": ""}, {"id": None}, {"private_ip": ""}, {"private_ip": None}])
def test_a_machine_that_has_no_id_or_address_yet_does_not_stand(site: Site, changed: dict[str, Any]) -> None:
    site.terraform.state = {
        'node["train-0"]': resource("train-0", **changed), 'node["train-1"]': Resource({"id": "i"}, False)
    }  # fmt: skip
    assert site.machines().existing_nodes() == []


def test_what_a_plan_does_not_say_of_a_thing() -> None:
    action, planned = Action("create", "a"), Planned("here")
    assert (action.node, action.attached, action.shared) == ("", False, False)
    assert (planned.total, planned.actions, planned.outputs) == (0, (), False)


def test_a_site_leaves_nothing_on_machines_that_it_removes(site: Site) -> None:
    machines = site.machines()
    assert machines.stays == {}
    site.terraform.rows = {name: row(name) for name in ("train-0", "train-1")}
    machines.apply(PLAN, Planned("here"))
    assert site.terraform.calls == []


# destroy


def make_workspace(site: Site, *, module: bool = True, state: str | None = "terraform.tfstate") -> None:
    site.folder.mkdir()
    if module:
        (site.folder / "main.tf").write_text("")
    if state is not None:
        (site.folder / state).write_text("{}")


@pytest.mark.parametrize("state", ["terraform.tfstate", ERRORED])
def test_what_was_made_is_destroyed_after_its_state_is_put_in_order(site: Site, state: str) -> None:
    make_workspace(site, state=state)
    assert site.machines().destroy() == 5
    assert site.terraform.calls == ["init True", "save True", "destroy"]
    assert site.text() == "", "the module is the one that made it"


@pytest.mark.parametrize("module", [True, False])
def test_nothing_is_destroyed_where_nothing_was_made(site: Site, module: bool) -> None:
    make_workspace(site, module=module, state=None)
    assert site.machines().destroy() == 0
    assert site.terraform.calls == []


@pytest.mark.parametrize("state", ["terraform.tfstate", ERRORED])
def test_machines_of_a_state_without_its_module_are_destroyed(site: Site, state: str) -> None:
    make_workspace(site, module=False, state=state)
    assert site.machines().destroy(PLAN) == 5
    assert site.terraform.calls[-1] == "destroy"
    assert "module" in site.text(), "it is written again"


@pytest.mark.parametrize("module", [True, False])
def test_a_shared_state_is_destroyed_from_any_computer(site: Site, module: bool) -> None:
    make_workspace(site, module=module, state=None)
    assert site.machines(backend=True).destroy(PLAN) == 5
    assert site.terraform.calls[-1] == "destroy"
    assert ("states" in site.text()) != module, "a module that is there stays as it is"


def test_without_a_plan_no_module_is_written(site: Site) -> None:
    make_workspace(site, module=False, state=None)
    assert site.machines(backend=True).destroy() == 5
    assert not (site.folder / "main.tf").exists()


@pytest.mark.parametrize("simulated", [True, False])
def test_a_damaged_state_is_not_destroyed(site: Site, simulated: bool) -> None:
    make_workspace(site)
    site.provider.simulated, site.terraform.damaged = simulated, "the state is cut off"
    refused = contextlib.nullcontext() if simulated else pytest.raises(ProviderError, match="is cut off")
    with refused:
        assert site.machines().destroy() == 0
    assert site.terraform.calls == []
    assert [event.stage for event in site.events_seen] == (["down"] if simulated else [])


def test_what_the_provider_refuses_to_remove_can_be_looked_for_by_tag(site: Site) -> None:
    make_workspace(site)
    site.terraform.refused = ProviderError(
        "terraform destroy failed: in use", hint="wait", diagnostics=[Diagnostic("in use")]
    )
    with pytest.raises(DestroyRefusedError, match="in use") as caught:
        site.machines().destroy()
    assert caught.value.hint == "wait"


def test_what_planning_left_is_forgotten(site: Site) -> None:
    site.machines().forget()
    assert len(site.cleaned) == 1


def test_a_site_that_was_partly_made_says_what_its_error_said() -> None:
    cause = ProviderError("1 of 2: no answer", where="site here", hint="look at it")
    error = PartlyMadeError(cause, [], [])
    assert (error.message, error.where, error.hint) == (cause.message, cause.where, cause.hint)
    assert (error.nodes, error.known) == ([], [])
