"""What a thousand nodes cost one Prometheus with gpuprov's rules: series, samples, time of scrapes and rules, memory.

The server is real, and so is the text of node_exporter, that of this machine. dcgm-exporter and the results of checks
are simulated. One process answers all scrapes, by a path for each node.
"""

from __future__ import annotations

import json
import re
import tempfile
import time
import urllib.request
from contextlib import ExitStack
from pathlib import Path

from bench.measure import Failed
from bench.promises import Promise
from provisioner import spec
from provisioner.monitoring import export
from provisioner.monitoring.fleet import WatchedFleet, watched_fleet
from provisioner.monitoring.models import DCGM_JOB, NODE_JOB, SCRAPE_S, TARGET_LABELS
from provisioner.monitoring.servers import query
from provisioner.rundir.fleet import Node
from tests.support import prometheus
from tests.support.watched_nodes import Signal, signals, text_of

NODES, MACHINE = 1000, "p5.48xlarge"
SCRAPES = 6
"""Rounds of scrapes that are waited for before anything is read: caches are filled, and the rules have run."""
LIMIT_RULES_S, LIMIT_GIB = SCRAPE_S / 3, 8.0
CLUSTER = f"""\
name: bench
sites: {{ ohio: {{ provider: aws, region: us-east-2 }} }}
monitoring: {{ prometheus: {{ at: external }} }}
groups: {{ train: {{ machine: {MACHINE}, count: {NODES} }} }}
"""


def measure() -> list[Promise]:
    """Raises Failed where targets do not answer."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        root = Path(folder)
        (root / "cluster.yaml").write_text(CLUSTER)
        loaded = spec.load(root / "cluster.yaml")
        nodes = [
            Node(
                f"train-{number}",
                "train",
                "ohio",
                MACHINE,
                f"i-{number}",
                "",
                "",
                f"10.0.{number // 256}.{number % 256}",
            )
            for number in range(NODES)
        ]
        export.write(root / "out", loaded, nodes, sandbox=True)
        port = stack.enter_context(prometheus.node_exporter(root, root))
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
            host = answer.read().decode()
        bodies = _bodies(watched_fleet(loaded, nodes, simulated=True), host)
        server = prometheus.serve(lambda path: bodies[path.split("/")[1]])
        stack.callback(server.shutdown)
        for job in (NODE_JOB, DCGM_JOB):
            _redirect(root / "out" / "targets" / f"{job}-bench.sandbox.json", job, server.server_port)
        url = stack.enter_context(prometheus.prometheus(root / "out"))
        return _read(url)


def _bodies(fleet: WatchedFleet, host: str) -> dict[str, bytes]:
    """Job → what a node's exporter answers: the same for every node, whose labels are set at scrape."""
    rows: dict[str, list[str]] = {NODE_JOB: [], DCGM_JOB: []}
    at_scrape = (*TARGET_LABELS, "job", "instance")
    for row in signals(fleet, 1, time.time()):
        if row.metric != "up" and not row.metric.startswith("node_"):
            labels = {name: value for name, value in row.labels.items() if name not in at_scrape}
            rows[row.labels["job"]].append(f"{text_of(Signal(row.metric, labels, row.value))} {row.value(0):.12g}")
    return {
        NODE_JOB: (host + "\n".join([*rows[NODE_JOB], ""])).encode(),
        DCGM_JOB: "\n".join([*rows[DCGM_JOB], ""]).encode(),
    }


def _redirect(file: Path, job: str, port: int) -> None:
    rows = json.loads(file.read_text())
    for row in rows:
        row["targets"] = [f"127.0.0.1:{port}"]
        row["labels"] |= {"__metrics_path__": f"/{job}/{row['labels']['node']}", "instance": row["labels"]["node"]}
    file.write_text(json.dumps(rows))


def _read(url: str) -> list[Promise]:
    end = time.monotonic() + (SCRAPES + 1) * SCRAPE_S
    while time.monotonic() < end:
        time.sleep(SCRAPE_S / 3)
    answering = query(url, "count(up == 1)")
    if not answering or float(answering[0]["value"][1]) < 2 * NODES:
        raise Failed(f"{answering} of {2 * NODES} exporters answer: the machine is too slow for this bench")
    with urllib.request.urlopen(f"{url}/metrics", timeout=60) as answer:
        metrics_text = answer.read().decode()
    series = _sum(metrics_text, "prometheus_tsdb_head_series")
    memory_gib = _sum(metrics_text, "process_resident_memory_bytes") / 2**30
    rules_s = _sum(metrics_text, "prometheus_rule_group_last_duration_seconds")
    scrape_s = float(query(url, "quantile(0.99, scrape_duration_seconds)")[0]["value"][1])
    samples = float(query(url, "sum(scrape_samples_scraped)")[0]["value"][1])
    text = f"{series / NODES:,.0f} series a node, {samples / SCRAPE_S:,.0f} samples a second"
    numbers = {"series": series, "samples_per_scrape": samples, "scrape_p99_s": scrape_s, "memory_gib": memory_gib}
    return [
        Promise(
            f"all rules of {NODES:,} nodes, once", f"at most {LIMIT_RULES_S:g} s of {SCRAPE_S} s",
            f"{rules_s:.2f} s; {text}; a scrape {scrape_s:.2f} s (99 %)", rules_s, LIMIT_RULES_S, unit="s",
            numbers=numbers,
        ),
        Promise(
            f"memory of Prometheus, {NODES:,} nodes", f"at most {LIMIT_GIB:g} GiB", f"{memory_gib:.1f} GiB",
            memory_gib, LIMIT_GIB, unit="GiB",
        ),
    ]  # fmt: skip


def _sum(text: str, metric: str) -> float:
    values = re.findall(rf"^{metric}(?:{{[^}}]*}})? (\S+)$", text, re.M)
    return sum(float(value) for value in values)
