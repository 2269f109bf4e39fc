"""Quarantine in detail: what still has to pass, what is written down, what is reported, and what `up` and `down` do."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from provisioner.common import ownership
from provisioner.common.errors import GpuprovError
from provisioner.common.events import Event
from provisioner.common.levels import Level, deeper
from provisioner.common.paths import private_dir
from provisioner.lifecycle.quarantine import actions as quarantine
from provisioner.lifecycle.quarantine import book as quarantine_book
from provisioner.lifecycle.quarantine.book import OURS, Book, Entry
from provisioner.lifecycle.quarantine.rules import most_shared
from provisioner.lifecycle.rollout import Place
from provisioner.lifecycle.session import Cluster, open_cluster
from provisioner.lifecycle.upgrade.journal import Journal
from provisioner.rundir import fleet
from provisioner.verify.check import NO_GPUS
from provisioner.verify.results import NodeReport, Status
from tests.unit.lifecycle.test_quarantine import (
    AT,
    FILE,
    after,
    cluster,
    entry,
    hooked,
    judge,
    lost,
    machines,
    node,
    result,
    verdict,
    well,
)

__all__ = ["cluster"]


# rules


@pytest.mark.parametrize(("second", "leaves"), [("pass", True), ("skip", False)])
def test_a_check_that_passed_for_some_of_its_subjects_only_still_has_to_pass(second: Status, leaves: bool) -> None:
    results = (result("gpu.count", "pass"), result("load.completes", "pass"), result("load.completes", second))
    decision = judge(Book({"train-0": entry("train-0")}), [verdict("train-0", *results)], 1)
    assert decision.release == (("train-0",) if leaves else ())


@pytest.mark.parametrize("bad", [False, True])
def test_a_verdict_on_a_name_that_no_machine_has_is_passed_over(bad: bool) -> None:
    verdicts = [*(lost("old-0") if bad else well("old-0")), *well("train-0")]
    assert judge(Book({"old-0": entry("old-0")}), verdicts, 1).nothing


def test_a_node_without_gpus_needs_no_proof_at_work() -> None:
    inapplicable = replace(result("load.completes", "skip"), message=NO_GPUS)
    bad = verdict("train-0", result("log.machine_check", "fail"), inapplicable)
    decision = judge(Book({}), [bad], 4)
    assert decision.hold["train-0"].owed == ("log.machine_check",)
    older = {"train-0": replace(decision.hold["train-0"], owed=("log.machine_check", "load.completes"))}
    passed = verdict("train-0", result("log.machine_check", "pass"), inapplicable)
    assert judge(Book(older), [passed], 4).release == ("train-0",)


def test_a_bad_node_stays_though_it_passed_what_condemned_it() -> None:
    passed = (result("gpu.count", "pass"), result("load.completes", "pass"), result("gpu.ecc", "fail"))
    decision = judge(Book({"train-0": entry("train-0")}), [verdict("train-0", *passed)], 1)
    assert (decision.release, decision.hold["train-0"].checks) == ((), ("gpu.ecc",))


def test_a_fleet_with_more_in_quarantine_than_its_bound_trips_no_breaker_while_none_turns_bad() -> None:
    entries = {f"train-{n}": entry(f"train-{n}", owner="ada") for n in range(3)}
    assert judge(Book(entries), well("train-3"), 4).breaker is None


@pytest.mark.parametrize(("old", "new"), [("quick", "standard"), ("standard", "stress")])
def test_a_bad_verdict_at_a_deeper_level_asks_for_that_level_from_then_on(old: Level, new: Level) -> None:
    decision = judge(Book({"train-0": entry("train-0", level=old)}), lost("train-0"), 1, level=new)
    assert decision.hold["train-0"].level == new


def test_of_an_entry_of_a_former_release_checks_of_the_fabric_have_not_to_pass() -> None:
    old = Entry("i-train-0", OURS, "x", AT, ("fabric.state", "nccl.busbw"), "standard", True)
    passed = verdict("train-0", result("nccl.busbw", "pass"), result("fabric.state", "skip"))
    assert judge(Book({"train-0": old}), [passed], 1).release == ("train-0",)


def test_diagnostics_at_level_stress_prove_a_node_only_where_they_ran() -> None:
    store = Book({"train-0": entry("train-0", level="stress")})
    ran = verdict("train-0", result("gpu.count", "pass"), result("dcgm.diag", "pass"))
    skipped = verdict("train-0", result("gpu.count", "pass"), result("dcgm.diag", "skip"))
    assert judge(store, [ran], 1, level="stress").release == ("train-0",)
    assert judge(store, [skipped], 1, level="stress").release == ()


@pytest.mark.parametrize(
    ("level", "other", "expected"),
    [(None, "quick", "quick"), ("quick", "standard", "standard"), ("stress", "standard", "stress"),
     ("stress", "quick", "stress")],
)  # fmt: skip
def test_the_deeper_level_proves_more(level: Level | None, other: Level, expected: Level) -> None:
    assert deeper(level, other) == expected


def test_nodes_without_a_check_share_that_nothing_was_checked() -> None:
    silent = NodeReport("train-0", "train", "here", "p4d.24xlarge", True, ())
    assert most_shared([silent, silent]) == ("nothing was checked", 2)


# actions


def events_of(cluster: Cluster) -> list[Event]:
    events: list[Event] = []
    cluster.events.subscribe(events.append)
    return events


def reported(events: Sequence[Event]) -> list[tuple[str, str, str | None]]:
    return [(event.kind, event.message, event.node) for event in events if event.stage == "quarantine"]


def test_each_step_is_reported(cluster: Cluster) -> None:
    events, refuse = events_of(cluster), cluster.file.parent / "refuse"
    refuse.touch()
    after(cluster, *lost("train-1"))
    drained = ("warning", "not drained: the drain command ended with status 1", "train-1")
    assert reported(events)[0] == ("warning", "in quarantine: gpu.count: 7 instead of 8", "train-1")
    assert reported(events)[-1] == drained
    events.clear()
    after(cluster, *well("train-1"))
    resumed = ("warning", "not put back into service: the resume command ended with status 1", "train-1")
    assert reported(events)[-1] == resumed
    refuse.unlink()
    events.clear()
    after(cluster, *well("train-1"))
    assert reported(events)[-1] == ("done", "out of quarantine: train-1", None)


def test_only_nodes_that_were_put_back_are_reported_as_such(cluster: Cluster) -> None:
    text = FILE.replace("resume: 'test ! -e refuse", "resume: 'test $GPUPROV_NODE = train-0")
    cluster.file.write_text(text)
    picky = open_cluster(cluster.file, sandbox=True)
    Book({name: entry(name) for name in ("train-0", "train-1")}).save(picky.paths)
    events = events_of(picky)
    after(picky, *well("train-0", "train-1"))
    assert ("done", "out of quarantine: train-0", None) in reported(events)
    quarantined = quarantine.quarantined_nodes(picky)
    assert {name: e.trouble for name, e in quarantined.items()} == {"train-1": "the resume command ended with status 1"}


def test_a_run_that_holds_the_cluster_acts_at_once(cluster: Cluster) -> None:
    with cluster.exclusively("up"):
        after(cluster, *lost("train-1"), holding=True)
        assert list(quarantine.quarantined_nodes(cluster)) == ["train-1"]


def test_a_verdict_that_changes_nothing_waits_for_nobody(cluster: Cluster) -> None:
    events = events_of(cluster)
    with cluster.exclusively("up"):
        after(open_cluster(cluster.file, sandbox=True, events=cluster.events), *well("train-0"))
    assert reported(events) == []


def test_an_upgrade_in_progress_keeps_the_breaker_silent(cluster: Cluster) -> None:
    Journal(to="b", phase="moving", nodes={"train-1": Place("a", "drained")}).save(cluster.paths)
    events = events_of(cluster)
    messages = after(cluster, *lost("train-0", "train-1", "train-2"), holding=True)
    assert messages.breaker is None
    assert reported(events) == [("warning", "an upgrade is in progress: quarantine is unchanged", None)]
    events.clear()
    after(cluster, *well("train-0"), holding=True)
    assert reported(events) == [], "there was nothing to change"


def test_a_new_machine_that_could_not_be_put_back_is_ours(cluster: Cluster) -> None:
    """Its entry was of the machine before it, which a person had in quarantine."""
    Book({"train-1": entry("train-1", id="i-former", owner="ada", level="stress")}).save(cluster.paths)
    (cluster.file.parent / "refuse").touch()
    after(cluster, *well("train-1"))
    quarantined = quarantine_book.load(cluster.paths).nodes["train-1"]
    assert (quarantined.id, quarantined.owner, quarantined.level, quarantined.owed) == ("i-train-1", OURS, None, ())
    assert quarantined.trouble == "the resume command ended with status 1"
    (cluster.file.parent / "refuse").unlink()
    after(cluster, *well("train-1"), level="quick")
    assert quarantine.quarantined_nodes(cluster) == {}


def test_a_machine_that_could_not_be_put_back_keeps_its_owner(cluster: Cluster) -> None:
    Book({"train-1": entry("train-1", owner="ada")}).save(cluster.paths)
    (cluster.file.parent / "refuse").touch()
    assert quarantine.release(cluster, ["train-1"])[1] == {"train-1": "the resume command ended with status 1"}
    quarantined = quarantine.quarantined_nodes(cluster)["train-1"]
    assert (quarantined.owner, quarantined.level) == ("ada", "standard")


def test_a_person_s_quarantine_is_written_before_the_node_is_drained(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(quarantine.hooks, "call", killed)
    with pytest.raises(KeyboardInterrupt):
        quarantine.put(cluster, ["train-1"], "RMA", "ada")
    assert quarantine.quarantined_nodes(cluster)["train-1"].reason == "RMA"
    with pytest.raises(KeyboardInterrupt):
        quarantine.hold(cluster, cluster.nodes()[2:3], {"train-2": "removed"}, "up")
    assert quarantine.quarantined_nodes(cluster)["train-2"].reason == "removed"


def test_nodes_whose_machines_end_are_ours_until_a_machine_of_their_name_is_proven(cluster: Cluster) -> None:
    nodes = cluster.nodes()
    Book({"train-0": entry("train-0", owner="ada", drained=False)}).save(cluster.paths)
    assert quarantine.hold(cluster, nodes[:2], dict.fromkeys(("train-0", "train-1"), "removed"), "up") == {}
    quarantined = quarantine.quarantined_nodes(cluster)
    assert {name: (e.owner, e.reason, e.drained) for name, e in quarantined.items()} == {
        "train-0": ("ada", "gpu.count: 7 instead of 8", True),
        "train-1": (OURS, "removed", True),
    }
    assert quarantined["train-1"].level == cluster.spec.verify.level
    assert sorted(hooked(cluster)) == [
        "drain up train-0 gpu.count: 7 instead of 8", "drain up train-1 removed"
    ]  # fmt: skip


def test_a_node_that_a_resume_was_tried_on_is_not_kept_as_drained(cluster: Cluster) -> None:
    Book({"train-1": entry("train-1")}).save(cluster.paths)
    (cluster.file.parent / "refuse").touch()
    quarantine.release(cluster, ["train-1"])
    assert not quarantine.quarantined_nodes(cluster)["train-1"].drained


def test_nobody_is_drained_where_no_machine_ends(cluster: Cluster) -> None:
    assert quarantine.hold(cluster, [], {}, "up") == {}
    assert hooked(cluster) == []
    assert not (cluster.paths.root / "quarantine.json").exists()


def test_without_a_drain_command_no_node_is_drained(tmp_path: Path) -> None:
    (tmp_path / "cluster.yaml").write_text(FILE[: FILE.index("hooks:")])
    bare = open_cluster(tmp_path / "cluster.yaml", sandbox=True)
    private_dir(bare.paths.root)
    fleet.save(bare.paths, machines(4))
    after(bare, *lost("train-1"))
    assert not quarantine.quarantined_nodes(bare)["train-1"].drained
    events = events_of(bare)
    after(bare, *lost("train-1"))
    assert reported(events) == [], "there is nothing to try again"


def test_down_has_the_scheduler_forget_its_nodes_and_those_that_are_gone(cluster: Cluster) -> None:
    Book({"train-1": entry("train-1"), "old-0": entry("old-0")}).save(cluster.paths)
    quarantine.forget(cluster)
    assert sorted(hooked(cluster)) == ["resume release old-0", "resume release train-1"]
    (cluster.file.parent / "refuse").touch()
    events = events_of(cluster)
    quarantine.forget(cluster)
    assert [(e.kind, e.message, e.node) for e in events if e.stage == "down"] == [
        ("warning", "the scheduler may still have it drained: the resume command ended with status 1", name)
        for name in ("train-1", "old-0")
    ]


@pytest.mark.parametrize(
    ("environment", "name"), [({"USER": "ben"}, "ben"), ({"SUDO_USER": "ada", "USER": "root"}, "ada"), ({}, "account")]
)
def test_the_person_is_the_one_behind_sudo(
    environment: dict[str, str], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for key in ("SUDO_USER", "USER"):
        monkeypatch.delenv(key, raising=False)
    for key, value in environment.items():
        monkeypatch.setenv(key, value)
    monkeypatch.setattr(ownership.getpass, "getuser", lambda: "account")
    assert quarantine.person() == name


@pytest.mark.parametrize("error", [KeyError("uid not found"), OSError("no account")])
def test_a_person_without_an_account_has_a_number(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def unknown() -> str:
        raise error

    monkeypatch.setattr(ownership.getpass, "getuser", unknown)
    assert ownership.account_name().startswith("uid ")


# the file


def test_reports_have_the_level_and_trouble_where_there_are_some() -> None:
    assert "level" not in entry("train-0", level=None).document().to_json()
    assert entry("train-0").document().to_json()["level"] == "standard"
    assert "trouble" not in entry("train-0").document().to_json()


def test_an_entry_of_another_machine_is_not_of_this_node() -> None:
    store = Book({"train-0": entry("train-0", id="i-former"), "train-1": entry("train-1")})
    assert store.of([node("train-0"), node("train-1"), node("train-2")]) == {"train-1": entry("train-1")}


def test_the_file_is_json_that_git_and_people_can_read(cluster: Cluster) -> None:
    Book({"train-0": entry("train-0")}).save(cluster.paths)
    text = (cluster.paths.root / "quarantine.json").read_text()
    assert json.loads(text)["nodes"]["train-0"]["owed"] == ["gpu.count", "load.completes"]
    assert quarantine_book.load(cluster.paths) == Book({"train-0": entry("train-0")})


def test_a_new_machine_that_is_bad_is_not_put_back_though_the_entry_is_of_the_one_before() -> None:
    former = {"train-0": entry("train-0", id="i-former", owner="ada")}
    decision = judge(Book(former), lost("train-0"), 1)
    assert (decision.release, decision.hold["train-0"].id) == ((), "i-train-0")


def test_a_verdict_that_changes_nothing_writes_nothing(cluster: Cluster) -> None:
    after(cluster, *well("train-0"), holding=True)
    assert not (cluster.paths.root / "quarantine.json").exists()


def test_a_node_that_is_in_no_quarantine_is_named_and_nothing_is_done(cluster: Cluster) -> None:
    assert quarantine.release(cluster, ["train-3"]) == (["train-3"], {})
    assert hooked(cluster) == []


@pytest.mark.parametrize(("name", "number"), [("../x", "i-1"), ("-rf", "i-1"), ("$(x)", "i-1"), ("old-0", "i 1;x")])
def test_an_entry_of_no_node_is_damage(cluster: Cluster, name: str, number: str) -> None:
    """Hooks are given the names of nodes whose machines are gone."""
    Book({name: Entry(number, OURS, "bad", AT)}).save(cluster.paths)
    with pytest.raises(GpuprovError, match="is damaged"):
        quarantine.release(cluster, [name])


def test_a_node_whose_machine_is_gone_is_released(cluster: Cluster) -> None:
    Book({"old-0": entry("old-0")}).save(cluster.paths)
    assert quarantine.release(cluster, ["old-0"]) == ([], {})
    assert hooked(cluster) == ["resume release old-0"]
    assert quarantine_book.load(cluster.paths).nodes == {}


@pytest.mark.parametrize(
    ("checks", "level", "owed", "leaves_at"),
    [
        (("gpu.xid",), "quick", ("gpu.xid", "load.completes"), "standard"),
        (("gpu.model",), "quick", ("gpu.model",), "quick"),
        (("nccl.bandwidth",), "stress", ("nccl.bandwidth",), "stress"),
        ((), None, (), None),
    ],
)
def test_the_level_that_takes_it_out_is_one_that_can_answer_what_is_owed(
    checks: tuple[str, ...], level: Level | None, owed: tuple[str, ...], leaves_at: Level | None
) -> None:
    entry = Entry("i-1", "gpuprov", "why", "2026-01-31T12:00:00Z", checks, level, owed=owed)
    assert entry.leaves_at == leaves_at
    assert entry.document().to_json().get("level") == leaves_at
