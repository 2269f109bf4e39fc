"""`replace`: which machines are made anew, what is refused before anything is touched, and that a run which is killed
at any step goes on and makes no second new machine. Terraform, Ansible and the checks are a world of dictionaries."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from provisioner.cli.status import lines
from provisioner.common.errors import Exit, GpuprovError, ProviderError
from provisioner.common.paths import private_dir
from provisioner.lifecycle import configuring, hooks, machines, preflight, verifying
from provisioner.lifecycle.quarantine import actions as quarantine
from provisioner.lifecycle.quarantine import book as quarantine_book
from provisioner.lifecycle.quarantine.book import Book
from provisioner.lifecycle.replace import command
from provisioner.lifecycle.replace import journal as replace_journal
from provisioner.lifecycle.replace.command import Options
from provisioner.lifecycle.session import Cluster, open_cluster
from provisioner.lifecycle.status import status
from provisioner.lifecycle.up import Run
from provisioner.lifecycle.verifying import Verdict
from provisioner.machines.base import Action, Planned
from provisioner.rundir import fleet, node_state
from provisioner.rundir.fleet import Node
from provisioner.stack.models import Lock
from provisioner.verify.results import CheckResult, NodeReport, Report
from tests.unit.lifecycle.test_declined import contents

FILE = """
name: anew
sites: {here: {provider: aws, region: us-east-1}}
groups: {train: {machine: p4d.24xlarge, count: 10}}
quarantine: {most: 3}
"""
NAMES = [f"train-{i}" for i in range(10)]


def node(name: str, id: str) -> Node:
    return Node(name, "train", "here", "p4d.24xlarge", id, "", "203.0.113.7", "10.0.0.7")


@dataclass
class World:
    """What there is beyond gpuprov. `machines` is Terraform's state, `outputs` what its last whole apply said."""

    machines: dict[str, str]
    outputs: dict[str, str]
    proven: set[str] = field(default_factory=set)
    bad: set[str] = field(default_factory=set)
    created: list[str] = field(default_factory=list)
    hooked: list[str] = field(default_factory=list)
    configured: list[tuple[list[str], list[str]]] = field(default_factory=list)
    contacted: list[tuple[str, ...]] = field(default_factory=list)
    refuses: set[str] = field(default_factory=set)
    also: list[tuple[str, str]] = field(default_factory=list)
    deaf: bool = False
    steps: int = 0
    kill_at: int = -1

    def step(self) -> None:
        """Something begins or has ended: a moment to be killed at."""
        self.steps += 1
        if self.steps == self.kill_at:
            raise KeyboardInterrupt


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    (tmp_path / "cluster.yaml").write_text(FILE)
    test_cluster = open_cluster(tmp_path / "cluster.yaml", sandbox=True)
    begin(test_cluster)
    return test_cluster


def begin(cluster: Cluster) -> None:
    """Ten machines, proven but for train-1."""
    root = private_dir(cluster.paths.root)
    for file in root.glob("*.json"):
        file.unlink()
    fleet.save(cluster.paths, [node(name, f"i-{name}") for name in NAMES])
    node_state.note(cluster.paths, nodes={name: {"stage": "verified", "ok": name != "train-1"} for name in NAMES})


@pytest.fixture
def world(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> World:
    test_world = World({}, {})
    settle(test_world)

    class Site:
        """The machines of one site."""

        todo: list[str]

        def __init__(self, _: Cluster, site: str, *__: Any, **___: Any) -> None:
            self.site = site

        def plan(self, _: Any, *, replace: Collection[str] = ()) -> Planned:
            test_world.step()
            missing = [name for name in NAMES if name not in test_world.machines]
            to_replace = [] if test_world.deaf else list(replace)
            actions = [Action("create", f"machine of {name}", name) for name in missing]
            actions += [Action("replace", f"machine of {name}", name) for name in to_replace if name not in missing]
            actions += [Action(kind, address) for address, kind in test_world.also]
            self.todo = [*missing, *(name for name in to_replace if name not in missing)]
            add = len(self.todo)
            return Planned(self.site, add=add, destroy=add - len(missing), actions=tuple(actions))

        def apply(self, _: Any, __: Planned, *, always: bool) -> list[Node]:
            assert always
            for name in self.todo:
                test_world.machines.pop(name, None)
                test_world.step()
                test_world.created.append(name)
                test_world.machines[name] = f"new-{len(test_world.created)}-{name}"
                test_world.step()
            test_world.outputs = dict(test_world.machines)
            return [node(name, id) for name, id in test_world.outputs.items()]

    def call(_: Cluster, step: str, nodes: Sequence[Node], action: str, __: Mapping[str, str]) -> dict[str, str]:
        test_world.step()
        test_world.hooked += [f"{step} {action} {n.name}" for n in nodes]
        test_world.step()
        return {n.name: "a job runs" for n in nodes if f"{step} {n.name}" in test_world.refuses}

    def configure(
        _: Cluster, __: Run, nodes: list[Node], releases: Mapping[str, Any], *, new: Collection[str]
    ) -> configuring.ReconcileResult:
        test_world.step()
        assert [n.name for n in nodes] == list(releases)
        test_world.configured.append(([n.name for n in nodes], sorted(new)))
        test_world.step()
        return configuring.ReconcileResult(subjects=[], drift={})

    def verify(cluster: Cluster, _: Any, nodes: Sequence[Node], *__: Any, partly: bool) -> Verdict:
        assert partly
        test_world.step()
        lost = CheckResult("gpu.count", "fatal", "fail", "replace", message="7 instead of 8")
        well = CheckResult("gpu.model", "fatal", "pass", "none")
        reports = [
            NodeReport(n.name, "train", "here", "", True, (well, lost) if n.name in test_world.bad else (well,))
            for n in nodes
        ]
        report = quarantine.after_verdict(cluster, Report(tuple(reports), {}, 0.0), nodes, "standard", holding=True)
        test_world.step()
        node_state.note_verdicts(cluster.paths, {node.name: node.ok for node in report.nodes}, report.level)
        test_world.proven |= {n.id for n, verdict in zip(nodes, reports, strict=True) if verdict.ok}
        test_world.step()
        return Verdict(report, healthy=report.enough("100%"))

    def saving(kind: type) -> Callable[[Any, Any], None]:
        save = kind.save

        def stepped(self: Any, paths: Any) -> None:
            test_world.step()
            save(self, paths)
            test_world.step()

        return stepped

    ledger = SimpleNamespace(of=lambda n: "lock" if n.id in test_world.proven else None)
    monkeypatch.setattr(replace_journal, "Ledger", lambda _: ledger)
    monkeypatch.setattr(command, "build_plan", lambda *_, **__: SimpleNamespace(sites=lambda: ["here"], nodes=list))
    monkeypatch.setattr(command.locking, "current", lambda *_, **__: Lock(request={}, simulated=True, groups={}))
    monkeypatch.setattr(command.Ledger, "keep", lambda *_: "0" * 12)
    monkeypatch.setattr(command.upgrade_journal, "assign", lambda _, nodes, __: {n.name: None for n in nodes})
    monkeypatch.setattr(command.upgrade_journal, "other_locks", lambda *_: [])
    monkeypatch.setattr(preflight, "look", lambda *_: {})
    monkeypatch.setattr(machines, "of_site", Site)

    def contact(*_: Any, only: Sequence[str], **__: Any) -> dict[str, ProviderError]:
        test_world.step()
        test_world.contacted.append(tuple(only))
        return {}

    monkeypatch.setattr(fleet, "contact", contact)
    monkeypatch.setattr(hooks, "call", call)
    monkeypatch.setattr(command.lifecycle, "configure", configure)
    monkeypatch.setattr(verifying, "verify_configured", verify)
    for kind in (Book, replace_journal.Journal):
        monkeypatch.setattr(kind, "save", saving(kind))
    return test_world


def settle(world: World) -> None:
    world.machines = {name: f"i-{name}" for name in NAMES}
    world.outputs = dict(world.machines)
    world.proven = {f"i-{name}" for name in NAMES if name != "train-1"}
    for calls in (world.created, world.hooked, world.configured):
        calls.clear()
    world.steps, world.kill_at = 0, -1


def replace(cluster: Cluster, *names: str, yes: bool = True, **options: bool) -> Run:
    return command.replace(cluster, None, names, Options(**options), confirm=lambda *_: yes)  # type: ignore[arg-type]


def ids(cluster: Cluster) -> dict[str, str]:
    return {n.name: n.id for n in cluster.nodes()}


def ids_of_others(cluster: Cluster, *names: str) -> dict[str, str]:
    return {name: id for name, id in ids(cluster).items() if name not in names}


def ended(cluster: Cluster) -> bool:
    return not replace_journal.load(cluster).nodes and not quarantine.quarantined_nodes(cluster)


def test_one_machine_and_only_that(cluster: Cluster, world: World) -> None:
    run = replace(cluster, "train-1")
    assert run.exit == Exit.OK
    assert run.resources == 2
    assert ids(cluster)["train-1"] == "new-1-train-1"
    assert ids_of_others(cluster, "train-1") == {name: f"i-{name}" for name in NAMES if name != "train-1"}
    assert world.hooked == ["drain replace train-1", "resume release train-1"]
    assert world.contacted == [("train-1",)], "another node that does not answer stops no replacement"
    assert world.configured == [(["train-1"], ["train-1"])]
    assert ended(cluster)


def test_only_a_node_that_was_in_quarantine_is_said_to_be_out_of_it(cluster: Cluster, world: World) -> None:
    messages: list[str] = []
    cluster.events.subscribe(lambda event: messages.append(event.message))
    replace(cluster, "train-1")
    assert "back in service: train-1" in messages and "out of quarantine: train-1" not in messages
    quarantine.put(cluster, ["train-2"], "RMA 4711", "ada")
    replace(cluster, "train-2")
    assert "out of quarantine: train-2" in messages


def test_status_has_the_newer_report_of_a_replaced_node_until_the_next_of_the_fleet(
    cluster: Cluster, world: World
) -> None:
    page = cluster.paths.runs / "20260101T000000" / "report.html"
    node_state.note_report(cluster.paths, page, ["train-1"])
    document = status(cluster, ask=False)
    assert document.to_json()["partial_report"] == {"report": str(page), "nodes": ["train-1"]}
    assert f"newer report of train-1: {page}" in list(lines(document, cluster.file))
    node_state.note_report(cluster.paths, page)
    assert status(cluster, ask=False).to_json()["partial_report"] is None


@pytest.mark.parametrize("noted", [7, [], {"report": "../x", "nodes": []}, {"report": "runs/x/report.html"}])
def test_a_damaged_note_of_a_newer_report_is_left_out(noted: object, cluster: Cluster, world: World) -> None:
    file = cluster.paths.root / node_state.FILE
    file.write_text(json.dumps({"partial_report": noted}))
    assert status(cluster, ask=False).to_json()["partial_report"] is None


def test_one_that_was_in_quarantine_is_put_back_whoever_put_it_there(cluster: Cluster, world: World) -> None:
    quarantine.put(cluster, ["train-2"], "RMA 4711", "ada")
    world.hooked.clear()
    assert replace(cluster, "train-2").exit == Exit.OK
    assert world.hooked == ["drain replace train-2", "resume release train-2"]
    assert ended(cluster)


def test_killed_at_every_step_it_goes_on_and_makes_one_new_machine(cluster: Cluster, world: World) -> None:
    replace(cluster, "train-1", "train-3", even_if_healthy=True)
    steps = world.steps
    assert steps > 20
    for moment in range(1, steps + 1):
        begin(cluster)
        settle(world)
        world.kill_at = moment
        with pytest.raises(KeyboardInterrupt):
            replace(cluster, "train-1", "train-3", even_if_healthy=True)
        for row in status(cluster, ask=False).to_json()["nodes"]:
            assert row["replace"] is None or row["name"] in ("train-1", "train-3"), moment
        if not {"new-1-train-1", "new-2-train-3"} <= world.proven:
            replace(cluster, "train-1", "train-3", even_if_healthy=True)
        assert sorted(world.created) == ["train-1", "train-3"], moment
        assert ids_of_others(cluster, "train-1", "train-3") == {
            name: f"i-{name}" for name in NAMES if name not in ("train-1", "train-3")
        }
        assert ids(cluster) == world.machines
        assert ended(cluster), moment
        for name in ("train-1", "train-3"):
            own_hooks = [line for line in world.hooked if line.endswith(name)]
            assert own_hooks[0] == f"drain replace {name}", moment
            assert own_hooks[-1] == f"resume release {name}", moment


def test_a_new_machine_that_is_bad_stays_out_and_the_next_call_makes_another(cluster: Cluster, world: World) -> None:
    world.bad = {"train-1"}
    assert replace(cluster, "train-1").exit == Exit.CHECK_FAILED
    assert quarantine.quarantined_nodes(cluster)["train-1"].id == "new-1-train-1"
    assert world.hooked[-1] == "drain quarantine train-1"
    world.bad = set()
    assert replace(cluster, "train-1").exit == Exit.OK
    assert ids(cluster)["train-1"] == "new-2-train-1"
    assert ended(cluster)


def test_one_that_can_not_be_put_back_is_in_quarantine_as_ours(cluster: Cluster, world: World) -> None:
    quarantine.put(cluster, ["train-1"], "RMA 4711", "ada")
    world.refuses = {"resume train-1"}
    assert replace(cluster, "train-1").exit == Exit.CHECK_FAILED
    quarantined = quarantine.quarantined_nodes(cluster)["train-1"]
    assert (quarantined.id, quarantined.owner, quarantined.trouble) == ("new-1-train-1", "gpuprov", "a job runs")


def refused(cluster: Cluster, world: World, *names: str, **options: bool) -> GpuprovError:
    previous = world.created.copy(), world.hooked.copy(), ids(cluster)
    with pytest.raises(GpuprovError) as caught:
        replace(cluster, *names, **options)
    assert (world.created, world.hooked, ids(cluster)) == previous
    return caught.value


def test_a_healthy_node_needs_a_word(cluster: Cluster, world: World) -> None:
    error = refused(cluster, world, "train-2")
    assert error.message == "the node was healthy in the last verdict"
    assert "--even-if-healthy" in error.hint
    assert replace(cluster, "train-2", even_if_healthy=True).exit == Exit.OK


@pytest.mark.parametrize(
    ("names", "quarantined_count", "force", "allowed"),
    [
        (2, 0, False, True),
        (3, 0, False, False),
        (3, 0, True, True),
        (4, 0, True, False),
        (1, 1, False, True),
        (1, 2, False, False),
        (1, 2, True, True),
        (1, 3, True, False),
    ],
)
def test_never_more_than_the_budget(
    names: int, quarantined_count: int, force: bool, allowed: bool, cluster: Cluster, world: World
) -> None:
    if quarantined_count:
        quarantine.put(cluster, NAMES[5 : 5 + quarantined_count], "RMA", "ada")
    chosen, options = NAMES[:names], {"force_budget": force, "even_if_healthy": True}
    if allowed:
        assert replace(cluster, *chosen, **options).exit == Exit.OK
        return
    error = refused(cluster, world, *chosen, **options)
    assert "out of service at once" in error.message
    assert ("--force-budget" in error.hint) == (not force)


def test_what_is_in_quarantine_already_takes_no_more_out_of_service(cluster: Cluster, world: World) -> None:
    quarantine.put(cluster, NAMES[5:9], "RMA", "ada")
    assert replace(cluster, "train-5", "train-6").exit == Exit.OK


def test_a_plan_that_would_do_more_is_refused_and_said(cluster: Cluster, world: World) -> None:
    world.also = [("module.site.aws_placement_group.one", "replace")]
    error = refused(cluster, world, "train-1")
    assert isinstance(error, ProviderError)
    assert "would also replace module.site.aws_placement_group.one" in error.message
    world.also = []
    del world.machines["train-7"]
    assert "create machine of train-7" in refused(cluster, world, "train-1").message


def test_a_plan_that_would_not_do_it_is_refused(cluster: Cluster, world: World) -> None:
    world.deaf = True
    assert "would not recreate train-1" in refused(cluster, world, "train-1").message


def test_a_node_that_can_not_be_drained_keeps_its_machine(cluster: Cluster, world: World) -> None:
    world.refuses = {"drain train-1"}
    with pytest.raises(GpuprovError, match="train-1: a job runs"):
        replace(cluster, "train-1")
    assert world.created == []
    row = next(row for row in status(cluster, ask=False).to_json()["nodes"] if row["name"] == "train-1")
    assert row["replace"] == {"step": "draining"}
    assert row["quarantine"]["trouble"] == "a job runs"
    quarantine.release(cluster, ["train-1"])
    assert ended(cluster)


def test_declined(cluster: Cluster, world: World) -> None:
    cluster.paths.run_lock.touch()
    files = contents(cluster.file.parent)
    run = replace(cluster, "train-1", yes=False)
    assert run.report is None
    assert (world.created, world.hooked) == ([], [])
    assert ended(cluster)
    assert contents(cluster.file.parent) == files
    assert replace(cluster, "train-1").report is not None
    assert cluster.paths.lock_file.exists(), "the lock is written once a person has said yes"


def test_a_name_that_no_node_has(cluster: Cluster, world: World) -> None:
    assert "there is no node trian-1" in refused(cluster, world, "trian-1").message


@pytest.mark.parametrize(
    "text", ["", "[]", '{"nodes": 7}', '{"nodes": {"a": {"id": "i", "step": "x"}}}', '{"nodes": {"a": {"id": 7}}}']
)
def test_a_damaged_journal_is_refused(text: str, cluster: Cluster, world: World) -> None:
    (cluster.paths.root / "replace.json").write_text(text)
    assert "is damaged" in refused(cluster, world, "train-1").message


def test_not_while_an_upgrade_is_under_way(cluster: Cluster, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def assign(*_: object) -> None:
        raise GpuprovError("an upgrade is in progress")

    monkeypatch.setattr(command.upgrade_journal, "assign", assign)
    assert "an upgrade is in progress" in refused(cluster, world, "train-1").message


def test_entries_of_the_former_machine_do_not_hold_the_new_one(cluster: Cluster, world: World) -> None:
    quarantine.put(cluster, ["train-1"], "RMA", "ada")
    fleet.save(cluster.paths, [node(n.name, "another" if n.name == "train-1" else n.id) for n in cluster.nodes()])
    assert quarantine.quarantined_nodes(cluster) == {}
    assert "train-1" in quarantine_book.load(cluster.paths).nodes


def test_a_new_machine_that_cannot_be_had_is_an_error_that_says_who_asks_for_it_again(
    cluster: Cluster, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A group with capacity.min goes on without it. The name is drained, and no verdict of others forgets that."""
    site: Any = machines.of_site

    class SoldOut(site):  # type: ignore[misc]
        def apply(self, *_: Any, **__: Any) -> list[Node]:
            world.machines.pop("train-1")
            return [node(name, id) for name, id in world.machines.items()]

    monkeypatch.setattr(machines, "of_site", SoldOut)
    with pytest.raises(
        ProviderError, match="the old machine is gone, and there was no capacity for a new one"
    ) as caught:
        replace(cluster, "train-1")
    assert caught.value.exit_code == Exit.PROVIDER_FAILED
    assert f"`gpuprov up {cluster.typed_file}`" in caught.value.hint
    verdict(cluster, "train-2", well=False)  # of another node, before `up`
    assert set(quarantine_book.load(cluster.paths).nodes) == {"train-1", "train-2"}
    fleet.save(cluster.paths, [*cluster.nodes(), node("train-1", "i-new")])  # `up` could have it
    verdict(cluster, "train-1", well=True)
    assert world.hooked == ["drain replace train-1", "drain quarantine train-2", "resume release train-1"]


def verdict(cluster: Cluster, name: str, *, well: bool) -> None:
    check = CheckResult("gpu.count", "fatal", "pass" if well else "fail", "replace")
    report = Report((NodeReport(name, "train", "here", "", True, (check,)),), {}, 0.0)
    quarantine.after_verdict(cluster, report, cluster.nodes(), "standard", holding=True)


def test_a_new_machine_that_answers_no_ssh_is_replaced_by_the_way_that_the_hint_names(
    cluster: Cluster, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    silent = ProviderError("no ssh on 203.0.113.7 port 22", where="train-1", hint="look at the console")
    with monkeypatch.context() as patch:
        patch.setattr(fleet, "contact", lambda *_, **__: {"train-1": silent})
        for _ in range(2):  # the same command goes on with the same machine: it may answer by now
            with pytest.raises(ProviderError, match="no ssh on") as caught:
                replace(cluster, "train-1")
            assert world.created == ["train-1"]
    quarantined = f"`gpuprov quarantine {cluster.typed_file} train-1 --reason TEXT`, then `gpuprov replace"
    assert "look at the console" in caught.value.hint and quarantined in caught.value.hint
    quarantine.put(cluster, ["train-1"], "answers no ssh", "alice")
    assert replace(cluster, "train-1").exit == Exit.OK
    assert world.created == ["train-1", "train-1"]
    assert ids(cluster)["train-1"] == "new-2-train-1"
    assert quarantine.quarantined_nodes(cluster) == {}
