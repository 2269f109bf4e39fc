"""What the Prometheus of a head node gets: the nodes of its own site, on the real promtool and amtool."""

from __future__ import annotations

import io
import json
import subprocess
import tarfile
from pathlib import Path

import pytest

from provisioner.common.errors import GpuprovError
from provisioner.common.paths import ClusterPaths
from provisioner.monitoring import head
from provisioner.rundir.fleet import Node
from provisioner.spec import load, receivers
from provisioner.spec.models import ClusterSpec
from tests.support.prometheus import promtool, tool

FILE = """\
name: vision
sites:
  ohio: { provider: aws, region: us-east-2 }
  west: { provider: aws, region: us-west-2 }
groups:
  head: { machine: m6i.large, site: ohio }
  head-west: { machine: m6i.large, site: west }
  train: { machine: p4d.24xlarge, count: 2, site: ohio }
  test: { machine: g5.xlarge, site: west }
monitoring:
  prometheus: { at: [head, head-west], retention: 14d }
"""
NODES = tuple(
    Node(name, name.rpartition("-")[0], site, machine, f"i-{name}", "", "198.51.100.7", f"10.0.0.{number}")
    for number, (name, site, machine) in enumerate(
        [("head-0", "ohio", "m6i.large"), ("train-0", "ohio", "p4d.24xlarge"), ("train-1", "ohio", "p4d.24xlarge"),
         ("head-west-0", "west", "m6i.large"), ("test-0", "west", "g5.xlarge")], 1,
    )
)  # fmt: skip


def cluster(folder: Path, text: str = FILE) -> tuple[ClusterSpec, ClusterPaths]:
    file = folder / "cluster.yaml"
    file.write_text(text, encoding="utf-8")
    return load(file), ClusterPaths(file, "vision", sandbox=False)


def targets(spec: ClusterSpec, group: str) -> dict[str, set[str]]:
    files = head.files(spec, NODES, group, simulated=False)
    return {
        name: {row["labels"]["node"] for row in rows}
        for name, rows in files.items()
        if name.startswith("prometheus/targets/")
    }


def test_each_head_watches_the_nodes_of_its_site(tmp_path: Path) -> None:
    spec, _ = cluster(tmp_path)
    assert targets(spec, "head") == {
        "prometheus/targets/gpuprov-node-vision.json": {"head-0", "train-0", "train-1"},
        "prometheus/targets/gpuprov-dcgm-vision.json": {"train-0", "train-1"},  # a head node has no GPU to export
    }
    assert targets(spec, "head-west")["prometheus/targets/gpuprov-node-vision.json"] == {"head-west-0", "test-0"}


def test_prometheus_and_alertmanager_accept_the_files(tmp_path: Path) -> None:
    spec, paths = cluster(tmp_path)
    head.write(head.archives(spec, NODES, paths, simulated=False))
    with tarfile.open(paths.root / "monitoring/head.tar") as tar:
        tar.extractall(tmp_path / "unpacked", filter="data")
    unpacked = tmp_path / "unpacked/prometheus"
    assert not unpacked.with_name("grafana").exists()
    checked = promtool("check", "config", "prometheus.yml", cwd=unpacked)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert "rules found" in checked.stdout
    command = [tool("amtool"), "check-config", "alertmanager.yml"]
    assert subprocess.run(command, cwd=unpacked, capture_output=True, check=False, timeout=120).returncode == 0
    routes = json.loads((unpacked / "alertmanager.yml").read_text())
    assert [row["name"] for row in routes["receivers"]] == list(receivers.NAMES)
    tree = [routes["route"], *routes["route"]["routes"]]
    assert {route["receiver"] for route in tree} == set(receivers.NAMES)


def test_no_rule_waits_for_the_gpus_of_a_head_node(tmp_path: Path) -> None:
    spec, _ = cluster(tmp_path)
    files = head.files(spec, NODES, "head", simulated=False)
    text = json.dumps(files)
    assert 'group=\\"train\\"' in text
    rules = [
        rule
        for name, rows in files.items()
        if name.startswith("prometheus/rules/")
        for g in rows["groups"]
        for rule in g["rules"]
    ]
    of_head = [rule for rule in rules if "head" in rule["expr"]]
    assert [rule["alert"] for rule in of_head if "DCGM" in rule["expr"]] == []


def test_the_same_nodes_give_the_same_bytes_and_another_node_others(tmp_path: Path) -> None:
    spec, paths = cluster(tmp_path)
    archives = [head.archives(spec, nodes, paths, simulated=False) for nodes in (NODES, NODES[::-1], NODES[1:])]
    assert archives[0]["head"] == archives[1]["head"] != archives[2]["head"]
    variables = head.variables(spec, paths, archives[0])["gpuprov_prometheus"]
    assert variables.keys() == {"head", "head-west"}
    assert (variables["head"]["retention"], variables["head"]["retention_size"]) == ("14d", None)
    assert not (paths.root / "monitoring").exists()
    with tarfile.open(fileobj=io.BytesIO(archives[0]["head"].content)) as tar:
        assert "prometheus/prometheus.yml" in tar.getnames()


def test_another_file_of_receivers_is_a_reason_to_run_the_role_and_is_not_in_the_archive(tmp_path: Path) -> None:
    write_receivers(tmp_path, "a")
    spec, paths = cluster(tmp_path, FILE.replace("14d", "14d, receivers: told.yaml"))
    archives = head.archives(spec, NODES, paths, simulated=False)
    first = head.variables(spec, paths, archives)["gpuprov_prometheus"]["head"]
    write_receivers(tmp_path, "b")
    second = head.variables(spec, paths, archives)["gpuprov_prometheus"]["head"]
    assert {key for key in first if first[key] != second[key]} == {"receivers_sha256"}
    assert b"hooks.example.com" not in archives["head"].content


def write_receivers(folder: Path, secret: str) -> Path:
    file = folder / "told.yaml"
    file.write_text(f"receivers: [{{name: page, webhook_configs: [{{url: 'https://hooks.example.com/{secret}'}}]}}]\n")
    return file


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "there is no list `receivers`"),
        ("receivers: []", "there is no list `receivers`"),
        ("receivers: [page]", "there is no list `receivers`"),
        ("receivers: [{name: pages}]", "no route leads to a receiver 'pages'"),
        ("receivers: [{}]", "no route leads to a receiver 'None'"),
        ("receivers: [{name: page}, {name: page}]", "two receivers have one name"),
        ("receivers: [{name: page}]\nroute: {}", "`route` is not read: the routes are gpuprov's"),
        ("receivers: [\n  {name: page", "this is not YAML"),
        ("receivers: 2026-02-31", "this is not YAML"),
    ],
)
def test_a_file_of_receivers_that_alertmanager_would_not_use_is_refused(
    tmp_path: Path, text: str, message: str
) -> None:
    file = tmp_path / "told.yaml"
    file.write_text(text)
    with pytest.raises(GpuprovError) as caught:
        receivers.read(file)
    assert caught.value.message.startswith(message)
    assert caught.value.where.startswith(str(file))


def test_a_refused_file_of_receivers_names_its_line_and_no_secret(tmp_path: Path) -> None:
    file = tmp_path / "told.yaml"
    file.write_text("receivers:\n  - name: page\n    webhook_configs: [{url: 'https://hooks.example.com/s3cret'\n")
    with pytest.raises(GpuprovError) as caught:
        receivers.read(file)
    assert caught.value.where == f"{file}:4:1"
    assert "s3cret" not in str(caught.value)
