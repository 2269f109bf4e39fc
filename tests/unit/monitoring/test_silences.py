"""Silences in a real Alertmanager: made, prolonged, ended, and those of others left alone."""

from __future__ import annotations

import json
import socket
import urllib.parse
import urllib.request
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from provisioner.common.errors import GpuprovError
from provisioner.monitoring import alertmanager, servers, silences
from provisioner.monitoring.rules.capacity import ENDING, ENDS
from tests.support.prometheus import serve, until

pytestmark = [pytest.mark.heavy]


def post(url: str, document: Any) -> None:
    request = urllib.request.Request(url, json.dumps(document).encode(), {"Content-Type": "application/json"})
    urllib.request.urlopen(request, timeout=60).close()


def send_alert(manager: str, cluster: str, node: str) -> None:
    labels = {"alertname": "GpuMissing", "cluster": cluster, "node": node, "severity": "page"}
    post(f"{manager}/api/v2/alerts", [{"labels": labels}])


def state(manager: str, cluster: str, node: str) -> str:
    """active or suppressed."""
    filters = {"filter": [f'cluster="{cluster}"', f'node="{node}"']}
    (row,) = servers.get(f"{manager}/api/v2/alerts", filters)
    return str(row["status"]["state"])


def active_ids(manager: str) -> list[dict[str, Any]]:
    rows = servers.get(f"{manager}/api/v2/silences")
    return [row for row in rows if row["createdBy"] == silences.AUTHOR and row["status"]["state"] != "expired"]


def test_a_node_is_silenced_once_until_it_is_back(manager: str) -> None:
    for cluster, node in (("vision", "train-0"), ("vision", "train-1"), ("other", "train-0")):
        send_alert(manager, cluster, node)
    silences.begin(manager, "vision", {"train-0": "upgrade: driver 590.48"})
    silences.begin(f"{manager}/", "vision", {"train-0": "upgrade: driver 590.48"})  # the same command again
    (silence,) = active_ids(manager)
    assert silence["comment"] == "upgrade: driver 590.48"
    lasts = datetime.fromisoformat(silence["endsAt"]) - datetime.now(UTC)
    assert timedelta(days=6) < lasts <= silences.LASTS
    until(lambda: state(manager, "vision", "train-0") == "suppressed")
    assert state(manager, "vision", "train-1") == state(manager, "other", "train-0") == "active"
    silences.end(manager, "vision", ["train-0", "train-1"])
    assert active_ids(manager) == []
    until(lambda: state(manager, "vision", "train-0") == "active")


def test_silences_of_people_stay(manager: str) -> None:
    matchers = [
        {"name": name, "value": value, "isRegex": False, "isEqual": True}
        for name, value in (("cluster", "vision"), ("node", "train-7"))
    ]
    begin = datetime.now(UTC)
    document = {
        "matchers": matchers, "startsAt": begin.isoformat(), "endsAt": (begin + timedelta(hours=1)).isoformat(),
        "createdBy": "ada", "comment": "a fan is being changed",
    }  # fmt: skip
    post(f"{manager}/api/v2/silences", document)
    silences.end(manager, "vision", ["train-7"])
    rows = servers.get(f"{manager}/api/v2/silences")
    assert [row["status"]["state"] for row in rows if row["createdBy"] == "ada"] == ["active"]


def test_the_page_on_the_end_of_a_block_hides_the_ticket_of_the_same_group_alone(manager: str) -> None:
    def state_of(group: str, name: str) -> str:
        filters = {"filter": [f'alertname="{name}"', f'group="{group}"', 'cluster="blocks"']}
        (row,) = servers.get(f"{manager}/api/v2/alerts", filters)
        return str(row["status"]["state"])

    post(f"{manager}/api/v2/alerts", [
        {"labels": {"alertname": name, "cluster": "blocks", "group": group, "severity": "page"}}
        for group, name in (("train", ENDING), ("train", ENDS), ("infer", ENDS))
    ])  # fmt: skip
    until(lambda: state_of("train", ENDS) == "suppressed")
    until(lambda: state_of("infer", ENDS) == state_of("train", ENDING) == "active")


@pytest.mark.parametrize("path", ["/api/v2", "/nowhere"])
def test_what_the_server_refuses_has_its_url(manager: str, path: str) -> None:
    with pytest.raises(GpuprovError, match="status 404") as caught:
        silences.begin(f"{manager}{path}", "vision", {"train-0": "x"})
    assert caught.value.where == f"{manager}{path}/api/v2/silences"


def test_what_was_missed_is_made_up_for(manager: str) -> None:
    silences.begin(manager, "missed", {"train-0": "quarantine: x", "train-1": "quarantine: y"})
    silences.settle(manager, "missed", {"train-1": "quarantine: y", "train-2": "upgrade"})
    nodes = {
        matcher["value"]
        for row in active_ids(manager)
        for matcher in row["matchers"]
        if matcher["name"] == "node" and any(other["value"] == "missed" for other in row["matchers"])
    }
    assert nodes == {"train-1", "train-2"}
    silences.settle(manager, "missed", {})
    assert active_ids(manager) == []


@pytest.mark.parametrize(
    "answer", [b"null", b'{"status": "success"}', b'[{"id": "1"}]', b'"x"', b"<html>", b"[" * 99_999]
)
def test_a_server_that_is_no_alertmanager_is_an_error_and_no_traceback(answer: bytes) -> None:
    server = serve(lambda _: answer)
    try:
        with pytest.raises(GpuprovError):
            silences.begin(f"http://127.0.0.1:{server.server_port}", "vision", {"train-0": "x"})
    finally:
        server.shutdown()


def test_a_server_that_does_not_answer_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alertmanager, "ANSWER_S", 0.2)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        with pytest.raises(GpuprovError, match="timed out"):
            silences.settle(f"http://127.0.0.1:{listener.getsockname()[1]}", "vision", {})


def test_nobody_answers() -> None:
    port = servers.free_port()
    with pytest.raises(GpuprovError, match="Connection refused"):
        silences.end(f"http://127.0.0.1:{port}", "vision", ["train-0"])


def test_alerting_nodes_are_those_of_the_cluster_without_silenced_ones(manager: str) -> None:
    def alert(name: str, node: str, cluster: str = "alerting", severity: str = "page") -> dict[str, Any]:
        return {"labels": {"alertname": name, "node": node, "cluster": cluster, "severity": severity}}

    post(f"{manager}/api/v2/alerts", [
        alert("GpuMissing", "train-0"), alert("CheckGpuEcc", "train-0"), alert("GpuMissing", "train-1"),
        alert("HighGPUIdle", "train-2", severity="ticket"), alert("GpuMissing", "train-3", cluster="other"),
        {"labels": {"alertname": "NoNode", "cluster": "alerting", "severity": "page"}},
        {"labels": {"alertname": "GpuprovWatchdog", "cluster": "alerting", "severity": "none"}},
    ])  # fmt: skip
    silences.begin(manager, "alerting", {"train-1": "quarantine"})
    firing = {"train-0": ["CheckGpuEcc", "GpuMissing"]}
    until(lambda: alertmanager.alerting(manager, "alerting", "page") == firing)


@pytest.mark.parametrize(
    "answer", [b"", b"null", b'{"x": 1}', b"[1]", b'[{"labels": null}]', b'[{"labels": {"node": 1}}]']
)
def test_alerts_of_a_server_that_is_no_alertmanager_are_unknown(answer: bytes) -> None:
    server = serve(lambda _: answer)
    try:
        with pytest.raises(GpuprovError, match="does not answer as an Alertmanager"):
            alertmanager.alerting(f"http://127.0.0.1:{server.server_port}", "vision", "page")
    finally:
        server.shutdown()


def test_without_the_alert_that_always_fires_nothing_is_known(manager: str) -> None:
    """A Prometheus that is dead sends no alerts of nodes, either."""
    send_alert(manager, "dead", "train-0")
    with pytest.raises(GpuprovError, match="no Prometheus sends alerts of this cluster: GpuprovWatchdog is absent"):
        alertmanager.alerting(manager, "dead", "page")


def test_an_alert_of_another_cluster_is_not_believed() -> None:
    """Whatever the server was asked for."""
    rows = [
        {"alertname": "GpuprovWatchdog", "cluster": "vision"},
        {"alertname": "A", "node": "train-0", "cluster": "x"},
    ]
    server = serve(lambda _: json.dumps([{"labels": row} for row in rows]).encode())
    try:
        assert alertmanager.alerting(f"http://127.0.0.1:{server.server_port}", "vision", "page") == {}
    finally:
        server.shutdown()
