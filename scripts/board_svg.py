"""A picture of a dashboard, as docs/images/fleet.svg, from what a Prometheus answers to its queries.

gpuprov monitoring open cluster.yaml --sandbox
python -m scripts.board_svg docs/images/fleet.svg fleet http://127.0.0.1:9090

Grafana draws more finely. Panels with lines over time are not drawn: one look at a Prometheus has no past.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from provisioner.monitoring.dashboards.grafana import expression
from provisioner.monitoring.dashboards.panels import BOARDS, Board, Panel
from provisioner.monitoring.servers import query

WIDTH, COLUMN, GAP, HEAD, ROW = 1200, 50, 8, 26, 20
NUMBER_HEIGHT, CELL_WIDTH, CELL_HEIGHT = 90, 144, 44
MOST_ROWS = 6
COLORS = {
    "green": "#299c46", "dark-green": "#1a6b30", "red": "#d44a3a", "orange": "#e5a000", "blue": "#1f60c4",
    "": "#3d3d3d",
}  # fmt: skip
UNITS = {"percent": " %", "celsius": " °C", "none": ""}
HIDDEN = ("__name__", "job", "instance", "alertstate", "site", "machine", "gpu_model", "simulated", "cluster")


@dataclass(frozen=True, slots=True)
class Answer:
    """One series that a query of a panel gives now."""

    labels: Mapping[str, str]
    value: float
    legend: str


def answers(url: str, board: Board, panel: Panel) -> list[Answer]:
    """What the server says to the panel's queries, with every variable at All."""
    rows = []
    for row in panel.queries:
        text = re.sub(r"\$\w+", ".*", expression(board, row).replace("$__rate_interval", "2m"))
        for series in query(url, text):
            labels = series["metric"]
            legend = re.sub(r"\{\{(\w+)\}\}", lambda match, labels=labels: labels.get(match[1], ""), row.legend)
            rows.append(Answer(labels, float(series["value"][1]), legend))
    return sorted(rows, key=lambda answer: _natural(answer.legend or str(sorted(answer.labels.items()))))


def _natural(text: str) -> list[tuple[int, str]]:
    """train-2 comes before train-10."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", text)]


def draw(board: Board, results: Mapping[str, Sequence[Answer]]) -> str:
    """The picture as SVG. `results`: title of a panel → its series; panels that are not in it are left out."""
    body, x, y, row_height = [], 0, 40, 0
    for panel in board.panels:
        if panel.title not in results:
            continue
        width, height = panel.width * COLUMN, _height(panel, results[panel.title])
        if x + width > WIDTH:
            x, y, row_height = 0, y + row_height, 0
        body.append(f'<g transform="translate({x},{y})">{"".join(_panel(panel, results[panel.title]))}</g>')
        x, row_height = x + width, max(row_height, height)
    height = y + row_height + GAP
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        'font-family="sans-serif" font-size="13" fill="#d8d9da">\n'
        f'<rect width="{WIDTH}" height="{height}" fill="#111217"/>\n'
        f'<text x="{GAP}" y="26" font-size="18">{escape(board.title)}</text>\n' + "\n".join(body) + "\n</svg>\n"
    )


def _height(panel: Panel, rows: Sequence[Answer]) -> int:
    if panel.kind == "number":
        return NUMBER_HEIGHT
    if panel.kind == "cells":
        in_row = panel.width * COLUMN // CELL_WIDTH
        return HEAD + -(-len(rows) // in_row) * CELL_HEIGHT + 2 * GAP
    return HEAD + (min(len(rows), MOST_ROWS) + 1) * ROW + 2 * GAP


def _panel(panel: Panel, rows: Sequence[Answer]) -> Iterator[str]:
    width, height = panel.width * COLUMN - GAP, _height(panel, rows) - GAP
    yield f'<rect x="{GAP / 2}" width="{width}" height="{height}" fill="#181b1f" stroke="#2c3235"/>'
    yield f'<text x="{GAP + 4}" y="18">{escape(panel.title)}</text>'
    if panel.kind == "number":
        value = rows[0].value if rows else None
        text = "No data" if value is None else f"{value:g}{UNITS[panel.unit]}"
        fill = COLORS[_color(panel, value)] if value is not None and panel.steps else "none"
        yield f'<rect x="{GAP / 2}" y="{HEAD}" width="{width}" height="{height - HEAD}" fill="{fill}"/>'
        yield f'<text x="{width / 2}" y="{HEAD + 38}" font-size="30" text-anchor="middle">{text}</text>'
    elif panel.kind == "cells":
        yield from _cells(panel, rows, width)
    else:
        yield from _table(rows, width)


def _cells(panel: Panel, rows: Sequence[Answer], width: int) -> Iterator[str]:
    in_row = width // CELL_WIDTH
    for number, row in enumerate(rows):
        x, y = GAP + number % in_row * CELL_WIDTH, HEAD + number // in_row * CELL_HEIGHT
        fill = COLORS[_color(panel, row.value)]
        yield f'<rect x="{x}" y="{y}" width="{CELL_WIDTH - 4}" height="{CELL_HEIGHT - 4}" fill="{fill}"/>'
        yield f'<text x="{x + 6}" y="{y + 15}" font-size="11">{escape(row.legend.partition(" ")[2])}</text>'
        yield f'<text x="{x + 6}" y="{y + 33}" font-size="15">{row.value:.3g}{UNITS[panel.unit]}</text>'


def _table(rows: Sequence[Answer], width: int) -> Iterator[str]:
    columns = sorted({label for row in rows for label in row.labels} - {*HIDDEN})
    step = width / max(1, len(columns))
    for index, name in enumerate(columns):
        yield f'<text x="{GAP + 4 + index * step:.0f}" y="{HEAD + 14}" fill="#6e9fff">{escape(name)}</text>'
        for number, row in enumerate(rows[:MOST_ROWS], start=1):
            text = escape(row.labels.get(name, ""))
            yield f'<text x="{GAP + 4 + index * step:.0f}" y="{HEAD + 14 + number * ROW}">{text}</text>'
    if not rows:
        yield f'<text x="{GAP + 4}" y="{HEAD + 14}">No data</text>'


def _color(panel: Panel, value: float) -> str:
    """Of the last step that the value reaches."""
    return next((color for minimum, color in reversed(panel.steps) if minimum is None or value >= minimum), "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("picture", type=Path)
    parser.add_argument("board", choices=[board.name for board in BOARDS])
    parser.add_argument("url")
    options = parser.parse_args()
    board = next(board for board in BOARDS if board.name == options.board)
    panels = [panel for panel in board.panels if panel.kind != "lines"]
    results = {panel.title: answers(options.url, board, panel) for panel in panels}
    options.picture.write_text(draw(board, results), encoding="utf-8")


if __name__ == "__main__":
    main()
