"""Which nodes are in service: proven, healthy in their last verdict, and held back by nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from provisioner.lifecycle.quarantine import actions as quarantine
from provisioner.lifecycle.replace import journal as replace_journal
from provisioner.rundir import node_state
from provisioner.rundir.fleet import Node
from provisioner.rundir.release import Ledger

if TYPE_CHECKING:
    from provisioner.lifecycle.session import Cluster


def out_of_service(cluster: Cluster, nodes: Sequence[Node]) -> dict[str, str]:
    """Node → why it is not in service; a node in service is not in it."""
    ledger, state = Ledger(cluster.paths), node_state.load(cluster.paths)
    entries, replacing = quarantine.quarantined_nodes(cluster), replace_journal.load(cluster).nodes
    reasons = {}
    for node in nodes:
        if entry := entries.get(node.name):
            reasons[node.name] = f"in quarantine by {entry.owner}: {entry.reason}"
        elif node.name in replacing:
            reasons[node.name] = "its machine is being replaced"
        elif ledger.of(node) is None:
            reasons[node.name] = f"never verified: run `gpuprov up {cluster.typed_file}`"
        elif state.of(node.name).ok is not True:
            reasons[node.name] = f"not healthy in the last verdict: run `gpuprov verify {cluster.typed_file}`"
    return reasons
