"""Whom a node can borrow that is verified alone: nodes of its group that are proven, in service and not in the run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from provisioner.common.errors import GpuprovError
from provisioner.lifecycle.quarantine import actions as quarantine
from provisioner.lifecycle.replace import journal as replace_journal
from provisioner.lifecycle.session import Cluster
from provisioner.lifecycle.subjects import subjects_of
from provisioner.lifecycle.upgrade import journal as upgrade_journal
from provisioner.rundir import node_state
from provisioner.rundir.fleet import Node
from provisioner.rundir.release import Ledger

if TYPE_CHECKING:
    from provisioner.verify.fabric_run import FindNeighbours, Neighbours
    from provisioner.verify.subject import Subject


def finder(cluster: Cluster, subjects: Sequence[Subject]) -> FindNeighbours:
    """What fabric_run asks for a node that meets nobody in a run of `subjects`. The records are read when it asks: few
    runs need them. Whether a neighbour is idle is asked of the neighbour itself, later."""
    measured = {subject.name for subject in subjects if subject.expected.level != "quick"}

    def find(subject: Subject) -> Neighbours:
        from provisioner.verify.fabric_run import Neighbours

        nodes = {node.name: node for node in cluster.nodes()}
        candidates = sorted((node for node in nodes.values() if _is_neighbour(node, subject)), key=_sort_key)
        if not candidates:
            return Neighbours()
        try:
            ledger = Ledger(cluster.paths)
            refused = _refused(cluster, candidates, ledger, measured)
            free = [node for node in candidates if node.name not in refused]
            subject_node = nodes.get(subject.name)
            return Neighbours(
                subjects_of(cluster, free) if free else (),
                refused,
                proven=subject_node is not None and ledger.of(subject_node) is not None,
                command=_command(cluster, subject),
            )
        except GpuprovError as error:  # a damaged record lends nobody, and costs no node its verdict
            return Neighbours(refused={node.name: f"{error.where}: {error.message}" for node in candidates})

    return find


def _is_neighbour(node: Node, subject: Subject) -> bool:
    return (node.site, node.group) == (subject.site, subject.group) and node.name != subject.name


def _sort_key(node: Node) -> tuple[str, int, str]:
    """The order of cluster.yaml within a group: train-2 before train-10."""
    stem, _, number = node.name.rpartition("-")
    return (stem, int(number), "") if number.isdigit() else ("", 0, node.name)


def _refused(cluster: Cluster, nodes: Sequence[Node], ledger: Ledger, measured: set[str]) -> dict[str, str]:
    """Why a node can be no partner, by its name; those that can are not in it."""
    quarantined, state = quarantine.quarantined_nodes(cluster), node_state.load(cluster.paths)
    moving = {*upgrade_journal.load(cluster.paths).out_of_service()}
    replaced = replace_journal.load(cluster).nodes
    refused = {}
    for node in nodes:
        if node.name in measured:
            refused[node.name] = "verified in this run, and could take no part"
        elif node.name in quarantined:
            refused[node.name] = "in quarantine"
        elif node.name in moving:
            refused[node.name] = "an upgrade has it out of service"
        elif node.name in replaced:
            refused[node.name] = "it is being replaced"
        elif ledger.of(node) is None or state.of(node.name).ok is not True:
            refused[node.name] = "not proven itself"
    return refused


def _command(cluster: Cluster, subject: Subject) -> str:
    """What proves the node later."""
    level = subject.expected.level
    deeper = f" --level {level}" if level != cluster.spec.verify.level else ""
    return f"gpuprov verify {cluster.typed_file} --node {subject.name}{deeper}"
