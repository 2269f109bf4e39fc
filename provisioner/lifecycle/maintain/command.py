"""`gpuprov maintain`: patches, clean-up and reboots in the window of cluster.yaml. The order is rollout.py's, what is
done to nodes in actions.py; this chooses the nodes and says how it ended."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from provisioner.common.errors import Exit, GpuprovError
from provisioner.common.text import counted
from provisioner.lifecycle import machines, rollout
from provisioner.lifecycle.in_service import out_of_service
from provisioner.lifecycle.maintain import journal as maintenance_journal
from provisioner.lifecycle.maintain.actions import MaintenanceActions
from provisioner.lifecycle.maintain.journal import Journal
from provisioner.lifecycle.maintain.node_work import Look
from provisioner.lifecycle.quarantine import actions as quarantine
from provisioner.lifecycle.quarantine import book as quarantine_book
from provisioner.lifecycle.session import Cluster
from provisioner.lifecycle.upgrade import journal as upgrade_journal
from provisioner.lifecycle.upgrade.command import batch_size
from provisioner.output.maintain import MaintainNode, MaintainOutput, MaintainStep
from provisioner.rundir import maintained
from provisioner.rundir.fleet import Node
from provisioner.rundir.maintained import Maintained
from provisioner.spec.maintenance import Maintenance

Confirm = Callable[[dict[str, list[str]], int, list[str]], bool]
"""Asks a person: node → what it needs, nodes in a batch, the canaries."""
Clock = Callable[[], datetime]

LEAST_FREED = 100 << 20
"""Bytes from which clean-up alone takes a node out of service."""


def utc_now() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line says. `at_once`: also outside of the window."""

    dry_run: bool = False
    at_once: bool = False


@dataclass(slots=True)
class Outcome:
    """What one call did. `needs`: node → what it needed; `results`: node → what was done on it by this call; `closed`:
    the window ended before all had their turn."""

    journal: Journal
    dry_run: bool = False
    needs: dict[str, list[str]] = field(default_factory=dict)
    looks: dict[str, Look] = field(default_factory=dict)
    results: dict[str, Maintained] = field(default_factory=dict)
    declined: bool = False
    closed: bool = False
    stopped: str = ""
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        """Every node that needed it was maintained and is healthy and in service; a dry run: all could be asked."""
        steps = {progress.step for progress in self.journal.nodes.values()}
        return not self.stopped and steps <= ({"moved", "waiting"} if self.dry_run else {"moved"})

    @property
    def exit(self) -> Exit:
        return Exit.OK if self.ok or self.declined else Exit.CHECK_FAILED


def maintain(cluster: Cluster, options: Options, *, confirm: Confirm, clock: Clock = utc_now) -> Outcome:
    """Maintain the fleet, or go on where a call before this one was stopped. Raises GpuprovError for what can't be
    begun: no window is open, no fleet, an upgrade that is in progress, too many nodes in quarantine."""
    settings, began = cluster.spec.maintenance, time.monotonic()
    closes = None if options.at_once or options.dry_run else _window_end(cluster, settings, clock())
    if not cluster.nodes():
        hint = f"run `gpuprov up {cluster.typed_file}` first"
        raise GpuprovError("there is no fleet yet", where=str(cluster.file), hint=hint)
    maintenance_journal.load(cluster.paths)  # raises where it is damaged, before anything is done
    maintained.load(cluster.paths)
    with cluster.exclusively("maintain", look=options.dry_run) as run_dir:
        machines.refuse_undone(cluster)
        nodes = [n for n in cluster.nodes() if n.group in (settings.groups or cluster.spec.groups)]
        releases = upgrade_journal.assign(cluster, nodes, cluster.lock)
        journal = maintenance_journal.load(cluster.paths)
        journal.forget(nodes)
        actions = MaintenanceActions(cluster, nodes, releases, journal, run_dir)
        done = Outcome(journal, options.dry_run, results=actions.results, looks=actions.looks)
        if options.dry_run or not journal.busy:
            _begin(cluster, journal, actions, nodes, done)
        else:
            _go_on(cluster, journal, actions, done)
        if not options.dry_run:
            done.stopped = _maintain(cluster, journal, actions, done, confirm, closes, clock)
        done.seconds = round(time.monotonic() - began, 1)
        if not options.dry_run and not done.declined:
            cluster.events("maintain", "done" if done.ok else "failed", summary(done))
    return done


def _maintain(
    cluster: Cluster, journal: Journal, actions: MaintenanceActions, done: Outcome, confirm: Confirm,
    closes: datetime | None, clock: Clock,
) -> str:  # fmt: skip
    """Do what the journal has; why it stopped, empty where it did not."""
    canaries = _canaries(cluster, journal)
    if journal.at("waiting") or journal.out_of_service():
        turn = {name: done.needs.get(name, ["goes on"]) for name in (*journal.out_of_service(), *journal.at("waiting"))}
        if not confirm(turn, journal.batch, journal.at("waiting")[:canaries]):
            done.declined = True
            return ""
    journal.save(cluster.paths)

    def may_begin() -> bool:
        if journal.reason:
            return False
        done.closed = closes is not None and clock() >= closes and bool(journal.at("waiting"))
        return not done.closed

    def fail(drained: Sequence[str], bad: Mapping[str, str]) -> None:
        """No way back from a patch: what is bad stays out of service, what is good returns, nothing else is touched."""
        journal.reason = rollout.summarise_bad(bad)
        for name in drained:
            progress = journal.nodes[name]
            if name in bad:
                progress.step, progress.reason = "stuck", bad[name]
                actions.keep_out(name, bad[name])
                actions.report_event("failed", f"stays out of service: {bad[name]}", name)
            else:
                progress.step = "proven"
        actions.record(drained, journal.to)

    try:
        rollout.advance(
            journal, actions, lambda: journal.save(cluster.paths), canaries=canaries, fail=fail, may_begin=may_begin
        )
    except rollout.Stopped as error:
        return str(error)
    return journal.reason


def _window_end(cluster: Cluster, settings: Maintenance, moment: datetime) -> datetime:
    """When the window that is open now closes. Raises GpuprovError where none is open."""
    if settings.window is None:
        message = "cluster.yaml has no maintenance.window, so nothing is done by itself"
        raise GpuprovError(message, where=str(cluster.file), hint="add one, or pass --now")
    closes = settings.window.closes(moment)
    if closes is None:
        opens = settings.window.opens(moment)
        message = f"the maintenance window is closed until {opens:%a %Y-%m-%d %H:%M} {settings.window.zone}"
        out = maintenance_journal.load(cluster.paths).out_of_service()
        if out:
            message += f"; an interrupted run has {', '.join(out)} out of service"
        hint = "pass --now to do it at once" + (", or put them back with `gpuprov verify`" if out else "")
        raise GpuprovError(message, where=str(cluster.file), hint=hint)
    return closes


def _begin(
    cluster: Cluster, journal: Journal, actions: MaintenanceActions, nodes: Sequence[Node], done: Outcome
) -> None:
    """Look at the nodes, and begin with those that need something. What is left out stands in the journal, too."""
    last = maintained.load(cluster.paths)
    # Those first that had their turn longest ago: a short window would never reach the last ones.
    nodes = sorted(nodes, key=lambda node: row.at if (row := last.of(node)) else "")
    excluded = out_of_service(cluster, nodes)
    present = [node.name for node in nodes if node.name not in excluded]
    actions.report_event("started", f"asking {counted(len(present), 'node')} what they need")
    excluded |= {
        name: f"could not be asked: {reason}" for name, reason in actions.look(present, private=done.dry_run).items()
    }
    looks = {name: actions.looks[name] for name in present if name in actions.looks}
    done.needs = {name: phrases for name, look in looks.items() if (phrases := needs(cluster, look))}
    settings = cluster.spec.maintenance
    groups: dict[str, list[str]] = {}
    for node in nodes:
        if node.name in done.needs:
            groups.setdefault(node.group, []).append(node.name)
    first = [name for names in groups.values() for name in names[: settings.canary]]
    bound = cluster.spec.quarantine.bound(len(cluster.nodes())) - len(quarantine.quarantined_nodes(cluster))
    if done.needs and bound < 1 and not done.dry_run:
        raise GpuprovError(
            "as many nodes are in quarantine as may be: no further one may leave service",
            where=cluster.spec.name,
            hint=f"look at them first: `gpuprov status {cluster.typed_file}`",
        )
    size = max(1, min(batch_size(settings.batch, len(done.needs)), bound))
    rollout.start(journal, quarantine_book.utc_timestamp(), dict.fromkeys(done.needs, ""), first=first, batch=size)
    journal.sets = {}
    for name, reason in excluded.items():
        journal.nodes[name] = rollout.Place("", "left", reason)
        actions.report_event("warning", f"skipped: {reason}", name)


def _go_on(cluster: Cluster, journal: Journal, actions: MaintenanceActions, done: Outcome) -> None:
    """Take up an interrupted run. A node that was put back since is drained again; one that a person or a verdict has
    taken over since is left to them."""
    actions.report_event("started", f"going on with the maintenance of {journal.to}")
    entries = quarantine.quarantined_nodes(cluster)
    for name in (*journal.out_of_service(), *journal.at("waiting")):
        progress, entry = journal.nodes[name], entries.get(name)
        if entry is not None and progress.step != "stuck" and (progress.step == "waiting" or not entry.drained_alone):
            progress.step, progress.reason = "left", f"in quarantine by {entry.owner}: {entry.reason}"
            actions.report_event("warning", f"skipped: {progress.reason}", name)
        elif progress.step == "drained" and not actions.is_drained(name):
            progress.step = "draining"
    waiting = journal.at("waiting")
    for name, reason in (actions.look(waiting, private=False) if waiting else {}).items():
        journal.nodes[name].step, journal.nodes[name].reason = "left", f"could not be asked: {reason}"
    done.needs = {name: needs(cluster, actions.looks[name]) or ["goes on"] for name in waiting if name in actions.looks}


def needs(cluster: Cluster, look: Look) -> list[str]:
    """What a node needs, one short phrase each; empty where it needs nothing."""
    work, phrases = cluster.spec.maintenance.work, []
    if look.packages:
        phrases.append(f"{counted(len(look.packages), 'security update')}")
    freeable = sum(look.freeable.values())
    if freeable >= LEAST_FREED or (phrases and freeable >= 1 << 20):
        phrases.append(f"clean: {freeable / 2**20:,.0f} MiB")
    if "reboot" in work and look.reboot.reasons and not look.reboot.blocked:
        phrases.append(f"reboot: {'; '.join(look.reboot.reasons)}")
    return phrases


def _canaries(cluster: Cluster, journal: Journal) -> int:
    groups = {cluster.node(name).group for name in journal.nodes}
    return max(1, cluster.spec.maintenance.canary * len(groups))


def summary(done: Outcome) -> str:
    """The outcome in one line."""
    journal = done.journal
    moved, waiting, skipped = (len(journal.at(step)) for step in ("moved", "waiting", "left"))
    also = [f"{skipped} left out"] if skipped else []
    if done.declined:
        return "nothing was done"
    if done.dry_run:
        return "; ".join([f"{counted(waiting, 'node')} of {waiting + skipped + _idle(done)} need maintenance", *also])
    if not journal.nodes:
        return "no node needs maintenance"
    also += [f"{waiting} not begun" + (": the window has closed" if done.closed else "")] if waiting else []
    also += [f"stopped: {done.stopped}"] if done.stopped else []
    return "; ".join([f"{moved} of {counted(len(journal.nodes), 'node')} maintained", *also])


def _idle(done: Outcome) -> int:
    return len([name for name in done.looks if name not in done.journal.nodes])


STEPS: dict[str, MaintainStep] = {"moved": "done", "waiting": "missed", "left": "left", "stuck": "failed"}


def document(cluster: Cluster, done: Outcome) -> MaintainOutput:
    """The `maintain` document: what was done, left and missed."""
    rows = []
    settings = cluster.spec.maintenance
    for node in cluster.nodes():
        if settings.groups and node.group not in settings.groups:
            continue
        progress, look, result = (
            done.journal.nodes.get(node.name), done.looks.get(node.name), done.results.get(node.name)
        )  # fmt: skip
        step: MaintainStep = STEPS.get(progress.step, "interrupted") if progress else "unneeded"
        if step == "missed" and done.dry_run:
            step = "due"
        waiting = result.waiting if result else look.waiting if look else {}
        rows.append(
            MaintainNode(
                name=node.name,
                group=node.group,
                step=step,
                reason=progress.reason if progress else "",
                needs=done.needs.get(node.name, []),
                updates=look.packages if look else {},
                waiting=waiting,
                packages=done.journal.sets.get(node.group, {}) if result else {},
                freed=sum(result.freed.values()) if result else 0,
                freeable=sum(look.freeable.values()) if look else 0,
                rebooted=result.rebooted if result else "",
                due=result.due if result else "; ".join(look.reboot.reasons) if look else "",
            )
        )
    return MaintainOutput(
        cluster=cluster.spec.name,
        sandbox=cluster.sandbox,
        ok=done.ok,
        dry_run=done.dry_run,
        message=summary(done),
        window_closed=done.closed,
        nodes=rows,
        seconds=done.seconds,
    )
