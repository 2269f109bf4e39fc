"""Which verdict puts which node into quarantine, what takes it out again, and where the breaker stops it."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from provisioner.cli import tables
from provisioner.cli.main import run
from provisioner.common import ownership
from provisioner.common.errors import Exit, GpuprovError
from provisioner.common.events import Event
from provisioner.common.levels import Level
from provisioner.common.paths import private_dir
from provisioner.lifecycle.quarantine import actions as quarantine
from provisioner.lifecycle.quarantine import book as quarantine_book
from provisioner.lifecycle.quarantine.book import OURS, Book, Entry
from provisioner.lifecycle.quarantine.rules import UNREACHED, Decision, decide
from provisioner.lifecycle.rollout import Place
from provisioner.lifecycle.session import Cluster, open_cluster
from provisioner.lifecycle.status import status
from provisioner.lifecycle.upgrade.actions import NodeActions, leave_the_quarantined
from provisioner.lifecycle.upgrade.journal import Journal
from provisioner.rundir import fleet
from provisioner.rundir.fleet import Node
from provisioner.spec.models import Quarantine
from provisioner.verify.report.document import report_document
from provisioner.verify.report.terminal import table
from provisioner.verify.results import Breaker, CheckResult, NodeReport, Report, Status

AT = "2026-01-31T12:00:00Z"


def node(name: str, id: str = "") -> Node:
    return Node(name, "train", "here", "p4d.24xlarge", id or f"i-{name}", "", "203.0.113.7", "10.0.0.7")


def machines(count: int) -> list[Node]:
    return [node(f"train-{i}") for i in range(count)]


def result(id: str, status: Status, severity: str = "fatal") -> CheckResult:
    return CheckResult(id, severity, status, "replace", "a GPU is missing", message="7 instead of 8")  # type: ignore[arg-type]


def verdict(name: str, *bad: CheckResult, error: str = "") -> NodeReport:
    return NodeReport(name, "train", "here", "p4d.24xlarge", True, (result("gpu.model", "pass"), *bad), error=error)


def report(*nodes: NodeReport) -> Report:
    return Report(nodes, {}, 0.0)


LOST = result("gpu.count", "fail")


def lost(*names: str) -> list[NodeReport]:
    return [verdict(name, LOST) for name in names]


def well(*names: str) -> list[NodeReport]:
    return [verdict(name, result("gpu.count", "pass"), result("load.completes", "pass")) for name in names]


def entry(
    name: str, *, owner: str = OURS, id: str = "", level: Level | None = "standard", drained: bool = True
) -> Entry:
    return Entry(id or f"i-{name}", owner, "gpu.count: 7 instead of 8", AT, ("gpu.count",), level, drained, owed=OWED)


OWED = ("gpu.count", "load.completes")


def judge(
    store: Book, verdicts: Sequence[NodeReport], count: int, level: Level = "standard", limits: Quarantine | None = None
) -> Decision:
    return decide(store, report(*verdicts), machines(count), level, limits or Quarantine(), at="later")


@pytest.mark.parametrize("status", ["fail", "unknown"])
def test_a_fatal_check_puts_its_node_into_quarantine(status: Status) -> None:
    decision = judge(Book(), [verdict("train-0", result("gpu.count", status)), *well("train-1")], 2)
    reason, owed = "gpu.count: 7 instead of 8", OWED if status == "fail" else ()
    put = Entry("i-train-0", OURS, reason, "later", ("gpu.count",), "standard", owed=owed)
    assert decision == Decision({"train-0": put}, ("train-0",))


@pytest.mark.parametrize("severity", ["warn", "info"])
def test_no_other_check_does(severity: str) -> None:
    assert judge(Book(), [verdict("train-0", result("gpu.count", "fail", severity))], 1).nothing


def test_what_failed_is_the_reason_before_what_is_unknown() -> None:
    decision = judge(Book(), [verdict("train-0", result("gpu.xid", "unknown"), LOST)], 1)
    assert decision.hold["train-0"].checks == ("gpu.count",)


def test_an_unreachable_node_has_that_as_its_reason() -> None:
    decision = judge(Book(), [verdict("train-0", result("gpu.xid", "unknown"), error="ssh: no route to host")], 1)
    assert decision.hold["train-0"].reason == "ssh: no route to host"


@pytest.mark.parametrize(
    ("nodes", "limits", "bound"),
    [
        (1, {}, 1),
        (4, {}, 1),
        (9, {}, 1),
        (10, {}, 2),
        (40, {}, 8),
        (1000, {}, 8),
        (1000, {"most": 500}, 200),
        (4, {"share": "100%"}, 4),
        (10, {"share": "100%", "most": 3}, 3),
    ],
)
def test_the_breaker_trips_one_above_its_bound(nodes: int, limits: dict[str, object], bound: int) -> None:
    settings = Quarantine.model_validate(limits)
    names = [f"train-{i}" for i in range(nodes)]
    under = judge(Book(), [*lost(*names[:bound]), *well(*names[bound:])], nodes, limits=settings)
    assert len(under.hold) == bound
    assert under.breaker is None
    if bound < nodes:
        over = judge(Book(), [*lost(*names[: bound + 1]), *well(*names[bound + 1 :])], nodes, limits=settings)
        assert over.hold == {}
        assert over.drain == ()
        assert over.breaker is not None
        assert (over.breaker.bound, over.breaker.nodes, len(over.breaker.bad)) == (bound, nodes, bound + 1)


@pytest.mark.parametrize("owner", [OURS, "ada"])
def test_who_is_in_quarantine_already_counts(owner: str) -> None:
    store = Book({"train-3": entry("train-3", owner=owner)})
    decision = judge(store, lost("train-0"), 4)
    assert decision.nothing
    assert decision.breaker is not None
    assert decision.breaker.quarantined == 1
    assert "1 in quarantine already" in decision.breaker.message


def test_who_leaves_by_the_same_verdict_makes_room() -> None:
    decision = judge(Book({"train-3": entry("train-3")}), [*lost("train-0"), *well("train-3")], 4)
    assert (list(decision.hold), decision.release, decision.breaker) == (["train-0"], ("train-3",), None)


def test_a_tripped_breaker_releases_still() -> None:
    decision = judge(Book({"train-3": entry("train-3")}), [*lost("train-0", "train-1"), *well("train-3")], 4)
    assert (decision.release, decision.hold) == (("train-3",), {})
    assert decision.breaker is not None


def test_the_breaker_names_what_most_of_them_share() -> None:
    other = result("ib.ports", "fail")
    decision = judge(
        Book(), [verdict("train-0", LOST), verdict("train-1", LOST, other), verdict("train-2", other, LOST)], 4
    )
    assert decision.breaker is not None
    assert (decision.breaker.check, decision.breaker.shared) == ("gpu.count", 3)
    assert decision.breaker.message.endswith("Look for a common cause: gpu.count on 3 of 3")
    alone = replace(decision.breaker, bad=("train-0",), shared=1).message
    assert "1 node turned bad" in alone and alone.endswith("None of them was touched. Repair the node, or replace it")
    unreached = judge(
        Book(), [verdict(f"train-{i}", result("gpu.count", "unknown"), error="refused") for i in range(3)], 4
    )
    assert unreached.breaker is not None
    assert unreached.breaker.check == UNREACHED


@pytest.mark.parametrize(
    ("bad", "shared", "common"), [(2, 1, False), (2, 2, True), (4, 2, True), (5, 2, False), (7, 1, False)]
)
def test_a_check_that_few_of_the_bad_nodes_share_is_not_called_a_common_cause(
    bad: int, shared: int, *, common: bool
) -> None:
    breaker = Breaker(tuple(f"train-{n}" for n in range(bad)), 0, 1, 10, "efa.devices", shared)
    assert ("common cause: efa.devices" in breaker.message) is common
    assert ("repair or replace one node at a time" in breaker.message) is not common


@pytest.mark.parametrize(
    ("put_at", "seen_at", "leaves"),
    [
        ("quick", "quick", True),
        ("quick", "stress", True),
        ("standard", "quick", False),
        ("standard", "standard", True),
        ("stress", "standard", False),
        ("stress", "stress", True),
    ],
)
def test_ours_leaves_by_a_verdict_as_deep_as_the_one_that_put_it_there(
    put_at: Level, seen_at: Level, leaves: bool
) -> None:
    decision = judge(Book({"train-0": entry("train-0", level=put_at)}), well("train-0"), 4, seen_at)
    assert decision.release == (("train-0",) if leaves else ())


def put_by(*bad: CheckResult, level: Level = "standard") -> Book:
    """What a verdict with these checks puts into quarantine."""
    decision = judge(Book(), [verdict("train-0", *bad)], 4, level)
    return Book(dict(decision.hold))


def passes(*ids: str, skips: tuple[str, ...] = ()) -> list[NodeReport]:
    return [verdict("train-0", *(result(id, "pass") for id in ids), *(result(id, "skip") for id in skips))]


@pytest.mark.parametrize("id", ["load.completes", "load.results", "nccl.bandwidth", "dcgm.diag", "fabric.pairs"])
@pytest.mark.parametrize("status", ["fail", "unknown"])
def test_what_condemned_has_to_pass_and_not_to_be_skipped_beside_a_job(id: str, status: Status) -> None:
    store = put_by(result(id, status))
    decision = judge(store, passes(skips=(id,)), 4)
    assert decision.release == ()
    assert decision.hold["train-0"].reason == (
        f"{id}: 7 instead of 8; it stays until this has passed: {id} "
        "(`gpuprov verify FILE --level standard` asks, `gpuprov release FILE NODE` ends it)"
    )
    assert decision.drain == ()
    updated_store = Book({**store.nodes, **decision.hold})
    assert judge(updated_store, passes(skips=(id,)), 4).nothing, "told once"
    assert judge(updated_store, passes(id), 4).release == ("train-0",)
    assert judge(updated_store, passes(id), 4, "quick").nothing


@pytest.mark.parametrize("id", ["gpu.xid", "gpu.count", "dcgm.xid", "log.gsp_timeout", "nvswitch.sxid"])
def test_what_a_reboot_forgets_is_proven_at_work(id: str) -> None:
    store = put_by(result(id, "fail"), level="quick")
    assert judge(store, passes(id), 4, "quick").release == ()
    assert judge(store, passes(id, skips=("load.completes",)), 4).release == ()
    assert judge(store, passes(id, "load.completes"), 4).release == ("train-0",)
    assert judge(store, passes(id, "dcgm.diag"), 4).release == (), "-r 1 is software alone"
    assert judge(store, passes(id, "dcgm.diag"), 4, "stress").release == ("train-0",)


def test_another_fault_meanwhile_does_not_pay_what_is_owed() -> None:
    store = put_by(result("load.results", "fail"))
    decision = judge(store, [verdict("train-0", result("ib.ports", "fail"), result("load.results", "skip"))], 4)
    assert decision.hold["train-0"].owed == ("load.results", "ib.ports")
    unreached = judge(
        Book(dict(decision.hold)), [verdict("train-0", result("load.results", "unknown"), error="refused")], 4
    )
    assert unreached.hold["train-0"].owed == ("load.results", "ib.ports")
    paid = judge(Book(dict(unreached.hold)), passes("ib.ports", skips=("load.results",)), 4)
    assert (paid.release, paid.hold["train-0"].owed) == ((), ("load.results",))


def test_a_silent_node_owes_nothing_but_a_verdict() -> None:
    bad = [result(id, "unknown") for id in ("load.completes", "nccl.bandwidth", "fabric.pairs", "gpu.count")]
    store = Book(dict(judge(Book(), [verdict("train-0", *bad, error="ssh: no route to host")], 4).hold))
    assert store.nodes["train-0"].owed == ()
    assert judge(store, passes(skips=("fabric.pairs", "nccl.bandwidth")), 4).release == ("train-0",)


def test_a_check_of_ones_own_that_is_no_more_owes_nothing() -> None:
    assert judge(put_by(result("verify.checks", "unknown")), passes("gpu.count"), 4).release == ("train-0",)
    assert judge(put_by(result("mine.disk", "fail")), passes("gpu.count"), 4).release == ("train-0",)
    assert judge(put_by(result("mine.disk", "fail")), passes(skips=("mine.disk",)), 4).release == ()


def test_what_is_owed_is_kept(cluster: Cluster) -> None:
    after(cluster, verdict("train-0", result("load.results", "fail")))
    assert quarantine.quarantined_nodes(cluster)["train-0"].owed == ("load.results",)
    hooked(cluster)
    busy = verdict("train-0", result("load.results", "skip"))
    assert after(cluster, busy).healthy_nodes == ()
    assert "it stays until this has passed: load.results" in quarantine.quarantined_nodes(cluster)["train-0"].reason
    assert hooked(cluster) == []
    assert after(cluster, *passes("load.results")).healthy_nodes == ("train-0",)


def test_a_persons_stays_healthy_or_not() -> None:
    store = Book({"train-0": entry("train-0", owner="ada", level=None)})
    assert judge(store, well("train-0"), 4, "stress").nothing
    assert judge(store, lost("train-0"), 4, "stress").nothing


def test_nobody_who_was_not_looked_at_is_touched() -> None:
    assert judge(Book({"train-0": entry("train-0")}), well("train-1"), 4).nothing


def test_another_machine_of_the_name_is_not_in_quarantine_and_is_put_back_when_proven() -> None:
    for owner in (OURS, "ada"):
        store = Book({"train-0": entry("train-0", owner=owner, id="i-former", level="stress")})
        assert store.of(machines(4)) == {}
        assert judge(store, well("train-0"), 4, "quick").release == ("train-0",)
        assert judge(store, lost("train-0"), 4).hold["train-0"].id == "i-train-0"
        assert judge(store, lost("train-1"), 4).breaker is None, "it does not count"


def test_a_second_bad_verdict_keeps_the_date_and_the_deeper_level() -> None:
    store = Book({"train-0": entry("train-0", level="stress")})
    assert judge(store, lost("train-0"), 4).nothing, "nothing new, nobody is called"
    decision = judge(store, [verdict("train-0", result("gpu.xid", "fail"))], 4)
    assert decision.hold["train-0"] == replace(
        store.nodes["train-0"],
        reason="gpu.xid: 7 instead of 8",
        checks=("gpu.xid",),
        level="stress",
        owed=("gpu.count", "load.completes", "gpu.xid"),
    )
    assert decision.drain == ()


def test_a_node_that_could_not_be_drained_is_drained_again_where_there_is_a_command() -> None:
    store = Book({"train-0": entry("train-0", drained=False)})
    assert judge(store, lost("train-0"), 4).drain == ("train-0",)
    assert decide(store, report(*lost("train-0")), machines(4), "standard", Quarantine(), at="", drains=False).nothing


def test_people_alone_where_cluster_yaml_says_so() -> None:
    alone = Quarantine(automatic=False)
    assert judge(Book(), lost("train-0", "train-1", "train-2"), 4, limits=alone) == Decision()
    assert judge(Book({"train-0": entry("train-0")}), well("train-0"), 4, limits=alone).release == ("train-0",)


# what is done with it

FILE = """
name: held
sites: {here: {provider: aws, region: us-east-1}}
groups: {train: {machine: p4d.24xlarge, count: 4}}
hooks:
  drain: 'test ! -e refuse && echo "$GPUPROV_STEP $GPUPROV_ACTION $GPUPROV_NODE $GPUPROV_REASON" >> hooks'
  resume: 'test ! -e refuse && echo "$GPUPROV_STEP $GPUPROV_ACTION $GPUPROV_NODE" >> hooks'
"""


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    (tmp_path / "cluster.yaml").write_text(FILE)
    test_cluster = open_cluster(tmp_path / "cluster.yaml", sandbox=True)
    private_dir(test_cluster.paths.root)
    fleet.save(test_cluster.paths, machines(4))
    return test_cluster


def hooked(cluster: Cluster) -> list[str]:
    log = cluster.file.parent / "hooks"
    lines = log.read_text().splitlines() if log.exists() else []
    log.unlink(missing_ok=True)
    return lines


def after(cluster: Cluster, *verdicts: NodeReport, level: Level = "standard", holding: bool = False) -> Report:
    return quarantine.after_verdict(cluster, report(*verdicts), cluster.nodes(), level, holding=holding)


def names() -> tuple[str, ...]:
    return tuple(f"train-{i}" for i in range(4))


def test_bad_then_well_again(cluster: Cluster) -> None:
    first_report = after(cluster, *lost("train-1"), *well("train-0", "train-2", "train-3"))
    assert hooked(cluster) == ["drain quarantine train-1 gpu.count: 7 instead of 8"]
    quarantined = next(n for n in first_report.nodes if n.name == "train-1").quarantine
    assert quarantined is not None
    assert (quarantined.owner, quarantined.checks) == (OURS, ["gpu.count"])
    row = next(n for n in status(cluster, ask=False).to_json()["nodes"] if n["name"] == "train-1")
    assert row["quarantine"]["reason"] == "gpu.count: 7 instead of 8"
    assert after(cluster, *lost("train-1")).healthy_nodes == ()
    assert hooked(cluster) == [], "a node that is drained already is not drained again"
    second_report = after(cluster, *well(*names()))
    assert hooked(cluster) == ["resume release train-1"]
    assert second_report.healthy_nodes == names()
    assert json.loads((cluster.paths.root / "quarantine.json").read_text()) == {"nodes": {}}


def test_a_healthy_node_in_quarantine_is_none_of_min_healthy(cluster: Cluster) -> None:
    quarantine.put(cluster, ["train-2"], "it smells burnt", "ada")
    assert hooked(cluster) == ["drain quarantine train-2 it smells burnt"]
    updated_report = after(cluster, *well(*names()))
    assert hooked(cluster) == []
    assert not updated_report.enough("100%")
    assert updated_report.enough(3)
    document = report_document(updated_report).to_json()
    assert document["nodes"][2]["quarantine"]["owner"] == "ada"
    assert document["nodes"][2]["ok"] is True
    assert quarantine.release(cluster, ["train-2", "train-3"]) == (["train-3"], {})
    assert hooked(cluster) == ["resume release train-2"]
    assert after(cluster, *well(*names())).enough("100%")


def test_a_person_takes_over_what_was_ours(cluster: Cluster) -> None:
    after(cluster, *lost("train-1"))
    since = quarantine.quarantined_nodes(cluster)["train-1"].since
    quarantine.put(cluster, ["train-1"], "RMA 4711", "ada")
    quarantined = quarantine.quarantined_nodes(cluster)["train-1"]
    assert (quarantined.owner, quarantined.since, quarantined.checks) == ("ada", since, ("gpu.count",))
    after(cluster, *well("train-1"), level="stress")
    assert list(quarantine.quarantined_nodes(cluster)) == ["train-1"]


def test_a_breaker_that_trips_touches_nobody_and_says_so(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    heard: list[Event] = []
    cluster.events.subscribe(heard.append)
    updated_report = after(cluster, *lost("train-0", "train-1", "train-2"), *well("train-3"), holding=True)
    assert hooked(cluster) == []
    assert quarantine.quarantined_nodes(cluster) == {}
    assert [e.data["bad"] for e in heard if e.stage == "quarantine"] == [["train-0", "train-1", "train-2"]]
    messages = [e.message for e in heard if e.stage == "quarantine"]
    assert messages == ["the breaker tripped: 3 bad nodes untouched, the report says why"], (
        "the sentence is the report's"
    )
    assert report_document(updated_report).to_json()["breaker"]["check"] == "gpu.count"
    tables.show(table(updated_report))
    assert "the breaker tripped: 3 nodes turned bad" in " ".join(capsys.readouterr().out.split())


def test_a_hook_that_fails_is_told_and_tried_again(cluster: Cluster) -> None:
    refuse = cluster.file.parent / "refuse"
    refuse.touch()
    updated_report = after(cluster, *lost("train-1"))
    assert updated_report.nodes[0].quarantine is not None
    assert updated_report.nodes[0].quarantine.problem == "the drain command ended with status 1"
    refuse.unlink()
    after(cluster, *lost("train-1"))
    assert hooked(cluster) == ["drain quarantine train-1 gpu.count: 7 instead of 8"]
    refuse.touch()
    assert after(cluster, *well("train-1")).healthy_nodes == (), "not back in service"
    refuse.unlink()
    assert after(cluster, *well("train-1")).healthy_nodes == ("train-1",)
    assert hooked(cluster) == ["resume release train-1"]


def test_killed_before_it_was_drained_the_next_verdict_drains_it(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(quarantine.hooks, "call", killed)
        after(cluster, *lost("train-1"))
    assert list(quarantine.quarantined_nodes(cluster)) == ["train-1"]
    after(cluster, *lost("train-1"))
    assert hooked(cluster) == ["drain quarantine train-1 gpu.count: 7 instead of 8"]


def test_a_machine_that_was_replaced_meanwhile_was_not_judged(cluster: Cluster) -> None:
    judged_nodes = cluster.nodes()
    fleet.save(cluster.paths, [node("train-0", "i-new"), *judged_nodes[1:]])
    updated_report = quarantine.after_verdict(
        cluster, report(*lost("train-0")), judged_nodes, "standard", holding=False
    )
    assert (hooked(cluster), quarantine.quarantined_nodes(cluster), updated_report.breaker) == ([], {}, None)


def test_a_name_without_a_machine_stays_as_long_as_a_scheduler_may_have_it_drained(cluster: Cluster) -> None:
    """A later machine of that name would be out of service, and nothing would know why."""
    Book({"old-0": entry("old-0")}).save(cluster.paths)
    after(cluster, *lost("train-1"))
    assert set(quarantine_book.load(cluster.paths).nodes) == {"train-1", "old-0"}


def test_a_name_without_a_machine_is_forgotten_where_nothing_is_drained(tmp_path: Path) -> None:
    (tmp_path / "cluster.yaml").write_text(FILE[: FILE.index("hooks:")])
    cluster = open_cluster(tmp_path / "cluster.yaml", sandbox=True)
    private_dir(cluster.paths.root)
    fleet.save(cluster.paths, machines(4))
    Book({"old-0": entry("old-0")}).save(cluster.paths)
    after(cluster, *lost("train-1"))
    assert set(quarantine_book.load(cluster.paths).nodes) == {"train-1"}


def test_a_run_at_work_is_not_disturbed(cluster: Cluster) -> None:
    heard: list[Event] = []
    cluster.events.subscribe(heard.append)
    with cluster.exclusively("up"):
        after(open_cluster(cluster.file, sandbox=True, events=cluster.events), *lost("train-1"))
    assert quarantine.quarantined_nodes(cluster) == {}
    assert any("is locked by another run" in e.message for e in heard if e.stage == "quarantine")


def test_an_upgrade_under_way_has_its_own_nodes_out_of_service(cluster: Cluster) -> None:
    Journal(to="b", phase="moving", nodes={"train-1": Place("a", "drained")}).save(cluster.paths)
    after(cluster, *lost("train-1"))
    assert (hooked(cluster), quarantine.quarantined_nodes(cluster)) == ([], {})


def upgrading(cluster: Cluster) -> tuple[Journal, NodeActions]:
    """An upgrade of all four, two of which are in quarantine: ours and a person's."""
    after(cluster, *lost("train-1"))
    quarantine.put(cluster, ["train-2"], "RMA 4711", "ada")
    hooked(cluster)
    journal = Journal(to="b", phase="moving", nodes={name: Place("a") for name in names()})
    return journal, NodeActions(cluster, cluster.nodes(), cluster.paths.root)


@pytest.mark.parametrize(("canary", "skipped"), [(None, ["train-1", "train-2"]), ("train-2", ["train-1"])])
def test_an_upgrade_leaves_them_out_unless_named(canary: str | None, skipped: list[str], cluster: Cluster) -> None:
    journal, actions = upgrading(cluster)
    leave_the_quarantined(journal, actions, canary)
    assert journal.at("left") == skipped
    assert journal.nodes["train-1"].reason == "in quarantine by gpuprov: gpu.count: 7 instead of 8"
    leave_the_quarantined(journal, actions, canary)
    assert journal.at("left") == skipped


def test_an_upgrade_puts_back_what_was_ours_and_nobody_elses(cluster: Cluster) -> None:
    _, actions = upgrading(cluster)
    assert actions.resume(names()) == {}
    assert sorted(hooked(cluster)) == [f"resume upgrade train-{i}" for i in (0, 1, 3)]
    assert list(quarantine.quarantined_nodes(cluster)) == ["train-2"]


@pytest.mark.parametrize(
    "text",
    [
        "", "{", "[]", '{"nodes": 7}', '{"nodes": {"train-0": {}}}', '{"nodes": {"train-0": []}}',
        *(
            json.dumps({"nodes": {"a": {"id": "", "owner": "a", "reason": "", "since": "", "checks": [], **wrong}}})
            for wrong in ({"id": 7}, {"level": "x"}, {"drained": 1}, {"checks": [1]}, {"checks": None}, {"more": 1},
                          {"owed": 7}, {"owed": [7]})
        ),
    ],
)  # fmt: skip
def test_a_damaged_file_is_refused(text: str, cluster: Cluster) -> None:
    """Taken for none, drained nodes would be forgotten and others drained beside them."""
    (cluster.paths.root / "quarantine.json").write_text(text)
    with pytest.raises(GpuprovError, match="is damaged") as caught:
        status(cluster, ask=False).to_json()
    assert "scheduler" in caught.value.hint
    with pytest.raises(GpuprovError, match="is damaged"):
        after(cluster, *lost("train-1"))


# as people give it


def captured_output(capsys: pytest.CaptureFixture[str]) -> str:
    captured = capsys.readouterr()
    return captured.out + captured.err


def test_by_command(cluster: Cluster, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUDO_USER", "ada")
    file = str(cluster.file)
    assert run(["quarantine", file, "train-0", "train-3", "--reason", "fan\nis $(loud)"]) == Exit.OK
    assert sorted(hooked(cluster)) == [
        "drain quarantine train-0 fan is $(loud)",
        "drain quarantine train-3 fan is $(loud)",
    ]
    text = captured_output(capsys)
    assert "train-0: in quarantine" in text
    assert "2 nodes are in quarantine, more than the automatic limit (1)" in text
    assert {e.owner for e in quarantine.quarantined_nodes(cluster).values()} == {"ada"}
    assert run(["status", file, "--offline"]) == Exit.OK
    text = captured_output(capsys)
    assert "train-0: in quarantine by ada since 20" in text
    assert f"; out by `gpuprov release {file} --sandbox train-0`" in text
    assert run(["release", file, "train-0", "train-1"]) == Exit.OK
    assert captured_output(capsys) == "train-0: back in service\ntrain-1: was not in quarantine\n"
    (cluster.file.parent / "refuse").touch()
    assert run(["release", file, "train-3"]) == Exit.CHECK_FAILED
    assert "train-3: not put back into service: the resume command ended with status 1" in captured_output(capsys)
    assert run(["quarantine", file, "train-1", "--reason", "x"]) == Exit.CHECK_FAILED
    assert "train-1: in quarantine, but not drained" in captured_output(capsys)


def test_by_command_refused(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    file = str(cluster.file)
    assert run(["quarantine", file, "train-0"]) == Exit.BAD_INPUT
    assert "--reason" in captured_output(capsys)
    assert run(["quarantine", file, "train-0", "--reason", " \n"]) == Exit.BAD_INPUT
    assert "--reason is empty" in captured_output(capsys)
    assert run(["quarantine", file, "trian-0", "--reason", "x"]) == Exit.BAD_INPUT
    assert "did you mean train-0" in captured_output(capsys)
    assert run(["release", file, "nobody"]) == Exit.BAD_INPUT
    assert quarantine.quarantined_nodes(cluster) == {}


@pytest.mark.parametrize(
    ("environment", "owner"),
    [
        ({"SUDO_USER": "ada", "USER": "root"}, "ada"),
        ({"USER": "ada"}, "ada"),
        ({"USER": "gpuprov"}, "gpuprov (account)"),
    ],
)
def test_the_owner_is_who_typed_it(environment: dict[str, str], owner: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SUDO_USER", "USER"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert quarantine.person() == owner


def test_somebody_without_a_name_owns_it_too(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SUDO_USER", "USER", "LOGNAME", "LNAME", "USERNAME"):
        monkeypatch.delenv(name, raising=False)

    def nameless() -> str:
        raise KeyError(os.getuid())

    monkeypatch.setattr(ownership.getpass, "getuser", nameless)
    assert quarantine.person() == f"uid {os.getuid()}"
