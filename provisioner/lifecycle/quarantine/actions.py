"""Quarantine: bad nodes out of service, with an owner and a reason, and back again; what a verdict does by itself and
what people do by command. The rules are in rules.py; this runs the hooks and writes it down.

An entry is written before its node is drained and removed after it was put back, so that whatever is killed is done
again by the next verdict or the same command; the hooks are safe to run twice.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from provisioner.common import ownership
from provisioner.common.errors import GpuprovError, LockedError
from provisioner.common.text import counted, printable
from provisioner.lifecycle import hooks, silencing
from provisioner.lifecycle.quarantine import book as quarantine_book
from provisioner.lifecycle.quarantine.book import OURS, Book, Entry
from provisioner.lifecycle.quarantine.rules import Decision, decide
from provisioner.lifecycle.replace import journal as replace_journal
from provisioner.lifecycle.session import Cluster
from provisioner.lifecycle.upgrade import journal as upgrade_journal
from provisioner.monitoring.breaker_alert import Trip
from provisioner.output.report import QuarantineOutput
from provisioner.rundir import fleet
from provisioner.rundir.fleet import Node
from provisioner.verify.report.document import breaker_document

if TYPE_CHECKING:
    from provisioner.common.levels import Level
    from provisioner.verify.results import Report


def after_verdict(cluster: Cluster, report: Report, nodes: Sequence[Node], level: Level, *, holding: bool) -> Report:
    """Act on a verdict, and give the report with what is in quarantine now. `nodes` are the machines that were judged;
    `holding` says that the caller holds the cluster's lock. Where it does not, the lock is taken if there is something
    to do; a run that is at work is not disturbed, and nothing is done then."""
    decision = _decide(cluster, report, nodes, level)
    if not decision.nothing and not holding:
        try:
            with cluster.exclusively("verify"):
                decision = _decide(cluster, report, nodes, level)  # by what is there now that nobody else is at work
                _act(cluster, decision)
        except LockedError as error:
            cluster.events("quarantine", "warning", f"quarantine is unchanged: {error.message}")
            decision = Decision()
    else:
        _act(cluster, decision)
    report = replace(report, breaker=decision.breaker)
    settle_silences(cluster, report)
    return annotated(cluster, report)


def settle_silences(cluster: Cluster, report: Report | None = None) -> None:
    """Silence the alerts of all nodes that are out of service now, and of no others. `report`: the verdict whose
    breaker is to be an alert; None leaves that alert as it is."""
    if cluster.spec.monitoring.alertmanager is None and not cluster.spec.monitoring.heads:
        return
    try:
        upgrading = dict.fromkeys(upgrade_journal.load(cluster.paths).out_of_service(), "upgrade")
        replacing = dict.fromkeys(replace_journal.load(cluster).nodes, "replace")
        quarantined = {name: f"quarantine: {entry.reason}" for name, entry in quarantined_nodes(cluster).items()}
    except GpuprovError as error:  # whoever needs the damaged record reports it
        cluster.events("quarantine", "warning", f"silences may be out of date: {error}")
    else:
        trip = None if report is None else Trip(report.breaker, _suspects(cluster, report, quarantined))
        silencing.settle(cluster, "quarantine", upgrading | replacing | quarantined, trip=trip)


def _suspects(cluster: Cluster, report: Report, quarantined: Collection[str]) -> set[str]:
    """Nodes that are neither in quarantine nor healthy by this verdict, so that they may still be those for which the
    breaker tripped. None where no verdict puts a node into quarantine."""
    if not cluster.spec.quarantine.automatic:
        return set()
    healthy = {verdict.name for verdict in report.nodes if verdict.ok}
    return {node.name for node in cluster.nodes()} - healthy - {*quarantined}


def annotated(cluster: Cluster, report: Report) -> Report:
    """The report with each node's quarantine."""
    entries = quarantined_nodes(cluster)
    if not entries:
        return report
    documents = {name: QuarantineOutput(**printable(entry.document().to_json())) for name, entry in entries.items()}
    nodes = tuple(replace(v, quarantine=documents[v.name]) if v.name in documents else v for v in report.nodes)
    return replace(report, nodes=nodes)


def quarantined_nodes(cluster: Cluster) -> dict[str, Entry]:
    """What is in quarantine, by node."""
    return quarantine_book.load(cluster.paths).of(cluster.nodes())


def put(cluster: Cluster, names: Sequence[str], reason: str, owner: str) -> dict[str, str]:
    """Quarantine nodes in a person's name: drained, and theirs until somebody releases them. Gives node → why it could
    not be drained. Raises GpuprovError for a name that no node has."""
    nodes = [cluster.node(name) for name in dict.fromkeys(names)]
    with cluster.exclusively("quarantine"):
        store, at = quarantine_book.load(cluster.paths), quarantine_book.utc_timestamp()
        for node in nodes:
            earlier = store.nodes.get(node.name) if store.holds(node) else None
            checks = earlier.checks if earlier else ()
            store.nodes[node.name] = Entry(
                node.id, owner, hooks.plain(reason), earlier.since if earlier else at, checks
            )
        store.save(cluster.paths)
        return _drain(cluster, store, nodes, "quarantine")


def release(cluster: Cluster, names: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Put nodes back into service, whoever put them into quarantine, also those whose machines are gone. Gives those
    that were in none, and node → why it could not be put back. Raises GpuprovError for nodes that an upgrade which is
    under way has out of service: they may be half configured."""
    entries, machines = quarantine_book.load(cluster.paths).nodes, {node.name for node in cluster.nodes()}
    nodes = [
        fleet.departed(name, entries[name].id) if name in entries and name not in machines else cluster.node(name)
        for name in dict.fromkeys(names)
    ]
    with cluster.exclusively("release"):
        journal = upgrade_journal.load(cluster.paths)
        if journal.busy and (moving := [node.name for node in nodes if node.name in journal.out_of_service()]):
            raise GpuprovError(
                f"an upgrade is in progress and has {', '.join(moving)} out of service",
                where=cluster.spec.name,
                hint=f"`gpuprov upgrade {cluster.typed_file}` resumes it and puts the node back once it is proven",
            )
        store = quarantine_book.load(cluster.paths)
        known = [node for node in nodes if node.name in store.nodes]
        bad = resume(cluster, store, known)
        settle_silences(cluster)
    return [node.name for node in nodes if node not in known], bad


def hold(cluster: Cluster, nodes: Sequence[Node], reasons: Mapping[str, str], action: hooks.Action) -> dict[str, str]:
    """Drain nodes whose machines end; the caller holds the cluster's lock. Those that nobody had in quarantine are in
    ours until a machine of their name is proven. `reasons`: by node. Gives node → why it could not be drained."""
    if not nodes:
        return {}
    store, level = quarantine_book.load(cluster.paths), cluster.spec.verify.level
    for node in nodes:
        if not store.holds(node):
            store.nodes[node.name] = Entry(
                node.id, OURS, reasons[node.name], quarantine_book.utc_timestamp(), level=level
            )
    store.save(cluster.paths)
    return _drain(cluster, store, nodes, action)


def put_back(cluster: Cluster, nodes: Sequence[Node], action: hooks.Action) -> None:
    """Put nodes that `hold` took back into service; the caller holds the cluster's lock. One that it does not work for
    stays in quarantine, and the next healthy verdict tries again."""
    resume(cluster, quarantine_book.load(cluster.paths), nodes, action)


def refuse_damaged(cluster: Cluster) -> None:
    """Raise GpuprovError where the records of nodes that are out of service are damaged."""
    quarantine_book.load(cluster.paths)
    upgrade_journal.load(cluster.paths)


def forget(cluster: Cluster) -> None:
    """Have the scheduler forget that nodes are drained whose machines are removed for good: a later machine of the same
    name would stay out of service, and nothing would know why. So it does of nodes whose machines `up` has removed
    before, and of those that an upgrade has left out of service. What the resume command says against it is a warning.
    Raises GpuprovError where a record is damaged, when that is done for the nodes of the other one."""
    machines, errors = {node.name: node for node in cluster.nodes()}, list[GpuprovError]()
    store, journal = Book(), upgrade_journal.Journal()
    try:
        store = quarantine_book.load(cluster.paths)
    except GpuprovError as error:
        errors.append(error)
    try:
        journal = upgrade_journal.load(cluster.paths)
    except GpuprovError as error:
        errors.append(error)
    if cluster.spec.scheduler.slurm is not None and not errors:
        return  # the controller goes with the machines
    out = [machines[name] for name in journal.out_of_service() if name in machines]
    nodes = [machines.get(name) or fleet.departed(name, entry.id) for name, entry in store.nodes.items()]
    nodes += [node for node in out if node.name not in store.nodes]
    reasons = {node.name: "its machine is removed by gpuprov down" for node in nodes}
    for name, message in hooks.call(cluster, "resume", nodes, "release", reasons, share=False).items():
        cluster.events("down", "warning", f"the scheduler may still have it drained: {message}", node=name)
    if errors:
        raise errors[0]


def person() -> str:
    """Who is at the keyboard: the one behind sudo where there is one."""
    name = ownership.person_name()
    return f"{name} (account)" if name == OURS else name


def _decide(cluster: Cluster, report: Report, nodes: Sequence[Node], level: Level) -> Decision:
    store, fleet = quarantine_book.load(cluster.paths), cluster.nodes()
    same = {  # a machine that was replaced meanwhile was not judged
        node.name for node in nodes if node in fleet and (node.name in store.nodes or has_gpus(cluster, node))
    }
    present_nodes = replace(report, nodes=tuple(v for v in report.nodes if v.name in same))
    settings, drains = cluster.spec.quarantine, cluster.spec.drains
    decision = decide(store, present_nodes, fleet, level, settings, at=quarantine_book.utc_timestamp(), drains=drains)
    if (not decision.nothing or decision.breaker) and upgrade_journal.load(cluster.paths).busy:
        cluster.events("quarantine", "warning", "an upgrade is in progress: quarantine is unchanged")
        return Decision()
    return decision


def has_gpus(cluster: Cluster, node: Node) -> bool:
    """Whether a node has GPUs, or may have. No verdict puts one without into quarantine: a head node runs no jobs, and
    takes no GPU node's place."""
    with contextlib.suppress(GpuprovError):  # a machine type that is not known any more
        return cluster.spec.catalog.machine(node.machine).gpu_count > 0
    return True


def _act(cluster: Cluster, decision: Decision) -> None:
    if decision.breaker is not None:
        # The whole sentence stands in the report, which follows on standard output.
        short = f"the breaker tripped: {counted(len(decision.breaker.bad), 'bad node')} untouched, the report says why"
        cluster.events("quarantine", "warning", short, data=breaker_document(decision.breaker).to_json())
    if decision.nothing:
        return
    store, machines = quarantine_book.load(cluster.paths), {node.name: node for node in cluster.nodes()}
    if not cluster.spec.drains:  # else the scheduler may have a name drained that has no machine now
        names = {*machines, *cluster.spec.node_groups()}
        store.nodes = {name: entry for name, entry in store.nodes.items() if name in names}
    store.nodes |= decision.hold
    store.save(cluster.paths)
    for name, entry in decision.hold.items():
        cluster.events("quarantine", "warning", f"in quarantine: {entry.reason}", node=name)
    _drain(cluster, store, [machines[name] for name in decision.drain], "quarantine")
    resume(cluster, store, [machines[name] for name in decision.release])


def _drain(cluster: Cluster, store: Book, nodes: Sequence[Node], action: hooks.Action) -> dict[str, str]:
    """Drain nodes of the book and write down how that went."""
    if not nodes:
        return {}
    reasons = {node.name: store.nodes[node.name].reason for node in nodes}
    bad = hooks.call(cluster, "drain", nodes, action, reasons)
    ran = cluster.spec.drains
    for node in nodes:
        failure = bad.get(node.name, "")
        drained = ran and not failure
        store.nodes[node.name] = replace(store.nodes[node.name], drained=drained, trouble=failure)
        if failure:
            cluster.events("quarantine", "warning", f"not drained: {failure}", node=node.name)
    store.save(cluster.paths)
    return bad


def note_resuming(cluster: Cluster, store: Book, names: Iterable[str]) -> None:
    """Record that nodes of the book may be in service, before they are resumed. If this run is cut off after the hook,
    the next command does not take them for drained."""
    for name in names:
        store.nodes[name] = replace(store.nodes[name], drained=False)
    store.save(cluster.paths)


def resume(cluster: Cluster, store: Book, nodes: Sequence[Node], action: hooks.Action = "release") -> dict[str, str]:
    """Put nodes of the book back into service and forget their entries; one that it did not work for stays."""
    if not nodes:
        return {}
    reasons = {node.name: store.nodes[node.name].reason for node in nodes}
    drained_alone = {node.name for node in nodes if store.nodes[node.name].drained_alone}
    note_resuming(cluster, store, [node.name for node in nodes])
    bad = hooks.call(cluster, "resume", nodes, action, reasons)
    for node in nodes:
        if failure := bad.get(node.name, ""):
            entry = store.nodes[node.name]
            if entry.id != node.id:  # what was the former machine's is from now on that of this one
                entry = replace(entry, id=node.id, owner=OURS, level=None, owed=())
            store.nodes[node.name] = replace(entry, trouble=failure)
            cluster.events("quarantine", "warning", f"not put back into service: {failure}", node=node.name)
        else:
            del store.nodes[node.name]
    store.save(cluster.paths)
    returned = [node.name for node in nodes if node.name not in bad]
    for text, names in (
        ("out of quarantine", [name for name in returned if name not in drained_alone]),
        ("back in service", [name for name in returned if name in drained_alone]),
    ):
        if names:
            cluster.events("quarantine", "done", f"{text}: {', '.join(names)}")
    return bad
