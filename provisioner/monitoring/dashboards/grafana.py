"""Rows of panels.py → Grafana's JSON, with Grafana's own SDK. No data source is named: the user chooses one."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from grafana_foundation_sdk.builders import dashboard as boards
from grafana_foundation_sdk.builders import prometheus, stat, table, timeseries
from grafana_foundation_sdk.builders.common import ReduceDataOptions
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import common
from grafana_foundation_sdk.models import dashboard as models
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

from provisioner.monitoring.dashboards.panels import BOARDS, Board, Panel, Query

SOURCE = "datasource"
"""The variable with the data source."""
MERGED_QUERIES = models.DataTransformerConfig(id_val="merge", options={})
"""A table shows one query without it."""
HEIGHT = {"number": 4, "cells": 8, "lines": 8, "table": 8}


def dashboards() -> dict[str, dict[str, Any]]:
    """Name → the dashboard as Grafana 11 imports it."""
    return {board.name: document(board) for board in BOARDS}


def document(board: Board) -> dict[str, Any]:
    """One dashboard."""
    builder = (
        boards.Dashboard(board.title)
        .uid(f"gpuprov-{board.name}")
        .description(board.about)
        .tags(["gpuprov"])
        .readonly()
        .time("now-6h", "now")
        .refresh("30s")
        .with_variable(boards.DatasourceVariable(SOURCE).label("Data source").type("prometheus"))
    )
    for number, label in enumerate(board.variables):
        builder = builder.with_variable(_variable(label, board.variables[:number]))
    for other in BOARDS:
        if other is not board:
            link = boards.DashboardLink(other.title).type(models.DashboardLinkType.LINK)
            builder = builder.link(link.url(f"/d/gpuprov-{other.name}").keep_time(True).include_vars(True))
    for panel in board.panels:
        builder = builder.with_panel(_panel(board, panel))
    decoded: dict[str, Any] = json.loads(JSONEncoder(sort_keys=True).encode(builder.build()))
    return decoded


def expression(board: Board, query: Query) -> str:
    """The query with the selector of the dashboard's variables in place of `of`."""
    matchers = ",".join(f'{label}=~"${label}"' for label in board.variables)
    return re.sub(r"(?<=[{,])of(?=\})", lambda _: matchers, query.expr)


def _variable(label: str, within: tuple[str, ...]) -> boards.QueryVariable:
    matchers = ",".join(f'{name}=~"${name}"' for name in within)
    metric = "DCGM_FI_DEV_GPU_TEMP" if label == "gpu" else "up"
    matchers = matchers if label == "gpu" else ",".join(filter(None, ('job="gpuprov-node"', matchers)))
    return (
        boards.QueryVariable(label)
        .label(label.capitalize())
        .datasource(_source())
        .query({"query": f"label_values({metric}{{{matchers}}}, {label})", "refId": label})
        .refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(models.VariableSort.NATURAL_ASC)
        .multi(True)
        .include_all(True)
        .all_value(".*")
    )


def _source() -> models.DataSourceRef:
    return models.DataSourceRef(type_val="prometheus", uid=f"${{{SOURCE}}}")


def _panel(board: Board, panel: Panel) -> stat.Panel | table.Panel | timeseries.Panel:
    builder: Any
    match panel.kind:
        case "number" | "cells":
            builder = stat.Panel().color_mode(common.BigValueColorMode.BACKGROUND)
            builder = builder.graph_mode(common.BigValueGraphMode.NONE).reduce_options(
                ReduceDataOptions().calcs(["lastNotNull"])
            )
            if panel.kind == "cells":
                builder = builder.text_mode(common.BigValueTextMode.VALUE_AND_NAME)
        case "lines":
            builder = timeseries.Panel()
        case "table":
            builder = table.Panel().with_transformation(MERGED_QUERIES).with_transformation(_without_columns())
    builder = builder.title(panel.title).description(panel.about).unit(panel.unit).datasource(_source())
    builder = builder.span(panel.width).height(HEIGHT[panel.kind])
    if panel.steps:
        steps = [models.Threshold(value=value, color=color) for value, color in panel.steps]
        builder = builder.thresholds(boards.ThresholdsConfig().mode(models.ThresholdsMode.ABSOLUTE).steps(steps))
    if panel.to_node:
        link = boards.DashboardLink("Node").url("/d/gpuprov-node?var-node=${__field.labels.node}&${__url_time_range}")
        builder = builder.data_links([link])
    for number, query in enumerate(panel.queries):
        builder = builder.with_target(_target(board, panel, query, "ABCDEF"[number]))
    return builder  # type: ignore[no-any-return]


def _target(board: Board, panel: Panel, query: Query, letter: str) -> prometheus.Dataquery:
    target = prometheus.Dataquery().expr(expression(board, query)).ref_id(letter).datasource(_source())
    target = target.legend_format(query.legend or "__auto")
    if panel.kind == "lines":
        return target.range()
    return target.instant().format(PromQueryFormat.TABLE if panel.kind == "table" else PromQueryFormat.TIME_SERIES)


def _without_columns() -> models.DataTransformerConfig:
    """The time of an instant query and what repeats the choice of the dashboard say nothing in a table."""
    columns: Mapping[str, bool] = dict.fromkeys(("Time", "__name__", "job", "instance", "alertstate"), True)
    return models.DataTransformerConfig(id_val="organize", options={"excludeByName": columns})
