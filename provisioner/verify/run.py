"""The verify stage: probe every node, judge every bundle, report."""

from __future__ import annotations

import ast
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from provisioner.common import regular_file
from provisioner.common.errors import GpuprovError
from provisioner.common.events import Events
from provisioner.common.text import counted
from provisioner.verify.baseline import reached
from provisioner.verify.bundle import Bundle, Output
from provisioner.verify.collect import collect
from provisioner.verify.fabric_run import FindNeighbours, fabric
from provisioner.verify.merged_checks import Merger
from provisioner.verify.pytest_runner import Case, judge
from provisioner.verify.request import ProbeRequest, load_request, request_for, waits_until
from provisioner.verify.results import NodeReport, Report
from provisioner.verify.subject import Subject

WAITING = 256
"""Nodes that are loaded at once: an ssh that waits for minutes costs this computer some memory and no more."""
MAX_CHECK_BYTES = 4 << 20


JUDGE_S, NODE_S = 120.0, 8.0
"""Of all checks together, and for each node: what reading it and a check that does not end on it may take (facts.py,
plugin.py), so that such a node costs no other its verdict. A thousand healthy ones are judged in 15 s."""


def verify(
    subjects: Sequence[Subject],
    *,
    checks: Sequence[Path] = (),
    events: Events,
    workdir: Path | None = None,
    probe_s: float | None = None,
    judge_s: float | None = None,
    parallel: int = 64,
    extra_files: Callable[[], Mapping[str, Mapping[str, Output]]] = dict,
    neighbours: FindNeighbours | None = None,
) -> Report:
    """Verify every subject. Names must be distinct.

    `extra_files` gives node → file of its bundle → what was found out meanwhile by another way than through the node.
    `neighbours` tells whom a node could borrow that has no other one of its group here (fabric_run.py); None: it is not
    reported that it met nobody.

    `checks` are directories of the user's own checks; `workdir`, where given, keeps each node's bundle under
    bundles/<name>. `probe_s` is the deadline of one node's probe (default: its commands' own and 20 s), `judge_s` that
    of all checks together (default: JUDGE_S and NODE_S more for each node).
    Raises GpuprovError for a directory of checks that is not there or has none, before anything is probed.
    """
    for path in checks:
        _refuse_no_checks(path)
    started, begun = time.time(), time.monotonic()
    run = Verification(subjects, events)
    run.collect(deadline_s=probe_s, parallel=parallel)
    run.load()
    run.measure_fabric(neighbours)
    run.add_files(extra_files())
    probed = time.monotonic()
    if workdir is not None:
        for name, bundle in run.bundles.items():
            bundle.write(workdir / "bundles" / name)
    nodes = run.judge(checks, judge_s)
    ended = time.monotonic()
    seconds = {"collect": probed - begun, "judge": ended - probed, "verify": ended - begun}
    limits, unverified = _limits(subjects)
    levels = {s.expected.level for s in subjects if s.transport is not None}
    level = levels.pop() if len(levels) == 1 else ""
    report = Report(nodes, seconds, started, level=level, limits=limits, unverified=unverified)
    _announce(report, events)
    return report


@dataclass(slots=True)
class Verification:
    """What the phases of one verification share, in the order of its methods. `bundles`: node → its outputs so far."""

    subjects: Sequence[Subject]
    events: Events
    bundles: dict[str, Bundle] = field(default_factory=dict)

    def collect(self, *, deadline_s: float | None, parallel: int) -> None:
        """Probe the nodes that have no bundle yet."""
        targets = {s.name: s.source for s in self.subjects if not isinstance(s.source, Bundle)}
        requests = {s.name: request_for(s.expected) for s in self.subjects if s.name in targets}
        self.events(
            "verify", "started", f"probing {counted(len(self.subjects), 'node')}",
            done=len(self.subjects) - len(targets), total=len(self.subjects),
            until=waits_until(requests.values()) if targets else None, data={"nodes": list(targets)},
        )  # fmt: skip
        self.bundles = {s.name: s.source for s in self.subjects if isinstance(s.source, Bundle)}
        if targets:
            self.bundles |= collect(targets, requests, deadline_s=deadline_s, parallel=parallel, events=self.events)

    def load(self) -> None:
        """Load those nodes that their level loads. A node that did not answer, or whose GPUs did not, is not loaded."""
        requests: dict[str, ProbeRequest] = {}
        targets: dict[str, Sequence[str]] = {}
        for subject in self.subjects:
            reach, request, bundle = subject.transport, load_request(subject.expected), self.bundles[subject.name]
            if reach is None or request is None or bundle.error:
                continue
            listed = bundle.files.get(subject.expected.gpu_file)
            if subject.expected.vendor != "none" and (listed is None or listed.rc != 0):
                not_started = Bundle(error="not started, because the GPUs did not answer")
                self.bundles[subject.name] = bundle.joined(not_started, request.files)
                continue
            targets[subject.name], requests[subject.name] = reach, request
        if targets:
            self.events(
                "verify", "started", f"loading the GPUs of {counted(len(targets), 'node')}", total=len(targets),
                until=waits_until(requests.values()), data={"nodes": list(targets)},
            )  # fmt: skip
            for name, later in collect(targets, requests, parallel=WAITING, events=self.events).items():
                self.bundles[name] = self.bundles[name].joined(later, requests[name].files)

    def measure_fabric(self, neighbours: FindNeighbours | None) -> None:
        """Measure the network between the nodes of each group."""
        self.bundles |= fabric(self.subjects, self.bundles, events=self.events, neighbours=neighbours)

    def add_files(self, files: Mapping[str, Mapping[str, Output]]) -> None:
        """Add to the bundles what was found out by another way: node → file → output."""
        for name, more in files.items():
            if name in self.bundles:
                self.bundles[name] = replace(self.bundles[name], files={**self.bundles[name].files, **more})

    def judge(self, checks: Sequence[Path], deadline_s: float | None) -> tuple[NodeReport, ...]:
        """Judge all nodes by gpuprov's checks and those in the directories `checks`."""
        self.events("verify", "started", f"judging {counted(len(self.subjects), 'node')}", total=len(self.subjects))
        cases = {
            s.name: Case(self.bundles[s.name], s.expected, s.host_spec, s.group, s.baseline) for s in self.subjects
        }
        deadline_s = deadline_s if deadline_s is not None else JUDGE_S + NODE_S * len(cases)
        judged = judge(cases, checks=checks, deadline_s=deadline_s)
        merger = Merger()
        return tuple(
            NodeReport(
                name=s.name,
                group=s.group,
                site=s.site,
                machine=s.machine,
                simulated=s.simulated or self.bundles[s.name].simulated,
                checks=tuple(merger.merge(judged[s.name].checks)),
                facts=judged[s.name].facts,
                error=self.bundles[s.name].error,
                measures=reached(judged[s.name].measures, s.baseline, s.expected),
                looks=judged[s.name].looks,
                gpus=judged[s.name].gpus,
            )
            for s in self.subjects
        )


def _announce(report: Report, events: Events) -> None:
    """Say of each node and of the fleet whether it is healthy."""
    for node in report.nodes:
        failed = [c.id for c in node.checks if c.status == "fail"] or [c.id for c in node.checks if c.condemns]
        message = "healthy" if node.ok else node.error or f"not healthy: {', '.join(failed) or 'nothing was checked'}"
        events("verify", "progress" if node.ok else "warning", message, node=node.name, data={"ok": node.ok})
    message = f"{len(report.healthy_nodes)} of {counted(len(report.nodes), 'node')} healthy"
    events("verify", "done" if report.ok else "failed", message)


def _limits(subjects: Sequence[Subject]) -> tuple[int, int]:
    """How many limits the nodes are held to, and how many are unverified. One that is the same for every machine
    counts once, the others once for each machine type."""
    is_unverified = {
        ("" if name in subject.expected.most else subject.machine, name): name in subject.expected.unverified
        for subject in subjects
        for name in subject.expected.limits
    }
    return len(is_unverified), sum(is_unverified.values())


def _refuse_no_checks(folder: Path) -> None:
    """Raise GpuprovError for a directory of own checks that is none, or in which no test function stands: a misspelled
    name would be a check that never says anything. One that cannot be read is told by the run itself."""
    if not folder.is_dir():
        hint = "a directory with Python files; in cluster.yaml its path starts at that file"
        raise GpuprovError("verify.checks: no such directory", where=str(folder), hint=hint)
    for file in folder.rglob("*.py"):
        try:
            tree = ast.parse(regular_file.read(file, MAX_CHECK_BYTES))
        except (SyntaxError, ValueError, OSError):
            return
        if any(isinstance(node, ast.FunctionDef) and node.name.startswith("test") for node in ast.walk(tree)):
            return
    hint = "a check is a function called test_… in a .py file (`gpuprov docs verify`)"
    raise GpuprovError("verify.checks: no check in it", where=str(folder), hint=hint)
