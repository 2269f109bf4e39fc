"""What an apply does to the fleet, by node: what a person is asked about, and what has to be out of service first."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from provisioner.fleet import Node
from provisioner.machines.base import Planned
from provisioner.plan import Plan


@dataclass(frozen=True, slots=True)
class NodeChanges:
    """Names of nodes. `create`: there is none yet; `recreate`: another machine takes the place of one that is known, or
    was lost; `change`: it stays and something of it changes; `remove`: cluster.yaml wants it no more. `total`: things
    that are made, changed and destroyed, those that belong to no node among them."""

    create: tuple[str, ...] = ()
    recreate: tuple[str, ...] = ()
    change: tuple[str, ...] = ()
    remove: tuple[str, ...] = ()
    total: int = 0

    def to_json(self) -> dict[str, Any]:
        return {key: list(names) for key, names in asdict(self).items() if key != "total"}

    @property
    def ends(self) -> tuple[str, ...]:
        """Nodes whose machines are not there afterwards."""
        return (*self.recreate, *self.remove)


def node_changes(nodes: Sequence[Node], plan: Plan, planned: Iterable[Planned]) -> NodeChanges:
    """What these sites' changes mean for `nodes`, all that are known."""
    sites = list(planned)
    wanted = [name for name, _ in plan.nodes()]
    known = [node.name for node in nodes if node.site in {one.site for one in sites}]
    actions = [action for one in sites for action in one.actions if action.node]
    anew = {a.node for a in actions if a.what in ("create", "replace") and not a.attached}
    touched = {a.node for a in actions}
    return NodeChanges(
        create=tuple(name for name in wanted if name not in known),
        recreate=tuple(name for name in wanted if name in known and name in anew),
        change=tuple(name for name in wanted if name in known and name in touched - anew),
        remove=tuple(name for name in known if name not in wanted),
        total=sum(one.total for one in sites),
    )
