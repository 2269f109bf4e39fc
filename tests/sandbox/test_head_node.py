"""A head node without GPUs: real Prometheus and Alertmanager of Debian watch the nodes of the sandbox. Its Grafana is
simulated (provisioner/sandbox/node/grafana.py)."""

from __future__ import annotations

import base64
import json
import os
import re
import shlex
import signal
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from provisioner.monitoring.dashboards.grafana import dashboards
from tests.support.run_processes import until
from tests.support.sandbox_cluster import SandboxCluster

pytestmark = [pytest.mark.sandbox]

FILE = """\
name: {name}
sites: {{ ohio: {{ provider: aws, region: us-east-2 }} }}
monitoring: {{ grafana: true, prometheus: {{ at: head, retention_size: 1GB, receivers: told.yaml }} }}
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
def opened(fleet: SandboxCluster) -> Iterator[tuple[str, str, str]]:
    """URLs of Prometheus, Alertmanager and Grafana."""
    process = fleet.start("monitoring", "open", fleet.file, "--sandbox")
    assert process.stdout is not None
    try:
        prometheus, alertmanager, grafana = (process.stdout.readline().split()[-1] for _ in range(3))
        yield prometheus, alertmanager, grafana
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
    with opened(fleet) as (prometheus, _, _):
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


def status(url: str, body: dict[str, Any] | None = None, **headers: str) -> int:
    """Status of an answer, whatever it is."""
    data = None if body is None else json.dumps(body).encode()
    try:
        with ask(urllib.request.Request(url, data, headers), timeout=30) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def test_grafana_shows_the_dashboards_of_the_archive_and_asks_the_prometheus_beside_it(fleet: SandboxCluster) -> None:
    with opened(fleet) as (prometheus, _, grafana):
        assert get(f"{grafana}/api/health")["database"] == "ok"
        titles = {document["uid"]: document["title"] for document in dashboards().values()}
        assert {hit["uid"]: hit["title"] for hit in get(f"{grafana}/api/search?type=dash-db")} == titles
        displayed = get(f"{grafana}/api/dashboards/uid/gpuprov-fleet")
        assert displayed["dashboard"] == dashboards()["fleet"] == get(f"{grafana}/api/dashboards/home")["dashboard"]
        assert (displayed["meta"]["provisioned"], displayed["meta"]["canSave"]) == (True, False)
        proxied = f"{grafana}/api/datasources/proxy/uid/gpuprov"
        assert up_nodes(proxied).keys() == up_nodes(prometheus).keys()


def test_nobody_can_log_in_to_grafana_or_change_it(fleet: SandboxCluster) -> None:
    admin = {"Authorization": "Basic " + base64.b64encode(b"admin:admin").decode()}
    with opened(fleet) as (_, _, grafana):
        assert status(f"{grafana}/login", {"user": "admin", "password": "admin"}) == 401
        assert status(f"{grafana}/api/datasources", **admin) == 403
        assert status(f"{grafana}/api/dashboards/db", {"dashboard": {}}, **admin) == 403


def test_grafana_does_not_run_with_a_wrong_provisioning_file(fleet: SandboxCluster) -> None:
    file = "/etc/gpuprov/grafana/provisioning/datasources/gpuprov.yaml"

    def on_head(command: str) -> tuple[int, str]:
        done = fleet.run("exec", fleet.file, "--node", "head-0", command)
        return done.status, done.stdout

    assert on_head(f"sudo sed -i.good s/isDefault/isDefalt/ {file}")[0] == 0
    assert on_head("sudo systemctl restart gpuprov-grafana")[0] != 0
    assert "unknown key isDefalt" in on_head("sudo journalctl -u gpuprov-grafana -o cat -n 20")[1]
    assert on_head(f"sudo mv {file}.good {file} && sudo systemctl restart gpuprov-grafana")[0] == 0


def test_only_loopback_reaches_what_runs_there(fleet: SandboxCluster) -> None:
    done = fleet.run("exec", fleet.file, "--node", "head-0", "ss", "-Htln")
    assert done.status == 0, done.stderr
    ports = set(re.findall(r"\S+:(?:3000|9090|9093|9094)(?=\s)", done.stdout))
    assert ports == {"127.0.0.1:3000", "127.0.0.1:9090", "127.0.0.1:9093"}


def test_alerts_of_a_node_in_quarantine_are_silenced_until_it_is_back(fleet: SandboxCluster) -> None:
    with opened(fleet) as (_, alertmanager, _):

        def silenced() -> set[str]:
            rows = get(f"{alertmanager}/api/v2/silences")
            active = [row for row in rows if row["status"]["state"] == "active"]
            return {m["value"] for row in active for m in row["matchers"] if m["name"] == "node"}

        assert fleet.run("quarantine", fleet.file, "work-0", "--reason", "a look at it", "--sandbox").status == 0
        assert silenced() == {"work-0"}
        assert fleet.run("release", fleet.file, "work-0", "--sandbox").status == 0
        assert silenced() == set()


@pytest.mark.parametrize("name", ["gpuprov-prometheus", "gpuprov-grafana"])
def test_verify_warns_of_a_service_that_does_not_run(fleet: SandboxCluster, name: str) -> None:
    stop = fleet.run("exec", fleet.file, "--node", "head-0", f"sudo systemctl stop {name}")
    assert stop.status == 0, stop.stderr
    (node,) = fleet.run("verify", fleet.file, "--node", "head-0", "--json").json["nodes"]
    check = next(check for check in node["checks"] if check["id"] == "services.expected")
    assert check["status"] == "fail"
    assert f"{name}.service" in check["message"]
    assert fleet.run("exec", fleet.file, "--node", "head-0", f"sudo systemctl start {name}").status == 0


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
    with opened(fleet) as (_, alertmanager, _):
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
    fleet.file.write_text(re.sub("monitoring: .*", "monitoring: { prometheus: { at: external } }", text))
    try:
        done = fleet.up()
        assert (done.status, "Grafana 12.4 → none" in done.stderr) == (2, True), done.stderr  # until an upgrade
        units = "gpuprov-prometheus gpuprov-alertmanager gpuprov-grafana"
        done = fleet.run("exec", fleet.file, "--node", "head-0", f"systemctl is-active {units} || true")
        assert done.stdout.count("inactive") == 3, done.stdout
        refused = fleet.run("monitoring", "open", fleet.file, "--sandbox")
        assert refused.status == 2
        assert "no machine of this cluster runs Prometheus" in refused.stderr
    finally:
        fleet.file.write_text(text)
