"""What a person sees of a run: rows per stage and node in a terminal, plain lines elsewhere. Always on stderr."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Literal

from provisioner.cli.run_view import Row, RunView, clock
from provisioner.common.errors import Interrupted
from provisioner.common.events import Event, Subscriber

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.live import Live
    from rich.table import Table

LOUD = ("started", "warning", "done", "failed")
"""Kinds that are a line of their own everywhere."""

FRAMES_PER_SECOND = 8
BAR_COLUMNS = 20
NARROW_COLUMNS = 64
"""Below this width there is no bar: the words need the room."""
LABEL_COLUMNS, NARROW_LABEL = 26, 14
NODE_SHARE = 3
"""Of the screen's height a third at most is for single nodes: what scrolls above must stay in sight."""

MARKS = {"working": "⠿", "done": "✓", "failed": "✗", "interrupted": "✗"}
PLAIN_MARKS = {"working": "*", "done": "+", "failed": "!", "interrupted": "!"}
"""For a terminal whose encoding has no others."""
COLOURS = {"working": "cyan", "done": "green", "failed": "red", "interrupted": "yellow"}
SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
PLAIN_SPINNER = "-\\|/"


def print_event(event: Event, prefix: str = "") -> None:
    """One event on standard error, with its node."""
    print(f"{prefix}{event.node}: {event.message}" if event.node else f"{prefix}{event.message}", file=sys.stderr)


class Lines:
    """One line per event that matters: for logs, CI and pipes. `quiet`: of warnings and failures alone, beside a
    document on standard output."""

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
        if self._quiet and event.kind not in ("warning", "failed"):
            return
        if not (event.kind in LOUD or (event.kind == "progress" and event.stage != "configure")):
            return
        node_prefix = f" {event.node}:" if event.node else ""
        mark = {"warning": " warning:", "failed": " FAILED:"}.get(event.kind, "")
        elapsed = time.monotonic() - self._began
        print(f"[{elapsed:6.1f}s] {event.stage}:{node_prefix}{mark} {event.message}", file=sys.stderr, flush=True)


class Bars:
    """The rows of a `RunView`, drawn again several times a second; warnings and failures scroll above them."""

    def __init__(self) -> None:
        from rich.console import Console

        self._console = Console(stderr=True, highlight=False)
        self._view = RunView()
        self._lock = threading.Lock()  # events come from any thread, frames from rich's own
        self._live: Live | None = None

    def __enter__(self) -> Subscriber:
        self._start()
        return self._show

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            stopped = kind is not None and issubclass(kind, (KeyboardInterrupt, Interrupted))
            self._view.end("done" if kind is None else "interrupted" if stopped else "failed", time.time())
        self._stop()

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Leave the terminal to a question; what is shown by then stays above it, and what follows has rows of its
        own. Where the question ends in an exception nothing is drawn any more."""
        self._stop()
        with self._lock:
            self._view.clear()
        yield
        self._start()

    def _start(self) -> None:
        from rich.live import Live

        self._live = Live(
            console=self._console, get_renderable=self.frame, refresh_per_second=FRAMES_PER_SECOND, transient=False
        )
        self._live.start()

    def _stop(self) -> None:
        live, self._live = self._live, None
        if live is not None:
            live.stop()

    def frame(self) -> Table:
        """What is to be seen now, in the terminal's width and height as they are now."""
        timestamp = time.time()
        height, width = self._console.size.height, self._console.size.width
        with self._lock:
            rows = self._view.rows(timestamp, max(1, height // NODE_SHARE))
        # Where even the stages are more than the screen has lines, the newest count.
        return draw(rows[-max(1, height - 2) :], width, timestamp, plain=self._console.options.ascii_only)

    def _show(self, event: Event) -> None:
        with self._lock:
            self._view.see(event)
        print_alert(self._console, event)


def print_alert(console: Console, event: Event, *, is_local_run: bool = True) -> None:
    """A warning, or the failure of a node, as a line above the rows, however long: the terminal wraps it, and it can be
    copied. Other events have none. `is_local_run`: the run is that of this terminal."""
    from rich.text import Text

    if not (event.kind == "warning" or (event.kind == "failed" and event.node)):
        return
    node_prefix = f"{event.node}: " if event.node else ""
    advice = f" ({event.data['here']})" if is_local_run and "here" in event.data else ""
    text = Text.assemble(
        (event.stage, "yellow" if event.kind == "warning" else "red"), ": ", node_prefix, event.message, advice
    )
    console.print(text, soft_wrap=True)


def draw(rows: list[Row], width: int, timestamp: float, *, plain: bool) -> Table:
    """The rows as one line each, however narrow the terminal. `plain`: in ASCII alone."""
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    overflow: Literal["crop", "ellipsis"] = "crop" if plain else "ellipsis"
    wide = width >= NARROW_COLUMNS
    marks, spinner = (PLAIN_MARKS, PLAIN_SPINNER) if plain else (MARKS, SPINNER)
    table = Table.grid(padding=(0, 1, 0, 0), expand=True)
    table.add_column(width=1)
    table.add_column(no_wrap=True, overflow=overflow, max_width=LABEL_COLUMNS if wide else NARROW_LABEL)
    if wide:
        table.add_column(width=BAR_COLUMNS)
    table.add_column(no_wrap=True, overflow=overflow, ratio=1)
    table.add_column(no_wrap=True, justify="right", min_width=5)
    for row in rows:
        turning = row.outcome == "working"
        mark = spinner[int(timestamp * FRAMES_PER_SECOND) % len(spinner)] if turning else marks[row.outcome]
        label = Text(f"  {row.label}" if row.node else row.label, style="" if row.node else "bold")
        completed = (row.done or 0) if row.total else 1
        bar = ProgressBar(total=row.total or (None if turning else 1), completed=completed,
                          width=BAR_COLUMNS, pulse=False, complete_style=COLOURS[row.outcome],
                          finished_style=COLOURS[row.outcome])  # fmt: skip
        text = Text(" ".join(row.text.split()), style="red" if row.outcome == "failed" else "")
        took = Text(clock(row.seconds) if row.seconds >= 1 or not row.node else "", style="dim")
        cells: list[RenderableType] = [
            Text(mark, style=COLOURS[row.outcome]),
            label,
            *([bar] if wide else []),
            text,
            took,
        ]
        table.add_row(*cells)
    return table


def display(*, quiet: bool = False) -> Bars | Lines:
    """Rows where stderr is a terminal that can move its cursor, lines where it is not, of warnings and failures
    alone where `quiet`."""
    if quiet or not sys.stderr.isatty() or os.environ.get("TERM", "").lower() in ("", "dumb", "unknown"):
        return Lines(quiet=quiet)
    return Bars()
