"""Bring nodes to the lock that each is held to: look at all of them once, run the roles on those that differ, look
again at those alone. On a node that was proven as it is nothing is started, because a job may run there."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from provisioner.common.text import counted
from provisioner.lifecycle import block_ends
from provisioner.lifecycle.quarantine import book as quarantine_book
from provisioner.lifecycle.session import Cluster
from provisioner.lifecycle.subjects import subjects_of
from provisioner.lifecycle.upgrade import journal as upgrade_journal
from provisioner.machines import mounts
from provisioner.rundir import node_state
from provisioner.rundir.fleet import Node
from provisioner.rundir.release import Ledger, Release

if TYPE_CHECKING:
    from provisioner.configure.drift import DesiredState, Difference, Pass
    from provisioner.configure.run import Outcome
    from provisioner.monitoring.head import HeadArchive
    from provisioner.verify.bundle import Bundle
    from provisioner.verify.parsers.stamp import RoleStamp
    from provisioner.verify.subject import Subject

Differences = dict[str, tuple["Difference", ...]]
"""Node name → what on it is not as locked."""

MOST_LINES = 4
"""Differences of one node that are worth a line each in an event."""


@dataclass(slots=True)
class ReconcileResult:
    """What `reconcile` found and did. `subjects` carry the bundle that their verdict is made of; `drift` is what is
    left on each node; `failed` says of a node why its roles broke off."""

    subjects: list[Subject]
    drift: Differences
    before: Differences = field(default_factory=dict)
    configured: tuple[str, ...] = ()
    failed: dict[str, str] = field(default_factory=dict)
    outcomes: dict[str, Outcome] = field(default_factory=dict)

    def clean(self, node: str) -> bool:
        """Whether nothing is left on the node that the roles should have mended."""
        return node not in self.failed and not any(d.mended for d in self.drift.get(node, ()))


def head_archives(cluster: Cluster) -> dict[str, HeadArchive]:
    """Group of head nodes → the files of what they run."""
    if not cluster.spec.monitoring.heads:
        return {}
    from provisioner.monitoring import head

    return head.archives(cluster.spec, cluster.nodes(), cluster.paths, simulated=cluster.sandbox)


def role_variables(
    cluster: Cluster, releases: Mapping[str, Release], archives: Mapping[str, HeadArchive] | None = None
) -> dict[str, Any]:
    """What the roles are told beside the inventory's groups: when blocks end, the sandbox's mirror, and the file
    systems that Terraform has made, what head nodes run. `archives`: of `head_archives`, where the caller has them."""
    variables = block_ends.variables(cluster)
    for release in releases.values():
        for site in release.plan.sites():
            mirror = cluster.providers.at(site).sandbox_mirror
            variables |= mirror.role_variables() if mirror else {}
        variables |= mounts.variables(release.plan, cluster.nodes())
    if cluster.spec.monitoring.heads:
        from provisioner.monitoring import head

        archives = head_archives(cluster) if archives is None else archives
        variables |= head.variables(cluster.spec, cluster.paths, archives)
    if cluster.spec.scheduler.slurm is not None:
        from provisioner.scheduler import slurm_files

        variables |= slurm_files.variables(cluster.spec, cluster.nodes(), simulated=cluster.sandbox)
    return variables


def desired_states(nodes: Sequence[Node], releases: Mapping[str, Release], subjects: Sequence[Subject],
                   variables: dict[str, Any]) -> dict[str, DesiredState]:  # fmt: skip
    """Node name → what it is compared with."""
    from provisioner.configure import drift, stamps

    units = {subject.name: subject.expected.units or () for subject in subjects}
    known: dict[tuple[str, str], dict[str, RoleStamp]] = {}
    states = {}
    for node in nodes:
        release = releases[node.name]
        key = (release.id, node.group)
        if key not in known:
            known[key] = stamps.desired(release.plan, node.group, variables)
        group = release.plan.group(node.group)
        states[node.name] = drift.desired_state(release.plan, group, known[key], units[node.name])
    return states


def reconcile(
    cluster: Cluster,
    nodes: Sequence[Node],
    releases: Mapping[str, Release],
    run_dir: Path,
    *,
    new: Collection[str] = (),
) -> ReconcileResult:
    """Compare the nodes with the lock, run the roles on those that differ, compare those again. `new` are machines that
    were made a moment ago: they are not asked, only configured; of a golden image they are asked what they have, and
    nothing that wakes a GPU. Raises ConfigureError where Ansible itself did not run."""
    run = _Reconciliation(cluster, nodes, releases, run_dir, new)
    drifted = run.compare()
    for role_passes in run.attempts(drifted):
        if drifted:
            drifted = run.attempt(role_passes, drifted)
    run.warn(drifted)
    return run.finish()


class _Reconciliation:
    """One run of `reconcile`."""

    def __init__(
        self, cluster: Cluster, nodes: Sequence[Node], releases: Mapping[str, Release], run_dir: Path,
        new: Collection[str],
    ) -> None:  # fmt: skip
        self._cluster, self._nodes, self._releases, self._run_dir = cluster, nodes, releases, run_dir
        self._subjects = subjects_of(cluster, nodes, releases)
        self._head_archives = head_archives(cluster)
        self._variables = role_variables(cluster, releases, self._head_archives)
        self._desired = desired_states(nodes, releases, self._subjects, self._variables)
        self._settled = proven(cluster, nodes, releases)
        self._bundles: dict[str, Bundle] = {}
        self._result = ReconcileResult(self._subjects, {})
        self._imaged = {n.name for n in nodes if n.name in new and n.group in releases[n.name].lock.images}
        self._unprobed = {*new} - self._imaged

    def compare(self) -> list[Node]:
        """Probe the nodes. Gives those that differ from their lock, and those that were not asked."""
        from provisioner.configure import drift

        if self._settled:
            message = f"quick checks, no load: {counted(len(self._settled), 'node')} verified with this lock"
            self._cluster.events("configure", "log", message)
        probed = [_lightly(s) if s.name in self._settled else s for s in self._subjects if s.name not in self._unprobed]
        doing = f"comparing {counted(len(probed), 'node')} with the lock"
        self._bundles = look(self._cluster, probed, doing, for_drift=self._imaged)
        differences = {name: drift.differences(bundle, self._desired[name]) for name, bundle in self._bundles.items()}
        self._result.drift, self._result.before = differences, dict(differences)
        drifted = [n for n in self._nodes if n.name in self._unprobed or any(d.mended for d in differences[n.name])]
        as_locked = self._imaged - {node.name for node in drifted}
        complete = [subject for subject in probed if subject.name in as_locked]
        self._bundles |= look(self._cluster, complete, f"looking at {counted(len(complete), 'node')}")
        for node in drifted:
            _describe(self._cluster, node.name, differences.get(node.name, ()))
        return drifted

    def attempts(self, drifted: Sequence[Node]) -> list[Sequence[Pass]]:
        """The passes of each attempt: the roles that answer for what differs; then, on nodes that still differ, all
        roles once. Where a node was not asked, or nothing less is enough, all roles are the only attempt."""
        from provisioner.configure import drift

        everything = [drift.EVERYTHING]
        if self._unprobed:
            return [everything]
        differences = [d for node in drifted for d in self._result.drift.get(node.name, ())]
        targeted = drift.passes(differences)
        return [targeted, everything] if targeted not in ([], everything) else [everything]

    def attempt(self, role_passes: Sequence[Pass], drifted: Sequence[Node]) -> list[Node]:
        """Run these passes on the nodes, each on those where none before it failed, and compare again. Gives those that
        still differ."""
        from provisioner.configure import drift

        for index, role_pass in enumerate(role_passes):
            working = [node for node in drifted if index == 0 or node.name not in self._result.failed]
            if working:
                _configure(
                    self._cluster, self._nodes, working, self._releases, self._variables, self._head_archives,
                    self._run_dir, self._result, role_pass,
                )  # fmt: skip
        names = {node.name for node in drifted}
        doing = f"comparing {counted(len(drifted), 'configured node')} with the lock"
        bundles = look(self._cluster, [subject for subject in self._subjects if subject.name in names], doing)
        self._bundles |= bundles
        self._result.drift |= {name: drift.differences(b, self._desired[name]) for name, b in bundles.items()}
        return [node for node in drifted if not self._result.clean(node.name)]

    def warn(self, drifted: Sequence[Node]) -> None:
        """Of nodes that still differ, though no role failed."""
        for node in drifted:
            if node.name not in self._result.failed:
                messages = [d.message for d in self._result.drift[node.name] if d.mended][:MOST_LINES]
                message = f"still differs from the lock: {'; '.join(messages)}"
                self._cluster.events("configure", "warning", message, node=node.name)

    def finish(self) -> ReconcileResult:
        """The result, with the bundles that the verdict is made of."""
        light = self._settled - set(self._result.configured)
        self._result.subjects = [
            _with_bundle(_lightly(subject) if subject.name in light else subject, self._bundles[subject.name])
            for subject in self._subjects
        ]
        return self._result


def proven(cluster: Cluster, nodes: Sequence[Node], releases: Mapping[str, Release]) -> set[str]:
    """Names of the nodes that the run before this one left healthy with the lock that they are held to; without those
    that stay in quarantine until a check has passed which light checks do not ask."""
    ledger, state = Ledger(cluster.paths), node_state.load(cluster.paths)
    owing = {name for name, entry in quarantine_book.load(cluster.paths).of(nodes).items() if entry.owed}
    return {
        node.name
        for node in nodes
        if ledger.of(node) == releases[node.name].id and state.of(node.name).ok is True and node.name not in owing
    }


def _with_bundle(subject: Subject, bundle: Bundle) -> Subject:
    """The subject with what was read of it; what its level starts on the node still goes the way that was taken."""
    from provisioner.verify.bundle import Bundle

    assert not isinstance(subject.source, Bundle)
    return replace(subject, source=bundle, reach=subject.source)


def _lightly(subject: Subject) -> Subject:
    return replace(subject, expected=replace(subject.expected, level="quick"))


def look(
    cluster: Cluster, subjects: Sequence[Subject], doing: str, *, for_drift: Collection[str] = ()
) -> dict[str, Bundle]:
    """Probe these nodes, one round trip each: what tells drift and what verify judges; of those `for_drift` the first
    alone. `doing` is said of it."""
    from provisioner.verify.bundle import Bundle
    from provisioner.verify.collect import collect
    from provisioner.verify.request import drift_request, request_for, waits_until

    targets = {s.name: s.source for s in subjects if not isinstance(s.source, Bundle)}
    requests = {s.name: (drift_request if s.name in for_drift else request_for)(s.expected) for s in subjects}
    if not targets:
        return {}
    cluster.events(
        "configure", "started", doing, total=len(targets), until=waits_until(requests.values()),
        data={"nodes": list(targets)},
    )  # fmt: skip
    return collect(targets, requests, events=cluster.events, stage="configure")


def _configure(
    cluster: Cluster,
    nodes: Sequence[Node],
    drifted: Sequence[Node],
    releases: Mapping[str, Release],
    variables: dict[str, Any],
    archives: Mapping[str, HeadArchive],
    run_dir: Path,
    result: ReconcileResult,
    run: Pass,
) -> None:
    """Run the roles, once for each release; what failed is noted, not raised."""
    from provisioner.configure import inventory, stamps
    from provisioner.configure.run import configure

    if archives:
        from provisioner.monitoring import head

        head.write(archives)

    result.configured = tuple(dict.fromkeys([*result.configured, *(node.name for node in drifted)]))
    for release in {releases[node.name].id: releases[node.name] for node in drifted}.values():
        release_nodes = [node for node in drifted if releases[node.name].id == release.id]
        tags, half = run.roles, f" ({run.half} only)" if run.half else ""
        which = f"role{'s' * (len(tags) > 1)} {', '.join(sorted(tags))}" if 0 < len(tags) <= MOST_LINES else "the roles"
        message = f"running {which}{half} on {counted(len(release_nodes), 'node')}"
        cluster.events("configure", "started", message, total=len(release_nodes))
        theirs = _held_to(cluster, release, nodes, releases)
        known = {group.name: stamps.desired(release.plan, group.name, variables) for group in release.plan.groups}
        old = Ledger(cluster.paths).obsolete(release.lock)
        written = inventory.write(cluster.paths, theirs, release.plan, variables, known, old)
        applying = frozenset(role for node in release_nodes for role in known[node.group])  # to skip a task costs, too
        these = run._replace(roles=run.roles or applying)
        outcomes = configure(
            cluster.paths, release_nodes, written, run_dir, cluster.events, these, push=cluster.spec.configure.push
        )
        result.outcomes |= outcomes
        for name, outcome in outcomes.items():
            result.failed.pop(name, None)
            if outcome.failed:
                result.failed[name] = "; ".join(outcome.failed)


def update_heads(
    cluster: Cluster, nodes: Sequence[Node], releases: Mapping[str, Release], run_dir: Path
) -> dict[str, str]:
    """Tell Prometheus and Slurm of each head node at these nodes' sites which nodes there are now. `releases`: of the
    head nodes. Gives what failed, by node."""
    from provisioner.configure.drift import Pass

    sites = {node.site for node in nodes}
    heads = [n for n in cluster.nodes() if n.name in releases and n.site in sites]
    result = ReconcileResult([], {})
    if heads:
        archives = head_archives(cluster)
        variables = role_variables(cluster, releases, archives)
        roles = Pass(frozenset({"prometheus", "slurm_controller"}), "configure")
        _configure(cluster, heads, heads, releases, variables, archives, run_dir, result, roles)
    return result.failed


def _held_to(cluster: Cluster, release: Release, nodes: Sequence[Node], releases: Mapping[str, Release]) -> list[Node]:
    """All nodes of the cluster that are held to a release: the inventory is of them, whoever is configured now."""
    known = {node.name for node in nodes}
    other_nodes = [n for n in cluster.nodes() if n.name not in known and n.group in release.lock.groups]
    of = {**upgrade_journal.assigned(cluster, other_nodes, release.lock), **releases}
    return [node for node in (*nodes, *other_nodes) if of[node.name].id == release.id]


def _describe(cluster: Cluster, node: str, differences: Sequence[Difference]) -> None:
    messages = [difference.message for difference in differences if difference.mended] or ["a new machine"]
    more = f" and {len(messages) - MOST_LINES} more" if len(messages) > MOST_LINES else ""
    cluster.events("configure", "log", "; ".join(messages[:MOST_LINES]) + more, node=node, data={"all": messages})
