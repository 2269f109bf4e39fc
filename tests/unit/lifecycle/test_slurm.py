"""Which nodes Slurm gives jobs to: those that are proven and in service by gpuprov's records, whatever has happened to
the controller or to a run meanwhile. The head node is a stand-in; tests/sandbox/test_slurm.py has a real one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from provisioner.common.errors import GpuprovError
from provisioner.common.events import Event
from provisioner.common.levels import Level
from provisioner.common.paths import private_dir
from provisioner.lifecycle import hooks, slurm
from provisioner.lifecycle.quarantine import actions as quarantine
from provisioner.lifecycle.quarantine import book as quarantine_book
from provisioner.lifecycle.quarantine.book import OURS, Book, Entry
from provisioner.lifecycle.session import Cluster, open_cluster
from provisioner.lifecycle.status import status
from provisioner.rundir import fleet
from provisioner.rundir.fleet import Node
from provisioner.rundir.release import Ledger
from provisioner.stack.models import Lock
from provisioner.transport import root_program
from provisioner.verify.results import CheckResult, NodeReport, Report
from tests.support.healthy_bundle import stack

FILE = """\
name: team
sites: { ohio: { provider: aws, region: us-east-2 } }
scheduler: { slurm: {} }
verify: { level: standard }
groups:
  head: { machine: m6i.large }
  train: { machine: p4d.24xlarge, count: 2 }
"""
HEAD = Node("head-0", "head", "ohio", "m6i.large", "i-head", "", "203.0.113.7", "10.0.0.1")
TRAIN = [
    Node(f"train-{i}", "train", "ohio", "p4d.24xlarge", f"i-train-{i}", "", "203.0.113.8", f"10.0.0.{i + 2}")
    for i in range(2)
]


class Controller:
    """In place of root_program.ask: a head node with these nodes, and nodes that can be joined."""

    def __init__(self) -> None:
        self.nodes: dict[str, dict[str, Any]] = {}
        self.requests: list[str] = []
        self.joined: list[str] = []
        self.broken: dict[str, str] = {}
        self.jobs: dict[str, list[str]] = {}

    def set(self, name: str, state: str, reason: str = "", user: str = "root", comment: str = "") -> None:
        self.nodes[name] = {"state": state.split("+"), "reason": reason, "user": user, "comment": comment}

    def ask(
        self, _paths: object, node: str, _source: str, request: Mapping[str, Any], *, deadline_s: float
    ) -> dict[str, Any]:
        assert deadline_s > 0
        if node in self.broken:
            raise GpuprovError(self.broken[node], where=node)
        if "marker" in request:
            assert request["key"] == "a2V5"
            self.joined.append(node)
            return {}
        assert node == "head-0"
        self.requests.append(request["do"])
        return getattr(self, f"_{request['do']}")(request)

    def _states(self, _: Mapping[str, Any]) -> dict[str, Any]:
        return {"nodes": self.nodes}

    def _key(self, _: Mapping[str, Any]) -> dict[str, Any]:
        return {"key": "a2V5"}

    def _jobs(self, request: Mapping[str, Any]) -> dict[str, Any]:
        return {"jobs": {name: ids for name, ids in self.jobs.items() if name in request["nodes"]}}

    def _queue(self, _: Mapping[str, Any]) -> dict[str, Any]:
        return {"queue": [id for ids in self.jobs.values() for id in ids]}

    def _drain(self, request: Mapping[str, Any]) -> dict[str, Any]:
        for name, reason in request["nodes"].items():
            self.set(name, "IDLE+DRAIN", f"gpuprov {reason}")
        return {"failed": {}, "foreign": {}}

    def _resume(self, request: Mapping[str, Any]) -> dict[str, Any]:
        for name in request["nodes"]:
            self.set(name, "IDLE")
        return {"failed": {}, "foreign": {}}


@pytest.fixture
def controller(monkeypatch: pytest.MonkeyPatch) -> Controller:
    stand_in = Controller()
    monkeypatch.setattr(root_program, "ask", stand_in.ask)
    for node in TRAIN:
        stand_in.set(node.name, "IDLE")
    return stand_in


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    (tmp_path / "cluster.yaml").write_text(FILE)
    opened = open_cluster(tmp_path / "cluster.yaml", sandbox=False)
    private_dir(opened.paths.root)
    fleet.save(opened.paths, [HEAD, *TRAIN])
    prove(opened, HEAD, *TRAIN)
    return opened


def prove(cluster: Cluster, *nodes: Node) -> None:
    locked = stack("p4d.24xlarge")
    Ledger(cluster.paths).record(nodes, Lock(request={}, groups={"head": locked, "train": locked}, simulated=False))


def verdict(**ok: bool) -> Report:
    """train_0=True: that node is healthy."""
    rows = []
    for name, is_ok in ok.items():
        check = CheckResult("gpu.count", "fatal", "pass" if is_ok else "fail", "replace", "a GPU is missing")
        rows.append(NodeReport(name.replace("_", "-"), "train", "ohio", "p4d.24xlarge", False, (check,)))
    return Report(tuple(rows), {}, 0.0)


def settle(cluster: Cluster, report: Report, level: Level = "standard") -> None:
    slurm.settle(cluster, report, [HEAD, *TRAIN], level, holding=True)


def warnings_of(cluster: Cluster) -> list[str]:
    heard: list[str] = []

    def hear(event: Event) -> None:
        if event.kind == "warning":
            heard.append(f"{event.node or ''} {event.message}".strip())

    cluster.events.subscribe(hear)
    return heard


def out_of_service(cluster: Cluster, name: str, reason: str = "gpu.count: 7 instead of 8") -> None:
    entry = Entry(f"i-{name}", OURS, reason, "2026-01-31T12:00:00Z", ("gpu.count",), "standard", drained=True)
    Book({name: entry}).save(cluster.paths)


@pytest.mark.parametrize(
    ("state", "reason", "user"),
    [
        ("IDLE+DRAIN", "gpuprov: proving", ""),  # the first slurmctld of a head node
        ("DOWN", "Node unexpectedly rebooted", "slurm"),
        ("DOWN+NOT_RESPONDING", "Not responding", "slurm"),
        ("IDLE+DRAIN", "Kill task failed", "slurm"),
        ("UNKNOWN+NOT_RESPONDING", "", ""),  # slurmd was never started
    ],
)
def test_a_healthy_verdict_takes_a_node_in(
    cluster: Cluster, controller: Controller, state: str, reason: str, user: str
) -> None:
    controller.set("train-0", state, reason, user)
    settle(cluster, verdict(train_0=True, train_1=True))
    assert controller.nodes["train-0"]["state"] == ["IDLE"]
    assert controller.joined == ["train-0"]  # the other one is in service, and left alone


def test_a_proof_counts_more_than_what_the_node_said_before(cluster: Cluster, controller: Controller) -> None:
    controller.set("train-0", "MIXED", comment="gpuprov bad: gpu.count")  # the watch would drain it
    settle(cluster, verdict(train_0=False, train_1=True))
    assert controller.joined == []
    settle(cluster, verdict(train_0=True, train_1=True))
    assert controller.joined == ["train-0"]


@pytest.mark.parametrize("state", ["IDLE+DRAIN", "DOWN"])
def test_what_somebody_else_took_out_stays_out(cluster: Cluster, controller: Controller, state: str) -> None:
    controller.set("train-0", state, "cooling works", "alice")
    settle(cluster, verdict(train_0=True))
    assert controller.nodes["train-0"]["reason"] == "cooling works"
    assert controller.requests == ["states"]


def test_no_other_verdict_takes_a_node_in(cluster: Cluster, controller: Controller) -> None:
    controller.set("train-0", "IDLE+DRAIN", "gpuprov: proving")
    settle(cluster, verdict(train_0=False))
    settle(cluster, verdict(train_1=True))  # it was not judged
    settle(cluster, verdict(train_0=True), "quick")  # less than verify.level
    assert controller.joined == []
    Ledger(cluster.paths).prune([HEAD, TRAIN[1]])  # healthy, and not as its lock says: no run has recorded it
    settle(cluster, verdict(train_0=True))
    assert controller.joined == []


def test_a_machine_that_was_replaced_since_it_was_judged_is_not_taken_in(
    cluster: Cluster, controller: Controller
) -> None:
    controller.set("train-0", "IDLE+DRAIN", "gpuprov: proving")
    old = [Node("train-0", "train", "ohio", "p4d.24xlarge", "i-old", "", "203.0.113.8", "10.0.0.9")]
    slurm.settle(cluster, verdict(train_0=True), old, "standard", holding=True)
    assert controller.joined == []


def test_a_node_of_the_quarantine_is_drained_if_the_controller_has_lost_it(
    cluster: Cluster, controller: Controller
) -> None:
    out_of_service(cluster, "train-0")
    settle(cluster, verdict(train_0=True, train_1=True))
    assert controller.nodes["train-0"]["reason"] == "gpuprov quarantine: gpu.count: 7 instead of 8"
    settle(cluster, verdict(train_0=True, train_1=True))
    assert controller.requests.count("drain") == 1  # once is enough
    assert controller.joined == []


def test_nothing_is_in_service_before_the_head_node_is_proven(cluster: Cluster, controller: Controller) -> None:
    Ledger(cluster.paths).prune(TRAIN)
    heard = warnings_of(cluster)
    settle(cluster, verdict(train_0=True, train_1=True))
    assert heard == ["the head node of Slurm is not proven: 2 nodes without jobs"]
    assert controller.requests == []
    # It may give jobs all the same, if its record was lost.
    controller.jobs["train-0"] = ["17"]
    assert set(slurm.drain(cluster, "replace", TRAIN, "replace", {}, 0.0)) == {"train-0"}
    controller.broken["head-0"] = "no answer within 90 s"
    assert set(slurm.drain(cluster, "replace", TRAIN, "replace", {}, 0.0)) == {"train-0", "train-1"}


def test_a_head_node_that_does_not_answer_is_a_warning_after_a_verdict_and_a_failure_of_a_drain(
    cluster: Cluster, controller: Controller
) -> None:
    controller.broken["head-0"] = "no answer within 90 s"
    heard = warnings_of(cluster)
    settle(cluster, verdict(train_0=True))
    assert heard == ["Slurm may be out of date: head-0: no answer within 90 s"]
    bad = hooks.call(cluster, "drain", TRAIN[:1], "upgrade", {})
    assert bad == {"train-0": "Slurm on head-0: no answer within 90 s"}
    assert hooks.call(cluster, "resume", TRAIN[:1], "upgrade", {}) == bad


def test_a_node_that_cannot_be_joined_is_named_and_the_others_are_taken_in(
    cluster: Cluster, controller: Controller
) -> None:
    for node in TRAIN:
        controller.set(node.name, "IDLE+DRAIN", "gpuprov: proving")
    controller.broken["train-0"] = "slurmd.service does not run"
    heard = warnings_of(cluster)
    settle(cluster, verdict(train_0=True, train_1=True))
    assert heard == ["train-0 Slurm: slurmd.service does not run"]
    assert controller.nodes["train-1"]["state"] == ["IDLE"]
    assert controller.nodes["train-0"]["state"] == ["IDLE", "DRAIN"]


@pytest.mark.parametrize("action", ["upgrade", "replace", "up"])
def test_a_machine_changes_only_after_its_jobs_have_ended(
    cluster: Cluster, controller: Controller, action: hooks.Action
) -> None:
    controller.jobs["train-0"] = ["17", "18"]
    bad = slurm.drain(cluster, "upgrade", TRAIN, action, {"train-0": "x", "train-1": "x"}, 0.0)
    assert bad == {"train-0": "job 17, 18 still runs after 0 s"}
    assert hooks.call(cluster, "drain", TRAIN, "quarantine", {}) == {}  # a job on a bad node ends by itself


def test_the_head_node_is_no_node_of_slurm(cluster: Cluster, controller: Controller) -> None:
    controller.jobs["train-0"] = ["17"]  # slurmctld starts again, and they go on
    assert hooks.call(cluster, "drain", [HEAD], "upgrade", {}) == {}
    assert hooks.call(cluster, "resume", [HEAD], "upgrade", {}) == {}
    assert controller.requests == []


@pytest.mark.parametrize("action", ["replace", "up"])
def test_the_queue_of_a_head_node_is_not_lost_with_its_machine(
    cluster: Cluster, controller: Controller, action: hooks.Action
) -> None:
    assert hooks.call(cluster, "drain", [HEAD], action, {}) == {}
    controller.jobs["train-0"] = ["17"]
    message = "Slurm has 1 job, which would be lost: let them end, or cancel them (`scancel`)"
    assert hooks.call(cluster, "drain", [HEAD], action, {}) == {"head-0": message}
    controller.broken["head-0"] = "no answer within 90 s"  # it has to be replaced for that
    heard = warnings_of(cluster)
    assert hooks.call(cluster, "drain", [HEAD], action, {}) == {}
    assert heard == ["head-0 jobs of Slurm end with this machine: no answer within 90 s"]


def test_a_person_s_quarantine_and_release(cluster: Cluster, controller: Controller) -> None:
    assert quarantine.put(cluster, ["train-0"], "RMA 4711", "alice") == {}
    assert controller.nodes["train-0"]["reason"] == "gpuprov quarantine: RMA 4711"
    assert quarantine_book.load(cluster.paths).nodes["train-0"].drained
    assert quarantine.release(cluster, ["train-0"]) == ([], {})
    assert controller.nodes["train-0"]["state"] == ["IDLE"]


def test_down_asks_nobody(cluster: Cluster, controller: Controller) -> None:
    out_of_service(cluster, "train-0")
    controller.broken["head-0"] = "no answer within 90 s"  # its machine is gone
    heard = warnings_of(cluster)
    quarantine.forget(cluster)
    assert (heard, controller.requests) == ([], [])


def test_status_has_what_slurm_has(cluster: Cluster, controller: Controller, monkeypatch: pytest.MonkeyPatch) -> None:
    from provisioner.lifecycle import status as module

    monkeypatch.setattr(module, "drifted", lambda *_: {})
    controller.set("train-0", "IDLE+DRAIN", "cooling works", "alice")
    rows = {row.name: row.scheduler for row in status(cluster, ask=True).nodes}
    assert rows["head-0"] is None
    assert rows["train-0"] is not None
    assert (rows["train-0"].state, rows["train-0"].user) == (["IDLE", "DRAIN"], "alice")
    assert not rows["train-0"].is_ours
    controller.broken["head-0"] = "no answer within 20 s"
    rows = {row.name: row.scheduler for row in status(cluster, ask=True).nodes}
    assert rows["train-1"] is not None
    assert rows["train-1"].error == "head-0: no answer within 20 s"
    assert all(row.scheduler is None for row in status(cluster, ask=False).nodes)
