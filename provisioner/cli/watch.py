"""`gpuprov status --watch`: what the run at work is doing, read from its events.jsonl, and the nodes as it leaves them.

It only reads files of the run directory, so it may look at another person's run and disturbs none. In a terminal it
stays until Ctrl-C; in a pipe it gives a line an event and ends with the run.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from provisioner.cli import display
from provisioner.cli.run_view import RunView
from provisioner.common.text import counted
from provisioner.rundir import run_events
from provisioner.rundir.run_events import EventsFile

if TYPE_CHECKING:
    from rich.console import RenderableType

    from provisioner.lifecycle.session import Cluster
    from provisioner.output.status import StatusOutput

FRAMES_PER_SECOND = 2
"""Fewer than of a run itself: it is looked at for hours."""
LOOK_S = 0.5
"""Between two looks at the run's events."""
STATUS_S = 2.0
"""Between two readings of the nodes' state."""


def at_work(root: Path) -> str:
    """Which command is at work on the run directory, and whose process it is; "" where none is."""
    run = run_events.holder(root)
    return f"gpuprov {run.command}, process {run.process}" if run is not None and run.is_alive else ""


def watch(cluster: Cluster) -> None:
    """Show what is going on until Ctrl-C; in a pipe until the run at work has ended."""
    with contextlib.suppress(KeyboardInterrupt):
        if sys.stdout.isatty():
            _watch_screen(cluster)
        else:
            _watch_pipe(cluster)


def _watch_pipe(cluster: Cluster) -> None:
    from provisioner.cli import tables
    from provisioner.cli.status_table import table

    events = EventsFile(cluster.paths.runs)
    while at_work(cluster.paths.root):
        for event in events.new()[1]:
            if event.kind in display.LOUD:
                node_prefix = f" {event.node}:" if event.node else ""
                print(f"{event.stage}:{node_prefix} {event.message}", flush=True)
        time.sleep(LOOK_S)
    tables.show(table(_document(cluster), offline=True))


def _watch_screen(cluster: Cluster) -> None:
    from rich.console import Console
    from rich.live import Live

    console, view, events = Console(highlight=False), RunView(), EventsFile(cluster.paths.runs)
    events.new()  # what the last run did is history, unless it is still at work
    if at_work(cluster.paths.root):
        events = EventsFile(cluster.paths.runs)
    running, ended, read, document = "", True, 0.0, _document(cluster)

    def frame() -> RenderableType:
        return draw(document, view, running, console.size.width, console.size.height, plain=console.options.ascii_only)

    with Live(console=console, get_renderable=frame, refresh_per_second=FRAMES_PER_SECOND, transient=False):
        while True:
            running = at_work(cluster.paths.root)
            begun, new = events.new()
            if begun:
                view.clear()
                console.rule(f"{running or 'a run'}, {time.strftime('%H:%M:%S')}", align="left", style="dim")
            ended = ended and not new
            for event in new:
                view.see(event)
                display.print_alert(console, event, is_local_run=False)
            if not running and not ended:
                view.end("interrupted", time.time())  # what told no end was killed
                ended = True
            if time.monotonic() - read > STATUS_S:
                document, read = _document(cluster), time.monotonic()
            time.sleep(LOOK_S)


def draw(
    document: StatusOutput, view: RunView, running: str, width: int, height: int, *, plain: bool
) -> RenderableType:
    """The rows of the run at work above the nodes: as many as the screen has lines for, those first that are not
    healthy."""
    from rich.console import Group
    from rich.text import Text

    from provisioner.cli.status_table import table

    timestamp = time.time()
    rows = view.rows(timestamp, max(1, height // display.NODE_SHARE))
    nodes = document.nodes
    room = max(0, height - len(rows) - 6)
    visible = sorted(nodes, key=lambda node: node.ok is not False)[:room] if len(nodes) > room else nodes
    counts = Counter(node.stage for node in nodes)
    summary = f"{counted(len(nodes), 'node')}: {', '.join(f'{count} {stage}' for stage, count in counts.items())}"
    more = f"; {len(nodes) - len(visible)} not shown" if len(visible) < len(nodes) else ""
    head = Text(running or "no run in progress", style="bold")
    parts: list[RenderableType] = [head, display.draw(rows, width, timestamp, plain=plain)]
    if visible:
        parts += [Text(""), table(document.model_copy(update={"nodes": visible}), offline=True)]
    return Group(*parts, Text(summary + more, style="dim", no_wrap=True, overflow="ellipsis"))


def _document(cluster: Cluster) -> StatusOutput:
    """The nodes as files tell them; no node is asked, because a run is at work on them."""
    from provisioner.lifecycle.status import status

    return status(cluster, ask=False)
