"""The alerting rules, on the real promtool: each fires, is silent for a healthy node, for no series and for NaN."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from provisioner import spec
from provisioner.common import manual
from provisioner.monitoring import rule_tests, rules
from provisioner.monitoring.alertmanager import WATCHDOG
from provisioner.monitoring.export import files
from provisioner.monitoring.fleet import WatchedFleet, watched_fleet
from provisioner.monitoring.models import AlertRule, RecordingRule, RuleGroup
from provisioner.monitoring.rule_tests import ABOUT_NOTHING
from provisioner.monitoring.rules.checks import results
from provisioner.monitoring.rules.own import NO_MANAGER
from tests.support.prometheus import promtool
from tests.support.sandbox_cluster import ROOT
from tests.support.watched_nodes import example, signals, text_of

pytestmark = [pytest.mark.heavy, pytest.mark.apart]

FLEETS = {
    "nvswitch and EFA": "machine: p4d.24xlarge, count: 4",
    "bridge": "machine: g5.12xlarge, count: 2",
    "MIG": "machine: p4d.24xlarge, count: 1, gpu: { mig: 1g.5gb }",
    "two machine types": "machine: p4d.24xlarge, count: 4 }\n  other: { machine: p5.48xlarge, count: 2",
    "one GPU": "machine: g5.2xlarge, count: 2",
    "golden image": "machine: p4d.24xlarge, count: 2, image: pytorch-a100@stable",
    "capacity block": "machine: p5.48xlarge, count: 2, capacity: { kind: block, id: cr-0123456789abcdef0 }",
}


def fleet(tmp_path: Path, group: str = FLEETS["nvswitch and EFA"]) -> WatchedFleet:
    file, recipes = tmp_path / "cluster.yaml", tmp_path / "images"
    if not recipes.exists():
        recipes.symlink_to(ROOT / "images")
    file.write_text(
        "name: vision\nsites: { ohio: { provider: aws, region: us-east-2 } }\n"
        f"monitoring: {{ prometheus: {{ at: external }} }}\ngroups:\n  train: {{ {group} }}\n"
    )
    return watched_fleet(spec.load(file), simulated=False)


def run(folder: Path, group: RuleGroup) -> subprocess.CompletedProcess[str]:
    (folder / "rules.yml").write_text(yaml.safe_dump(rules.document(group), sort_keys=False))
    (folder / "tests.yml").write_text(yaml.safe_dump(rule_tests.document(group, "rules.yml"), sort_keys=False))
    checked = promtool("check", "rules", "--lint-fatal", "rules.yml", cwd=folder)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    return promtool("test", "rules", "tests.yml", cwd=folder)


@pytest.mark.parametrize("kind", FLEETS)
def test_rules_fire_and_are_silent(kind: str, tmp_path: Path) -> None:
    groups = rules.rule_groups(fleet(tmp_path, FLEETS[kind]))
    # the rest is the same for all
    subjects = ("gpus", "usage", "nodes", "capacity", "images") if kind != "nvswitch and EFA" else ("",)
    for group in [group for group in groups if any(subject in group.name for subject in subjects)]:
        done = run(tmp_path, group)
        assert done.returncode == 0, f"{group.name}: {done.stdout[-3000:]}{done.stderr[-3000:]}"


def test_a_wrong_series_of_new_xids_is_found(tmp_path: Path) -> None:
    group = next(group for group in rules.rule_groups(fleet(tmp_path)) if "xids" in group.name)
    recording = next(rule for rule in group.rules if isinstance(rule, RecordingRule))
    broken = replace(recording, expr=recording.expr.replace("changes", "resets"))
    done = run(tmp_path, replace(group, rules=(broken, *group.rules[1:])))
    assert done.returncode != 0


def test_rules_of_infiniband_fire_and_are_silent(tmp_path: Path) -> None:
    network = next(group for group in rules.rule_groups(example("azure-ndv4.yaml")) if "network" in group.name)
    assert "RdmaPortDown" in {rule.name for rule in network.rules if isinstance(rule, AlertRule)}
    done = run(tmp_path, network)
    assert done.returncode == 0, done.stdout + done.stderr


def test_of_a_single_gpu_the_absence_of_its_readings_pages(tmp_path: Path) -> None:
    by_name = {rule.name: rule for rule in rules.alert_rules(fleet(tmp_path, FLEETS["one GPU"]))}
    assert "GpuMissing" not in by_name
    assert by_name["DcgmGpuTempMissing"].severity == "page"
    assert by_name["DcgmGpuTempMissing"].pending == "2m"


def test_a_group_without_ecc_has_no_rule_on_it(tmp_path: Path) -> None:
    """Rules are for each group, not for the first one of a machine type."""
    two = "machine: p4d.24xlarge, gpu: { ecc: false } }\n  other: { machine: p4d.24xlarge, count: 2"
    by_name = {rule.name: rule for rule in rules.alert_rules(fleet(tmp_path, two))}
    assert 'group=~"other"' in by_name["DcgmEccDbeVolTotalMissing"].expr
    assert 'group=~"train|other"' in by_name["DcgmGpuTempMissing"].expr


def test_a_fleet_cut_up_by_mig_has_its_cost(tmp_path: Path) -> None:
    usage = next(group for group in rules.rule_groups(fleet(tmp_path, FLEETS["MIG"])) if "usage" in group.name)
    records = {rule.record for rule in usage.rules if isinstance(rule, RecordingRule)}
    assert records == {"gpuprov:gpus_present", "gpuprov:gpus_paid", "gpuprov:price_per_hour"}


@pytest.mark.parametrize(
    ("subject", "alert", "right", "wrong"),
    [
        ("gpus", "GpuMissing", "< 8", "< 7"),
        ("gpus", "GpuRowRemapFailure", "== 1", "== 2"),
        ("gpus", "DcgmGpuTempMissing", "unless", "and"),
        ("nodes", "GpuNodeDown", "== 0 unless", "== 2 unless"),
        ("gpus", "GpuHotterThanGroup", "> 15", "> 50"),
        ("usage", "HighGPUIdle", "< 5", "< 0"),
        ("checks", "GpuprovChecksStale", "time() -", "0 *"),
        ("checks", "CheckGpuCount", "== 0", "== 1"),
        ("efa", "EfaPacketsDropped", "> 1000", "> 9000"),
        ("efa", "EfaPeersUnresponsive", "> 1000", "> -1"),
        ("efa", "EfaCountersMissing", "and on (cluster, node) gpuprov_efa", "or on (cluster, node) gpuprov_efa"),
        ("images", "GoldenImageOld", "> 7776000", "> 7862400"),
        ("images", "GoldenImageUnknown", "unless", "and"),
        ("capacity", "CapacityBlockEnds", "< 86400", "< 3600"),
        ("capacity", "CapacityBlockEnding", "< 3600", "< 86400"),
        ("capacity", "CapacityBlockEndMissing", "unless", "and"),
    ],
)  # fmt: skip
def test_a_wrong_rule_is_found(subject: str, alert: str, right: str, wrong: str, tmp_path: Path) -> None:
    """The tests can fail."""
    kind = {"capacity": "capacity block", "images": "golden image"}.get(subject, "nvswitch and EFA")
    groups = rules.rule_groups(fleet(tmp_path, FLEETS[kind]))
    group = next(group for group in groups if group.name == f"gpuprov-{subject}-vision")
    rule = next(rule for rule in group.rules if isinstance(rule, AlertRule) and rule.name == alert)
    assert right in rule.expr
    assert run(tmp_path, replace(group, rules=(rule,))).returncode == 0
    broken = replace(rule, expr=rule.expr.replace(right, wrong, 1))
    done = run(tmp_path, replace(group, rules=(broken,)))
    assert done.returncode != 0
    assert alert in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("kind", "name"), [("nvswitch and EFA", "EfaCountersMissing"), ("golden image", "GoldenImageUnknown")]
)
def test_checks_that_did_not_run_have_one_alert(kind: str, name: str, tmp_path: Path) -> None:
    """And not one more for each reading that they did not give."""
    watched = fleet(tmp_path, FLEETS[kind])
    group = next(group for group in rules.rule_groups(watched) if name in str(group.rules))
    rule = next(rule for rule in group.rules if isinstance(rule, AlertRule) and rule.name == name)
    looked, _ = results(watched, watched.groups[0])
    done = run(tmp_path, replace(group, rules=(replace(rule, silent=(looked,)),)))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    "name", ["aws-p4d.yaml", "azure-ndv4.yaml", "rtx4090.yaml", "three-sites.yaml", "dgx-h100.yaml", *FLEETS]
)
def test_every_rule_has_a_twin_for_its_absence(name: str, tmp_path: Path) -> None:
    alerts = rules.alert_rules(fleet(tmp_path, FLEETS[name]) if name in FLEETS else example(name))
    names = {rule.name for rule in alerts}
    absences = {rule.name for rule in alerts if not rule.twin}
    assert {rule.twin for rule in alerts if rule.twin} <= names
    assert all(rule.name in (WATCHDOG, *ABOUT_NOTHING) or "unless" in rule.expr for rule in alerts if not rule.twin)
    assert absences
    for rule in alerts:
        assert 'cluster="' in rule.expr or rule.labels["cluster"], rule.name


def test_the_page_that_an_alert_names_is_there(tmp_path: Path) -> None:
    for watched in (example("azure-ndv4.yaml"), *(fleet(tmp_path, group) for group in FLEETS.values())):
        for rule in rules.alert_rules(watched):
            topic, _, heading = rule.doc.partition(" ")
            text = manual.page(topic)
            if heading:
                section = manual.section(text, heading.strip('"'))
                assert section.splitlines()[0].lstrip("# ") == heading.strip('"'), rule.name


def test_drift_from_the_lock_has_the_alerts_that_the_guide_names(tmp_path: Path) -> None:
    names = re.findall(r"Check[A-Z]\w+", manual.section(manual.page("monitoring"), "Drift from the lock"))
    assert len(names) > 9
    assert {*names} <= {rule.name for rule in rules.alert_rules(fleet(tmp_path))}


def test_the_rules_of_a_fleet_are_the_same_in_every_process(tmp_path: Path) -> None:
    watched = fleet(tmp_path)
    program = (
        "import sys, hashlib; from pathlib import Path; from provisioner import spec\n"
        "from provisioner.monitoring.export import files; from provisioner.monitoring.fleet import watched_fleet\n"
        "fleet = watched_fleet(spec.load(Path(sys.argv[1])), simulated=False)\n"
        "print(hashlib.sha256(repr(files(fleet, [])).encode()).hexdigest())"
    )
    digests = {
        subprocess.run(
            [sys.executable, "-c", program, str(tmp_path / "cluster.yaml")], cwd=ROOT, capture_output=True, text=True,
            check=True, env={"PYTHONHASHSEED": seed, "PATH": "/usr/bin:/bin"},
        ).stdout
        for seed in ("1", "2")
    }  # fmt: skip
    assert len(digests) == 1
    assert files(watched, []) == files(watched, [])


def test_a_healthy_day_fires_nothing(tmp_path: Path) -> None:
    """24 hours of work and rest: what alerts on it would be switched off within a week."""
    for name, watched in (("efa", fleet(tmp_path)), ("infiniband", example("azure-ndv4.yaml"))):
        folder = tmp_path / name
        folder.mkdir()
        groups = rules.rule_groups(watched)
        for group in groups:
            (folder / f"{group.name}.yml").write_text(yaml.safe_dump(rules.document(group)))
        step, steps = 300, 288
        rows = [
            {
                "series": text_of(row),
                "values": " ".join(f"{row.value(step * number):.12g}" for number in range(steps)),
            }
            for row in signals(watched, nodes=100, began=0)
        ]
        # a sample every 5 minutes is fewer than GpuSamplesLost expects
        expectation = f'count(ALERTS{{alertname!~"{WATCHDOG}|{NO_MANAGER}|GpuSamplesLost"}})'
        test = {
            "interval": f"{step}s",
            "input_series": rows,
            "promql_expr_test": [
                {"expr": expectation, "eval_time": f"{hour}h", "exp_samples": []} for hour in range(1, 24, 2)
            ],
        }
        document = {
            "rule_files": [f"{group.name}.yml" for group in groups],
            "evaluation_interval": f"{step}s",
            "tests": [test],
        }
        (folder / "tests.yml").write_text(yaml.safe_dump(document))
        done = promtool("test", "rules", "tests.yml", cwd=folder)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


def test_names_of_alerts_are_unique_but_for_their_labels(tmp_path: Path) -> None:
    keys = [(rule.name, *sorted(rule.labels.items())) for rule in rules.alert_rules(fleet(tmp_path))]
    assert len(keys) == len(set(keys))
    assert all(re.fullmatch(r"[A-Z][A-Za-z0-9]+", name) for name, *_ in keys)
