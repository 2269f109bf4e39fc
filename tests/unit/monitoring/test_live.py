"""The exported files in a real Prometheus and Alertmanager: data of two hours, targets that are scraped, alerts that
arrive, hide each other and resolve, and every query of every dashboard."""

from __future__ import annotations

import json
import re
import time
import urllib.parse
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from http.server import ThreadingHTTPServer
from pathlib import Path

import pytest
import yaml

from provisioner import spec
from provisioner.monitoring import export, servers
from provisioner.monitoring.dashboards.grafana import expression
from provisioner.monitoring.dashboards.panels import BOARDS
from provisioner.monitoring.fleet import watched_fleet
from provisioner.monitoring.models import DCGM_JOB, NODE_JOB, TARGET_LABELS
from provisioner.monitoring.rules.gpus import XID
from provisioner.monitoring.servers import get, query
from provisioner.rundir.fleet import Node
from tests.support import prometheus
from tests.support.prometheus import until
from tests.support.watched_nodes import Signal, signals, text_of

pytestmark = [pytest.mark.heavy]

CLUSTER = """\
name: vision
sites: { ohio: { provider: aws, region: us-east-2 } }
monitoring: { prometheus: { at: external } }
groups:
  train: { machine: p4d.24xlarge, count: 2 }
"""


@dataclass
class Exporter:
    """An exporter of a node, simulated: the text format of the real one. dcgm-exporter has the label `Hostname`."""

    rows: list[Signal]
    lost_gpus: set[str] = field(default_factory=set)
    xids: dict[str, int] = field(default_factory=dict)
    began: float = field(default_factory=time.time)
    port: int = 0

    def text(self) -> str:
        lines, seconds = [], time.time() - self.began
        for row in self.rows:
            if row.metric == "up" or row.labels.get("gpu") in self.lost_gpus:
                continue
            labels = {
                name: value for name, value in row.labels.items() if name not in (*TARGET_LABELS, "job", "instance")
            }
            value = row.value(seconds)
            if "gpu" in labels:
                labels |= {"Hostname": "ip-10-0-0-1", "pci_bus_id": "0"}
            if row.metric == XID:  # each code has labels of its own (dcgm-exporter, from 3.3.6 on)
                value = float(self.xids.get(labels["gpu"], 0))
                labels |= {"err_code": f"{value:g}", "err_msg": f"text of {value:g}"}
            lines.append(f"{text_of(Signal(row.metric, labels, row.value))} {value:.12g}")
        return "\n".join([*lines, ""])

    def start(self) -> ThreadingHTTPServer:
        server = prometheus.serve(lambda _: self.text().encode())
        self.port = server.server_port
        return server


@dataclass
class Watch:
    """train-0 has a real node_exporter and a simulated `exporter` of its GPUs; of train-1 both are simulated."""

    url: str
    alertmanager: str
    exporter: Exporter
    textfile: Path

    def alerts(self, **labels: str) -> list[dict[str, object]]:
        matchers = "&".join(f"filter={urllib.parse.quote(f'{k}={v}')}" for k, v in labels.items())
        rows = get(f"http://{self.alertmanager}/api/v2/alerts?{matchers}")
        return [row for row in rows if row["status"]["state"] in ("active", "suppressed")]


@pytest.fixture(scope="module")
def watch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watch]:
    folder = tmp_path_factory.mktemp("watch")
    (folder / "cluster.yaml").write_text(CLUSTER)
    loaded = spec.load(folder / "cluster.yaml")
    nodes = [
        Node(f"train-{number}", "train", "ohio", "p4d.24xlarge", f"i-{number}", "", "", f"10.0.0.{number + 1}")
        for number in range(2)
    ]
    fleet = watched_fleet(loaded, nodes, simulated=True)
    out = folder / "out"
    export.write(out, loaded, nodes, sandbox=True)
    rows = list(signals(fleet, 2, time.time()))
    gpus = Exporter(rows_of(rows, "train-0", DCGM_JOB))
    simulated = {job: Exporter(rows_of(rows, "train-1", job)) for job in (NODE_JOB, DCGM_JOB)}
    textfiles = folder / "textfiles"
    textfiles.mkdir()
    hurry(out)
    with ExitStack() as stack:
        for exporter in (gpus, *simulated.values()):
            stack.callback(exporter.start().shutdown)
        port = stack.enter_context(prometheus.node_exporter(folder, textfiles))
        for job, number in ((NODE_JOB, port), (DCGM_JOB, gpus.port)):
            redirect(out / "targets" / f"{job}-vision.sandbox.json", (number, simulated[job].port))
        manager = stack.enter_context(servers.alertmanager(out))
        config = yaml.safe_load((out / "prometheus.yml").read_text())
        config["alerting"] = {"alertmanagers": [{"static_configs": [{"targets": [manager]}]}]}
        (out / "prometheus.yml").write_text(yaml.safe_dump(config))
        url = stack.enter_context(prometheus.prometheus(out))
        yield Watch(url, manager, gpus, textfiles / "gpuprov.prom")


def rows_of(rows: list[Signal], node: str, job: str) -> list[Signal]:
    return [row for row in rows if row.labels["node"] == node and row.labels["job"] == job]


def hurry(out: Path) -> None:
    """Scrape and evaluate every second, and fire at once: what takes minutes is tested by promtool."""
    for file in [out / "prometheus.yml", out / "alertmanager.yml", *(out / "rules").glob("*.yml")]:
        text = re.sub(r"^(\s*(?:- )?(?:interval|scrape_interval|evaluation_interval|group_wait|group_interval): )\S+$",
                      r"\g<1>1s", file.read_text(), flags=re.M)  # fmt: skip
        text = re.sub(r"^(\s*scrape_timeout: )\S+$", r"\g<1>1s", text, flags=re.M)
        text = re.sub(r"^(\s*(?:for|keep_firing_for): )\S+$", r"\g<1>0s", text, flags=re.M)
        file.write_text(text)


def redirect(file: Path, ports: tuple[int, int]) -> None:
    """Exporters of a test listen on ports that are free."""
    rows = json.loads(file.read_text())
    for row, port in zip(rows, ports, strict=True):
        row["targets"] = [f"127.0.0.1:{port}"]
    file.write_text(json.dumps(rows))


def test_a_target_is_scraped_with_the_labels_of_the_fleet(watch: Watch) -> None:
    until(lambda: len(query(watch.url, 'up{node="train-0"} == 1')) == 2)
    series = query(watch.url, 'DCGM_FI_DEV_GPU_TEMP{node="train-0"}')
    assert len(series) == 8
    labels = series[0]["metric"]
    assert {"Hostname", "hostname"} & set(labels) == set()
    expected = {"cluster": "vision.sandbox", "group": "train", "machine": "p4d.24xlarge", "simulated": "true"}
    assert expected.items() <= labels.items()


def test_a_gpu_that_is_lost_fires_and_resolves(watch: Watch) -> None:
    watch.exporter.lost_gpus = {"5"}
    until(lambda: bool(watch.alerts(alertname="GpuMissing", node="train-0")))
    (alert,) = watch.alerts(alertname="GpuMissing", node="train-0")
    annotations = alert["annotations"]
    assert isinstance(annotations, dict)
    assert annotations["summary"] == "train-0: 7 of 8 GPUs answer"
    assert annotations["command"] == "gpuprov verify FILE --node train-0"
    assert annotations["runbook"] == 'gpuprov docs runbook "gpu.count"'
    assert not watch.alerts(alertname="DcgmGpuTempMissing", node="train-0")
    watch.exporter.lost_gpus = set()
    until(lambda: not watch.alerts(alertname="GpuMissing", node="train-0"))


def test_an_exporter_without_any_gpu_fires_the_twin(watch: Watch) -> None:
    watch.exporter.lost_gpus = {str(number) for number in range(8)}
    until(lambda: bool(watch.alerts(alertname="DcgmGpuTempMissing", node="train-0")))
    assert not watch.alerts(alertname="GpuMissing", node="train-0")
    # one cause, one alert: the other metrics are missing for the same reason
    until(lambda: bool(watch.alerts(alertname="DcgmXidErrorsMissing", node="train-0")))
    until(lambda: all(
        row["status"]["state"] == "suppressed"  # type: ignore[index]
        for row in watch.alerts(alertname="DcgmXidErrorsMissing", node="train-0")
    ))  # fmt: skip
    watch.exporter.lost_gpus = set()
    until(lambda: not watch.alerts(alertname="DcgmGpuTempMissing", node="train-0"))


def test_an_xid_fires_although_each_has_labels_of_its_own(watch: Watch) -> None:
    until(lambda: len(query(watch.url, f'{XID}{{node="train-0"}}')) == 8)
    watch.exporter.xids = {"3": 79}
    until(lambda: bool(watch.alerts(severity="page", node="train-0", gpu="3")))
    (alert,) = watch.alerts(severity="page", node="train-0", gpu="3")
    assert str(alert["labels"]).count("GpuXid") == 1
    assert "err_code" not in str(alert["labels"])


def test_results_of_the_timer_fire_by_their_severity(watch: Watch) -> None:
    """What health.py writes, read by the real node_exporter."""
    until(lambda: bool(watch.alerts(alertname="GpuprovChecksMissing", node="train-0")))
    watch.textfile.write_text(
        '# TYPE gpuprov_check gauge\n'
        'gpuprov_check{check="gpu.count",severity="fatal"} 0\n'
        'gpuprov_check{check="gpu.pcie",severity="warn"} 0\n'
        'gpuprov_check{check="gpu.ecc",severity="fatal"} NaN\n'
        f"gpuprov_node_ok 0\ngpuprov_check_timestamp_seconds {time.time():.0f}\n"
    )  # fmt: skip
    until(lambda: bool(watch.alerts(alertname="CheckGpuCount", severity="page")))
    until(lambda: bool(watch.alerts(alertname="CheckGpuPcie", severity="ticket")))
    until(lambda: bool(watch.alerts(alertname="GpuprovCheckUnknown", check="gpu.ecc")))
    until(lambda: not watch.alerts(alertname="GpuprovChecksMissing", node="train-0"))
    assert not watch.alerts(alertname="CheckGpuEcc")
    watch.textfile.write_text(
        'gpuprov_check{check="gpu.count",severity="fatal"} 1\n'
        f"gpuprov_node_ok 1\ngpuprov_check_timestamp_seconds {time.time():.0f}\n"
    )
    until(lambda: not watch.alerts(alertname="CheckGpuCount"))


def test_every_query_of_every_dashboard_has_series_or_a_reason(watch: Watch) -> None:
    until(lambda: bool(query(watch.url, "gpuprov:gpus_in_use")))
    for board in BOARDS:
        for panel in board.panels:
            for row in panel.queries:
                text = expression(board, row).replace("$__rate_interval", "5m")
                series = query(watch.url, re.sub(r"\$\w+", ".*", text))
                assert series or row.absent, f"{board.name}: {panel.title}: {text}"


def test_the_dead_mans_switch_always_fires(watch: Watch) -> None:
    until(lambda: bool(watch.alerts(alertname="GpuprovWatchdog")))


def test_no_rule_fails_to_evaluate(watch: Watch) -> None:
    rules = [rule for group in get(f"{watch.url}/api/v1/rules")["data"]["groups"] for rule in group["rules"]]
    assert [rule["name"] for rule in rules if rule["health"] == "err"] == []
    assert len(rules) > 150
