"""A head node without GPUs: real Prometheus and Alertmanager of Debian watch the nodes of the sandbox."""

from __future__ import annotations

import json
import os
import shlex
import signal
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.support.run_processes import until
from tests.support.sandbox_cluster import SandboxCluster

pytestmark = [pytest.mark.sandbox]

FILE = """\
name: {name}
sites: {{ ohio: {{ provider: aws, region: us-east-2 }} }}
monitoring: {{ prometheus: {{ at: head, receivers: told.yaml }} }}
verify: {{ level: quick }}
groups:
  head: {{ machine: m6i.large }}
  work: {{ machine: g5.xlarge }}
"""
SECRET = "s3cret-of-the-pager"
RECEIVERS = f"receivers: [{{name: watchdog, webhook_configs: [{{url: 'http://127.0.0.1:9999/{SECRET}'}}]}}]\n"
LISTEN = """
import http.server
class Told(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        print(self.path, self.rfile.read(int(self.headers["Content-Length"])).decode(), flush=True)
        self.send_response(200)
        self.end_headers()
http.server.HTTPServer(("127.0.0.1", 9999), Told).handle_request()
"""
"""A receiver of one notification."""
ask = urllib.request.build_opener(urllib.request.ProxyHandler({})).open


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SandboxCluster]:
    folder = tmp_path_factory.mktemp("head")
    cluster = SandboxCluster(folder / "cluster.yaml", f"t-head-{os.getpid() % 10_000}")
    cluster.file.write_text(FILE.format(name=cluster.name))
    (folder / "told.yaml").write_text(RECEIVERS)
    try:
        cluster.first = cluster.up()
        assert cluster.first.status == 0, cluster.first.stderr
        yield cluster
    finally:
        cluster.down()


@contextmanager
def opened(fleet: SandboxCluster) -> Iterator[tuple[str, str]]:
    """URLs of Prometheus and Alertmanager."""
    process = fleet.start("monitoring", "open", fleet.file, "--sandbox")
    assert process.stdout is not None
    try:
        lines = [process.stdout.readline() for _ in range(2)]
        yield lines[0].split()[-1], lines[1].split()[-1]
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    assert process.returncode == 0


def get(url: str) -> Any:
    with ask(url, timeout=30) as answer:
        return json.load(answer)


def up_nodes(prometheus: str) -> dict[tuple[str, str], str]:
    """(job, node) → 1 or 0, of the targets that were scraped."""
    rows = get(f"{prometheus}/api/v1/query?query=up")["data"]["result"]
    return {(row["metric"]["job"], row["metric"].get("node", "")): row["value"][1] for row in rows}


def test_it_watches_the_nodes_of_its_site(fleet: SandboxCluster) -> None:
    expected = {("gpuprov-node", "head-0"), ("gpuprov-node", "work-0"), ("gpuprov-dcgm", "work-0"), ("prometheus", "")}
    with opened(fleet) as (prometheus, _):
        assert until(lambda: up_nodes(prometheus) == dict.fromkeys(expected, "1"), 400), up_nodes(prometheus)
        rules = get(f"{prometheus}/api/v1/rules")["data"]["groups"]
        assert {rule["health"] for group in rules for rule in group["rules"]} <= {"ok", "unknown"}


def test_it_is_healthy_and_a_second_up_changes_nothing(fleet: SandboxCluster) -> None:
    assert fleet.first is not None
    assert {node["ok"] for node in fleet.first.json["nodes"]} == {True}
    second = fleet.run("up", fleet.file, "--sandbox", "--yes")
    assert second.status == 0
    assert "2 of 2 nodes healthy" in second.stdout
    assert "nothing changed" in second.stdout


def test_the_users_receiver_is_told_and_its_secret_is_on_the_head_node_alone(fleet: SandboxCluster) -> None:
    done = fleet.run("exec", fleet.file, "--node", "head-0", f"timeout 400 python3 -c {shlex.quote(LISTEN)}")
    assert f"/{SECRET}" in done.stdout, done.stderr
    assert "GpuprovWatchdog" in done.stdout
    files = [path for path in fleet.root.rglob("*") if path.is_file()]
    assert [path for path in files if SECRET.encode() in path.read_bytes()] == []
    done = fleet.run("exec", fleet.file, "--node", "head-0", "sudo", "find", "/etc/gpuprov/prometheus", "-perm", "/o=r")
    assert (done.status, done.stdout) == (0, "")


def test_only_loopback_reaches_prometheus_and_alertmanager(fleet: SandboxCluster) -> None:
    done = fleet.run("exec", fleet.file, "--node", "head-0", "ss", "-Htln")
    assert done.status == 0, done.stderr
    ports = [line for line in done.stdout.splitlines() if any(f":{port} " in line for port in (9090, 9093, 9094))]
    assert len(ports) == 2
    assert all("127.0.0.1:909" in line for line in ports), ports


def test_alerts_of_a_node_in_quarantine_are_silenced_until_it_is_back(fleet: SandboxCluster) -> None:
    with opened(fleet) as (_, alertmanager):

        def silenced() -> set[str]:
            rows = get(f"{alertmanager}/api/v2/silences")
            active = [row for row in rows if row["status"]["state"] == "active"]
            return {m["value"] for row in active for m in row["matchers"] if m["name"] == "node"}

        assert fleet.run("quarantine", fleet.file, "work-0", "--reason", "a look at it", "--sandbox").status == 0
        assert silenced() == {"work-0"}
        assert fleet.run("release", fleet.file, "work-0", "--sandbox").status == 0
        assert silenced() == set()


def test_verify_warns_of_a_prometheus_that_does_not_run(fleet: SandboxCluster) -> None:
    stop = fleet.run("exec", fleet.file, "--node", "head-0", "sudo systemctl stop gpuprov-prometheus")
    assert stop.status == 0, stop.stderr
    (node,) = fleet.run("verify", fleet.file, "--node", "head-0", "--json").json["nodes"]
    check = next(check for check in node["checks"] if check["id"] == "services.expected")
    assert check["status"] == "fail"
    assert "gpuprov-prometheus.service" in check["message"]
    assert fleet.run("exec", fleet.file, "--node", "head-0", "sudo systemctl start gpuprov-prometheus").status == 0


def post_alert(alertmanager: str, cluster: str, node: str, severity: str) -> None:
    """An alert as Prometheus sends it."""
    labels = {"alertname": "Posted", "cluster": cluster, "node": node, "severity": severity}
    request = urllib.request.Request(
        f"{alertmanager}/api/v2/alerts", json.dumps([{"labels": labels}]).encode(), {"Content-Type": "application/json"}
    )
    with ask(request, timeout=30) as answer:
        assert answer.status == 200


def test_a_page_makes_verify_look_at_its_node_and_the_verdict_acts(fleet: SandboxCluster) -> None:
    label = f"{fleet.name}.sandbox"
    with opened(fleet) as (_, alertmanager):
        post_alert(alertmanager, label, "work-0", "ticket")
        post_alert(alertmanager, "another", "work-0", "page")
        quiet = fleet.run("verify", fleet.file, "--alerting", "--json")
        assert (quiet.status, quiet.json["nodes"]) == (0, []), quiet.stderr
        post_alert(alertmanager, label, "work-0", "page")
        healthy = fleet.run("verify", fleet.file, "--alerting", "--json")
        assert (healthy.status, [node["name"] for node in healthy.json["nodes"]]) == (0, ["work-0"]), healthy.stderr
        assert "work-0: Posted" in healthy.stderr
        assert fleet.run("sandbox", "fault", fleet.file, "work-0", "gpu-lost").status == 0
        assert fleet.run("verify", fleet.file, "--alerting").status == 1
        nodes = {node["name"]: node for node in fleet.run("status", fleet.file, "--json").json["nodes"]}
        assert nodes["work-0"]["quarantine"] is not None
        # out of service and silenced: it is not looked at again and again
        assert fleet.run("verify", fleet.file, "--alerting", "--json").json["nodes"] == []
        assert fleet.run("sandbox", "clear", fleet.file, "work-0").status == 0
        proven = fleet.verify("--level", "standard")
        assert proven.status == 0, proven.stdout


def test_it_stops_where_cluster_yaml_names_another_prometheus(fleet: SandboxCluster) -> None:
    text = fleet.file.read_text()
    fleet.file.write_text(text.replace("{ at: head, receivers: told.yaml }", "{ at: external }"))
    try:
        assert fleet.up().status == 0
        done = fleet.run("exec", fleet.file, "--node", "head-0", "systemctl is-active gpuprov-prometheus || true")
        assert "inactive" in done.stdout
        refused = fleet.run("monitoring", "open", fleet.file, "--sandbox")
        assert refused.status == 2
        assert "no machine of this cluster runs Prometheus" in refused.stderr
    finally:
        fleet.file.write_text(text)
