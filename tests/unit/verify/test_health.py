"""The checks on a node itself: the very checks of `gpuprov verify`, by the standard library alone, as metrics."""

from __future__ import annotations

import fcntl
import json
import math
import os
import re
import subprocess
import sys
import zipfile
from dataclasses import replace
from io import BytesIO
from pathlib import Path

import pytest

from provisioner.catalog import load
from provisioner.configure import inventory
from provisioner.lifecycle.images import work
from provisioner.verify import archive, health
from provisioner.verify.bundle import Bundle
from provisioner.verify.facts import read
from provisioner.verify.pytest_runner import Case, judge
from provisioner.verify.readings import BUILD, readings
from provisioner.verify.registry import plain_checks
from tests.support import plans
from tests.support.healthy_bundle import bundle, expected, healthy, without_gpu

P4D = "p4d.24xlarge"
SAMPLE = re.compile(r'^(\w+)(?:\{check="([a-z0-9_.]+)",severity="(fatal|warn|info)"\})?(\{device="[\w-]+"\})? (\S+)$')
NOTE = re.compile(r'^gpuprov_note\{check="[a-z0-9_.]+"\} 1$')


def broken() -> Bundle:
    files = healthy(P4D)
    files["nvidia-smi.xml"] = without_gpu(str(files["nvidia-smi.xml"]), 3)
    return bundle(files)


BUNDLES = {"healthy": lambda: bundle(healthy(P4D)), "a GPU lost": broken, "unreachable": lambda: Bundle(error="gone")}


@pytest.mark.parametrize("bundle_name", BUNDLES)
def test_it_says_what_verify_says(bundle_name: str) -> None:
    """Not a second list: the same checks with the same ends."""
    node_bundle, expectation = BUNDLES[bundle_name](), expected(P4D, "quick")
    fleets = {c.id: (c.severity, c.status) for c in judge({"node": Case(node_bundle, expectation)})["node"].checks}
    by_health = {c.id: (c.severity, c.status) for c in health.judge(read(node_bundle), expectation).checks}
    assert len(by_health) > 100
    assert by_health == {id: end for id, end in fleets.items() if id in by_health}
    assert {id for id, (_, status) in fleets.items() if id not in by_health and status != "skip"} == set()


def test_every_check_is_found_once() -> None:
    ids = [check.id for _, check in plain_checks()]
    assert len(ids) == len(set(ids)) > 100


def samples(text: str) -> dict[str, float]:
    """Metric with its device, or check → value; every line must be one of Prometheus' text format."""
    values: dict[str, float] = {}
    for line in text.splitlines():
        if not line.startswith(("# HELP ", "# TYPE ")):
            if NOTE.match(line):
                continue
            match = SAMPLE.match(line)
            assert match, line
            name = match[2] or match[1] + (match[4] or "")
            assert name not in values
            values[name] = float(match[5])
    assert text.endswith("\n")
    return values


def test_metrics_of_a_node() -> None:
    well = samples(health.metrics(health.judge(read(bundle(healthy(P4D))), expected(P4D, "quick")), 1000.0, 1.5))
    assert (well["gpu.count"], well["gpuprov_node_ok"], well["gpuprov_check_timestamp_seconds"]) == (1, 1, 1000)
    assert "amd.gpu_count" not in well
    bad = samples(health.metrics(health.judge(read(broken()), expected(P4D, "quick")), 1000.0, 1.5))
    assert (bad["gpu.count"], bad["gpuprov_node_ok"]) == (0, 0)
    unreachable = samples(health.metrics(health.judge(read(Bundle(error="gone")), expected(P4D, "quick")), 1000.0, 1.5))
    assert math.isnan(unreachable["gpu.count"])
    assert unreachable["gpuprov_node_ok"] == 0
    assert samples(health.metrics(None, 1.0, 1.0))["gpuprov_node_ok"] == 0


@pytest.mark.parametrize(
    ("identity", "exported"),
    [
        ('{"build": "20260131-031500", "image": "pytorch"}', {"gpuprov_image_build_timestamp_seconds": 1769829300}),
        ('{"build": "latest", "image": "pytorch"}', {}),
        ("", {}),
    ],
)
def test_a_node_exports_when_its_golden_image_was_built(identity: str, exported: dict[str, float]) -> None:
    facts, expectation = read(bundle({**healthy(P4D), "image.json": identity})), expected(P4D, "quick")
    text = health.metrics(health.judge(facts, expectation), 1000.0, 1.5, readings(facts, expectation))
    assert {name: value for name, value in samples(text).items() if "image_build" in name} == exported
    assert BUILD == work.ID


def test_a_node_with_efa_exports_its_counters() -> None:
    document = json.loads(str(healthy(P4D)["rdma.json"]))
    devices = document["devices"]
    first = devices[next(iter(devices))]["ports"]["1"]["counters"]
    first.update(rx_drops="7", retrans_timeout_events="3", impaired_remote_conn_events="x")
    devices['"} 1\ngpuprov_node_ok 1'] = devices[next(iter(devices))]
    facts = read(bundle({**healthy(P4D), "rdma.json": json.dumps(document)}))
    rows = {row.name: row for row in readings(facts, expected(P4D, "quick"))}
    drops = rows["gpuprov_efa_rx_drops_total"].samples
    assert {*drops} == {f'{{device="rdmap{number}s27"}}' for number in (16, 32, 144, 160)}
    timeouts = rows["gpuprov_efa_retrans_timeout_events_total"].samples
    assert [*timeouts.values()] == ["3"]
    assert [drops[device] for device in timeouts] == ["7"]
    assert "gpuprov_efa_impaired_remote_conn_events_total" not in rows
    assert "# TYPE gpuprov_efa_rx_drops_total counter" in str(rows["gpuprov_efa_rx_drops_total"])
    other = replace(expected(P4D, "quick"), network="infiniband")
    assert not [row for row in readings(facts, other) if "efa" in row.name]


@pytest.fixture
def state_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the zip and what is expected."""
    monkeypatch.setenv("GPUPROV_HEALTH_LOCK", str(tmp_path / "lock"))
    monkeypatch.setenv("GPUPROV_HEALTH_LOOKS", str(tmp_path / "looks" / "last-look.json"))
    (tmp_path / "health.pyz").write_bytes(archive.archive())
    (tmp_path / "expected.json").write_text(json.dumps(expected(P4D, "quick").to_json()))
    return tmp_path


def run(folder: Path) -> subprocess.CompletedProcess[str]:
    """As the unit runs it: isolated, and without site packages."""
    command = [sys.executable, "-I", "-S", "health.pyz", "expected.json", "out/gpuprov.prom"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=False)


def test_the_zip_judges_this_machine_with_the_standard_library_alone(state_dir: Path) -> None:
    done = run(state_dir)
    assert (done.returncode, done.stderr) == (0, "")
    out = state_dir / "out" / "gpuprov.prom"
    metrics = samples(out.read_text())
    assert metrics["gpuprov_node_ok"] == 0, "this is no p4d"
    assert out.stat().st_mode & 0o777 == 0o644
    assert [path.name for path in out.parent.iterdir()] == ["gpuprov.prom"]
    assert re.search(r"^[a-z.]+: (fail|unknown): ", done.stdout, re.M)


def test_expectations_that_can_not_be_read_are_no_healthy_node(state_dir: Path) -> None:
    (state_dir / "expected.json").write_text("{")
    done = run(state_dir)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert samples((state_dir / "out" / "gpuprov.prom").read_text())["gpuprov_node_ok"] == 0


def test_never_two_at_once(state_dir: Path) -> None:
    with (state_dir / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert run(state_dir).returncode == 0
    assert not (state_dir / "out").exists()


@pytest.mark.parametrize(
    ("result", "stands"),
    [("success", True), ("timeout", False), ("oom-kill", False), ("signal", False), ("exit-code", False), ("", False)],
)
def test_a_look_that_was_killed_leaves_no_healthy_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, result: str, stands: bool
) -> None:
    out = tmp_path / "gpuprov.prom"
    out.write_text("gpuprov_node_ok 1\n")
    (tmp_path / ".gpuprov.prom.x1y2").write_text("half")
    monkeypatch.setenv("SERVICE_RESULT", result)
    assert health.main(["--ended", str(out)]) == 0
    assert ("gpuprov_node_ok 1\n" in out.read_text(), "gpuprov_node_ok 0\n" in out.read_text()) == (stands, not stands)
    assert stands or [file.name for file in tmp_path.iterdir()] == ["gpuprov.prom"]


def test_another_call_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert health.main([]) == 2
    assert "EXPECTED.json" in capsys.readouterr().err


def test_the_same_modules_give_the_same_zip() -> None:
    first = archive.archive()
    archive.archive.cache_clear()
    assert archive.archive() == first
    names = zipfile.ZipFile(BytesIO(first)).namelist()
    assert "provisioner/verify/probe/runner.py" in names
    assert not [name for name in names if "plugin" in name or "report" in name]


def test_the_zip_lies_in_the_cache_under_its_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    file = archive.write_archive()
    file.write_bytes(b"half")
    assert archive.write_archive().read_bytes() == archive.archive()


def test_roles_get_it_where_it_is_wanted() -> None:
    off = plans.plan(plans.cluster_spec(P4D))
    assert inventory.group_variables("train", off)["gpuprov_health"] is None
    on = plans.plan(plans.cluster_spec(P4D, monitoring={"health_check": {"every": "5m"}}))
    variables = inventory.group_variables("train", on)["gpuprov_health"]
    assert (variables["every"], variables["textfile"]) == (
        "5m",
        "/var/lib/prometheus/node-exporter/gpuprov.prom",
    )
    assert variables["archive"] == archive.digest()
    assert (variables["expected"]["level"], variables["expected"]["simulated"]) == ("quick", True)
    assert variables["expected"]["gpu_count"] == load().machine(P4D).gpu_count
    json.dumps(variables)


def test_rights_are_given_to_the_file_and_not_to_what_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever may write in node_exporter's folder puts a link there between writing and chmod(2)."""
    monkeypatch.setattr(os, "chmod", lambda *_, **__: pytest.fail("chmod by path"))
    health.write(tmp_path / "gpuprov.prom", "x 1\n")
    assert (tmp_path / "gpuprov.prom").stat().st_mode & 0o777 == 0o644
