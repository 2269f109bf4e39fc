"""The picture of a dashboard has what its queries gave, in the colours of the dashboard."""

from __future__ import annotations

from xml.etree import ElementTree

from provisioner.monitoring.dashboards.panels import FLEET
from scripts.board_svg import COLORS, UNITS, Answer, draw

GPU = {"cluster": "vision", "node": "train-0", "gpu": "3"}


def test_it_has_the_answers_and_their_colours() -> None:
    hot, cool = Answer(GPU, 91, "vision train-0/3"), Answer(GPU, 35, "vision train-0/4")
    svg = draw(FLEET, {
        "Nodes that answer": [Answer({}, 3, "")],
        "Alerts": [],
        "Temperature, one cell for each GPU": [hot, cool],
        "Firing alerts": [Answer({"alertname": "GpuMissing <&>", "node": "train-0", "cluster": "vision"}, 1, "")],
    })  # fmt: skip
    texts = [element.text for element in ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")]
    assert {"GPU fleet", "3", "No data", "train-0/3", "91 °C", "35 °C", "GpuMissing <&>", "alertname"} <= {*texts}
    assert "Failed checks" not in texts
    assert svg.count(COLORS["red"]) == svg.count(COLORS["green"]) == 1


def test_every_colour_and_unit_of_the_fleet_is_known() -> None:
    panels = [panel for panel in FLEET.panels if panel.kind in ("number", "cells")]
    assert {color for panel in panels for _, color in panel.steps} <= {*COLORS}
    assert {panel.unit for panel in panels} <= {*UNITS}
