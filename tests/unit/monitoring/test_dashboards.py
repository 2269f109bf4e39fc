"""The dashboards: Grafana's own model reads them, variables resolve, every metric is one that an exporter gives."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml
from grafana_foundation_sdk.models.dashboard import Dashboard

from provisioner.monitoring.dashboards.grafana import SOURCE, dashboards, expression
from provisioner.monitoring.dashboards.panels import BOARDS, Board
from provisioner.monitoring.rules import alert_rules, document, rule_groups
from provisioner.verify.readings import EFA_COUNTERS
from tests.support.sandbox_cluster import ROOT
from tests.support.watched_nodes import example

COUNTERS = ROOT / "ansible" / "roles" / "dcgm_exporter" / "defaults" / "main.yml"
METRIC = re.compile(r"\b(DCGM_[A-Z_]+|gpuprov[_:][a-z_]+|node_[a-zA-Z0-9_]+|prometheus_[a-z_]+)\b(?=[{\[ )]|$)")
NODE_EXPORTER = [
    "node_cpu_seconds_total",
    "node_memory_MemAvailable_bytes",
    "node_memory_MemTotal_bytes",
    "node_filesystem_avail_bytes",
    "node_filesystem_size_bytes",
    "node_filesystem_readonly",
    "node_vmstat_oom_kill",
    "node_network_receive_bytes_total",
    "node_network_transmit_bytes_total",
]
"""Those that dashboards use are held to the real one by test_live.py; github prometheus/node_exporter has the rest."""
INFINIBAND = [
    "node_infiniband_state_id",
    "node_infiniband_link_downed_total",
    "node_infiniband_port_errors_received_total",
    "node_infiniband_port_data_received_bytes_total",
    "node_infiniband_port_data_transmitted_bytes_total",
]
"""github prometheus/node_exporter collector/infiniband_linux.go."""
MDADM = ["node_md_disks"]
"""github prometheus/node_exporter collector/mdadm_linux.go: only where /proc/mdstat has a device."""
OWN = [
    *(f"gpuprov_efa_{counter}_total" for counter in EFA_COUNTERS),
    "gpuprov_check",
    "gpuprov_node_ok",
    "gpuprov_check_timestamp_seconds",
    "gpuprov_image_build_timestamp_seconds",
    "gpuprov_interruption_pending",
    "gpuprov_interruption_block_end_timestamp_seconds",
    "prometheus_notifications_alertmanagers_discovered",
    "prometheus_rule_evaluation_failures_total",
]


def exported_counters() -> set[str]:
    listed = yaml.safe_load(COUNTERS.read_text())["dcgm_exporter_counters"]
    return {line.partition(",")[0] for line in listed.splitlines() if line}


def recorded() -> set[str]:
    rows = [rule for group in rule_groups(example("aws-p4d.yaml")) for rule in document(group)["groups"][0]["rules"]]
    return {rule["record"] for rule in rows if "record" in rule}


@pytest.mark.parametrize("board", BOARDS, ids=lambda board: board.name)
def test_grafanas_own_model_reads_it(board: Board) -> None:
    document = dashboards()[board.name]
    read = Dashboard.from_json(document)
    assert read.title == board.title
    assert len(read.panels or []) == len(board.panels)
    assert document["schemaVersion"] >= 41  # of Grafana 11.6


@pytest.mark.parametrize("board", BOARDS, ids=lambda board: board.name)
def test_variables_resolve_and_no_data_source_is_named(board: Board) -> None:
    document = dashboards()[board.name]
    variables = {row["name"] for row in document["templating"]["list"]}
    assert variables == {SOURCE, *board.variables}
    for panel in document["panels"]:
        assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        for target in panel["targets"]:
            assert target["datasource"]["uid"] == f"${{{SOURCE}}}"
            used = set(re.findall(r"\$(\w+)", target["expr"])) - {"__rate_interval"}
            assert used <= variables, target["expr"]
            assert used >= {"cluster"}, target["expr"]


def test_the_selector_is_put_in_everywhere() -> None:
    for board in BOARDS:
        for panel in board.panels:
            for query in panel.queries:
                text = expression(board, query)
                assert not re.search(r"[{,]of[,}]", text), text
                assert text.count('cluster=~"$cluster"') == len(re.findall(r"[{,]of\}", query.expr)) > 0, text


def test_every_metric_is_one_that_an_exporter_gives() -> None:
    known = exported_counters() | {*NODE_EXPORTER, *INFINIBAND, *MDADM, *OWN} | recorded()
    queries = [(board.name, query.expr) for board in BOARDS for panel in board.panels for query in panel.queries]
    for name in ("aws-p4d.yaml", "azure-ndv4.yaml", "rtx4090.yaml"):
        queries += [(rule.name, rule.expr) for rule in alert_rules(example(name))]
    used: dict[str, str] = {metric: user for user, expr in queries for metric in METRIC.findall(expr)}
    assert {metric: user for metric, user in used.items() if metric not in known} == {}
    assert len(used) > 30


def test_a_link_leads_to_a_dashboard_that_is_there() -> None:
    boards = dashboards()
    uids = {board["uid"] for board in boards.values()}
    links: list[dict[str, Any]] = [link for board in boards.values() for link in board["links"]]
    links += [
        link
        for board in boards.values()
        for panel in board["panels"]
        for link in panel["fieldConfig"]["defaults"].get("links", [])
    ]
    assert links
    for link in links:
        match = re.match(r"/d/([\w-]+)", link["url"])
        assert match is not None
        assert match[1] in uids, link
