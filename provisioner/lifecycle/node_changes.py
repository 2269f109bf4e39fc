"""What an apply does to the fleet, by node: what a person is asked about, and what has to be out of service first."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from provisioner.machines.base import Planned
from provisioner.output.plan import MachineChanges
from provisioner.plan.models import Plan
from provisioner.rundir.fleet import Node


@dataclass(frozen=True, slots=True)
class NodeChanges:
    """Names of nodes. `create`: there is none yet; `recreate`: another machine takes the place of one that is known, or
    was lost; `change`: it stays and something of it changes; `remove`: cluster.yaml wants it no more. `total`: things
    that are made, changed and destroyed, those that belong to no node among them. `sites`: node → the site that ends
    it; `reasons`: node → why its machine is recreated, where that is known."""

    create: tuple[str, ...] = ()
    recreate: tuple[str, ...] = ()
    change: tuple[str, ...] = ()
    remove: tuple[str, ...] = ()
    total: int = 0
    sites: Mapping[str, str] = field(default_factory=dict, compare=False)
    reasons: Mapping[str, str] = field(default_factory=dict, compare=False)

    def document(self) -> MachineChanges:
        return MachineChanges(
            create=[*self.create], recreate=[*self.recreate], change=[*self.change], remove=[*self.remove]
        )

    def is_within(self, other: NodeChanges) -> bool:
        """Whether each node's change is one of these, too."""
        new = {*other.create, *other.recreate}
        return (
            {*self.create, *self.recreate} <= new and {*self.recreate} <= {*other.recreate}
            and {*self.change} <= {*other.change} and {*self.remove} <= {*other.remove}
        )  # fmt: skip

    @property
    def ends(self) -> tuple[str, ...]:
        """Nodes whose machines are not there afterwards."""
        return (*self.recreate, *self.remove)


def node_changes(nodes: Sequence[Node], plan: Plan, planned: Iterable[Planned]) -> NodeChanges:
    """What these sites' changes mean for `nodes`, all that are recorded. A machine is named also where nobody has
    recorded it and a site knows of it: by Terraform's state, or by a pinned host key."""
    sites = list(planned)
    desired = [name for name, _ in plan.nodes()]
    recorded = [node.name for node in nodes if node.site in {planned_site.site for planned_site in sites}]
    actions = [action for planned_site in sites for action in planned_site.actions if action.node]
    new = {a.node for a in actions if a.what == "create" and not a.attached}
    replaced = {a.node for a in actions if a.what == "replace" and not a.attached}
    touched = {a.node for a in actions}
    ended = {
        a.node: planned_site.site
        for planned_site in sites
        for a in planned_site.actions
        if a.what == "delete" and not a.attached and a.node
    }
    reasons = dict.fromkeys((new & {*recorded}) - {*ended}, "its machine is gone")
    reasons |= {a.node: a.reason for a in actions if a.reason and not a.attached}
    recreate = replaced | new & {*recorded, *ended}
    return NodeChanges(
        create=tuple(name for name in desired if name not in recorded and name not in recreate),
        recreate=tuple(name for name in desired if name in recreate),
        change=tuple(name for name in desired if name in recorded and name in touched - recreate),
        remove=tuple(dict.fromkeys(name for name in (*recorded, *ended) if name not in desired)),
        total=sum(planned_site.total for planned_site in sites),
        sites=ended,
        reasons={name: reason for name in desired if name in recreate and (reason := reasons.get(name))},
    )


def by_reason(names: Iterable[str], reasons: Mapping[str, str]) -> dict[str, list[str]]:
    """Reason → names, "" for those without."""
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(reasons.get(name, ""), []).append(name)
    return groups
