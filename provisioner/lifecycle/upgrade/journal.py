"""How far an upgrade has come: upgrade.json in the run directory, written whole before and after every step, so that a
run that was killed anywhere goes on; and what follows from it for `up` and `status`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, ClassVar

from pydantic.dataclasses import dataclass

from provisioner.common.errors import GpuprovError
from provisioner.common.paths import ClusterPaths
from provisioner.common.text import counted, few
from provisioner.lifecycle import diff
from provisioner.lifecycle.rollout import Rollout
from provisioner.output.status import NodeUpgrade
from provisioner.rundir import records
from provisioner.rundir.release import Ledger, assigned_releases, identity, release_of

if TYPE_CHECKING:
    from provisioner.lifecycle.session import Cluster
    from provisioner.machines.base import Planned
    from provisioner.rundir.fleet import Node
    from provisioner.rundir.release import Release
    from provisioner.stack.models import Lock


@dataclass(config=records.STRICT, slots=True)
class Journal(Rollout):
    """One upgrade. `to` and the nodes' `source` are ids of releases (applied.Release); `failed` has every release that
    was rolled back on this cluster, with the reason, and outlives the upgrade."""

    FILE: ClassVar[str] = "upgrade.json"
    REPAIR: ClassVar[str] = (
        "check with `gpuprov status` which nodes are out of service, put them back, then remove the file"
    )

    rollback_all: bool = False
    failed: dict[str, str] = field(default_factory=dict)

    def needs(self) -> set[str]:
        """Releases that must stay to be had."""
        return {release for release in (self.to, *(p.source for p in self.nodes.values())) if release}

    def save(self, paths: ClusterPaths) -> None:
        records.save(paths, self)


def load(paths: ClusterPaths) -> Journal:
    """What is known of the last upgrade; one that is done where there never was any. Raises DamagedFileError: nodes may
    be out of service, and nobody would know."""
    return records.load(paths, Journal) or Journal()


def other_locks(cluster: Cluster, lock: Lock) -> list[Lock]:
    """Locks other than this one that machines run which cluster.yaml wants, or that an upgrade may still bring them to.
    Of an upgrade that is over, those that are kept."""
    ledger, desired, journal = Ledger(cluster.paths), diff.desired(cluster), load(cluster.paths)
    ids = {*ledger.in_use(node for node in cluster.nodes() if node.name in desired)}
    ids |= {release for release in journal.needs() if journal.busy or ledger.has(release)}
    return [ledger.lock(release) for release in sorted(ids - {identity(lock)})]


def assign(cluster: Cluster, nodes: Sequence[Node], lock: Lock) -> dict[str, Release]:
    """Node → the release that `up` holds it to. A machine that was never proven gets what is wanted; where that was
    rolled back on this cluster, what most of its fleet runs. Raises GpuprovError while an upgrade is under way."""
    journal = load(cluster.paths)
    if journal.busy:
        raise _in_progress(cluster, journal, f"`gpuprov upgrade {cluster.typed_file}` resumes it")
    return assigned(cluster, nodes, lock)


def refuse_resized(cluster: Cluster, sites: Collection[str]) -> None:
    """Raise GpuprovError where an upgrade is under way and cluster.yaml wants other nodes at these sites than there
    are: nothing is bought or removed in its midst. Machines that were lost are made again."""
    journal, spec = load(cluster.paths), cluster.spec
    if not journal.busy:
        return
    if not cluster.nodes():  # nodes.json was lost: `up` takes the machines in before this is asked again
        return
    desired = {name for name, group in diff.desired(cluster).items() if spec.site_of(group) in sites}
    recorded = {node.name for node in cluster.nodes() if node.site in sites}
    # Nodes that the upgrade began with and nodes.json lacks were lost with that file: `up` takes them in.
    other = (desired ^ recorded) - (desired & journal.nodes.keys())
    if other:
        unwanted = {node.name for node in cluster.nodes()} - set(diff.desired(cluster))
        names, command = (
            few(sorted(other | unwanted), 5, ","),
            f"`gpuprov upgrade {cluster.typed_file}` brings it to its end",
        )
        if not unwanted:  # `upgrade` goes on without machines that are not there
            raise _in_progress(cluster, journal, f"{command}; then `gpuprov up {cluster.typed_file}` creates {names}")
        raise _in_progress(cluster, journal, f"take the change of {names} back, and {command}; then make the change")


def refuse_other_hosts(cluster: Cluster, planned: Iterable[Planned]) -> None:
    """Raise GpuprovError where an upgrade is under way and cluster.yaml gives one of its nodes another host: the
    journal is of the machine that the node was."""
    moved = [action.node for site in planned if site.hosts for action in site.actions if action.what == "replace"]
    journal = load(cluster.paths)
    if moved and journal.busy:
        end = f"`gpuprov upgrade {cluster.typed_file}` brings it to its end"
        hint = f"take the change of {few(sorted(moved), 5, ',')} back, and {end}; then make the change"
        raise _in_progress(cluster, journal, hint)


def _in_progress(cluster: Cluster, journal: Journal, hint: str) -> GpuprovError:
    message = f"an upgrade is in progress ({len(journal.at('moved'))} of {counted(len(journal.nodes), 'node')} moved)"
    return GpuprovError(message, where=cluster.spec.name, hint=hint)


def assigned(cluster: Cluster, nodes: Sequence[Node], lock: Lock) -> dict[str, Release]:
    """Node → the release that `up` holds it to, whatever is under way."""
    journal = load(cluster.paths)
    releases = assigned_releases(cluster.spec, Ledger(cluster.paths), nodes, lock)
    if identity(lock) in journal.failed:
        ledger = Ledger(cluster.paths)
        counted = Counter(release for node in nodes if (release := ledger.of(node)) is not None)
        common_release = release_of(cluster.spec, ledger.lock(counted.most_common(1)[0][0])) if counted else None
        for node in nodes:
            if common_release and ledger.of(node) is None and node.group in common_release.lock.groups:
                releases[node.name] = common_release
    return releases


def needs(cluster: Cluster) -> set[str]:
    """Releases whose locks an upgrade needs, finished or not."""
    return load(cluster.paths).needs()


def upgrade_state(journal: Journal, name: str, runs: str | None) -> NodeUpgrade | None:
    """What `status` says of a node in an upgrade; None where it has no part in one, or where all is
    well by now."""
    position = journal.nodes.get(name)
    if position is None or (not journal.busy and runs == journal.to and not position.reason):
        return None
    return NodeUpgrade(step=position.step, reason=position.reason)
