"""What a person sees of a run: bars per stage and node in a terminal, plain lines elsewhere. Always on stderr."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from types import TracebackType
from typing import TYPE_CHECKING

from provisioner.events import Event, Subscriber

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

LOUD = ("started", "warning", "done", "failed")
"""Kinds that are a line of their own everywhere."""

PER_NODE = ("configure",)
"""Stages that take long enough on a node to deserve a bar for each one."""

MANY_NODES = 24
"""Above this many nodes the bars of single nodes would fill the screen: only the stage's own bar is shown."""


class Lines:
    """One line per event that matters: for logs, CI and pipes."""

    def __init__(self, *, quiet: bool = False) -> None:
        self._quiet = quiet
        self._began = time.monotonic()

    def __enter__(self) -> Subscriber:
        return self._show

    def __exit__(self, *_: object) -> None:
        return None

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Nothing to make room for: a line stays where it is."""
        yield

    def _show(self, event: Event) -> None:
        if self._quiet or not (event.kind in LOUD or (event.kind == "progress" and event.stage != "configure")):
            return
        who = f" {event.node}:" if event.node else ""
        mark = {"warning": " warning:", "failed": " FAILED:"}.get(event.kind, "")
        elapsed = time.monotonic() - self._began
        print(f"[{elapsed:6.1f}s] {event.stage}:{who}{mark} {event.message}", file=sys.stderr, flush=True)


class Bars:
    """A bar per stage, and per node where a stage takes long on each; what is done scrolls above them."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        self._console = Console(stderr=True)
        self._progress: Progress = Progress(
            SpinnerColumn(finished_text="[green]✓[/]"),
            TextColumn("{task.description}", markup=True),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[text]}", markup=False),
            TimeElapsedColumn(),
            console=self._console,
            refresh_per_second=8,
        )
        self._stages: dict[str, TaskID] = {}
        self._nodes: dict[str, TaskID] = {}

    def __enter__(self) -> Subscriber:
        self._progress.start()
        return self._show

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in self._nodes.values():
            self._progress.update(task, visible=False)
        self._progress.stop()

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Leave the terminal to a question; what is finished by then stays above it."""
        self._progress.stop()
        for task in list(self._progress.task_ids):
            self._progress.remove_task(task)
        self._stages.clear()
        yield
        self._progress.start()

    def _show(self, event: Event) -> None:
        if event.kind in ("warning", "failed"):
            colour = "yellow" if event.kind == "warning" else "red"
            who = f"{event.node}: " if event.node else ""
            self._console.print(f"[{colour}]{event.stage}[/]: ", end="")
            self._console.print(f"{who}{event.message}", markup=False, highlight=False)
            return
        if event.kind == "log":
            return
        stage = self._stages.get(event.stage)
        if stage is None:
            stage = self._progress.add_task(f"[bold]{event.stage}[/]", total=None, text="")
            self._stages[event.stage] = stage
        if event.node and event.stage in PER_NODE:
            self._node(event)
            return
        if event.total:
            self._progress.update(stage, total=event.total)
        if event.kind == "done":
            total = self._progress.tasks[stage].total or 1
            self._progress.update(stage, total=total, completed=total, text=event.message)
            for task in self._nodes.values():
                self._progress.update(task, visible=False)
        else:
            done = event.done if event.done is not None else self._progress.tasks[stage].completed
            self._progress.update(stage, completed=done, text=event.message[:70])

    def _node(self, event: Event) -> None:
        assert event.node is not None
        if event.node not in self._nodes:
            if len(self._nodes) >= MANY_NODES:
                return
            self._nodes[event.node] = self._progress.add_task(f"  {event.node}", total=event.total, text="")
        task = self._nodes[event.node]
        self._progress.update(task, total=event.total, completed=event.done or 0, text=event.message[:70], visible=True)


def display(*, quiet: bool = False) -> Bars | Lines:
    """Bars where stderr is a terminal, lines where it is not, nothing where `quiet`."""
    return Lines(quiet=quiet) if quiet or not sys.stderr.isatty() else Bars()
