"""The machines of one site: planned, applied, destroyed. Terraform makes them (terraform.py), or they exist
already (hosts.py), or a BMC installs them (bmc.py)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from provisioner.common.errors import Diagnostic, ProviderError
from provisioner.plan.models import Plan
from provisioner.rundir.fleet import Node


class Action(NamedTuple):
    """What is to be done to one thing. `what`: create, update, replace or delete; `name`: for people; `node`: the node
    whose machine it is, or belongs to (`attached`), empty for all others. `shared`: serves every machine, and changing
    it changes none of them. `reason`: of a replacement, for people."""

    what: str
    name: str
    node: str = ""
    attached: bool = False
    shared: bool = False
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Planned:
    """One site, ready to be applied. `add`, `change`, `destroy`: numbers of things, `actions` one by one. `outputs`:
    what is recorded of its machines (addresses) differs from what they are, and an apply records it. `hosts`: ids of
    the machines of one's own that are its nodes then."""

    site: str
    add: int = 0
    change: int = 0
    destroy: int = 0
    actions: tuple[Action, ...] = ()
    outputs: bool = False
    hosts: tuple[str, ...] = ()

    @property
    def total(self) -> int:
        return self.add + self.change + self.destroy

    def refuse_more(self, names: Collection[str], recreate: Collection[str]) -> None:
        """Raise ProviderError where more than these nodes' machines would change, or those of `recreate` would not."""
        more = [
            f"{action.what} {action.name}"
            for action in self.actions
            if not action.shared
            and (action.node not in names or not (action.attached or action.what in ("replace", "create")))
        ]
        touched = {action.node for action in self.actions if not action.attached}
        less = [name for name in names if name in recreate and name not in touched]
        if more or less:
            problem = f"would also {'; '.join(more[:10])}" if more else f"would not recreate {', '.join(less)}"
            raise ProviderError(
                f"Terraform {problem}. Nothing was done",
                where=f"site {self.site}",
                hint="`gpuprov plan` shows what differs from cluster.yaml; `gpuprov up` applies it, then replace",
            )


class PartlyMadeError(ProviderError):
    """Some of a site's machines did not come to be; `nodes` are those that did, and with which a run goes on. `known`:
    those of the others that an earlier run had: they are left out, and not forgotten."""

    code = "machines_incomplete"

    def __init__(self, error: ProviderError, nodes: Sequence[Node], known: Sequence[Node] = ()) -> None:
        super().__init__(error.message, where=error.where, hint=error.hint)
        self.nodes, self.known = list(nodes), list(known)


class NoCapacityError(ProviderError):
    """A site has no machines for some groups, in any way that cluster.yaml allows; nothing of this run is left of them
    there. `groups`: group → what the provider said; `data`: what the site had before this run, and what has data that
    is nowhere else, by Terraform's address."""

    code = "no_capacity"

    def __init__(
        self, message: str, *, where: str = "", hint: str = "", diagnostics: Sequence[Diagnostic] = (),
        groups: Mapping[str, str], data: Sequence[str] = (),
    ) -> None:  # fmt: skip
        super().__init__(message, where=where, hint=hint, diagnostics=diagnostics)
        self.groups, self.data = dict(groups), tuple(data)


class DestroyRefusedError(ProviderError):
    """The provider refused to remove a part of what was made; the rest can be looked for by tag."""

    code = "removal_refused"


class Machines(Protocol):
    """One site. All methods raise ProviderError naming it."""

    site: str
    stays: dict[str, list[str]]
    """Node → what `destroy` left on a machine that it did not remove, one sentence each."""

    def plan(self, plan: Plan, *, replace: Collection[str] = (), repair: bool = True) -> Planned:
        """Work out what `apply` would do. `replace`: nodes whose machines are to be made anew. Makes no machine; with
        `repair`, what a run that died has left is put in order first: a cut state, one that was not saved or is to
        move, machines that no state has. Without it nothing is changed, and what would have to be is a
        ProviderError."""

    def apply(self, plan: Plan, planned: Planned, *, always: bool = False) -> list[Node]:
        """Do what was planned; give the site's nodes. `always`: also where there is nothing to do, because the last
        apply may have been killed. Raises PartlyMadeError where some of the machines came to be."""

    def existing_nodes(self) -> list[Node]:
        """Every machine of the site that is recorded, whether cluster.yaml wants it or not, also after an apply that
        failed; asks the state alone."""

    def destroy(self, plan: Plan | None = None) -> int:
        """Remove every machine and what was made for them; gives how many things were removed. `plan`: where the
        machines were made on another computer. Raises DestroyRefusedError where a part of it was refused."""

    def forget(self) -> None:
        """Remove what planning left for machines that were never made."""
