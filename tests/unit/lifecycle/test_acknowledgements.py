"""`gpuprov ack`: a warning has an owner for a time; what condemns a node has none."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from provisioner.cli.main import main
from provisioner.common.errors import GpuprovError
from provisioner.common.paths import private_dir
from provisioner.lifecycle import acknowledgements
from provisioner.lifecycle.session import Cluster, open_cluster
from provisioner.rundir import fleet, node_state
from provisioner.rundir.fleet import Node
from provisioner.verify.report import write
from provisioner.verify.report.document import node_document
from provisioner.verify.report.terminal import summary
from provisioner.verify.results import CheckResult, NodeReport, Report

FILE = """
name: vision
sites: {ohio: {provider: aws, region: us-east-2}}
groups: {train: {machine: p4d.24xlarge, count: 2}}
"""
NOW = datetime(2026, 11, 26, 12, tzinfo=UTC)
CHECKS = (
    CheckResult("gpu.count", "fatal", "pass", "replace"),
    CheckResult("host.next_boot", "warn", "fail", "reboot", message="libc6", parts=("host.reboot_required",)),
)


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    (tmp_path / "cluster.yaml").write_text(FILE)
    opened = open_cluster(tmp_path / "cluster.yaml", sandbox=True)
    private_dir(opened.paths.root)
    fleet.save(
        opened.paths,
        [
            Node(f"train-{n}", "train", "ohio", "p4d.24xlarge", f"i-{n}", "", f"203.0.113.{n}", f"10.0.0.{n}")
            for n in (0, 1)
        ],
    )
    return opened


def report() -> Report:
    nodes = [NodeReport(f"train-{n}", "train", "ohio", "p4d.24xlarge", False, CHECKS) for n in (0, 1)]
    return Report(tuple(nodes), {}, 0.0)


def acknowledge(cluster: Cluster, *, days: float = 1, check: str = "host.next_boot") -> None:
    end = datetime.now(UTC) + timedelta(days=days)
    acknowledgements.add(cluster, "train-0", check, "reboot on Monday", end, "ada")


def owners(cluster: Cluster) -> list[str | None]:
    marked = acknowledgements.mark(cluster, report(), cluster.nodes())
    checks = [check for node in marked.nodes for check in node.checks if check.id == "host.next_boot"]
    return [check.acknowledged["owner"] if check.acknowledged else None for check in checks]


def test_a_warning_is_its_owners_on_one_node(cluster: Cluster) -> None:
    acknowledge(cluster)
    assert owners(cluster) == ["ada", None]
    (first, second) = acknowledgements.mark(cluster, report(), cluster.nodes()).nodes
    assert summary(first) == "1 passed, 1 acknowledged"
    assert summary(second) == "1 passed, 1 warning"
    (next_boot,) = (check for check in node_document(first).to_json()["checks"] if check["id"] == "host.next_boot")
    assert next_boot["status"] == "fail" and next_boot["acknowledged"]["reason"] == "reboot on Monday"


def test_it_ends(cluster: Cluster) -> None:
    acknowledge(cluster, days=-1)
    assert owners(cluster) == [None, None]


def test_it_is_of_one_machine(cluster: Cluster) -> None:
    acknowledge(cluster)
    fleet.save(cluster.paths, [replace(node, id=f"{node.id}-new") for node in cluster.nodes()])
    assert owners(cluster) == [None, None]


def test_a_later_one_takes_its_place_and_it_can_be_taken_back(cluster: Cluster) -> None:
    acknowledge(cluster)
    acknowledge(cluster, days=3)
    assert len(acknowledgements.load(cluster.paths)) == 1
    assert acknowledgements.remove(cluster, "train-0", "host.next_boot") == (True, None)
    assert acknowledgements.remove(cluster, "train-0", "host.next_boot") == (False, None)
    assert owners(cluster) == [None, None]


def test_what_passes_or_condemns_is_left_as_it_is(cluster: Cluster) -> None:
    acknowledge(cluster, check="gpu.count")  # by an older release, say
    sick = replace(CHECKS[0], status="fail")
    judged = Report((replace(report().nodes[0], checks=(sick, replace(CHECKS[1], status="pass"))),), {}, 0.0)
    assert acknowledgements.mark(cluster, judged, cluster.nodes()) == judged
    assert not judged.ok


@pytest.mark.parametrize("text", ["{", "[]", '{"acknowledged": [{}]}', '{"acknowledged": [{"node": 1}]}'])
def test_a_damaged_file_acknowledges_nothing(cluster: Cluster, text: str) -> None:
    (cluster.paths.root / acknowledgements.Acknowledgements.FILE).write_text(text)
    messages: list[str] = []
    cluster.events.subscribe(lambda event: messages.append(event.message))
    assert owners(cluster) == [None, None]
    assert any("is damaged" in message for message in messages)
    with pytest.raises(GpuprovError, match="is damaged"):
        acknowledgements.load(cluster.paths)


@pytest.mark.parametrize(
    ("text", "end"),
    [
        ("14d", NOW + timedelta(days=14)),
        ("36h", NOW + timedelta(hours=36)),
        ("2026-11-30", datetime(2026, 11, 30, 23, 59, 59, tzinfo=UTC)),
        ("2026-11-26", datetime(2026, 11, 26, 23, 59, 59, tzinfo=UTC)),
    ],
)
def test_until(text: str, end: datetime) -> None:
    assert acknowledgements.until(text, NOW) == end


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "neither"), ("soon", "neither"), ("14", "neither"), ("2026-02-30", "neither"), ("99999999999d", "neither"),
        ("0d", "past"), ("2026-11-25", "past"), ("400d", "more than a year"), ("2030-01-01", "more than a year"),
    ],
)  # fmt: skip
def test_a_time_that_is_none(text: str, message: str) -> None:
    with pytest.raises(GpuprovError, match=message):
        acknowledgements.until(text, NOW)


def test_another_part_of_the_same_name_warns(cluster: Cluster) -> None:
    """Of what failed when it was made; somebody has looked at that alone."""

    def owner(*parts: str) -> str | None:
        check = replace(CHECKS[1], parts=parts)
        judged = Report((replace(report().nodes[0], checks=(check,)),), {}, 0.0)
        (marked,) = acknowledgements.mark(cluster, judged, cluster.nodes()).nodes[0].checks
        return marked.acknowledged["owner"] if marked.acknowledged else None

    acknowledge(cluster, check="host.reboot_required")
    assert owner("host.reboot_required") == "ada"
    assert owner("kernel.hold") is None and owner("host.reboot_required", "kernel.hold") is None
    acknowledge(cluster, check="kernel.hold")
    assert owner("host.reboot_required", "kernel.hold") == "ada"
    assert acknowledgements.remove(cluster, "train-0", "host.reboot_required")[0]
    assert owner("kernel.hold") == "ada" and owner("host.reboot_required") is None
    page = write(report(), cluster.paths.runs / "one", title="vision")
    node_state.note(cluster.paths, report=str(page))
    acknowledge(cluster, check="host.next_boot")
    assert owner("host.reboot_required") == "ada" and owner("host.reboot_required", "driver.headers") is None


def test_a_part_is_acknowledged_by_itself() -> None:
    assert acknowledgements.known("host.reboot_required") == "host.reboot_required"
    assert acknowledgements.known("host.next_boot") == "host.next_boot"
    with pytest.raises(GpuprovError, match="condemns a node") as refused:
        acknowledgements.known("gpu.count")
    assert "gpuprov quarantine" in str(refused.value.hint)
    with pytest.raises(GpuprovError, match=r"no check host\.nextboot") as unknown:
        acknowledgements.known("host.nextboot")
    assert "host.next_boot" in str(unknown.value.hint)


def test_typed(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    def typed(*arguments: str) -> tuple[int, str]:
        with pytest.raises(SystemExit) as ended:
            main(["ack", str(cluster.file), *arguments, "--sandbox"])
        captured = capsys.readouterr()
        return int(ended.value.code or 0), captured.out + captured.err

    code, output = typed("train-0", "host.reboot_required", "--reason", "Monday", "--until", "3d")
    assert code == 0 and "train-0: host.reboot_required is acknowledged by" in output
    assert "train-0 host.next_boot (host.reboot_required): " in typed()[1]
    assert (
        json.loads((cluster.paths.root / acknowledgements.Acknowledgements.FILE).read_text())["acknowledged"][0][
            "machine"
        ]
        == "i-0"
    )
    assert typed("train-0", "host.next_boot")[0] == 2
    assert typed("train-7", "host.next_boot", "--reason", "x")[0] == 2
    assert "CHECK is missing" in typed("train-0")[1]
    assert typed("train-0", "host.next_boot", "--remove") == (0, "train-0: host.next_boot warns again\n")
    assert typed()[1] == "no warning of vision is acknowledged\n"
    assert "NODE and CHECK are missing" in typed("--remove")[1]


def test_what_does_not_warn_by_the_newest_report_cannot_be_acknowledged(cluster: Cluster) -> None:
    """A first warning that comes later is nobody's."""

    def reported(name: str, *failing: dict[str, object]) -> Path:
        folder = private_dir(cluster.paths.runs) / name
        folder.mkdir()
        rows = [{"id": "host.next_boot", "status": "pass"}, *failing]
        (folder / "report.json").write_text(json.dumps({"nodes": [{"name": "train-0", "checks": rows}]}))
        return folder / "report.html"

    def add(check: str) -> tuple[str, ...]:
        end = datetime.now(UTC) + timedelta(days=1)
        return acknowledgements.add(cluster, "train-0", check, "x", end, "ada").parts

    failing = {"id": "host.settings", "status": "fail", "parts": ["host.thp"]}
    node_state.note_report(cluster.paths, reported("20260131-000000", failing))
    with pytest.raises(GpuprovError, match=r"host\.next_boot does not warn on train-0 by the last report"):
        add("host.next_boot")
    with pytest.raises(GpuprovError, match=r"host\.swap does not warn"):
        add("host.swap")
    assert (add("host.settings"), add("host.thp")) == (("host.thp",), ("host.thp",))
    later = reported("20260131-000001", failing | {"parts": ["host.swap"]})
    node_state.note_report(cluster.paths, later, ["train-0"])
    assert add("host.settings") == ("host.swap",)
