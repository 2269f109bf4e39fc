"""`up`, from the file to the verdict: what it writes down and when, whom it configures, what it proves. Terraform,
Ansible, the probe and the checks are a world of dictionaries."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from provisioner.common.errors import ConfigureError, Exit, GpuprovError, ProviderError
from provisioner.common.paths import MADE_BY, private_dir
from provisioner.common.preflight import Finding
from provisioner.configure import drift, inventory
from provisioner.configure import run as roles
from provisioner.configure.drift import Difference
from provisioner.configure.run import Outcome
from provisioner.lifecycle import configuring, diff, down, locking, machines, preflight, status, verifying
from provisioner.lifecycle.node_changes import NodeChanges
from provisioner.lifecycle.quarantine import actions as quarantine
from provisioner.lifecycle.session import Cluster, open_cluster
from provisioner.lifecycle.up import Run, up
from provisioner.lifecycle.upgrade import journal as upgrade_journal
from provisioner.machines.base import Planned
from provisioner.plan.models import Plan
from provisioner.rundir import fleet, node_state
from provisioner.rundir.fleet import Node
from provisioner.rundir.release import Ledger, Release, identity, release_of
from provisioner.stack import lockfile
from provisioner.stack.models import GoldenImage, Lock
from provisioner.verify.bundle import Bundle, Output
from provisioner.verify.results import CheckResult, NodeReport, Report
from provisioner.verify.subject import Subject
from tests.support import plans

FILE = """
name: vision
sites: {here: {provider: aws, region: us-east-1}}
groups: {train: {machine: p4d.24xlarge, count: 2}}
"""
NAMES = ["train-0", "train-1"]
STACK = plans.plan(plans.cluster_spec("p4d.24xlarge")).groups[0].stack


def lock(driver: str = "580.1") -> Lock:
    return Lock(request={}, simulated=True, groups={"train": STACK.model_copy(update={"driver": driver})})


@dataclass
class World:
    """What there is beyond gpuprov. `installed` is what each machine runs, by its id; `levels` at which each node was
    judged in the last verdict. `stubborn`: machines that the roles run on without effect."""

    lock: Lock = field(default_factory=lock)
    machines: dict[str, str] = field(default_factory=dict)
    installed: dict[str, str] = field(default_factory=dict)
    configured: list[str] = field(default_factory=list)
    levels: dict[str, str] = field(default_factory=dict)
    findings: dict[str, list[Finding]] = field(default_factory=dict)
    broken: set[str] = field(default_factory=set)
    """Sites whose Terraform fails."""
    without: set[str] = field(default_factory=set)
    """Machines that can't be had."""
    silent: set[str] = field(default_factory=set)
    """Machines that no ssh answers on."""
    bad: set[str] = field(default_factory=set)
    unreachable: set[str] = field(default_factory=set)
    stubborn: set[str] = field(default_factory=set)
    killed: bool = False
    sold_out: int | None = None
    """So many machines can be had, and then the apply fails."""
    driver: str = ""
    count: int = 0
    groups: dict[str, str] = field(default_factory=dict)
    looks: list[tuple[str, bool]] = field(default_factory=list)
    """Whom the probe asked, and whether for all that verify judges."""


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    (tmp_path / "cluster.yaml").write_text(FILE)
    return open_cluster(tmp_path / "cluster.yaml", sandbox=True)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    test_world = World()

    class Site:
        """The machines of one site."""

        def __init__(self, cluster: Cluster, site: str, *__: Any, **___: Any) -> None:
            self.site = private_dir(cluster.paths.site(site)).name
            self.cluster = cluster

        def forget(self) -> None:
            """Planning leaves nothing."""

        def obsolete_nodes(self, plan: Plan) -> list[str]:
            expected = dict(plan.nodes())
            return [node.name for node in self.cluster.nodes() if node.site == self.site and node.name not in expected]

        def plan(self, plan: Plan) -> Planned:
            if self.site in test_world.broken:
                raise ProviderError(f"no Terraform at {self.site}", where=f"site {self.site}")
            missing = [
                name for name, group in plan.nodes() if group.site == self.site and name not in test_world.machines
            ]
            return Planned(self.site, add=len(missing), destroy=len(self.obsolete_nodes(plan)))

        def apply(self, plan: Plan, _: Planned) -> list[Node]:
            test_world.groups |= {name: group.name for name, group in plan.nodes()}
            for name in self.obsolete_nodes(plan):
                del test_world.machines[name]
            for name, group in plan.nodes():
                if group.site == self.site and name in test_world.without:
                    raise ProviderError("terraform apply failed: no more", where=f"site {self.site}", hint="later")
                if group.site == self.site and name not in test_world.machines:
                    if test_world.sold_out is not None and len(test_world.machines) >= test_world.sold_out:
                        raise ProviderError("terraform apply failed: no more", where=f"site {self.site}", hint="later")
                    test_world.count += 1
                    test_world.machines[name] = f"i-{test_world.count}"
            if test_world.killed:
                raise KeyboardInterrupt
            return self.existing_nodes()

        def existing_nodes(self) -> list[Node]:
            return [
                Node(name, test_world.groups[name], self.site, "p4d.24xlarge", id, "", "203.0.113.7", "10.0.0.7")
                for name, id in test_world.machines.items()
                if name in test_world.groups and self.cluster.spec.site_of(test_world.groups[name]) == self.site
            ]

    def desired_drivers(nodes: Sequence[Node], releases: Mapping[str, Release], *_: Any) -> dict[str, str]:
        return {node.name: str(releases[node.name].stack(node.group).driver) for node in nodes}

    def look(_: Cluster, subjects: Sequence[Subject], __: str, *, for_drift: Collection[str] = ()) -> dict[str, Bundle]:
        test_world.looks += [(s.name, s.name not in for_drift) for s in subjects]
        return {
            s.name: Bundle({"driver": Output(test_world.installed.get(test_world.machines[s.name], "none"))})
            for s in subjects
        }

    def differences(bundle: Bundle, driver: str) -> tuple[Difference, ...]:
        driver_text = bundle.files["driver"].text
        return (
            ()
            if driver_text == driver
            else (Difference("package", "driver", driver, driver_text, f"driver {driver_text}"),)
        )

    def write(_: Any, __: Any, plan: Plan, *___: Any) -> Path:
        test_world.driver = str(plan.groups[0].stack.driver)
        return Path("inventory.yml")

    def configure(_: Any, nodes: Sequence[Node], *__: Any, **___: Any) -> dict[str, Outcome]:
        for node in nodes:
            test_world.configured.append(node.name)
            if node.name not in test_world.stubborn | test_world.unreachable:
                test_world.installed[node.id] = test_world.driver
        return {
            n.name: Outcome(failed=["base: no route to host"] if n.name in test_world.unreachable else [])
            for n in nodes
        }

    def prove(_: Cluster, subjects: Iterable[Subject], *__: Any, **___: Any) -> Report:
        subjects = list(subjects)
        test_world.levels = {subject.name: subject.expected.level for subject in subjects}
        well = CheckResult("gpu.model", "fatal", "pass", "none")
        lost = CheckResult("gpu.count", "fatal", "fail", "replace", message="7 instead of 8")
        return Report(
            tuple(NodeReport(s.name, s.group, s.site, s.machine, True, (lost if s.name in test_world.bad else well,))
                  for s in subjects), {}, 0.0,
        )  # fmt: skip

    monkeypatch.setattr(locking, "current", lambda *_, **__: test_world.lock)

    def contact(_: Any, nodes: Sequence[Node], *__: Any, only: Collection[str], **___: Any) -> dict[str, ProviderError]:
        silent = [node.name for node in nodes if node.name in only and node.name in test_world.silent]
        return {name: ProviderError("no ssh", where=name) for name in silent}

    monkeypatch.setattr(
        preflight, "look", lambda _, plan, __: {site: test_world.findings.get(site, []) for site in ("", *plan.sites())}
    )
    monkeypatch.setattr(machines, "of_site", Site)
    monkeypatch.setattr(fleet, "contact", contact)
    monkeypatch.setattr(configuring, "role_variables", lambda *_: {})
    monkeypatch.setattr(configuring, "desired_states", desired_drivers)
    monkeypatch.setattr(configuring, "look", look)
    monkeypatch.setattr(drift, "differences", differences)
    monkeypatch.setattr(inventory, "write", write)
    monkeypatch.setattr(roles, "configure", configure)
    monkeypatch.setattr(verifying, "prove", prove)
    return test_world


def run_up(cluster: Cluster, *, yes: bool = True) -> Run:
    return up(cluster, None, confirm=lambda *_: yes)  # type: ignore[arg-type]


def stages(cluster: Cluster) -> dict[str, tuple[str, bool | None]]:
    return {name: (n.stage, n.ok) for name, n in node_state.load(cluster.paths).nodes.items()}


def applied(cluster: Cluster) -> dict[str, str | None]:
    ledger = Ledger(cluster.paths)
    return {node.name: ledger.of(node) for node in cluster.nodes()}


def test_a_fleet_is_made_configured_and_proven(cluster: Cluster, world: World) -> None:
    run = run_up(cluster)
    assert (run.exit, run.resources, run.configured, run.healthy) == (Exit.OK, 2, 2, True)
    assert world.configured == NAMES
    assert world.levels == dict.fromkeys(NAMES, "standard")
    assert applied(cluster) == dict.fromkeys(NAMES, identity(world.lock))
    assert stages(cluster) == dict.fromkeys(NAMES, ("verified", True))
    assert run.page is not None and run.page.exists()
    assert node_state.load(cluster.paths).report == str(run.page)


def test_machines_of_a_golden_image_are_asked_what_they_have_and_then_for_the_verdict(
    cluster: Cluster, world: World
) -> None:
    golden = GoldenImage(name="p4d@stable", build="20260131-031500", id="ami-1")
    world.lock = world.lock.model_copy(update={"images": {"train": golden}})
    world.installed = {"i-2": "580.1"}  # one needs no role at all
    run = run_up(cluster)
    assert (run.exit, world.configured) == (Exit.OK, ["train-0"])
    assert world.looks == [("train-0", False), ("train-1", False), ("train-1", True), ("train-0", True)]
    assert world.levels == dict.fromkeys(NAMES, "standard")


def test_a_new_machine_of_a_plain_image_is_not_asked_before_its_roles_ran(cluster: Cluster, world: World) -> None:
    run_up(cluster)
    assert world.looks == [(name, True) for name in NAMES]


def test_a_second_run_starts_nothing_on_nodes_that_were_proven(cluster: Cluster, world: World) -> None:
    run_up(cluster)
    world.configured.clear()
    run = run_up(cluster)
    assert (run.exit, run.changes, world.configured) == (Exit.OK, 0, [])
    assert world.levels == dict.fromkeys(NAMES, "quick")  # a job may run there


def test_what_is_about_to_be_made_is_written_down_first(cluster: Cluster, world: World) -> None:
    """`down` looks for it, whatever happens to the run that makes it."""
    world.killed = True
    with pytest.raises(KeyboardInterrupt):
        run_up(cluster)
    assert cluster.nodes() == []
    assert {row["stage"] for row in status.status(cluster, ask=False).to_json()["nodes"]} == {"interrupted"}
    assert down.recorded_nodes(cluster) == NAMES


def test_what_stands_after_a_failed_apply_is_told_written_down_and_taken_on(cluster: Cluster, world: World) -> None:
    world.sold_out = 1
    with pytest.raises(ProviderError, match="no more") as caught:
        run_up(cluster)
    assert "1 machine of the cluster stands now: `gpuprov up` goes on, `gpuprov down` removes them" in str(caught.value)
    assert caught.value.hint == "later"
    assert [node.id for node in cluster.nodes()] == ["i-1"]
    assert stages(cluster) == {"train-0": ("incomplete", False), "train-1": ("not made", None)}
    stage_and_address = {
        row["name"]: (row["stage"], row["address"]) for row in status.status(cluster, ask=False).to_json()["nodes"]
    }
    assert stage_and_address == {"train-0": ("incomplete", "203.0.113.7"), "train-1": ("not made", None)}
    failures = status.status(cluster, ask=False).to_json()["failed"]
    assert failures.keys() == {"here"} and "no more" in failures["here"]
    assert machines.settled(cluster) == []  # its group may yet move to another zone
    world.sold_out = None
    assert run_up(cluster).exit == Exit.OK
    assert world.configured == NAMES  # the first one, too, is new
    assert [node.name for node in machines.settled(cluster)] == NAMES


def test_the_console_of_a_machine_that_never_answers_is_kept(
    cluster: Cluster, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def silent(*_: Any, wait_s: float, **__: Any) -> dict[str, ProviderError]:
        assert wait_s == 300
        return {"train-1": ProviderError("no ssh on 203.0.113.7: time is up", where="train-1", hint="run it again")}

    class Console:
        def console(self, machine: str) -> str | None:
            return f"{machine}: Kernel panic \x1b[2J\r\n" if machine == "i-2" else None

        def proxy(self, machine: str) -> None:
            """Its address is called."""

    monkeypatch.setattr(fleet, "contact", silent)
    monkeypatch.setattr(type(cluster.providers.at("here")), "access", Console())
    with pytest.raises(ProviderError, match="no ssh on") as caught:
        run_up(cluster)
    (file,) = cluster.paths.root.glob("runs/*/console-train-1.txt")
    assert str(file) in caught.value.hint and "run it again" in caught.value.hint
    assert file.read_text().startswith("i-2: Kernel panic ") and "\x1b" not in file.read_text()


def test_a_failed_apply_keeps_what_stood_and_says_what_was_made(cluster: Cluster, world: World) -> None:
    run_up(cluster)
    del world.machines["train-1"]
    world.sold_out = 1
    with pytest.raises(ProviderError, match="1 machine of the cluster stands now"):
        run_up(cluster)
    assert stages(cluster) == {"train-0": ("verified", True), "train-1": ("missing", False)}


def test_what_failed_before_anything_was_made_says_nothing_more(cluster: Cluster, world: World) -> None:
    world.sold_out = 0
    with pytest.raises(ProviderError) as caught:
        run_up(cluster)
    assert "stand" not in str(caught.value)


def test_a_site_that_no_group_is_at_any_more_is_refused(cluster: Cluster, world: World) -> None:
    """Its machines would run on, unseen."""
    private_dir(cluster.paths.site("there"))
    (cluster.paths.site("there") / MADE_BY).write_text("sandbox\n")
    with pytest.raises(GpuprovError, match="there") as caught:
        run_up(cluster)
    assert "gpuprov down" in caught.value.hint
    assert world.machines == {}


def test_what_blocks_is_found_before_anything_is_made(cluster: Cluster, world: World) -> None:
    world.findings["here"] = [
        Finding("blocks", "quota", "8 vCPUs of 192", "raise it"),
        Finding("warning", "zone", "unknown", ""),
    ]
    with pytest.raises(ProviderError, match="quota: 8 vCPUs of 192") as caught:
        run_up(cluster)
    assert caught.value.hint == "raise it"
    assert (world.machines, down.recorded_nodes(cluster)) == ({}, [])


def test_nothing_is_made_where_a_person_declines(cluster: Cluster, world: World) -> None:
    run = run_up(cluster, yes=False)
    assert run.report is None
    assert (world.machines, cluster.nodes()) == ({}, [])


def test_a_node_on_which_roles_failed_stops_the_run(cluster: Cluster, world: World) -> None:
    world.unreachable = {"train-1"}
    with pytest.raises(ConfigureError, match="train-1: base: no route to host"):
        run_up(cluster)
    assert stages(cluster) == {"train-0": ("configured", None), "train-1": ("made", None)}
    assert applied(cluster) == dict.fromkeys(NAMES)
    world.unreachable.clear()
    world.configured.clear()
    assert run_up(cluster).exit == Exit.OK
    assert world.configured == ["train-1"]  # it goes on where it stopped


def test_a_node_that_is_still_not_as_locked_is_not_proven(cluster: Cluster, world: World) -> None:
    """Healthy or not, it does not run the lock: what it runs is unknown."""
    world.stubborn = {"train-1"}
    run_up(cluster)
    assert applied(cluster) == {"train-0": identity(world.lock), "train-1": None}
    world.stubborn, world.configured = set(), []
    run_up(cluster)
    assert world.configured == ["train-1"]
    assert applied(cluster) == dict.fromkeys(NAMES, identity(world.lock))


def test_an_unhealthy_node_is_told_and_not_proven(cluster: Cluster, world: World) -> None:
    world.bad = {"train-1"}
    run = run_up(cluster)
    assert run.exit == Exit.CHECK_FAILED
    assert applied(cluster) == {"train-0": identity(world.lock), "train-1": None}
    assert stages(cluster) == {"train-0": ("verified", True), "train-1": ("unhealthy", False)}
    run_up(cluster)
    assert world.levels == {"train-0": "quick", "train-1": "standard"}


def test_a_changed_lock_moves_nobody(cluster: Cluster, world: World) -> None:
    run_up(cluster)
    previous, world.lock = identity(world.lock), lock("580.2")
    world.configured.clear()
    run = run_up(cluster)
    assert (run.exit, world.configured) == (Exit.BAD_INPUT, [])
    assert run.waiting == {name: ["driver 580.1 → 580.2"] for name in NAMES}
    assert applied(cluster) == dict.fromkeys(NAMES, previous)


def test_a_node_that_drifted_is_mended_alone(cluster: Cluster, world: World) -> None:
    run_up(cluster)
    world.installed["i-1"] = "550"
    world.configured.clear()
    assert run_up(cluster).exit == Exit.OK
    assert (world.configured, world.installed["i-1"]) == (["train-0"], "580.1")
    assert world.levels == {"train-0": "standard", "train-1": "quick"}  # its roles ran: it is proven at work


def test_a_machine_that_was_lost_is_made_again(cluster: Cluster, world: World) -> None:
    run_up(cluster)
    del world.machines["train-1"]
    world.configured.clear()
    run = run_up(cluster)
    assert (run.resources, run.configured, run.exit) == (1, 1, Exit.OK)
    assert world.configured == ["train-1"]


def test_only_a_node_that_was_proven_with_this_very_lock_is_looked_at_lightly(cluster: Cluster, world: World) -> None:
    """One that was healthy with another lock says nothing of this one."""
    run_up(cluster)
    nodes, other = cluster.nodes(), lock("580.2")
    Ledger(cluster.paths).keep(other)
    moved = dict.fromkeys(NAMES, release_of(cluster.spec, other))
    assert configuring.proven(cluster, nodes, moved) == set()
    current_releases = dict.fromkeys(NAMES, release_of(cluster.spec, world.lock))
    assert configuring.proven(cluster, nodes, current_releases) == set(NAMES)
    world.installed = dict.fromkeys(world.installed, "580.2")  # somebody installed it by hand: no role has to run
    result = configuring.reconcile(cluster, nodes, moved, private_dir(cluster.paths.root / "runs" / "x"))
    assert result.configured == ()
    assert {subject.name: subject.expected.level for subject in result.subjects} == dict.fromkeys(NAMES, "standard")


HOOK = "hooks: {drain: 'echo $GPUPROV_NODE $GPUPROV_ACTION >> drained; test ! -e full'}\n"


def resized(cluster: Cluster, count: int, more: str = "") -> Cluster:
    """The cluster whose file wants so many nodes now."""
    cluster.file.write_text(FILE.replace("count: 2", f"count: {count}") + more)
    return open_cluster(cluster.file, sandbox=True)


def test_a_person_is_asked_about_what_is_made_and_removed_by_node(cluster: Cluster, world: World) -> None:
    questions: list[NodeChanges] = []

    def no(_: Plan, changes: NodeChanges) -> bool:
        questions.append(changes)
        return False

    up(cluster, None, confirm=no)  # type: ignore[arg-type]
    run_up(cluster)
    up(resized(cluster, 3), None, confirm=no)  # type: ignore[arg-type]
    up(resized(cluster, 1), None, confirm=no)  # type: ignore[arg-type]
    assert questions == [
        NodeChanges(create=("train-0", "train-1"), total=2),
        NodeChanges(create=("train-2",), total=1),
        NodeChanges(remove=("train-1",), total=1),
    ]


def test_a_node_that_is_removed_is_drained_first_and_stays_where_it_can_not_be(cluster: Cluster, world: World) -> None:
    run_up(cluster)
    smaller, folder = resized(cluster, 1, HOOK), cluster.file.parent
    (folder / "full").touch()
    with pytest.raises(GpuprovError, match="train-1: the drain command ended with status 1") as caught:
        run_up(smaller)
    assert "no machine was removed" in caught.value.hint
    assert set(world.machines) == set(NAMES)
    (folder / "full").unlink()
    assert run_up(smaller).exit == Exit.OK
    assert set(world.machines) == {"train-0"}
    assert (folder / "drained").read_text() == "train-1 up\n" * 2


def test_nodes_are_put_back_where_one_can_not_be_drained(cluster: Cluster, world: World) -> None:
    run_up(resized(cluster, 3))
    log = "echo $GPUPROV_STEP $GPUPROV_NODE >> hooks"
    smaller = resized(cluster, 1, f"hooks: {{drain: '{log}; test $GPUPROV_NODE = train-1', resume: '{log}'}}\n")
    with pytest.raises(GpuprovError, match="train-2: the drain command ended with status 1"):
        run_up(smaller)
    calls = (cluster.file.parent / "hooks").read_text().splitlines()
    assert sorted(calls[:2]) == ["drain train-1", "drain train-2"]
    assert sorted(calls[2:]) == ["resume train-1", "resume train-2"]
    assert quarantine.quarantined_nodes(smaller) == {}
    assert set(world.machines) == {*NAMES, "train-2"}


def test_a_machine_that_never_worked_is_removed_without_the_hook(cluster: Cluster, world: World) -> None:
    world.bad = {"train-1"}
    run_up(cluster)
    assert run_up(resized(cluster, 1, HOOK)).exit == Exit.OK
    assert not (cluster.file.parent / "drained").exists()


@pytest.mark.parametrize("count", [1, 3])
def test_nothing_is_made_or_removed_while_an_upgrade_is_under_way(cluster: Cluster, world: World, count: int) -> None:
    run_up(cluster)
    upgrade_journal.Journal(to=identity(lock("590.1")), phase="moving").save(cluster.paths)
    with pytest.raises(GpuprovError, match="an upgrade is in progress") as caught:
        run_up(resized(cluster, count))
    end = f"`gpuprov upgrade {cluster.typed_file}` brings it to its end"
    if count == 1:
        assert caught.value.hint == f"take the change of train-1 back, and {end}; then make the change"
    else:
        assert caught.value.hint == f"{end}; then `gpuprov up {cluster.typed_file}` creates train-2"
    assert set(world.machines) == set(NAMES)


def test_why_the_lock_that_nodes_wait_for_was_rolled_back_is_told(cluster: Cluster, world: World) -> None:
    run_up(cluster)
    world.lock = lock("590.1")
    failed = {identity(world.lock): "train-0: gpu.count"}
    upgrade_journal.Journal(to=identity(world.lock), phase="rolled-back", failed=failed).save(cluster.paths)
    run = run_up(cluster)
    assert (set(run.waiting), run.rolled_back) == (set(NAMES), "train-0: gpu.count")


def test_a_node_that_verify_found_well_is_not_moved_by_the_next_run(
    cluster: Cluster, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`up` could not prove it; it is healthy and as locked now, and a job runs on it."""
    world.bad = {"train-1"}
    run_up(cluster)
    assert applied(cluster)["train-1"] is None
    world.bad = set()
    monkeypatch.setattr(type(cluster), "lock", world.lock)
    monkeypatch.setattr(lockfile, "read", lambda _: world.lock)
    differences: dict[str, Any] = {"train-1": (Difference("package", "driver", "580.1", "570", "another driver"),)}
    monkeypatch.setattr(status, "drifted", lambda *_: differences)
    verifying.verify_fleet(cluster, diff.compare(cluster), level="quick")
    assert applied(cluster)["train-1"] is None, "not at the level of the file"
    verifying.verify_fleet(cluster, diff.compare(cluster))
    assert applied(cluster)["train-1"] is None, "not as locked"
    differences["train-1"] = ()
    verifying.verify_fleet(cluster, diff.compare(cluster))
    assert applied(cluster) == dict.fromkeys(NAMES, identity(world.lock))


def mend_an_unproven_node(cluster: Cluster, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """`up` has left train-1 unproven, and it is well now."""
    world.bad = {"train-1"}
    run_up(cluster)
    world.bad = set()
    monkeypatch.setattr(type(cluster), "lock", world.lock)
    monkeypatch.setattr(lockfile, "read", lambda _: world.lock)


def test_verify_records_no_machine_that_was_replaced_meanwhile(
    cluster: Cluster, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    mend_an_unproven_node(cluster, world, monkeypatch)
    compared, (judged,) = diff.compare(cluster), [node for node in cluster.nodes() if node.name == "train-1"]

    def replaced(*_: Any) -> dict[str, Any]:
        fleet.save(cluster.paths, [replace(node, id=f"{node.id}-new") for node in cluster.nodes()])
        return {"train-1": ()}

    monkeypatch.setattr(status, "drifted", replaced)
    verifying.verify_fleet(cluster, compared)
    assert Ledger(cluster.paths).of(judged) is None


def test_verify_records_what_is_proven_before_it_puts_a_node_into_service(
    cluster: Cluster, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    mend_an_unproven_node(cluster, world, monkeypatch)
    monkeypatch.setattr(status, "drifted", lambda *_: {"train-1": ()})

    def end(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(verifying, "settle", end)
    with pytest.raises(KeyboardInterrupt):
        verifying.verify_fleet(cluster, diff.compare(cluster))
    assert applied(cluster) == dict.fromkeys(NAMES, identity(world.lock))
