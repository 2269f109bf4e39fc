"""What verify judges: each machine of a fleet, how to reach it, and what the catalogue and its lock expect of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import PurePath
from typing import TYPE_CHECKING
from urllib.parse import quote

from provisioner import catalog
from provisioner.lifecycle.session import Cluster
from provisioner.lifecycle.upgrade import journal as upgrade_journal
from provisioner.machines import mounts
from provisioner.plan.models import Plan
from provisioner.plan.roles import prometheus, slurm_controller
from provisioner.rundir.fleet import Node
from provisioner.rundir.release import Release
from provisioner.transport import ssh, ssh_config

if TYPE_CHECKING:
    from provisioner.verify.expectations import Expected
    from provisioner.verify.subject import Subject


def subjects_of(
    cluster: Cluster, nodes: Sequence[Node] | None = None, releases: Mapping[str, Release] | None = None
) -> list[Subject]:
    """One subject a node, the whole fleet by default. A machine that runs an older lock is held to that one; `releases`
    (node name → release) says otherwise."""
    nodes = cluster.nodes() if nodes is None else nodes
    if releases is None:
        releases = upgrade_journal.assigned(cluster, nodes, cluster.lock)
    return [_subject(cluster, node, releases[node.name]) for node in nodes]


def _host_spec(cluster: Cluster, name: str) -> str:
    """How testinfra reaches a node."""
    if name in ssh_config.local(cluster.paths):
        return "local://"
    return f"ssh://{name}?ssh_config={quote(str(cluster.paths.ssh / 'config'))}"


def _subject(cluster: Cluster, node: Node, release: Release) -> Subject:
    from provisioner.verify.subject import Subject

    plan = release.plan
    return Subject(
        name=node.name,
        group=node.group,
        site=node.site,
        machine=node.machine,
        source=ssh.argv(cluster.paths, node.name),
        expected=expected_of(cluster, node.group, plan, shared=mounts.expected(plan, node), image=_image(plan, node)),
        simulated=plan.simulated,
        address=node.private_address,
        host_spec=_host_spec(cluster, node.name),
    )


def expected_of(
    cluster: Cluster, name: str, plan: Plan, *, shared: tuple[Mapping[str, str], ...] = (), image: str | None = None
) -> Expected:
    """What the catalogue and a plan's lock expect of a node of the group `name`. Raises GpuprovError where cluster.yaml
    has no such group."""
    from provisioner.configure.drift import monitoring_units
    from provisioner.verify.expectations import expect

    group = plan.group(name)
    expected = expect(
        group.machine,
        group.gpu,
        group.stack,
        group.spec,
        catalog.load(),
        level=cluster.spec.verify.level,
        diag=cluster.spec.verify.diag,
        simulated=plan.simulated,
        monitoring_units=monitoring_units(plan),
        shared=shared,
        image=image,
    )
    units = (*prometheus.head_units(group, plan), *slurm_controller.units_of(name, plan))
    return replace(expected, units=(*(expected.units or ()), *units))


def _image(plan: Plan, node: Node) -> str | None:
    """The golden image that the lock names for a node, by its own name: however cluster.yaml calls its recipe."""
    golden = plan.images.get(node.group)
    return None if golden is None else f"{PurePath(golden.name.partition('@')[0]).name} {golden.build}"
