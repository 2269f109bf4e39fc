"""`gpuprov monitoring test`: which node gets which fault, what is reported, and what is refused. The whole of it runs
in tests/sandbox/test_monitoring.py."""

from __future__ import annotations

import doctest
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from provisioner import spec
from provisioner.common.errors import GpuprovError
from provisioner.monitoring import fast_time, fault_alerts, fault_trials, server_config, servers
from provisioner.monitoring.fleet import WatchedFleet, watched_fleet
from provisioner.monitoring.rules import alert_rules
from provisioner.monitoring.rules.checks import alert_name, watched_checks
from provisioner.output.monitoring import MonitoringTestOutput
from provisioner.rundir.fleet import Node
from provisioner.sandbox import faults

P4D, L4 = "p4d.24xlarge", "g6.xlarge"


def node(name: str, machine: str = P4D) -> Node:
    return Node(name, name.partition("-")[0], "ohio", machine, f"i-{name}", "", "", "10.0.0.1")


def fleet(folder: Path, machine: str = P4D, provider: str = "provider: aws, region: us-east-2") -> WatchedFleet:
    file = folder / "cluster.yaml"
    file.write_text(
        f"name: vision\nsites: {{ ohio: {{ {provider} }} }}\nmonitoring: {{ prometheus: {{ at: external }} }}\n"
        f"groups:\n  train: {{ machine: {machine}, count: 2 }}\n"
    )
    return watched_fleet(spec.load(file), simulated=True)


def test_each_fault_is_tried_once_and_every_node_has_work() -> None:
    work = fault_alerts.distribute([node("train-0"), node("train-1"), node("small-0", L4)], ())
    names = [fault.name for queued in work.values() for fault in queued]
    assert len(names) == len(set(names)) > 90
    assert abs(len(work["train-0"]) - len(work["train-1"])) <= 1
    of_small = {fault.name for fault in faults.list_faults(L4)}
    assert {fault.name for fault in work["small-0"]} <= of_small
    assert not any(fault.moment for queued in work.values() for fault in queued)


def test_only_the_faults_that_are_named() -> None:
    work = fault_alerts.distribute([node("train-0"), node("train-1")], ["gpu-lost", "xid-79", "gpu-lost"])
    assert {name: [fault.name for fault in queued] for name, queued in work.items()} == {
        "train-0": ["gpu-lost"],
        "train-1": ["xid-79"],
    }


def test_a_fault_that_no_node_can_have_is_refused() -> None:
    with pytest.raises(GpuprovError, match="no node of this cluster can have the fault ib-port-down"):
        fault_alerts.distribute([node("train-0")], ["ib-port-down"])


def test_every_fault_that_nodes_find_has_the_alert_of_its_check(tmp_path: Path) -> None:
    watched = fleet(tmp_path)
    names = {rule.name for rule in alert_rules(watched)}
    expected = {fault.name: fault_trials.expected_alert(watched, fault) for fault in faults.FAULTS}
    assert expected["gpu-lost"] == "CheckGpuCount"
    assert expected["throttles-under-load"] == ""  # level standard: nodes do not load their GPUs by themselves
    assert {name for name in expected.values() if name} <= names


@pytest.mark.parametrize(
    ("fault", "seconds", "reason"),
    [
        ("gpu-lost", {"CheckGpuCount": 80.0}, ""),
        ("gpu-lost", {"GpuMissing": 9.0}, "CheckGpuCount did not fire"),
        ("throttles-under-load", {}, "load.throttle runs at level standard alone"),
    ],
)
def test_why_no_alert_of_the_check_fired(fault: str, seconds: dict[str, float], reason: str, tmp_path: Path) -> None:
    trial = fault_trials.Trial(faults.find_fault(fault), "train-0", seconds, hidden={"CheckGpuCount"})
    row = fault_alerts.row_of(fleet(tmp_path), trial, 15)
    assert row.reason == reason
    assert [(alert.alert, alert.seconds) for alert in row.alerts] == [(k, round(v * 15)) for k, v in seconds.items()]
    assert [alert.hidden for alert in row.alerts] == [name == "CheckGpuCount" for name in seconds]


def test_a_fault_that_the_cluster_cannot_have_is_no_failure(tmp_path: Path) -> None:
    trial = fault_trials.Trial(faults.find_fault("scratch-unmounted"), "train-0", error="no such unit")
    row = fault_alerts.row_of(fleet(tmp_path), trial, 15)
    result = MonitoringTestOutput(cluster="x", speed=15, nodes=1, healthy=[], faults=[row])
    assert (row.reason, row.expected, result.failed, result.dark) == ("no such unit", "", [], ["scratch-unmounted"])


def test_the_examples_of_the_docstrings_hold() -> None:
    assert doctest.testmod(fast_time).failed == 0


@pytest.mark.parametrize("machine", [P4D, L4])
def test_no_time_of_a_rule_is_left_as_it_is(machine: str, tmp_path: Path) -> None:
    """What is compared with time(), windows, horizons: whole minutes and hours are in the exported rules alone."""
    for rule in alert_rules(fleet(tmp_path, machine)):
        short = fast_time.expression(rule.expr, 60)
        assert not re.search(r"\[[0-9]+[mhd]\]", short), short
        for text in re.findall(r"(?:time\(\) - [^>]*> |predict_linear\([^)]*, )([0-9.]+)", short):
            assert float(text) < 600, short


def test_all_times_of_a_folder_are_divided(tmp_path: Path) -> None:
    (tmp_path / "rules").mkdir()
    rule: dict[str, Any] = {"alert": "A", "expr": "increase(a[15m]) > 3", "for": "20m"}
    files = {
        "prometheus.yml": server_config.prometheus(),
        "alertmanager.yml": server_config.alertmanager(),
        "rules/a.yml": {"groups": [{"name": "a", "interval": "30s", "rules": [rule]}]},
    }
    for name, document in files.items():
        (tmp_path / name).write_text(yaml.safe_dump(document))
    fast_time.hurry(tmp_path, 15)
    read = {name: yaml.safe_load((tmp_path / name).read_text()) for name in files}
    assert read["prometheus.yml"]["global"] == {
        "scrape_interval": "2s", "scrape_timeout": "1333ms", "evaluation_interval": "2s",
    }  # fmt: skip
    assert {job.get("scrape_interval", "2s") for job in read["prometheus.yml"]["scrape_configs"]} == {"2s"}
    assert read["alertmanager.yml"]["route"]["group_wait"] == "4s"
    (group,) = read["rules/a.yml"]["groups"]
    assert (group["interval"], group["rules"][0]["expr"]) == ("2s", "increase(a[60s]) > 3")
    assert group["rules"][0]["for"] == "80s"


def test_every_alert_that_hides_another_exists(tmp_path: Path) -> None:
    """A misspelled name in an inhibition hides nothing."""
    azure = fleet(tmp_path, "Standard_ND96asr_v4", "provider: azure, region: eastus")
    fleets = [azure, fleet(tmp_path)]
    names = {rule.name for fleet in fleets for rule in alert_rules(fleet)}
    checks = {check for fleet in fleets for check in watched_checks(fleet)}
    for alert, hidden in server_config.SAME_CAUSE.items():
        assert [name for name in names if name.startswith(alert.removesuffix(".*"))], alert
        assert set(hidden) <= checks, set(hidden) - checks
        assert {alert_name(check) for check in hidden} <= names


def test_a_program_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(GpuprovError, match="prometheus-alertmanager is not installed") as caught:
        servers.tool(servers.ALERTMANAGER)
    assert "apt-get install" in str(caught.value.hint)


def test_a_server_that_does_not_start_says_why(tmp_path: Path) -> None:
    with (
        pytest.raises(GpuprovError, match="false ended with status 1"),
        servers.running(["false"], tmp_path, "http://127.0.0.1:1/"),
    ):
        pass
