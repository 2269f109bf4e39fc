"""`gpuprov monitoring export`: which files, for whom, and what it says is not watched."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml

from provisioner.cli.main import run
from provisioner.common.errors import GpuprovError
from provisioner.common.paths import ClusterPaths
from provisioner.monitoring import export
from provisioner.monitoring.fleet import watched_fleet
from provisioner.monitoring.models import DCGM_JOB, NODE_JOB, TARGET_LABELS
from provisioner.monitoring.targets import targets
from provisioner.rundir import fleet
from provisioner.rundir.fleet import Node
from provisioner.spec import load
from tests.support.prometheus import promtool, tool
from tests.support.sandbox_cluster import ROOT

HEAD = "name: vision\nsites: { ohio: { provider: aws, region: us-east-2 } }\n"
TRAIN = "groups: { train: { machine: p4d.24xlarge, count: 2 } }\n"


def node(number: int, *, group: str = "train", private: str = "10.0.0.{}", machine: str = "p4d.24xlarge") -> Node:
    address = private.format(number + 1)
    return Node(f"{group}-{number}", group, "ohio", machine, f"i-{number}", "", "198.51.100.7", address)


def cluster(folder: Path, text: str = HEAD + TRAIN) -> Path:
    file = folder / "cluster.yaml"
    file.write_text(text)
    return file


def write(folder: Path, file: Path, nodes: Sequence[Node]) -> dict[str, str]:
    export.write(folder, load(file), nodes, sandbox=False)
    return {path.relative_to(folder).as_posix(): path.read_text() for path in folder.rglob("*") if path.is_file()}


def test_prometheus_and_alertmanager_read_what_is_written(tmp_path: Path) -> None:
    out = tmp_path / "watch"
    write(out, cluster(tmp_path), [node(0), node(1)])
    checked = promtool("check", "config", "prometheus.yml", cwd=out)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert "rule files found" in checked.stdout
    routes = ["GpuMissing=page", "HighGPUIdle=ticket", "GpuprovWatchdog=watchdog"]
    for route in routes:
        name, receiver = route.split("=")
        severity = {"page": "page", "ticket": "ticket", "watchdog": "none"}[receiver]
        answer = subprocess.run(
            [tool("amtool"), "config", "routes", "test", "--config.file=alertmanager.yml",
             f"alertname={name}", f"severity={severity}", "node=train-0"],
            cwd=out, capture_output=True, text=True, check=True,
        )  # fmt: skip
        assert answer.stdout.strip() == receiver


def test_a_target_is_the_private_address_with_all_labels(tmp_path: Path) -> None:
    watched = watched_fleet(load(cluster(tmp_path)), simulated=True)
    jobs = targets(watched, [node(10), node(2)])
    assert [row["targets"] for row in jobs[NODE_JOB]] == [["10.0.0.3:9100"], ["10.0.0.11:9100"]]
    assert [row["targets"] for row in jobs[DCGM_JOB]] == [["10.0.0.3:9400"], ["10.0.0.11:9400"]]
    labels = jobs[NODE_JOB][0]["labels"]
    assert tuple(labels) == TARGET_LABELS
    assert labels["node"] == "train-2"
    assert labels["simulated"] == "true"


def test_an_address_of_ipv6_stands_in_brackets(tmp_path: Path) -> None:
    watched = watched_fleet(load(cluster(tmp_path)), simulated=False)
    assert targets(watched, [node(0, private="fd00::{}")])[NODE_JOB][0]["targets"] == ["[fd00::1]:9100"]


def test_a_machine_without_a_private_address_is_reached_by_its_own(tmp_path: Path) -> None:
    watched = watched_fleet(load(cluster(tmp_path)), simulated=False)
    assert targets(watched, [node(0, private="")])[NODE_JOB][0]["targets"] == ["198.51.100.7:9100"]


def test_a_machine_of_a_group_that_is_gone_is_no_target(tmp_path: Path) -> None:
    watched = watched_fleet(load(cluster(tmp_path)), simulated=False)
    assert targets(watched, [node(0, group="old")]) == {}


def test_a_second_export_removes_only_its_own_old_files(tmp_path: Path) -> None:
    """Also beside a cluster whose name ends alike."""
    out = tmp_path / "watch"
    with_checks = HEAD + "monitoring: { prometheus: { at: external } }\n" + TRAIN
    longer = write(out, cluster(tmp_path, with_checks.replace("vision", "big-vision")), [node(0)])
    assert "rules/gpuprov-checks-vision.yml" in write(out, cluster(tmp_path, with_checks), [node(0)])
    (out / "rules" / "mine-vision.yml").write_text("groups: []\n")
    remaining = write(out, cluster(tmp_path), [node(0)])
    assert {*longer, "rules/mine-vision.yml", "rules/gpuprov-gpus-vision.yml"} <= set(remaining)
    assert not {"rules/gpuprov-checks-vision.yml", "rule-tests/gpuprov-checks-vision.yml"} & set(remaining)


def test_after_down_nothing_of_the_cluster_is_left(tmp_path: Path) -> None:
    """Rules without a node would tell of missing targets for ever."""
    out = tmp_path / "watch"
    write(out, cluster(tmp_path), [node(0)])
    remaining = write(out, cluster(tmp_path), [])
    assert not [name for name in remaining if "vision" in name]
    assert {"prometheus.yml", "alertmanager.yml", "dashboards/gpuprov-fleet.json"} <= set(remaining)


def test_what_a_user_has_added_stays(tmp_path: Path) -> None:
    out = tmp_path / "watch"
    file = cluster(tmp_path)
    write(out, file, [node(0)])
    edited = (out / "alertmanager.yml").read_text() + "# my receivers\n"
    (out / "alertmanager.yml").write_text(edited)
    result = export.write(out, load(file), [node(0)], sandbox=False)
    assert result.edited == ["alertmanager.yml"]
    assert (out / "alertmanager.yml").read_text() == edited
    (out / "prometheus.yml").write_text("global: {}\n")  # of somebody else
    assert len(export.write(out, load(file), [node(0)], sandbox=False).edited) == 2
    assert (out / "prometheus.yml").read_text() == "global: {}\n"


def test_a_sandbox_has_files_of_its_own(tmp_path: Path) -> None:
    out, file = tmp_path / "watch", cluster(tmp_path)
    export.write(out, load(file), [node(0)], sandbox=False)
    export.write(out, load(file), [], sandbox=True)
    assert (out / "targets" / "gpuprov-node-vision.json").exists()
    result = export.write(out, load(file), [node(0)], sandbox=True)
    assert "targets/gpuprov-node-vision.sandbox.json" in result.files


def test_a_machine_at_this_computers_own_address_is_no_target(tmp_path: Path) -> None:
    file = cluster(tmp_path)
    watched = watched_fleet(load(file), simulated=False)
    local = node(0, private="127.0.0.1")
    assert targets(watched, [local]) == {}
    assert [line for line in export.missing(load(file), watched, [local]) if line.startswith("train-0: its address")]


def test_nodes_of_a_group_that_is_gone_are_named(tmp_path: Path) -> None:
    file = cluster(tmp_path)
    nodes = [node(0), node(0, group="old")]
    watched = watched_fleet(load(file), nodes, simulated=False)
    assert "nodes of groups that cluster.yaml has no more: old-0" in [*export.missing(load(file), watched, nodes)]
    assert export.write(tmp_path / "watch", load(file), nodes, sandbox=False).nodes == 1


def test_names_of_kubernetes_are_short_unique_and_take_addresses_alone(tmp_path: Path) -> None:
    text = (
        "name: vision\nsites: { c: { provider: aws, region: us-east-2 }, b-c: { provider: aws, region: us-west-2 } }\n"
        "groups:\n  a-b: { machine: p4d.24xlarge, site: c }\n  a: { machine: p4d.24xlarge, site: b-c }\n"
    )
    nodes = [
        Node("a-b-0", "a-b", "c", "p4d.24xlarge", "i-0", "", "", "10.0.0.1"),
        Node("a-0", "a", "b-c", "p4d.24xlarge", "i-1", "", "", "10.0.0.2"),
        Node("a-1", "a", "b-c", "p4d.24xlarge", "i-2", "", "gpu-1.lab", ""),
    ]
    write(tmp_path / "watch", cluster(tmp_path, text), nodes)
    objects = [*yaml.safe_load_all((tmp_path / "watch" / "kubernetes" / "vision.yaml").read_text())]
    services = [row["metadata"]["name"] for row in objects if row["kind"] == "Service"]
    assert len(set(services)) == len(services) == 4
    assert all(len(name) <= 63 for name in services)
    endpoints = [row for row in objects if row["kind"] == "Endpoints"]
    hosts = {address["ip"] for row in endpoints for address in row["subsets"][0]["addresses"]}
    assert hosts == {"10.0.0.1", "10.0.0.2"}
    labels = [value for row in objects for value in row["metadata"]["labels"].values()]
    assert all(re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?", value) for value in labels)


def test_files_are_for_everybody_and_hold_no_secret(tmp_path: Path) -> None:
    """The service of Prometheus reads them as a user of its own."""
    out = tmp_path / "watch"
    texts = write(out, cluster(tmp_path), [node(0)])
    for name in texts:
        assert (out / name).stat().st_mode & 0o777 == 0o644, name
    assert not any(
        secret in text.lower() for text in texts.values() for secret in ("password", "bearer", "ssh-ed25519")
    )


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (HEAD + TRAIN, "gpuprov's checks, and what their timer alone reads (EFA counters, ages of golden images, "),
        (HEAD + "monitoring: { dcgm_exporter: false }\n" + TRAIN, "GPUs: monitoring.dcgm_exporter is off"),
        (HEAD + "groups: { train: { machine: p4d.24xlarge, gpu: { mig: 1g.5gb } } }\n", "use of the GPUs of group"),
        (
            "name: vision\nsites: { lab: { provider: azure, region: eastus } }\n"
            "groups: { train: { machine: Standard_ND96isr_MI300X_v5 } }\n",
            "GPU readings of group train: DCGM does not read",
        ),
    ],
)  # fmt: skip
def test_what_is_not_watched_is_said(text: str, sentence: str, tmp_path: Path) -> None:
    watched = watched_fleet(load(cluster(tmp_path, text)), simulated=False)
    lines = export.missing(load(tmp_path / "cluster.yaml"), watched, [node(0)])
    assert [line for line in lines if line.startswith(sentence)]


def test_the_end_of_a_block_is_not_watched_in_a_sandbox(tmp_path: Path) -> None:
    block = "groups: { train: { machine: p5.48xlarge, capacity: { kind: block, id: cr-0123456789abcdef0 } } }\n"
    spec = load(cluster(tmp_path, HEAD + "monitoring: { prometheus: { at: external } }\n" + block))
    watched = watched_fleet(spec, simulated=True)
    lines = [*export.missing(spec, watched, [node(0)])]
    assert "the end of the capacity block of group train: a sandbox has none" in lines
    assert not [name for name in export.files(watched, []) if "capacity" in name]
    assert [name for name in export.files(watched_fleet(spec, simulated=False), []) if "capacity" in name]


def test_a_fleet_of_amd_gpus_has_its_checks_and_no_rule_on_dcgm(tmp_path: Path) -> None:
    text = (
        "name: vision\nsites: { lab: { provider: azure, region: eastus } }\n"
        "monitoring: { prometheus: { at: external } }\ngroups: { train: { machine: Standard_ND96isr_MI300X_v5 } }\n"
    )
    texts = write(tmp_path / "watch", cluster(tmp_path, text), [node(0)])
    rules = {name: content for name, content in texts.items() if name.startswith("rules/")}
    assert "amd.ras" in rules["rules/gpuprov-checks-vision.yml"]
    assert not any("DCGM" in content for content in rules.values())
    assert not any("gpu.xid" in content for content in rules.values())


def test_the_command_says_what_it_wrote(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = cluster(tmp_path)
    paths = ClusterPaths(file, "vision", sandbox=False)
    paths.root.mkdir(parents=True)
    fleet.save(paths, [node(0), node(1)])
    assert run(["monitoring", "export", str(file), str(tmp_path / "watch")]) == 0
    out = capsys.readouterr().out
    assert "targets of 2 nodes, 5 dashboards" in out
    assert "not watched: gpuprov's checks" in out
    assert run(["monitoring", "export", str(file), str(tmp_path / "watch"), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["nodes"] == 2
    assert "targets/gpuprov-node-vision.json" in document["files"]


@pytest.mark.skipif(os.getuid() != 0, reason="a folder of another user")
def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(GpuprovError, match="cannot write the export: it is a file"):
        export.write(tmp_path / "file", load(cluster(tmp_path)), [], sandbox=False)


def test_kubernetes_objects_have_the_fields_of_the_operator(tmp_path: Path) -> None:
    """operator_fields.yaml names the fields that prometheus-operator's API has; others are dropped or refused."""
    fields = yaml.safe_load((Path(__file__).parent / "operator_fields.yaml").read_text())["kinds"]
    nodes = [node(number, private=f"10.0.{number // 250}.{number % 250 + 1}") for number in range(1500)]
    out = tmp_path / "watch"
    write(out, cluster(tmp_path, HEAD + "groups: { train: { machine: p4d.24xlarge, count: 1500 } }\n"), nodes)
    objects = list(yaml.safe_load_all((out / "kubernetes" / "vision.yaml").read_text()))
    kinds = [row["kind"] for row in objects]
    assert kinds.count("Endpoints") == 4  # at most 1,000 addresses each, of two exporters
    assert all(len(row["subsets"][0]["addresses"]) <= 1000 for row in objects if row["kind"] == "Endpoints")
    monitor = next(row for row in objects if row["kind"] == "ServiceMonitor" and "metricRelabelings" in str(row))
    assert set(monitor["spec"]) <= set(fields["ServiceMonitorSpec"])
    assert set(monitor["spec"]["endpoints"][0]) <= set(fields["Endpoint"])
    assert set(monitor["spec"]["endpoints"][0]["relabelings"][0]) <= set(fields["RelabelConfig"])
    for group in next(row for row in objects if row["kind"] == "PrometheusRule")["spec"]["groups"]:
        assert set(group) <= set(fields["RuleGroup"])
        assert all(set(rule) <= set(fields["Rule"]) for rule in group["rules"])
    selector = monitor["spec"]["selector"]["matchLabels"].items()
    services = [row for row in objects if row["kind"] == "Service"]
    assert [row for row in services if selector <= row["metadata"]["labels"].items()]
    names = [(row["kind"], row["metadata"]["name"]) for row in objects]
    assert len(names) == len(set(names))


def test_the_example_fleets_are_exported(tmp_path: Path) -> None:
    for name in ("aws-p4d", "azure-ndv4", "rtx4090", "three-sites", "dgx-h100", "alicloud-gn7", "tencent-gn10xp"):
        watched = watched_fleet(load(ROOT / "examples" / f"{name}.yaml"), simulated=False)
        assert export.files(watched, [])
