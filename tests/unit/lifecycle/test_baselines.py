"""baseline.json and measures.jsonl: who gets in, what stays in, what is damaged, and what the report is given."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from provisioner.common.errors import GpuprovError
from provisioner.common.events import Event
from provisioner.common.paths import private_dir
from provisioner.lifecycle import baselines
from provisioner.lifecycle.baselines import KEPT, Saved
from provisioner.lifecycle.session import Cluster, open_cluster
from provisioner.lifecycle.subjects import subjects_of
from provisioner.lifecycle.upgrade.actions import NodeActions
from provisioner.rundir import fleet
from provisioner.rundir.fleet import Node
from provisioner.rundir.release import Ledger, assigned_releases
from provisioner.stack import lockfile
from provisioner.stack.models import Lock
from provisioner.verify.baseline import Baseline, GpuIdentity, Reached
from provisioner.verify.results import CheckResult, NodeReport, Report
from provisioner.verify.subject import Subject
from tests.support.healthy_bundle import stack

P4D = "p4d.24xlarge"
FILE = """
name: fast
sites: {here: {provider: aws, region: us-east-1}}
groups: {train: {machine: p4d.24xlarge, count: 4}}
"""
NOON = 1767268800.0
"""2026-01-01T12:00:00Z"""


def node(name: str, id: str = "") -> Node:
    return Node(name, "train", "here", P4D, id or f"i-{name}", "", "203.0.113.7", "10.0.0.7")


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    (tmp_path / "cluster.yaml").write_text(FILE)
    test_cluster = open_cluster(tmp_path / "cluster.yaml", sandbox=True)
    private_dir(test_cluster.paths.root)
    fleet.save(test_cluster.paths, [node(f"train-{i}") for i in range(4)])
    lockfile.write(test_cluster.paths.lock_file, Lock(request={}, simulated=True, groups={"train": stack(P4D)}))
    return test_cluster


PASSED = CheckResult("gpu.count", "fatal", "pass", "replace")


def verdict(name: str, *bad: CheckResult, memory: float | None = 1500.0, **other: Any) -> NodeReport:
    measures = (Reached("memory", "GB/s", memory),) if memory is not None else ()
    return NodeReport(name, "train", "here", P4D, True, (PASSED, *bad), **{"measures": measures, **other})


def report(*nodes: NodeReport, at: float = NOON) -> Report:
    return Report(nodes, {}, at)


def fails(id: str, severity: Any = "warn", message: str = "slow") -> CheckResult:
    return CheckResult(id, severity, "fail", "vendor", message=message)


def save(cluster: Cluster, *nodes: NodeReport, level: Any = "standard", at: float = NOON) -> Saved:
    return baselines.save(cluster, report(*nodes, at=at), cluster.nodes(), level)


def saved_records(cluster: Cluster) -> dict[str, Any]:
    nodes: dict[str, Any] = json.loads(cluster.paths.baseline.read_text())["nodes"]
    return nodes


def test_healthy_nodes_are_saved_and_the_others_are_named(cluster: Cluster) -> None:
    outcome = save(
        cluster,
        verdict("train-0", gpus=(GpuIdentity(0, "0000:10:00.0", "GPU-a", "1650"),)),
        verdict("train-1", fails("gpu.ecc", "fatal", "3 errors"), memory=900.0),
        verdict("train-2", fails("fleet.slow_memory")),
        verdict("train-3", replace(fails("load.completes", "fatal", "a job has them"), status="skip"), memory=None),
    )  # fmt: skip
    assert outcome == Saved(
        ("train-0",),
        {
            "train-1": "not healthy: gpu.ecc: 3 errors",
            "train-2": "failed fleet.slow_memory",
            "train-3": "nothing was measured: a job has them",
        },
    )
    assert cluster.paths.baseline.stat().st_mode & 0o777 == 0o600
    document = json.loads(cluster.paths.baseline.read_text())
    lock = assigned_releases(cluster.spec, Ledger(cluster.paths), cluster.nodes(), cluster.lock)["train-0"].id
    assert document == {
        "schema": 3,
        "nodes": {
            "train-0": {
                "standard": {
                    "id": "i-train-0", "group": "train", "machine": P4D, "at": "2026-01-01T12:00:00Z", "lock": lock,
                    "simulated": True, "measures": {"memory": {"value": 1500.0, "unit": "GB/s"}},
                    "gpus": [{"index": 0, "pci": "0000:10:00.0", "uuid": "GPU-a", "serial": "1650"}],
                }
            }
        },
    }  # fmt: skip


def test_a_warning_that_is_not_of_speed_keeps_nobody_out(cluster: Cluster) -> None:
    assert save(cluster, verdict("train-0", fails("fleet.kernel"), fails("baseline.memory"))).saved == ("train-0",)


def test_nothing_is_written_of_a_run_that_measured_nothing(cluster: Cluster) -> None:
    assert save(cluster, verdict("train-0", memory=None)).left == {"train-0": "nothing was measured"}
    assert not cluster.paths.baseline.exists()


def test_other_levels_and_other_nodes_stay(cluster: Cluster) -> None:
    save(cluster, verdict("train-0"), verdict("train-1"))
    save(cluster, verdict("train-0", memory=1400.0), level="stress")
    save(cluster, verdict("train-0", memory=1600.0), verdict("train-1", fails("gpu.ecc", "fatal")))
    memory_by_level = {
        n: {level: record["measures"]["memory"]["value"] for level, record in e.items()}
        for n, e in saved_records(cluster).items()
    }
    assert memory_by_level == {"train-0": {"standard": 1600.0, "stress": 1400.0}, "train-1": {"standard": 1500.0}}


def test_a_former_machine_leaves_with_its_name_or_its_new_record(cluster: Cluster) -> None:
    save(cluster, verdict("train-0"), verdict("train-1"))
    save(cluster, verdict("train-0"), level="stress")
    fleet.save(cluster.paths, [node("train-0", "i-new"), node("train-7")])
    save(cluster, verdict("train-7"))
    assert {(n, level): record["id"] for n, e in saved_records(cluster).items() for level, record in e.items()} == {
        ("train-0", "standard"): "i-train-0", ("train-0", "stress"): "i-train-0", ("train-7", "standard"): "i-train-7",
    }  # fmt: skip
    save(cluster, verdict("train-0"))
    assert {level: record["id"] for level, record in saved_records(cluster)["train-0"].items()} == {"standard": "i-new"}


def test_who_is_held_to_less_than_before_is_named(cluster: Cluster) -> None:
    slow = Reached("memory", "GB/s", 1350.0, 1500.0, True, None, True)
    fine = Reached("memory", "GB/s", 1490.0, 1500.0, True)
    of_group = replace(slow, own=False)
    outcome = save(
        cluster,
        verdict("train-0", measures=(slow,)),
        verdict("train-1", measures=(fine,)),
        verdict("train-2", measures=(of_group,)),
    )
    assert outcome.slower == {"train-0": "GPU memory -10.0%"}


def test_each_node_gets_its_own_record_and_a_new_machine_its_groups(cluster: Cluster) -> None:
    assert [s.baseline for s in baselines.with_baselines(cluster, subjects_of(cluster), cluster.nodes())] == [None] * 4
    save(cluster, *(verdict(f"train-{i}", memory=1500.0 + i) for i in range(3)))
    fleet.save(cluster.paths, [*(node(f"train-{i}") for i in range(2)), node("train-2", "i-new"), node("train-3")])
    baseline_by_node = {
        s.name: s.baseline for s in baselines.with_baselines(cluster, subjects_of(cluster), cluster.nodes())
    }
    at = "2026-01-01T12:00:00Z"
    assert baseline_by_node["train-1"] == Baseline({"memory": 1501.0}, True, at)
    assert baseline_by_node["train-2"] == baseline_by_node["train-3"] == Baseline({"memory": 1501.0}, False, at, 3)


def test_what_was_measured_with_another_lock_is_marked(cluster: Cluster) -> None:
    save(cluster, verdict("train-0"))
    other = stack(P4D).model_copy(update={"nccl": "2.99.1"})
    lockfile.write(cluster.paths.lock_file, Lock(request={}, simulated=True, groups={"train": other}))
    reopened = open_cluster(cluster.file, sandbox=True)
    baseline = baselines.with_baselines(reopened, subjects_of(reopened), reopened.nodes())[0].baseline
    assert baseline is not None and baseline.other_lock


def test_a_sandboxs_record_is_nobody_elses(cluster: Cluster) -> None:
    save(cluster, verdict("train-0"))
    real = [replace(s, simulated=False) for s in subjects_of(cluster)]
    assert [s.baseline for s in baselines.with_baselines(cluster, real, cluster.nodes())] == [None] * 4


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"schema": 4, "nodes": {}}', '{"schema": 1}', "[" * 100_000])
def test_a_damaged_record_is_said_with_what_to_do(cluster: Cluster, text: str) -> None:
    cluster.paths.baseline.write_text(text)
    with pytest.raises(GpuprovError, match="damaged") as raised:
        baselines.with_baselines(cluster, subjects_of(cluster), cluster.nodes())
    assert "--save-baseline" in (raised.value.hint or "")
    with pytest.raises(GpuprovError):
        save(cluster, verdict("train-0"))
    heard: list[Event] = []
    cluster.events.subscribe(heard.append)
    assert len(baselines.with_baselines(cluster, subjects_of(cluster), cluster.nodes(), required=False)) == 4
    assert [e.kind for e in heard if "damaged" in e.message] == ["warning"]


# the history


def note(cluster: Cluster, *nodes: NodeReport, at: float = NOON, level: Any = "standard") -> dict[str, list[float]]:
    """The trend of the memory of each node after a run."""
    trends = baselines.note(cluster, report(*nodes, at=at), cluster.nodes(), level).trend
    return {name: [run["memory"] for run in runs] for name, runs in trends.items()}


def lines(cluster: Cluster) -> list[Any]:
    return [json.loads(line) for line in cluster.paths.measures.read_text().splitlines()]


def test_each_run_adds_a_line_for_each_node_that_was_measured(cluster: Cluster) -> None:
    assert note(cluster, verdict("train-0"), verdict("train-1", memory=None)) == {"train-0": [1500.0]}
    assert note(cluster, verdict("train-0", fails("gpu.ecc", "fatal"), memory=1400.0)) == {"train-0": [1500.0, 1400.0]}
    assert lines(cluster)[-1] == {
        "node": "train-0", "id": "i-train-0", "level": "standard", "at": "2026-01-01T12:00:00Z", "simulated": True,
        "measures": {"memory": 1400.0},
    }  # fmt: skip
    assert cluster.paths.measures.stat().st_mode & 0o777 == 0o600


def test_a_run_that_measured_nothing_leaves_the_history_alone(cluster: Cluster) -> None:
    assert note(cluster, verdict("train-0", memory=None)) == {}
    assert not cluster.paths.measures.exists()


def test_levels_and_machines_have_their_own_line(cluster: Cluster) -> None:
    note(cluster, verdict("train-0"))
    assert note(cluster, verdict("train-0", memory=1100.0), level="stress") == {"train-0": [1100.0]}
    fleet.save(cluster.paths, [node("train-0", "i-new")])
    assert note(cluster, verdict("train-0", memory=1700.0)) == {"train-0": [1700.0]}


def test_only_the_last_runs_are_drawn_and_kept(cluster: Cluster) -> None:
    fleet.save(cluster.paths, [node("train-0"), node("train-1"), node("old-0")])
    note(cluster, verdict("old-0"))
    fleet.save(cluster.paths, [node("train-0"), node("train-1")])
    for run in range(3 * KEPT):
        drawn = note(cluster, verdict("train-0", memory=1000.0 + run), verdict("train-1"), at=NOON + run)
        assert len(lines(cluster)) <= 4 * KEPT + 2
    assert drawn["train-0"] == [1000.0 + run for run in range(2 * KEPT, 3 * KEPT)]
    assert {line["id"] for line in lines(cluster)} == {"i-train-0", "i-train-1"}
    assert [line["at"] for line in lines(cluster)] == sorted(line["at"] for line in lines(cluster))


@pytest.mark.parametrize(
    "damage",
    [
        b'{"node": "train-0", "id": "i-tra',
        b"\xff\xfe\n",
        b"null\n[]\n7\n",
        b'{"node":"train-0","id":"i-train-0","level":"standard","at":7,"measures":{"memory":1}}\n',
        b'{"node":"train-0","id":"i-train-0","level":"standard","at":"x","measures":{"memory":NaN,"speed":1}}\n',
        b'{"node":"train-0","id":["i"],"level":{},"at":"x","measures":{"memory":1}}\n',
        b"[" * 100_000 + b"\n",
    ],
)
def test_a_damaged_line_is_left_out_and_the_next_is_whole(cluster: Cluster, damage: bytes) -> None:
    note(cluster, verdict("train-0"))
    with cluster.paths.measures.open("ab") as stream:
        stream.write(damage)
    trends = baselines.note(cluster, report(verdict("train-0", memory=1400.0)), cluster.nodes(), "standard").trend
    assert [run["memory"] for run in trends["train-0"] if run] == [1500.0, 1400.0]


def test_an_upgrade_keeps_the_trend_and_names_who_got_slower(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    save(cluster, verdict("train-0"), verdict("train-1"))
    baseline_by_node: dict[str, Baseline | None] = {}

    def judged(subjects: Sequence[Subject], **_: Any) -> Report:
        baseline_by_node.update({subject.name: subject.baseline for subject in subjects})
        slow = Reached("memory", "GB/s", 900.0, record=1500.0, own=True, slower=True)
        return report(replace(verdict("train-0"), measures=(slow,)), verdict("train-1"))

    monkeypatch.setattr("provisioner.verify.run.verify", judged)
    events: list[Event] = []
    cluster.events.subscribe(events.append)
    release = assigned_releases(cluster.spec, Ledger(cluster.paths), cluster.nodes(), cluster.lock)["train-0"]
    Ledger(cluster.paths).record(cluster.nodes(), release.lock)
    actions = NodeActions(cluster, cluster.nodes(), cluster.paths.root)
    assert actions.verify({"train-0": release.id, "train-1": release.id}) == {}
    assert all(baseline is not None and baseline.own for baseline in baseline_by_node.values())
    slower = [(event.node, event.message) for event in events if event.kind == "warning"]
    assert slower == [("train-0", "slower than its baseline: GPU memory -40.0%")]
    rows = [json.loads(line) for line in cluster.paths.measures.read_text().splitlines()]
    assert [(row["node"], row["measures"]) for row in rows] == [
        ("train-0", {"memory": 900.0}),
        ("train-1", {"memory": 1500.0}),
    ]
