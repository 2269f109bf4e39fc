"""The fleet's own record of what its nodes reach, and how that went run after run, in the run directory.

baseline.json is what somebody declared to be right (`gpuprov verify FILE --save-baseline`); verify.baseline says what
is in it. measures.jsonl has a line for each node and run that measured something:

    {"node", "id", "level", "at", "simulated", "measures": {name: value}}

measures.jsonl is a picture and proves nothing: damaged lines of it are left out.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from provisioner.common import directories, stored
from provisioner.common.errors import DamagedFileError, GpuprovError
from provisioner.common.paths import ClusterPaths, private_dir, write_whole
from provisioner.lifecycle.session import Cluster
from provisioner.lifecycle.upgrade import journal as upgrade_journal
from provisioner.rundir.fleet import Node
from provisioner.verify.baseline import NAMED, Entry, Record, is_rate

if TYPE_CHECKING:
    from provisioner.common.levels import Level
    from provisioner.verify.results import NodeReport, Report
    from provisioner.verify.subject import Subject

KEPT = 20
"""Runs of a machine and level that the report draws, and that are kept."""
SPOIL = ("load.", "fleet.slow_", "nccl.")
"""Checks of speed that need not be fatal: what fails one of them is nothing to hold a node to later."""


def load(paths: ClusterPaths) -> Record | None:
    """The record; None where nobody has saved one. Raises GpuprovError where the file is damaged: a fleet that got slow
    would otherwise pass for one that nothing is known of."""
    try:
        return Record.from_json(stored.load(paths.baseline))
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        hint = "restore it from a backup, or remove it and run `gpuprov verify FILE --save-baseline` again"
        raise DamagedFileError(str(error), str(paths.baseline), hint=hint) from error


def with_baselines(
    cluster: Cluster, subjects: Iterable[Subject], nodes: Sequence[Node], *, required: bool = True
) -> list[Subject]:
    """The subjects, which are of these machines, each with what the record says of it. A damaged record raises
    GpuprovError where it is `required`, and is a warning where a fleet is being made: no `up` fails because of it."""
    try:
        record = load(cluster.paths)
    except GpuprovError as error:
        if required:
            raise
        cluster.events("verify", "warning", f"the baseline is ignored: {error}")
        record = None
    if record is None:
        return list(subjects)
    locks, machines = _locks(cluster, nodes), {node.name: node for node in nodes}
    with_baseline = []
    for subject in subjects:
        baseline = record.of(
            subject.name,
            id=machines[subject.name].id,
            group=subject.group,
            machine=subject.machine,
            level=subject.expected.level,
            lock=locks.get(subject.name, ""),
            simulated=subject.simulated,
        )
        with_baseline.append(replace(subject, baseline=baseline))
    return with_baseline


def _locks(cluster: Cluster, nodes: Sequence[Node]) -> dict[str, str]:
    """Node → the release that it is held to."""
    return {name: release.id for name, release in upgrade_journal.assigned(cluster, nodes, cluster.lock).items()}


@dataclass(frozen=True, slots=True)
class Saved:
    """What came of saving: nodes that are in the record now; those that were left out, with why; those whose former
    record was faster by more than is allowed, with what."""

    saved: tuple[str, ...] = ()
    left: Mapping[str, str] = field(default_factory=dict)
    slower: Mapping[str, str] = field(default_factory=dict)


def save(cluster: Cluster, report: Report, nodes: Sequence[Node], level: Level) -> Saved:
    """Write what the healthy nodes of this verdict reached into the record, beside what it has of other levels and of
    nodes that were not looked at. Nothing is written where no node was measured. Raises GpuprovError where the record
    that is there is damaged."""
    machines = {node.name: node for node in nodes}
    judged = [verdict for verdict in report.nodes if verdict.name in machines]
    left_out = {verdict.name: reason for verdict in judged if (reason := unfit(verdict))}
    fit = [verdict for verdict in judged if verdict.name not in left_out]
    if not fit:
        return Saved(left=left_out)
    record, locks = load(cluster.paths) or Record(), _locks(cluster, nodes)
    entries = {node.name: dict(record.nodes.get(node.name, {})) for node in cluster.nodes()}
    for verdict in fit:
        machine = machines[verdict.name]
        own_entries = {name: entry for name, entry in entries.get(verdict.name, {}).items() if entry.id == machine.id}
        reached = {measure.name: measure.value for measure in verdict.measures}
        entries[verdict.name] = own_entries | {
            level: Entry(
                machine.id,
                verdict.group,
                verdict.machine,
                _utc(report.started),
                locks.get(machine.name, ""),
                verdict.simulated,
                reached,
                verdict.gpus,
            )
        }
    document = Record({name: levels for name, levels in entries.items() if levels}).to_json()
    write_whole(cluster.paths.baseline, json.dumps(document, indent=1) + "\n")
    slower_nodes = {verdict.name: text for verdict in fit if (text := slower(verdict))}
    return Saved(tuple(verdict.name for verdict in fit), left_out, slower_nodes)


def unfit(verdict: NodeReport) -> str:
    """Why a node's measures are nothing to hold it to, or ""."""
    if not verdict.ok:
        return f"not healthy: {verdict.why}"
    wrong = [part for c in verdict.checks if c.status == "fail" for part in c.parts or (c.id,)]
    if failed := [id for id in wrong if id.startswith(SPOIL)]:
        return f"failed {', '.join(failed)}"
    if not verdict.measures:
        reason = next((c.message for c in verdict.checks if c.id == "load.completes" and c.message), "")
        return f"nothing was measured{f': {reason}' if reason else ''}"
    return ""


def slower(verdict: NodeReport) -> str:
    """In what a machine is behind its own record, and by how much; "" where it is in nothing."""
    slower_measures = [measure for measure in verdict.measures if measure.slower and measure.own]
    return ", ".join(f"{NAMED[measure.name].title} {measure.share or 0:+.1%}" for measure in slower_measures)


def note(cluster: Cluster, report: Report, nodes: Sequence[Node], level: Level) -> Report:
    """Write down what this run measured, and give the report with how that was in the runs before."""
    machines = {node.name: node for node in nodes}
    measured = [verdict for verdict in report.nodes if verdict.measures and verdict.name in machines]
    if not measured:
        return report
    fresh = [
        {
            "node": verdict.name,
            "id": machines[verdict.name].id,
            "level": level,
            "at": _utc(report.started),
            "simulated": verdict.simulated,
            "measures": {measure.name: round(measure.value, 4) for measure in verdict.measures},
        }
        for verdict in measured
    ]
    _append(cluster.paths, fresh)
    history = _history(cluster.paths)
    machine_ids = {node.id for node in cluster.nodes()}
    newest = {key: runs[-KEPT:] for key, runs in history.items() if key[0] in machine_ids}
    if sum(map(len, history.values())) > 2 * sum(map(len, newest.values())):
        _rewrite(cluster.paths, newest)
    trend = {
        verdict.name: tuple(run["measures"] for run in newest.get((machines[verdict.name].id, level), ()))
        for verdict in measured
    }
    return replace(report, trend=trend)


Key = tuple[str, str]
"""Machine id and level."""


def _append(paths: ClusterPaths, lines: Sequence[Mapping[str, Any]]) -> None:
    """At the end of the file in one piece, so that two runs beside each other do not mix."""
    private_dir(paths.root)
    with directories.append(paths.measures) as stream:
        stream.write((b"\n" if _cut(paths) else b"") + b"".join(map(_line, lines)))


def _cut(paths: ClusterPaths) -> bool:
    """Whether a run died in the midst of its line."""
    with paths.measures.open("rb") as stream, contextlib.suppress(OSError):
        stream.seek(-1, os.SEEK_END)
        return stream.read(1) != b"\n"
    return False


def _line(run: Mapping[str, Any]) -> bytes:
    return json.dumps(run, separators=(",", ":")).encode() + b"\n"


def _rewrite(paths: ClusterPaths, runs_by_key: Mapping[Key, Sequence[Mapping[str, Any]]]) -> None:
    """Only what is kept, oldest first. What another run writes in this moment may be lost, one point of a line."""
    runs = sorted((run for runs in runs_by_key.values() for run in runs), key=lambda run: str(run["at"]))
    write_whole(paths.measures, b"".join(map(_line, runs)))


def _history(paths: ClusterPaths) -> dict[Key, list[dict[str, Any]]]:
    """The runs that can be read, in the order in which they were written."""
    runs_by_key: dict[Key, list[dict[str, Any]]] = {}
    for line in paths.measures.read_text(encoding="utf-8", errors="replace").splitlines():
        with contextlib.suppress(ValueError, TypeError, KeyError, AttributeError, RecursionError):
            run = json.loads(line)
            run["measures"] = {n: float(v) for n, v in run["measures"].items() if n in NAMED and is_rate(v)}
            if all(isinstance(run[key], str) for key in ("node", "id", "level", "at")):
                runs_by_key.setdefault((run["id"], run["level"]), []).append(run)
    return runs_by_key


def _utc(moment: float) -> str:
    return datetime.fromtimestamp(moment, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
