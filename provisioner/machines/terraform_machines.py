"""Machines that a Terraform module makes: one root module, one state for each site."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from provisioner.common.errors import ProviderError
from provisioner.common.events import Events
from provisioner.common.paths import APPLYING, ERRORED, STATE, has_state, private_dir, write_whole
from provisioner.common.text import counted, few
from provisioner.machines import mounts
from provisioner.machines.base import Action, DestroyRefusedError, NoCapacityError, Planned
from provisioner.machines.providers import capacity
from provisioner.machines.providers.base import Module, Provider
from provisioner.machines.providers.capacity import Instead
from provisioner.machines.providers.cloud_errors import ERROR_CODES, CloudError, error_lines, hints
from provisioner.machines.terraform.binary import Binary
from provisioner.machines.terraform.json_log import Changes
from provisioner.machines.terraform.render import Backend, outputs_to_nodes, render
from provisioner.machines.terraform.workspace import Resource, Workspace
from provisioner.plan.models import Plan
from provisioner.rundir import fleet
from provisioner.rundir.fleet import Node

RESTORE = "restore terraform.tfstate from your own backup"


@dataclass(frozen=True, slots=True)
class Root:
    """What a root module has beside the plan, asked for when it is written. `key`: the public key that nodes let in;
    `identity`: the cluster's, for tags; `backend`: None for a state beside the module."""

    key: Callable[[], str]
    identity: Callable[[], str]
    backend: Callable[[], Backend] | None = None


class TerraformMachines:
    """See machines/base.py for the contract. `known`: names of the site's nodes that the last run recorded;
    `incomplete`: names of nodes whose machines a failed apply has left: their group may still move to another zone."""

    def __init__(
        self, provider: Provider, root: Root, binary: Binary, events: Events, *, known: Collection[str] = (),
        incomplete: Collection[str] = (), log: Path | None = None,
    ) -> None:  # fmt: skip
        assert provider.module is not None
        self.site = provider.place.site
        self.stays: dict[str, list[str]] = {}
        self._provider, self._module, self._root, self._events = provider, provider.module, root, events
        self._known, self._incomplete = frozenset(known), frozenset(incomplete)
        self._folder = provider.place.workspace
        self._workspace = Workspace(
            self._folder, binary, events, log=log, environment=provider.module.environment
        )  # fmt: skip

    def plan(self, plan: Plan, *, replace: Collection[str] = (), repair: bool = True) -> Planned:
        self._render(plan)
        if damage := self._workspace.damage(repair=repair):
            simulated = self._provider.simulated
            if not simulated or not repair:
                hint = "`gpuprov up` removes the sandbox's nodes and makes them again" if simulated else RESTORE
                raise ProviderError(damage, where=f"site {self.site}", hint=hint)
            self._events("terraform", "warning", f"{damage}: the sandbox's nodes are removed and made again")
            self._provider.clean(self._events)
            (self._folder / "terraform.tfstate").unlink(missing_ok=True)
        with self._explaining(plan):
            self._workspace.init(repair=repair)
            self._workspace.save_errored(repair=repair)
            self._adopt(plan, repair=repair)
            lost = self._module.lost(self._known)
            addresses_to_replace = list(dict.fromkeys([*lost, *map(self._module.address, replace)]))
            changes = self._workspace.plan(replace=addresses_to_replace)
        mounts.refuse_loss(changes.actions, self.site, self._module.data_resources)
        return self._planned(plan, changes, self._reasons(changes, lost))

    def apply(self, plan: Plan, planned: Planned, *, always: bool = False) -> list[Node]:
        if planned.total or planned.outputs or always:
            self._apply(plan)
        outputs = outputs_to_nodes(self._workspace.outputs())
        return fleet.from_outputs(plan, self.site, outputs, capacity.without(self._folder))

    def existing_nodes(self) -> list[Node]:
        resources = self._workspace.resources()
        machines = {name: row for address, row in resources.items() if (name := self._module.node_at(address))}
        tainted = {str(row.attributes.get("id")) for row in machines.values() if row.tainted}
        running = {machine.id for machine in self._module.standing()} if tainted else set()  # the provider knows better
        rows = {
            name: self._module.described(row.attributes)
            for name, row in machines.items()
            if not row.tainted or str(row.attributes.get("id")) in running
        }
        return fleet.from_rows(
            self.site, {name: row for name, row in rows.items() if row and row.get("id") and row.get("private_ip")}
        )

    def destroy(self, plan: Plan | None = None) -> int:
        if damage := self._workspace.damage():
            if not self._provider.simulated:
                raise ProviderError(damage, where=f"site {self.site}", hint=RESTORE)
            self._events("down", "warning", f"{damage}: looking for nodes by their labels instead")
            return 0
        if not self._root.backend and not has_state(self._folder):
            return 0
        if plan is not None and not (self._folder / "main.tf").exists():
            self._render(plan)
        with self._explaining(plan):
            self._workspace.init()
            self._workspace.save_errored(repair=True)
            try:
                return self._workspace.destroy().destroy
            except ProviderError as error:
                explained = self._explained(plan, error)
                raise DestroyRefusedError(explained.message, where=explained.where, hint=explained.hint) from None

    def forget(self) -> None:
        self._provider.clean(self._events)

    def _render(self, plan: Plan) -> None:
        private_dir(self._folder)
        root = self._root
        render(
            plan, self.site, self._module, self._folder, ssh_public_key=root.key(), identity=root.identity(),
            backend=root.backend() if root.backend else None,
        )  # fmt: skip

    def _render_and_plan(self, plan: Plan, replace: Collection[str] = ()) -> None:
        """Render and plan once more; `replace` are addresses to be made anew."""
        self._render(plan)
        self._workspace.init()
        self._workspace.plan(replace=list(replace))

    def _reasons(self, changes: Changes, lost: Collection[str]) -> dict[str, str]:
        """Address → why the machine at it is replaced."""
        replaced = [a for a, action in changes.actions if action == "replace" and self._module.node_at(a)]
        forced = [address for address in replaced if changes.reasons.get(address) == "cannot_update"]
        forcing = self._workspace.forcing(forced) if forced else {}
        reasons = {address: f"{few(names, 5, ',')} changed" for address, names in forcing.items() if names}
        for address in replaced:
            if changes.reasons.get(address) == "tainted":
                reasons[address] = "its creation had failed"
            elif address in lost:
                reasons[address] = "its machine is gone"
        return reasons

    def _planned(self, plan: Plan, changes: Changes, reasons: Mapping[str, str]) -> Planned:
        machines = {name for address, _ in changes.actions if (name := self._module.node_at(address))}
        nodes = {name for name, group in plan.nodes() if group.site == self.site} | self._known | machines
        attached = {address: name for name in nodes for address in self._module.attached(name)}
        actions = tuple(
            Action(
                action, address, self._module.node_at(address) or attached.get(address, ""),
                attached=address in attached, shared=address in self._module.shared, reason=reasons.get(address, ""),
            )
            for address, action in changes.actions
        )  # fmt: skip
        return Planned(self.site, changes.add, changes.change, changes.destroy, actions, outputs=changes.outputs)

    def _adopt(self, plan: Plan, *, repair: bool) -> None:
        """Write machines into Terraform's state that a run which died had made and could not write there. Raises
        ProviderError for those of somebody else, and where the state is lost."""
        machines = self._module.standing()
        recorded = self._workspace.recorded() if machines else set()
        strays = [machine for machine in machines if machine.id not in recorded]
        if not strays:
            return
        listing = ", ".join(f"{machine.id} ({machine.node})" for machine in strays[:5])
        listing += f" and {len(strays) - 5} more" if len(strays) > 5 else ""
        if not all(machine.ours for machine in strays):
            raise ProviderError(
                f"machines of a cluster {plan.spec.name} already exist, created from another folder: {listing}",
                where=f"site {self.site}",
                hint="share that folder's state (`gpuprov docs operators`), or give this cluster another name",
            )
        if not recorded:
            raise ProviderError(
                f"machines were created here that Terraform's state does not have: {listing}",
                where=f"site {self.site}",
                hint="the state is lost, or a killed run did not write it. Restore it, or remove the machines with "
                "`gpuprov down` and run `gpuprov up` again",
            )
        known, running = self._workspace.resources(), {machine.id for machine in machines}
        for machine in strays:
            address = self._module.address(machine.node)
            if address in known and known[address].attributes.get("id") not in running and repair:
                self._workspace.forget(address)  # its machine is gone, and its place is this one's
                del known[address]
            if machine.node not in dict(plan.nodes()):
                group, _, number = machine.node.rpartition("-")
                raise ProviderError(
                    f"{machine.id} was made by a run that died, and cluster.yaml no longer has {machine.node}",
                    where=f"site {self.site}",
                    hint=f"put group {group} back with a count of at least {int(number) + 1}, and `gpuprov up` takes "
                    "the machine in. Or remove the whole cluster with `gpuprov down`",
                )
            if address in known:
                raise ProviderError(
                    f"{machine.id} is tagged as {machine.node}, and Terraform's state has another machine of that name",
                    where=f"site {self.site}",
                    hint="look at it, then terminate it",
                )
            if repair:
                message = f"{machine.id} was made by a run that died: taken in as {machine.node}"
                self._workspace.adopt(address, machine.id)
                known[address] = Resource({"id": machine.id}, tainted=False)
            else:
                message = f"{machine.id} was made by a run that died: `gpuprov up` takes it in as {machine.node}"
            self._events("terraform", "warning", message, node=machine.node)

    @contextlib.contextmanager
    def _unrecorded(self) -> Iterator[None]:
        """Marks the workspace until what an apply has made is in a local state; a shared one is noted in the intent."""
        mark, state = self._folder / APPLYING, self._folder / STATE
        if self._root.backend is not None:
            yield
            return
        previous = state.read_bytes() if state.exists() else None
        private_dir(self._folder)
        write_whole(mark, "")
        try:
            yield
        finally:
            saved = state.exists() and state.read_bytes() != previous
            if saved or (self._folder / ERRORED).exists():
                mark.unlink(missing_ok=True)

    def _apply(self, plan: Plan) -> None:
        """Apply; where machines can't be had, ask in the ways that the provider still knows. A group is had whole or
        not at all: what was made of it meanwhile moves along, and goes where nothing is left to ask."""
        existing = set(self._workspace.resources())
        previous = existing - {self._module.address(name) for name in self._incomplete}
        data = sorted(address for address in existing if mounts.holds_data(address, self._module.data_resources))
        while True:
            try:
                with self._unrecorded():
                    self._workspace.apply()
            except ProviderError as error:
                self._plan_next_attempt(plan, previous, error, data)
            else:
                capacity.settle(self._folder)
                return

    def _plan_next_attempt(
        self, plan: Plan, previous: Collection[str], error: ProviderError, data: Sequence[str]
    ) -> None:
        """Plan to ask for what was short in another way, or once more. Raises ProviderError with all that was said
        where another way would not help, and where everything was tried; NoCapacityError
        where all that was said is that there are no machines. `before`: addresses of resources that Terraform's state
        had before this run, which stay as they are; `data`: those of them that hold data."""
        knows = self._provider.capacity
        errors = self._errors(plan, error)
        other = capacity.next_attempt(knows, plan, self._folder, errors) if knows else None
        if other is None:
            raise self._explained(plan, error)
        self._adopt(plan, repair=True)  # a machine whose answer was lost would be made, and paid, once more
        if other.then == "again":
            self._events("terraform", "warning", other.message)
            if not self._provider.simulated:
                time.sleep(other.pause_s)
            self._render_and_plan(plan)
            return
        state = self._workspace.resources()
        enough = enough_without(plan, other, {address for address in state if not state[address].tainted}, self._module)
        if enough and capacity.do_without(self._folder, capacity.Choices.read(self._folder).without | enough):
            lost = "; ".join(f"{group} does without {', '.join(names)}" for group, names in enough.items())
            self._events("terraform", "warning", f"{other.message}. {lost}: `gpuprov up` asks for them again")
            self._render_and_plan(plan)
            return
        names = [name for group in other.short for name in plan.group(group).node_names()]
        new_addresses = {self._module.address(name) for name in names} & set(state) - set(previous)
        if other.then == "nothing":
            if new_addresses:
                groups = few(list(other.short), 5, ",")
                machines = counted(len(new_addresses), "machine")
                message = f"removing what was begun of {groups}, which would not be complete: {machines}"
                self._events("terraform", "warning", message)
                self._workspace.destroy(only=sorted(new_addresses))
            hint, location = "; ".join(filter(None, (other.hint, capacity.LATER))), f"site {self.site}"
            if other.no_capacity:
                raise NoCapacityError(
                    other.message, where=location, hint=hint, diagnostics=error.diagnostics, groups=other.no_capacity,
                    data=data,
                ) from None  # fmt: skip
            raise ProviderError(other.message, where=location, hint=hint, diagnostics=error.diagnostics) from None
        self._events("terraform", "warning", other.message)
        self._render_and_plan(plan, sorted(new_addresses))

    def _errors(self, plan: Plan | None, error: ProviderError) -> list[CloudError]:
        """What a failure of Terraform says, in the provider's classes; nothing where it has none."""
        knows = self._provider.capacity
        if knows is None:
            return []
        nodes = {self._module.address(name): (name, group) for name, group in plan.nodes()} if plan else {}
        choices, errors = capacity.Choices.read(self._folder), []
        for diagnostic in error.diagnostics:
            name, group = nodes.get(diagnostic.address, ("", None))
            purchase = choices.current_option(group, knows.zones(plan)) if plan and group else None
            errors.append(replace(knows.error(diagnostic, group, purchase), node=name))
        return errors

    def _explained(self, plan: Plan | None, error: ProviderError) -> ProviderError:
        """The failure as a person reads it: each thing that was said once, with whose it is, what was tried before, and
        what to do."""
        errors = self._errors(plan, error)
        if not errors:
            return error
        attempts = (
            capacity.Choices.read(self._folder).attempt_lines(group.name for group in plan.groups) if plan else []
        )
        lines = [*error_lines(errors), *(["tried before, in order:", *attempts] if attempts else [])]
        command = error.message.partition(" failed:")[0]
        hint = "; ".join(filter(None, (hints(errors), error.hint)))
        return ProviderError(
            f"{command} failed:\n    " + "\n    ".join(lines), where=f"site {self.site}", hint=hint,
            diagnostics=error.diagnostics, code=ERROR_CODES.get(errors[0].kind, ""),
        )  # fmt: skip

    @contextlib.contextmanager
    def _explaining(self, plan: Plan | None) -> Iterator[None]:
        try:
            yield
        except ProviderError as error:
            raise self._explained(plan, error) from None


def enough_without(plan: Plan, other: Instead, existing: Collection[str], module: Module) -> dict[str, list[str]]:
    """Group → nodes that it can do without, where every group that is short lacks some and has its `capacity.min`;
    else nothing. `standing`: addresses of what was made whole."""
    missing_by_group = {}
    for name in other.short:
        group = plan.group(name)
        lost = [node for node in group.node_names() if module.address(node) not in existing]
        minimum = group.spec.capacity.min
        if not lost or minimum is None or group.spec.count - len(lost) < minimum:
            return {}
        missing_by_group[name] = lost
    return missing_by_group
