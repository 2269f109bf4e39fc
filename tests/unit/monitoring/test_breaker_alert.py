"""The breaker as an alert of a real Alertmanager: posted, kept while a node of it is suspect, resolved."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from provisioner.common.errors import GpuprovError
from provisioner.common.paths import private_dir
from provisioner.lifecycle import silencing
from provisioner.lifecycle.quarantine import actions as quarantine
from provisioner.lifecycle.session import Cluster, open_cluster
from provisioner.monitoring import breaker_alert, servers
from provisioner.monitoring.breaker_alert import NAME, Trip
from provisioner.rundir import fleet
from provisioner.rundir.fleet import Node
from provisioner.verify.results import Breaker, CheckResult, NodeReport, Report
from tests.support.prometheus import serve, until

pytestmark = [pytest.mark.heavy]

BAD = ("train-0", "train-1", "train-2")


def breaker(*bad: str) -> Breaker:
    return Breaker(bad, 0, 1, 8, "gpu.count", len(bad))


def firing(manager: str, cluster: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = servers.get(f"{manager}/api/v2/alerts", {"filter": [f'cluster="{cluster}"']})
    return rows


def nodes(manager: str, cluster: str) -> str:
    (row,) = firing(manager, cluster)
    return str(row["annotations"]["nodes"])


def test_a_tripped_breaker_is_an_alert_until_no_node_is_suspect(manager: str) -> None:
    breaker_alert.settle(manager, "trip", Trip(breaker(*BAD), {*BAD, "train-3"}))
    (alert,) = firing(manager, "trip")
    assert alert["labels"] == {"alertname": NAME, "cluster": "trip", "severity": "page"}
    assert [row["name"] for row in alert["receivers"]] == ["page"]
    assert alert["annotations"]["summary"] == "3 nodes turned bad at once, and none was put into quarantine"
    assert "common cause: gpu.count on 3 of 3" in alert["annotations"]["description"]
    assert alert["annotations"]["runbook"] == 'gpuprov docs quarantine "The breaker"'
    lasts = datetime.fromisoformat(alert["endsAt"]) - datetime.now(UTC)
    assert timedelta(days=6) < lasts <= breaker_alert.LASTS
    # a verdict of other nodes says nothing of these
    breaker_alert.settle(manager, "trip", Trip(None, {"train-1", "train-4"}))
    assert len(firing(manager, "trip")) == 1
    breaker_alert.settle(manager, "trip", Trip(None, {"train-4"}))
    until(lambda: firing(manager, "trip") == [])
    breaker_alert.settle(manager, "trip", Trip(None, ()))
    breaker_alert.settle(f"{manager}/", "trip", Trip(breaker("train-5"), {"train-5"}))
    assert nodes(manager, "trip") == "train-5"


def test_a_second_trip_adds_its_nodes_to_those_that_are_still_suspect(manager: str) -> None:
    breaker_alert.settle(manager, "twice", Trip(breaker(*BAD), BAD))
    breaker_alert.settle(manager, "other", Trip(breaker("train-7"), ["train-7"]))
    breaker_alert.settle(manager, "twice", Trip(breaker("train-4", "train-5"), {"train-2", "train-4", "train-5"}))
    assert nodes(manager, "twice") == "train-2 train-4 train-5"
    assert nodes(manager, "other") == "train-7"


@pytest.mark.parametrize("answer", [b"null", b'{"x": 1}', b"[1]", b'[{"labels": {"node": 1}}]', b"<html>"])
def test_a_server_that_is_no_alertmanager_is_an_error(answer: bytes) -> None:
    server = serve(lambda _: answer)
    try:
        with pytest.raises(GpuprovError):
            breaker_alert.settle(f"http://127.0.0.1:{server.server_port}", "vision", Trip(breaker(*BAD), BAD))
    finally:
        server.shutdown()


FILE = """
name: held
sites: {here: {provider: aws, region: us-east-1}}
groups: {train: {machine: p4d.24xlarge, count: 8}}
quarantine: {most: 1}
monitoring: {alertmanager: "URL"}
"""


def opened(folder: Path, url: str, text: str = FILE) -> Cluster:
    (folder / "cluster.yaml").write_text(text.replace("URL", url))
    cluster = open_cluster(folder / "cluster.yaml", sandbox=True)
    private_dir(cluster.paths.root)
    fleet.save(cluster.paths, [
        Node(f"train-{i}", "train", "here", "p4d.24xlarge", f"id-{i}", "", "198.51.100.1", "10.0.0.1") for i in range(8)
    ])  # fmt: skip
    return cluster


def judge(cluster: Cluster, bad: str, well: str) -> Report:
    """The verdict on nodes by their numbers."""
    verdicts = [
        NodeReport(
            f"train-{number}", "train", "here", "p4d.24xlarge", True,
            (CheckResult("gpu.count", "fatal", "fail" if number in bad else "pass", "replace", "", message="7 of 8"),),
        )
        for number in bad + well
    ]  # fmt: skip
    return quarantine.after_verdict(
        cluster, Report(tuple(verdicts), {}, 0.0), cluster.nodes(), "standard", holding=False
    )


def test_verdicts_post_and_resolve_it(manager: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(silencing, "_failed_until", {})
    cluster = opened(tmp_path, manager)
    assert judge(cluster, "012", "34567").breaker is not None
    assert nodes(manager, "held.sandbox") == "train-0 train-1 train-2"
    judge(cluster, "", "34567")
    assert nodes(manager, "held.sandbox") == "train-0 train-1 train-2"
    assert judge(cluster, "", "12").breaker is None
    assert nodes(manager, "held.sandbox") == "train-0"
    judge(cluster, "0", "")  # goes into quarantine
    until(lambda: firing(manager, "held.sandbox") == [])


def test_people_who_quarantine_alone_have_no_breaker(
    manager: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(silencing, "_failed_until", {})
    text = FILE.replace("held", "alone")
    judge(opened(tmp_path, manager, text), "012", "")
    assert len(firing(manager, "alone.sandbox")) == 1
    judge(opened(tmp_path, manager, text.replace("most: 1", "automatic: false")), "012", "")
    until(lambda: firing(manager, "alone.sandbox") == [])


def test_an_alertmanager_that_does_not_answer_keeps_no_verdict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(silencing, "_failed_until", {})
    cluster = opened(tmp_path, f"http://127.0.0.1:{servers.free_port()}")
    warnings: list[str] = []
    cluster.events.subscribe(lambda event: warnings.append(event.message) if event.kind == "warning" else None)
    assert judge(cluster, "012", "34567").breaker is not None
    assert [text for text in warnings if text.startswith(f"silences and {NAME} may be out of date: ")]
