"""`gpuprov maintain` from the file to the journal, with nodes that only answer: who is taken in which order, what the
group gets, what stays out of service, the window, and a kill at every single step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from provisioner.common.errors import Exit, GpuprovError, LockedError
from provisioner.lifecycle import hooks, rollout
from provisioner.lifecycle.maintain import actions, command
from provisioner.lifecycle.maintain import journal as maintenance_journal
from provisioner.lifecycle.maintain.actions import MaintenanceActions
from provisioner.lifecycle.maintain.command import Options, Outcome, document, maintain, summary
from provisioner.lifecycle.maintain.node_work import Look, Reboot, Work
from provisioner.lifecycle.quarantine import book as quarantine_book
from provisioner.lifecycle.quarantine.book import OURS, Book, Entry
from provisioner.lifecycle.session import Cluster, open_cluster
from provisioner.lifecycle.upgrade import journal as upgrade_journal
from provisioner.rundir import fleet, maintained, node_state
from provisioner.rundir.fleet import Node
from provisioner.rundir.release import Ledger
from provisioner.stack import lockfile
from tests.unit.lifecycle.test_release import FILE, STACK, cluster, lock, node

__all__ = ["cluster"]

NODES = [node(f"train-{number}") for number in range(5)]
NAMES = [row.name for row in NODES]
SUNDAY = datetime(2026, 11, 29, 2, 0, tzinfo=UTC)
WINDOW = 'maintenance: {window: {days: [sun], hours: "02:00-06:00", zone: UTC}, batch: 2}\n'
FLEET = FILE.replace("count: 3", "count: 5") + WINDOW + "quarantine: {share: 60%}\n"


class Killed(BaseException):
    """The machine that gpuprov runs on lost power."""


@dataclass
class World:
    """Nodes as they are. `versions`: of package ssl; `offered`: by the archive; `bad`: nodes that are not healthy after
    the work; `broken`: nodes whose apt fails; `refuses`: nodes that can't be drained; `calls`: what is done, in
    order; `steps_left`: until the lights go out."""

    versions: dict[str, str] = field(default_factory=lambda: dict.fromkeys(NAMES, "1.0"))
    offered: dict[str, str] = field(default_factory=lambda: dict.fromkeys(NAMES, "1.1"))
    reasons: dict[str, list[str]] = field(default_factory=dict)
    blocked: str = ""
    bad: set[str] = field(default_factory=set)
    broken: set[str] = field(default_factory=set)
    refuses: set[str] = field(default_factory=set)
    at_work: set[str] = field(default_factory=set)
    """Nodes whose jobs run on after the drain command."""
    silent: set[str] = field(default_factory=set)
    drained: set[str] = field(default_factory=set)
    calls: list[str] = field(default_factory=list)
    moment: datetime = SUNDAY
    each: timedelta = timedelta(0)
    """What a batch takes."""
    steps_left: int | None = None

    def step(self) -> None:
        if self.steps_left is not None:
            if self.steps_left == 0:
                raise Killed
            self.steps_left -= 1

    def hook(
        self, cluster: Cluster, step: str, nodes: Sequence[Node], action: str, *_: Any, **__: Any
    ) -> dict[str, str]:
        names = [row.name for row in nodes]
        if not names:
            return {}
        assert action in ("maintain", "release")
        self.step()
        self.calls.append(f"{step} {' '.join(names)}")
        bad = {name: "a job does not end" for name in names if step == "drain" and name in self.refuses}
        self.drained = self.drained | set(names) - set(bad) if step == "drain" else self.drained - set(names)
        self.step()
        return bad

    def look(self, cluster: Cluster, requests: Mapping[str, Any], nodes: Sequence[Node]) -> dict[str, Look | str]:
        self.step()
        return {row.name: "no answer" if row.name in self.silent else self.observed(row.name) for row in nodes}

    def observed(self, name: str) -> Look:
        newer = {"ssl": self.offered[name]} if self.offered[name] > self.versions[name] else {}
        kernel = {"linux-image-6.1": "a kernel: not taken yet"}
        return Look(packages=newer, waiting=kernel, freeable={}, reboot=self.reboot(name))

    def reboot(self, name: str) -> Reboot:
        return Reboot(reasons=self.reasons.get(name, []), blocked=self.blocked)

    def work(self, cluster: Cluster, requests: Mapping[str, Any], nodes: Sequence[Node]) -> dict[str, Work | str]:
        self.moment += self.each
        self.step()
        answers: dict[str, Work | str] = {}
        for row in nodes:
            name = row.name
            assert name in self.drained, "a node that was not drained was touched"
            self.calls.append(f"work {name} {requests[name]['packages']}")
            if name in self.broken:
                answers[name] = "apt-get install: E: Sub-process failed"
                continue
            installed = {p: v for p, v in requests[name]["packages"].items() if v > self.versions[name]}
            self.versions[name] = installed.get("ssl", self.versions[name])
            self.step()
            present = {"ssl": self.versions[name]} if requests[name]["packages"] else {}
            answers[name] = Work(
                installed=installed, present=present, missing=[], freed={"journal": 5 << 20}, reboot=self.reboot(name)
            )
        return answers

    def holders(self, cluster: Cluster, nodes: Sequence[Node]) -> dict[str, str]:
        self.step()
        return {row.name: "a process has its GPUs: 4711, python" for row in nodes if row.name in self.at_work}

    def restart(self, cluster: Cluster, nodes: Sequence[Node], *_: Any) -> dict[str, str]:
        self.calls.append(f"reboot {' '.join(row.name for row in nodes)}")
        self.step()
        for row in nodes:
            self.reasons.pop(row.name, None)
        return {}

    def prove(self, nodes: Sequence[Node]) -> dict[str, str]:
        self.step()
        return {row.name: "gpu.count: 7 instead of 8" for row in nodes if row.name in self.bad}


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch, cluster: Cluster) -> World:
    """Five nodes, proven and healthy."""
    test_world = World()
    cluster.file.write_text(FLEET)
    fleet.save(cluster.paths, NODES)
    lockfile.write(cluster.paths.lock_file, lock())
    Ledger(cluster.paths).record(NODES, lock())
    node_state.note_verdicts(cluster.paths, dict.fromkeys(NAMES, True), "standard")
    monkeypatch.setattr(actions.node_work, "look", test_world.look)
    monkeypatch.setattr(actions.node_work, "work", test_world.work)
    monkeypatch.setattr(actions.second_boot, "reboot_all", test_world.restart)
    monkeypatch.setattr(actions.second_boot, "gpu_holders", test_world.holders)
    monkeypatch.setattr(MaintenanceActions, "_prove", lambda self, nodes: test_world.prove(nodes))
    monkeypatch.setattr(hooks, "call", test_world.hook)
    return test_world


def opened(cluster: Cluster) -> Cluster:
    return open_cluster(cluster.file, sandbox=True)


def run(cluster: Cluster, world: World, confirm: Callable[..., bool] = lambda *_: True, **options: Any) -> Outcome:
    return maintain(opened(cluster), Options(**options), confirm=confirm, clock=lambda: world.moment)


def steps(cluster: Cluster, done: Outcome) -> dict[str, str]:
    return {row.name: row.step for row in document(cluster, done).nodes}


def quarantined(cluster: Cluster) -> dict[str, Entry]:
    return quarantine_book.load(cluster.paths).nodes


def test_the_canary_goes_first_then_batches(cluster: Cluster, world: World) -> None:
    done = run(cluster, world)
    assert [line for line in world.calls if not line.startswith("work")] == [
        "drain train-0", "resume train-0", "drain train-1 train-2", "resume train-1 train-2",
        "drain train-3 train-4", "resume train-3 train-4",
    ]  # fmt: skip
    assert (done.exit, summary(done)) == (Exit.OK, "5 of 5 nodes maintained")
    assert set(world.versions.values()) == {"1.1"} and quarantined(cluster) == {}
    rows = maintained.load(cluster.paths).nodes
    assert {row.packages["ssl"] for row in rows.values()} == {"1.1"}
    assert rows["train-0"].waiting == {"linux-image-6.1": "a kernel: not taken yet"}
    assert rows["train-0"].freed == {"journal": 5 << 20}


def test_the_group_gets_the_versions_of_its_canary(cluster: Cluster, world: World) -> None:
    world.offered |= {"train-3": "1.2"}
    done = run(cluster, world)
    assert set(world.versions.values()) == {"1.1"}
    assert done.journal.sets == {"train": {"ssl": "1.1"}}


def test_a_bad_canary_stays_out_of_service_and_the_rest_is_untouched(cluster: Cluster, world: World) -> None:
    world.bad = {"train-0"}
    done = run(cluster, world)
    assert world.calls == ["drain train-0", "work train-0 {'ssl': '1.1'}"]
    assert done.exit == Exit.CHECK_FAILED
    assert steps(cluster, done) == {"train-0": "failed"} | dict.fromkeys(NAMES[1:], "missed")
    entry = quarantined(cluster)["train-0"]
    assert (entry.owner, entry.reason) == (OURS, "gpuprov maintain: gpu.count: 7 instead of 8")
    assert "stopped: train-0: gpu.count" in summary(done) and "4 not begun" in summary(done)
    assert not maintenance_journal.load(cluster.paths).busy, "`up` and the next maintenance go on"


def test_a_bad_batch_returns_its_healthy_nodes(cluster: Cluster, world: World) -> None:
    world.broken = {"train-1"}
    done = run(cluster, world)
    assert world.calls[-1] == "resume train-2"
    expected = {"train-0": "done", "train-1": "failed", "train-2": "done", "train-3": "missed", "train-4": "missed"}
    assert steps(cluster, done) == expected
    assert [*quarantined(cluster)] == ["train-1"]


def test_a_node_whose_job_does_not_end_is_left_out_and_named(cluster: Cluster, world: World) -> None:
    world.refuses = {"train-0", "train-3"}
    done = run(cluster, world)
    assert steps(cluster, done) == {name: "left" if name in world.refuses else "done" for name in NAMES}
    assert document(cluster, done).nodes[3].reason == "could not be drained: a job does not end"
    assert (world.drained, quarantined(cluster), done.exit) == (set(), {}, Exit.CHECK_FAILED)
    assert world.versions["train-3"] == "1.0"


def test_a_node_with_a_job_after_its_drain_is_put_back(cluster: Cluster, world: World) -> None:
    world.at_work = {"train-0"}
    done = run(cluster, world)
    assert world.calls[:3] == ["drain train-0", "resume train-0", "drain train-1"]
    assert document(cluster, done).nodes[0].reason == "could not be drained: a process has its GPUs: 4711, python"
    assert (world.versions["train-0"], quarantined(cluster), world.drained) == ("1.0", {}, set())


def test_the_window_ends_in_the_middle(cluster: Cluster, world: World) -> None:
    world.each = timedelta(hours=2)
    done = run(cluster, world)
    assert steps(cluster, done) == dict.fromkeys(NAMES[:3], "done") | dict.fromkeys(NAMES[3:], "missed")
    assert summary(done) == "3 of 5 nodes maintained; 2 not begun: the window has closed"
    assert (done.closed, done.exit, world.drained, quarantined(cluster)) == (True, Exit.CHECK_FAILED, set(), {})
    world.moment, world.calls = SUNDAY + timedelta(days=7), []
    rerun = run(cluster, world)
    assert (rerun.ok, steps(cluster, rerun)["train-0"]) == (True, "unneeded")
    assert world.calls[0] == "drain train-3"


@pytest.mark.parametrize("hours", [-1, 4, 24])
def test_outside_of_the_window_it_refuses(cluster: Cluster, world: World, hours: int) -> None:
    world.moment += timedelta(hours=hours)
    with pytest.raises(GpuprovError, match="the maintenance window is closed until Sun 2026-1") as refused:
        run(cluster, world)
    assert "--now" in refused.value.hint and world.calls == []
    assert run(cluster, world, at_once=True).ok


def test_without_a_window_it_refuses(cluster: Cluster, world: World) -> None:
    cluster.file.write_text(FLEET.replace(WINDOW, ""))
    with pytest.raises(GpuprovError, match=r"no maintenance\.window"):
        run(cluster, world)
    assert run(cluster, world, at_once=True).ok


def test_a_dry_run_changes_nothing(cluster: Cluster, world: World) -> None:
    previous = {file.name: file.read_bytes() for file in cluster.paths.root.glob("*.json")}
    world.moment += timedelta(hours=12)
    done = run(cluster, world, dry_run=True)
    assert (done.ok, world.calls) == (True, [])
    assert {file.name: file.read_bytes() for file in cluster.paths.root.glob("*.json")} == previous
    rows = document(cluster, done).nodes
    assert {row.step for row in rows} == {"due"}
    assert rows[0].needs == ["1 security update"] and rows[0].updates == {"ssl": "1.1"}


def test_who_is_left_out_before_it_begins(cluster: Cluster, world: World) -> None:
    at = quarantine_book.utc_timestamp()
    Book({"train-0": Entry(NODES[0].id, "ann", "RMA", at)}).save(cluster.paths)
    node_state.note_verdicts(cluster.paths, {"train-1": False}, "standard")
    world.silent = {"train-2"}
    done = run(cluster, world)
    reasons = {row.name: row.reason for row in document(cluster, done).nodes if row.step == "left"}
    assert reasons["train-0"] == "in quarantine by ann: RMA"
    assert reasons["train-1"].startswith("not healthy in the last verdict: ")
    assert reasons["train-2"] == "could not be asked: no answer"
    assert world.calls[0] == "drain train-3" and "train-0" not in " ".join(world.calls)
    assert done.exit == Exit.CHECK_FAILED


def test_no_more_are_out_of_service_than_the_breaker_allows(cluster: Cluster, world: World) -> None:
    cluster.file.write_text(FLEET.replace("batch: 2", "batch: 100%").replace("60%", "40%"))
    run(cluster, world)
    assert "drain train-1 train-2" in world.calls
    at = quarantine_book.utc_timestamp()
    Book({row.name: Entry(row.id, "ann", "RMA", at) for row in NODES[:2]}).save(cluster.paths)
    world.offered = dict.fromkeys(NAMES, "1.2")
    with pytest.raises(GpuprovError, match="as many nodes are in quarantine as may be"):
        run(cluster, world)


def test_reboots_only_where_one_is_due_and_the_driver_boots(cluster: Cluster, world: World) -> None:
    world.reasons = {"train-1": ["/run/reboot-required"]}
    run(cluster, world)
    assert world.calls.count("reboot train-1") == 1 and "reboot train-0" not in world.calls
    assert maintained.load(cluster.paths).nodes["train-1"].rebooted == "/run/reboot-required"
    world.offered, world.calls = dict.fromkeys(NAMES, "1.2"), []
    world.reasons = {"train-0": ["kernel 2 is installed"]}
    world.blocked = "kernel 2 would boot, and module nvidia is not built for it"
    run(cluster, world)
    assert not [line for line in world.calls if line.startswith("reboot")]
    assert "not rebooted: kernel 2 would boot" in maintained.load(cluster.paths).nodes["train-0"].due


def test_the_machine_that_gpuprov_runs_on_is_not_rebooted(
    cluster: Cluster, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.reasons = {"train-1": ["/run/reboot-required"]}
    monkeypatch.setattr(actions, "ssh_config", SimpleNamespace(local=lambda _: frozenset({"train-1"})))
    assert run(cluster, world).ok
    assert not [line for line in world.calls if line.startswith("reboot")]
    assert maintained.load(cluster.paths).nodes["train-1"].due == "/run/reboot-required"


def test_nothing_to_do(cluster: Cluster, world: World) -> None:
    world.versions = dict(world.offered)
    done = run(cluster, world)
    assert (done.exit, summary(done), world.calls) == (Exit.OK, "no node needs maintenance", [])


def test_a_no_touches_nothing(cluster: Cluster, world: World) -> None:
    done = run(cluster, world, confirm=lambda *_: False)
    assert (done.declined, done.exit, world.calls) == (True, Exit.OK, [])
    assert not maintenance_journal.load(cluster.paths).busy


@pytest.mark.parametrize("other", ["up", "maintain"])
def test_beside_another_run_it_is_refused(cluster: Cluster, world: World, other: str) -> None:
    with opened(cluster).exclusively(other), pytest.raises(LockedError, match=f"locked by another run.*{other}"):
        run(cluster, world)
    assert world.calls == []


def test_two_weeks_of_a_cron_job(cluster: Cluster, world: World) -> None:
    """Called every six hours: refused outside of the window, which is too short for all; a verdict takes a node out
    meanwhile; updates that come later begin with a canary again."""
    world.each = timedelta(hours=2, minutes=30)
    begin, ended = world.moment - timedelta(days=1), dict[str, str]()
    for hour in range(0, 14 * 24, 6):
        world.moment = begin + timedelta(hours=hour + 1)
        if hour == 5 * 24:
            at = quarantine_book.utc_timestamp()
            Book({"train-4": Entry(NODES[4].id, OURS, "gpu.count: 7", at, ("gpu.count",))}).save(cluster.paths)
            world.offered = dict.fromkeys(NAMES, "1.2")
        try:
            done = run(cluster, world)
        except GpuprovError:
            continue
        ended[f"{begin + timedelta(hours=hour + 1):%a %d}"] = summary(done)
    assert ended == {
        "Sun 29": "3 of 5 nodes maintained; 2 not begun: the window has closed",
        "Sun 06": "3 of 5 nodes maintained; 1 left out; 1 not begun: the window has closed",
    }
    assert world.versions["train-3"] == "1.2", "it was not reached in the first week, and goes first in the second"
    assert (world.versions["train-2"], world.versions["train-4"]) == ("1.1", "1.0")
    assert [*quarantined(cluster)] == ["train-4"] and world.drained == set()


def test_an_upgrade_in_progress_is_refused(cluster: Cluster, world: World) -> None:
    upgrade_journal.Journal("b", "moving", nodes={"train-0": rollout.Place("a", "drained")}).save(cluster.paths)
    with pytest.raises(GpuprovError, match="an upgrade is in progress"):
        run(cluster, world)


def test_killed_at_every_step_it_goes_on(cluster: Cluster, world: World) -> None:
    """After each kill every drained node has an owner, and the same command ends with all nodes maintained."""
    kills = 0
    world.reasons = {"train-1": ["/run/reboot-required"]}
    for limit in range(200):
        world.versions, world.drained = dict.fromkeys(NAMES, "1.0"), set()
        world.steps_left = limit
        try:
            done = run(cluster, world)
        except Killed:
            kills += 1
            owned = {name for name, entry in quarantined(cluster).items() if entry.owner == OURS}
            assert world.drained <= owned, limit
            world.steps_left = None
            done = run(cluster, world)
        assert (world.drained, quarantined(cluster)) == (set(), {}), limit
        assert set(world.versions.values()) == {"1.1"}, limit
        if world.steps_left is not None:
            break
        assert set(steps(cluster, done).values()) <= {"done"}, limit
    assert kills > 20


def test_a_node_that_a_verdict_put_back_after_a_kill_is_drained_again(cluster: Cluster, world: World) -> None:
    world.steps_left = 4  # look, both steps of the hook, its jobs, and then the work
    with pytest.raises(Killed):
        run(cluster, world)
    assert [*quarantined(cluster)] == ["train-0"]
    Book().save(cluster.paths)  # `verify` found it healthy
    world.drained, world.steps_left, world.calls = set(), None, []
    assert run(cluster, world).ok
    assert world.calls[0] == "drain train-0"


def test_a_node_that_a_person_took_over_after_a_kill_is_left_to_them(cluster: Cluster, world: World) -> None:
    world.steps_left = 4
    with pytest.raises(Killed):
        run(cluster, world)
    at = quarantine_book.utc_timestamp()
    Book({"train-0": Entry(NODES[0].id, "ann", "mine", at)}).save(cluster.paths)
    world.steps_left, world.calls = None, []
    done = run(cluster, world)
    assert steps(cluster, done)["train-0"] == "left"
    assert "train-0" not in " ".join(world.calls)
    assert quarantined(cluster)["train-0"].owner == "ann"


def test_killed_and_the_window_is_closed(cluster: Cluster, world: World) -> None:
    world.steps_left = 4
    with pytest.raises(Killed):
        run(cluster, world)
    world.moment += timedelta(hours=12)
    with pytest.raises(GpuprovError, match="an interrupted run has train-0 out of service"):
        run(cluster, world)


def test_what_a_node_answers_is_no_option_of_apt() -> None:
    valid: dict[str, Any] = {"waiting": {}, "freeable": {}, "reboot": {"reasons": [], "blocked": ""}}
    assert Look.model_validate({"packages": {"libc6:i386": "2.36-9+deb12u1"}, **valid})
    for name, version in (("-oDpkg::Pre-Invoke::=sh", "1"), ("a b", "1"), ("ssl", "1 -o"), ("ssl", "-1")):
        with pytest.raises(ValueError, match="String should match"):
            Look.model_validate({"packages": {name: version}, **valid})


def test_what_the_lock_has_stays() -> None:
    settings = command.Maintenance()
    node_request = actions.node_work.request("work", settings, STACK, packages={"ssl": "1.1"})
    assert {package.name for package in STACK.packages} == set(node_request["locked"])
    assert all(
        image.reference in node_request["images"] and image.digest in node_request["images"] for image in STACK.images
    )
