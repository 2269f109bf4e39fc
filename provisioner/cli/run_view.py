"""What is going on in a run, made of its events alone: one row for each stage, one for each node that roles run on.

`display.Bars` draws it for the run of this process, `gpuprov status --watch` for the run of another one. The time comes
in as an argument (seconds since 1970, as in an event), so that a view of recorded events is the same every time.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from provisioner.common.events import Event, Stage
from provisioner.common.text import counted, printable

Outcome = Literal["working", "done", "failed", "interrupted"]

MOST_WAITING = 3
"""Nodes named one by one that a stage still waits for."""


PATIENT_S = 5.0
"""A wait that takes longer than that says when it gives up."""


@dataclass(frozen=True, slots=True)
class Row:
    """One line on the screen. `done` of `total` where there is something to count, else None; `seconds` since it began,
    or how long it took."""

    label: str
    text: str
    seconds: float
    outcome: Outcome = "working"
    done: int | None = None
    total: int | None = None
    node: bool = False


@dataclass(slots=True)
class _Stage:
    began: float
    text: str = ""
    done: int = 0
    total: int | None = None
    until: float | None = None
    ended: float | None = None
    outcome: Outcome = "working"
    since: float = 0.0
    """When what it does now began."""
    waiting: dict[str, None] = field(default_factory=dict)
    """Nodes that were not heard of since the stage said whom it waits for."""


@dataclass(slots=True)
class _Node:
    began: float
    """When its current task began."""
    task: str
    done: int
    total: int
    failed: str = ""

    @property
    def finished(self) -> bool:
        return not self.failed and self.done >= self.total


class RunView:
    """Rows of a run: `see` every event, then ask for `rows`."""

    def __init__(self) -> None:
        self._stages: dict[Stage, _Stage] = {}
        self._nodes: dict[str, _Node] = {}

    def see(self, event: Event) -> None:
        """Take an event in. What concerns one node alone (a warning, a log line) leaves its stage as it is."""
        if event.stage == "run" and (how := event.data.get("ended")) in ("done", "failed", "interrupted"):
            self.end(how, event.time)
            return
        stage = self._stages.get(event.stage)
        if stage is None or (stage.ended is not None and event.kind == "started"):
            if event.kind in ("log", "warning"):
                return
            self._stages.pop(event.stage, None)  # one that begins again stands where it is now, after the others
            stage = self._stages[event.stage] = _Stage(event.time)
        if event.unit == "task":
            self._task(event)
        elif event.unit == "resource":
            stage.text, stage.done = event.message, min(stage.done + 1, stage.total or stage.done + 1)
        elif event.unit == "node":
            stage.waiting.pop(event.node or "", None)
            stage.done = event.done if event.done is not None else stage.done + 1
            stage.total = event.total or stage.total
        elif event.kind in ("log", "warning") or (event.node and event.kind == "failed"):
            pass
        elif event.kind in ("done", "failed"):
            stage.ended, stage.outcome, stage.text = event.time, event.kind, event.message
            stage.done, stage.until, stage.waiting = stage.total or 0, None, {}
        else:
            self._go_on(stage, event)

    def _go_on(self, stage: _Stage, event: Event) -> None:
        stage.text = event.message
        if event.kind == "started":
            stage.done, stage.until, stage.since = 0, event.until, event.time
            stage.waiting = dict.fromkeys(printable(name) for name in event.data.get("nodes", ()))
            self._nodes = {name: node for name, node in self._nodes.items() if node.failed}
        stage.total = event.total if event.total is not None else stage.total
        stage.done = event.done if event.done is not None else stage.done
        if event.until is not None:
            stage.until, stage.since = event.until, event.time

    def _task(self, event: Event) -> None:
        name = event.node or ""
        node = self._nodes.get(name)
        if event.kind == "failed":
            text = f"{event.data['reason']} ({event.data['task']})" if "reason" in event.data else event.message
            done, total = (node.done, node.total) if node else (0, 1)
            self._nodes[name] = _Node(event.time, text, done, total, failed=text)
            return
        if event.kind == "warning" or event.total is None:
            return
        began = node.began if node and node.task == event.message else event.time
        self._nodes[name] = _Node(began, event.message, event.done or 0, event.total)

    def end(self, outcome: Outcome, timestamp: float) -> None:
        """The run is over; a stage that was at work ended with it."""
        for stage in self._stages.values():
            if stage.ended is None:
                stage.ended, stage.outcome = timestamp, outcome
                stage.until = None
        self._nodes = {name: node for name, node in self._nodes.items() if node.failed}

    def clear(self) -> None:
        """What was shown stays where it is on the screen; from here on there are new rows."""
        self._stages.clear()
        self._nodes.clear()

    def rows(self, timestamp: float, most_nodes: int) -> list[Row]:
        """The stages in the order in which they began, the nodes below `configure`; of more than `most_nodes` nodes
        the ones that failed and the slowest, and a row that counts the rest."""
        rows = []
        for name, stage in self._stages.items():
            text = stage.text if stage.ended is not None else self._doing(name, stage, timestamp)
            until = stage.ended if stage.ended is not None else timestamp
            done, total = self._count(name, stage)
            rows.append(Row(name, text, max(0.0, until - stage.began), stage.outcome, done, total))
            if name == "configure":
                rows += self._node_rows(timestamp, most_nodes)
        return rows

    def _count(self, name: Stage, stage: _Stage) -> tuple[int, int | None]:
        """What a stage's bar shows: tasks where roles run, else what the stage itself counts."""
        if name == "configure" and self._nodes and stage.ended is None:
            return sum(node.done for node in self._nodes.values()), sum(node.total for node in self._nodes.values())
        return stage.done, stage.total

    def _doing(self, name: Stage, stage: _Stage, timestamp: float) -> str:
        parts = [stage.text]
        if name == "configure" and self._nodes:
            finished = sum(node.finished for node in self._nodes.values())
            parts = [f"{finished} of {counted(len(self._nodes), 'node')} done"]
            working = {
                name_of_slowest: node
                for name_of_slowest, node in self._nodes.items()
                if not node.failed and not node.finished
            }
            if working:
                name_of_slowest, node = min(working.items(), key=lambda item: (item[1].done, item[1].began))
                parts.append(f"slowest {name_of_slowest}, {clock(timestamp - node.began)} in {node.task}")
        elif stage.total and stage.waiting:
            parts.append(f"{stage.done} of {counted(stage.total, 'node')}")
        if 0 < len(stage.waiting) <= MOST_WAITING and stage.done:
            parts.append(f"waiting for {', '.join(stage.waiting)}")
        if stage.until is not None and timestamp - stage.since >= PATIENT_S:
            parts.append(f"gives up in {clock(max(0.0, stage.until - timestamp))}")
        return "; ".join(part for part in parts if part)

    def _node_rows(self, timestamp: float, maximum: int) -> list[Row]:
        def row(name: str, node: _Node) -> Row:
            outcome: Outcome = "failed" if node.failed else "done" if node.finished else "working"
            seconds = 0.0 if node.failed or node.finished else max(0.0, timestamp - node.began)
            text = node.failed or ("configured" if node.finished else node.task)
            return Row(name, text, seconds, outcome, node.done, node.total, node=True)

        if len(self._nodes) <= maximum:
            return [row(name, node) for name, node in self._nodes.items()]
        order = sorted(self._nodes.items(), key=lambda item: (not item[1].failed, item[1].done, item[1].began))
        visible, hidden = order[: max(0, maximum - 1)], [node for _, node in order[max(0, maximum - 1) :]]
        return [row(name, node) for name, node in visible] + ([_summary_row(hidden, timestamp)] if maximum > 0 else [])


def _summary_row(nodes: Iterable[_Node], timestamp: float) -> Row:
    nodes = list(nodes)
    counts = {
        "failed": sum(bool(node.failed) for node in nodes),
        "at work": sum(not node.failed and not node.finished for node in nodes),
        "done": sum(node.finished for node in nodes),
    }
    text = ", ".join(f"{count} {label}" for label, count in counts.items() if count)
    outcome: Outcome = "failed" if counts["failed"] else "working" if counts["at work"] else "done"
    longest = max((timestamp - node.began for node in nodes if not node.failed and not node.finished), default=0.0)
    return Row(
        f"{len(nodes)} more", text, longest, outcome, sum(n.done for n in nodes), sum(n.total for n in nodes), node=True
    )


def clock(seconds: float) -> str:
    """Minutes and seconds, and hours where there are some.

    >>> clock(72), clock(3_725)
    ('1:12', '1:02:05')
    """
    minutes, remaining = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{remaining:02}" if hours else f"{minutes}:{remaining:02}"
