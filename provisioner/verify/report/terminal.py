"""The report in a terminal: one line for each node, then what failed and what to do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from provisioner.common import manual
from provisioner.common.text import counted, few, one_line
from provisioner.common.typed_command import completed
from provisioner.rundir import placement
from provisioner.verify.baseline import NAMED
from provisioner.verify.check import SEVERITIES, Action
from provisioner.verify.results import PENDING, CheckResult, NodeReport, Report
from provisioner.verify.runbook import COMMANDS, IN_QUARANTINE, RELEASE

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, Group, RenderResult
    from rich.measure import Measurement
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    from provisioner.output.report import QuarantineOutput

WORD = {"fail": "FAIL", "unknown": "UNKNOWN"}

NOT_LOOKED_AT = manual.see("runbook", "A node that was not looked at")


def summary(node: NodeReport) -> str:
    """The line of one node, without markup."""
    if node.error:
        return f"not looked at: {node.error}"
    counts = Counter(check.status for check in node.checks)
    later = sum(c.later for c in node.checks)
    warnings = sum(c.warns for c in node.checks)
    owned = sum(c.acknowledged is not None for c in node.checks)
    failed = counts["fail"] - warnings - owned
    parts = [f"{counts['pass']} passed"]
    parts += [f"{failed} failed"] if failed else []
    parts += [counted(warnings, "warning")] if warnings else []
    parts += [f"{owned} acknowledged"] if owned else []
    parts += [f"{counts['unknown']} unknown"] if counts["unknown"] else []
    parts += [counted(counts["note"], "note")] if counts["note"] else []
    parts += [f"{counts['skip'] - later} not applicable"] if counts["skip"] > later else []
    parts += [f"{later} at higher levels only"] if later else []
    return ", ".join(parts)


def in_quarantine(node: str, entry: QuarantineOutput, file: object = "FILE") -> str:
    """The sentence of a node's quarantine: whose, why, and what takes it out."""
    trouble_text = f" ({entry.problem})" if entry.problem else ""
    level = f" at level {entry.level}" if entry.level else ""
    verdict = f"a healthy verify{level}, or " if entry.owner == "gpuprov" else ""
    out = "" if PENDING in entry.reason else f"; out by {verdict}`gpuprov release {file} {node}`"
    reason = completed(entry.reason.replace("FILE NODE`", f"FILE {node}`"), str(file))
    return one_line(f"in quarantine by {entry.owner} since {entry.since}: {reason}{trouble_text}{out}", 2000)


def table(
    report: Report, *, file: str = "", absent: Sequence[str] = (), explains: bool = False, quick_note: str = ""
) -> Group:
    """A rich renderable. `file`: cluster.yaml of the fleet as typed_file has it, for the commands; `absent`: nodes of
    the fleet that are not in the report; `explains`: say what limits rest on; `quick_note`: why quick was enough."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    nodes = Table(box=None, pad_edge=False)
    for column in ("node", "machine", "verdict", "checks"):
        nodes.add_column(column, overflow="fold", no_wrap=column in ("node", "verdict"))
    for node in report.nodes:
        style = {"healthy": "green", "unknown": "bold yellow"}.get(node.verdict, "bold red")
        verdict = Text("healthy" if node.ok else node.verdict.upper(), style)
        if node.ok and node.quarantine is not None:
            verdict = Text("QUARANTINED", "yellow")
        nodes.add_row(Text(node.name), Text(node.machine or "not named"), verdict, Text(completed(summary(node), file)))
    parts: list[Table | Text | Problems] = [nodes]
    if rows := [(node.name, check, peers_text) for node in report.nodes for check, peers_text in problems(node)]:
        parts += [Text(""), Problems(rows, names_nodes=len(report.nodes) > 1, file=file)]
    if steps := next_steps(report, file) if file else []:
        parts += [Text(""), Text("what to do next:"), *(Text(f"  {step}") for step in steps)]
    if any(node.error and not node.absent for node in report.nodes):
        parts += [Text(""), Text(f"not looked at says nothing of the hardware; what to do: {NOT_LOOKED_AT}", "yellow")]
    if quiet := unknown_warnings(report):
        parts += [Text(""), Text(quiet, "yellow")]
    parts += [Text("")] if any(notes(node) for node in report.nodes) else []
    parts += [Text(completed(f"note, {line}", file), "dim") for line in _first(report)]
    parts += [Text(completed(line, file), "dim") for line in between_nodes(report)]
    if unlocked := without_lock(report):
        parts += [Text(""), Text(completed(unlocked, file), "dim")]
    if slower_text := slower(report):
        parts += [Text(""), Text(slower_text, "yellow")]
    quarantined = [(node.name, node.quarantine) for node in report.nodes if node.quarantine is not None]
    parts += [Text("")] if quarantined else []
    parts += [Text(f"{name}: {in_quarantine(name, entry, file or 'FILE')}", "yellow") for name, entry in quarantined]
    if report.site_choices:
        parts += [Text(""), *map(Text, placement.lines(report.site_choices))]
    if report.breaker is not None:
        parts += [Text(""), Text(report.breaker.message, "bold red")]
    if report.evidence and (explains or any(check.lowered for node in report.nodes for check in node.checks)):
        parts += [Text(""), Text(f"{report.evidence} More: {manual.see('evidence')}", "dim")]
    healthy = f"{len(report.healthy_nodes)} of {counted(len(report.nodes) + len(absent), 'node')} healthy"
    level = f" at level {report.level}" if report.level not in ("", "standard") else ""
    simulated = " (SIMULATED hardware)" if report.simulated else ""
    unproven = f"; not verified: {few(list(absent), 8, ',')}" if absent else ""
    style = "bold green" if report.ok and not absent else "bold red"
    parts += [Text(""), Text(healthy + level + simulated + unproven, style)]
    return Group(*parts, *([Text(quick_note)] if quick_note else []))


MOST_NOTES = 6
"""Notes that are written out; report.html has all."""


def notes(node: NodeReport) -> list[CheckResult]:
    """What is worth knowing of a node, and no failure."""
    return [] if node.error else [check for check in node.checks if check.status == "note"]


def _first(report: Report) -> list[str]:
    lines = [f"{node.name}: {check.message or check.says}" for node in report.nodes for check in notes(node)]
    more = len(lines) - MOST_NOTES
    return lines[:MOST_NOTES] + ([f"{more} more in the report"] if more > 0 else [])


NARROW = 40
"""Columns for the sentences of a table, below which each stands on lines of its own."""


@dataclass(frozen=True, slots=True)
class Problems:
    """What is wrong, as a renderable: a table, or in a narrow terminal a heading and a paragraph for each row.

    `rows`: node, check, and what the check stands for beside itself; `names_nodes`: the headings name the node."""

    rows: Sequence[tuple[str, CheckResult, str]]
    names_nodes: bool
    file: str = ""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        cells = [(node, check.id, _status_label(check), check.action) for node, check, _ in self.rows]
        fixed = sum(max(map(len, column)) + 2 for column in zip(*cells, strict=True))
        yield from self._paragraphs() if options.max_width - fixed < NARROW else [self._table()]

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        from rich.measure import Measurement

        longest = max(len(check.id) for _, check, _ in self.rows)
        return Measurement(min(longest, options.max_width), options.max_width)

    def _table(self) -> Table:
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, pad_edge=False)
        for column in ("node", "check", "", "do", "what"):  # the sentence last: nothing is aligned behind it
            table.add_column(column, overflow="fold", no_wrap=column in ("check", ""))
        for node, check, peers_text in self.rows:
            sentence = Text(self._sentence(check) + peers_text)
            table.add_row(
                Text(node), Text(check.id), Text(_status_label(check), _style(check)), Text(check.action), sentence
            )
        return table

    def _sentence(self, check: CheckResult) -> str:
        acknowledgement = f" ({check.acknowledgement})" if check.acknowledged is not None else ""
        return completed(check.message or check.says, self.file) + acknowledgement

    def _paragraphs(self) -> Iterator[Text | Padding]:
        from rich.padding import Padding
        from rich.text import Text

        for node, check, peers_text in self.rows:
            heading = [f"{node}: "] if self.names_nodes else []
            action = "" if check.action == "none" else f"  do: {check.action}"
            yield Text.assemble(
                *heading, check.id, "  ", (_status_label(check), _style(check)), action, overflow="fold"
            )
            yield Padding(Text(self._sentence(check) + peers_text, overflow="fold"), (0, 0, 0, 4))


def _style(check: CheckResult) -> str:
    if check.acknowledged is not None:
        return "dim"
    return "bold red" if check.status == "fail" and check.severity == "fatal" else "yellow"


MOST_STEPS = 4
"""Nodes of one action whose commands are written out."""


def next_steps(report: Report, file: str) -> list[str]:
    """A command for each action that a fatal failure of a node asks for, to be typed as it is; where it has none, for
    what could not be answered; else for warnings."""
    names: dict[tuple[Action, str], list[str]] = {}
    for node in report.nodes:
        failed = [check for check, _ in problems(node) if check.acknowledged is None]
        fatal = [check for check in failed if check.condemns]
        chosen = [check for check in fatal if check.status == "fail"] or fatal or failed
        actions: list[Action] = ["reconfigure"] if node.absent else [check.action for check in chosen]
        for action in dict.fromkeys(actions):
            names.setdefault((action, _command(action, node)), []).append(node.name)
    steps = []
    for action, command in sorted(names, key=lambda row: [*COMMANDS, "none"].index(row[0])):
        nodes, text = names[action, command], command.replace("FILE", file)
        if not command:
            continue
        if "NODE" not in command:
            steps.append(f"{action} {few(nodes, MOST_STEPS, ',')}: {text}")
            continue
        steps += [f"{action} {name}: {text.replace('NODE', name)}" for name in nodes[:MOST_STEPS]]
        more = len(nodes) - MOST_STEPS
        steps += [f"{action} {counted(more, 'more node')}: the same command with their names"] if more > 0 else []
    return steps


def _command(action: Action, node: NodeReport) -> str:
    """The command that an action begins with at this node; "" where there is none."""
    if node.quarantine is None or action not in IN_QUARANTINE:
        return COMMANDS.get(action, "")
    by_person = node.quarantine.owner != "gpuprov"
    return IN_QUARANTINE[action] + (f", then {RELEASE}" if by_person else "")


def _status_label(check: CheckResult) -> str:
    return "WARN" if check.warns else "ACK" if check.acknowledged is not None else WORD[check.status]


def problems(node: NodeReport) -> list[tuple[CheckResult, str]]:
    """What is wrong with a node: what failed, the fatal first, then what could not be answered and follows from none of
    that: the fatal, and others whose own code is broken. Each with what it stands for beside itself: what follows from
    it, or is unknown for the same reason."""
    if node.error:
        return []
    failed = [check for check in node.checks if check.status == "fail"]
    failed.sort(key=lambda check: SEVERITIES.index(check.severity))
    following = Counter(check.explained_by for check in node.checks if check.status == "unknown")
    unknown: dict[str, list[CheckResult]] = {}
    for check in node.checks:
        if check.status == "unknown" and (check.condemns or check.broken) and not check.explained_by:
            unknown.setdefault(check.message, []).append(check)
    return [(check, _more(following[check.id], "unknown because of it")) for check in failed] + [
        (checks[0], _more(len(checks) - 1, "for the same reason")) for checks in unknown.values()
    ]


def unknown_warnings(report: Report) -> str:
    """One line: which checks could not be answered that condemn nobody, and that `problems` does not name; "" where
    there are none."""
    check_ids = [
        check.id
        for node in report.nodes
        if not node.error
        for check in node.checks
        if check.status == "unknown" and not (check.condemns or check.broken or check.explained_by)
    ]
    return f"unknown, but not fatal: {few(list(dict.fromkeys(check_ids)), 8, ',')}" if check_ids else ""


def _more(count: int, reason: str) -> str:
    return f" ({counted(count, 'more check')} {reason})" if count else ""


def without_lock(report: Report) -> str:
    """What was not judged for want of a lock; "" where there is one."""
    ids = {c.id for node in report.nodes for c in node.checks if c.status == "skip" and c.message.startswith("no lock")}
    if SYSTEM not in ids or len(ids) < WITHOUT_LOCK:
        return ""
    return (
        f"no lock: {counted(len(ids), 'check')} of versions, packages, images and services did not judge these nodes; "
        "`gpuprov verify FILE` does"
    )


SYSTEM = "os.release"
"""A check that every lock gives something to judge."""
WITHOUT_LOCK = 5
"""Checks that had no lock, from which on nothing is locked: a lock may lack some part of it."""
MOST_ALONE = 4
"""Nodes of which is written out with whom they were measured, or why with nobody."""


def between_nodes(report: Report) -> list[str]:
    """Who was measured with a borrowed neighbour, and who met no other node without being condemned for it: why, and
    what proves it."""
    lines = []
    for node in report.nodes:
        unreached = (node.facts.get("fabric") or {}).get("state") == "unreached"
        pairs = next((check for check in node.checks if check.id == "fabric.pairs"), None)
        if node.borrowed:
            lines.append(f"{node.name}: measured with {' and '.join(node.borrowed)}, borrowed for it and not judged")
        elif unreached and pairs is not None and pairs.status == "unknown" and not pairs.condemns:
            lines.append(f"{node.name}: {pairs.message}")
    more = len(lines) - MOST_ALONE
    return lines[:MOST_ALONE] + ([f"{more} more in the report"] if more > 0 else [])


def slower(report: Report) -> str:
    """One line: who is slower than the record, in what; "" where nobody is."""
    rows = []
    for node in report.nodes:
        measures = [f"{NAMED[m.name].title} {(m.share or 0):+.1%}" for m in node.measures if m.slower]
        rows += [f"{node.name} ({', '.join(measures)})"] if measures else []
    more = f" and {len(rows) - 5} more" if len(rows) > 5 else ""
    return f"slower than the fleet's own record: {', '.join(rows[:5])}{more}" if rows else ""
