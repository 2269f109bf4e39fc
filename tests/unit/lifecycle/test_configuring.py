"""Who is looked at, who is configured and with what, who is looked at again, and at which level each is judged."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from provisioner.common.events import Event
from provisioner.common.paths import private_dir
from provisioner.configure import drift, inventory, stamps
from provisioner.configure import run as roles
from provisioner.configure.drift import EVERYTHING, Difference, Pass
from provisioner.configure.run import Outcome
from provisioner.lifecycle import block_ends, configuring
from provisioner.lifecycle.configuring import ReconcileResult, desired_states, look, reconcile, role_variables
from provisioner.lifecycle.session import Cluster, open_cluster
from provisioner.lifecycle.subjects import subjects_of
from provisioner.machines import mounts
from provisioner.monitoring import head
from provisioner.rundir import fleet, node_state
from provisioner.rundir.fleet import Node
from provisioner.rundir.release import Ledger, Release, release_of
from provisioner.stack.models import GoldenImage, Lock
from provisioner.verify import collect as collecting
from provisioner.verify.bundle import Bundle, Output
from provisioner.verify.request import drift_request, request_for
from provisioner.verify.subject import Subject
from tests.support import plans

FILE = """
name: vision
sites: {here: {provider: aws, region: us-east-1}}
groups: {train: {machine: p4d.24xlarge, count: 3}, eval: {machine: p4d.24xlarge, count: 1}}
"""
STACK = plans.plan(plans.cluster_spec("p4d.24xlarge")).groups[0].stack
NODES = [
    Node(name, name.rpartition("-")[0], "here", "p4d.24xlarge", f"i-{name}", "", "203.0.113.7", "10.0.0.7")
    for name in ("train-0", "train-1", "train-2", "eval-0")
]
NAMES = [node.name for node in NODES]


def lock(driver: str = "580.1", **images: GoldenImage) -> Lock:
    stack = STACK.model_copy(update={"driver": driver})
    return Lock(request={}, simulated=True, groups={"train": stack, "eval": stack}, images=images)


def difference(message: str, role: str | None = None, **settings: Any) -> Difference:
    return Difference("package", message, "new", "old", message, role, **settings)


@dataclass
class World:
    """`differs`: node → the differences that the looks at it show, one after the other. `failing`: what the roles fail
    with on a node, run after run."""

    differs: dict[str, list[tuple[Difference, ...]]] = field(default_factory=dict)
    failing: dict[str, list[list[str]]] = field(default_factory=dict)
    looks: list[tuple[str, list[str], set[str]]] = field(default_factory=list)
    runs: list[tuple[list[str], Pass]] = field(default_factory=list)
    inventories: list[tuple[list[str], str]] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    levels: list[dict[str, str]] = field(default_factory=list)
    """At which level each look was."""

    def messages(self, level: str) -> list[tuple[str | None, str]]:
        return [(event.node, event.message) for event in self.events if event.kind == level]


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    (tmp_path / "cluster.yaml").write_text(FILE)
    cluster = open_cluster(tmp_path / "cluster.yaml", sandbox=True)
    private_dir(cluster.paths.root)
    fleet.save(cluster.paths, NODES)
    return cluster


@pytest.fixture
def world(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> World:
    test_world = World()
    cluster.events.subscribe(test_world.events.append)

    def looked(_: Cluster, subjects: Sequence[Subject], doing: str, *, for_drift: Any = ()) -> dict[str, Bundle]:
        test_world.levels.append({s.name: s.expected.level for s in subjects})
        test_world.looks.append((doing, [subject.name for subject in subjects], set(for_drift)))
        return {s.name: Bundle({"name": Output(s.name), "look": Output(str(len(test_world.looks)))}) for s in subjects}

    def differences(bundle: Bundle, expected: str) -> tuple[Difference, ...]:
        assert expected == f"state of {bundle.files['name'].text}"
        rows = test_world.differs.get(bundle.files["name"].text, [()])
        return rows.pop(0) if len(rows) > 1 else rows[0]

    def write(_: Any, nodes: Sequence[Node], plan: Any, *__: Any) -> Path:
        test_world.inventories.append(([node.name for node in nodes], str(plan.groups[0].stack.driver)))
        return Path("inventory.yml")

    def configure(
        _: Any, nodes: Sequence[Node], __: Any, ___: Any, ____: Any, run: Pass, **_____: Any
    ) -> dict[str, Outcome]:
        test_world.runs.append(([node.name for node in nodes], run))
        rows = {node.name: test_world.failing.get(node.name, []) for node in nodes}
        return {name: Outcome(failed=row.pop(0) if row else []) for name, row in rows.items()}

    monkeypatch.setattr(configuring, "role_variables", lambda *_: {})
    monkeypatch.setattr(
        configuring, "desired_states", lambda nodes, *_: {node.name: f"state of {node.name}" for node in nodes}
    )
    monkeypatch.setattr(configuring, "look", looked)
    monkeypatch.setattr(drift, "differences", differences)
    monkeypatch.setattr(stamps, "desired", lambda *_: {"base": None, "nccl": None})
    monkeypatch.setattr(inventory, "write", write)
    monkeypatch.setattr(roles, "configure", configure)
    return test_world


def releases(cluster: Cluster, default: Lock | None = None, **other_locks: Lock) -> dict[str, Release]:
    """Node → release; `other_locks` by node with _ for -."""
    locks = {node.name: other_locks.get(node.name.replace("-", "_"), default or lock()) for node in NODES}
    return {name: release_of(cluster.spec, held_lock) for name, held_lock in locks.items()}


def run(
    cluster: Cluster, releases_by_node: Mapping[str, Release] | None = None, new: Sequence[str] = ()
) -> ReconcileResult:
    return reconcile(cluster, NODES, releases_by_node or releases(cluster), cluster.paths.root, new=new)


def levels(result: ReconcileResult) -> dict[str, str]:
    return {subject.name: subject.expected.level for subject in result.subjects}


def note_proven(cluster: Cluster, *names: str, healthy: bool = True) -> None:
    Ledger(cluster.paths).record([node for node in NODES if node.name in names], lock())
    node_state.note(cluster.paths, nodes={name: {"stage": "verified", "ok": healthy} for name in names})


def test_nodes_that_are_as_locked_are_looked_at_once(cluster: Cluster, world: World) -> None:
    result = run(cluster)
    assert world.looks[0] == ("comparing 4 nodes with the lock", NAMES, set())
    assert [names for _, names, _ in world.looks] == [NAMES, []] and world.runs == []
    assert (result.configured, result.failed, result.drift) == ((), {}, dict.fromkeys(NAMES, ()))
    assert [s.source.files["look"].text for s in result.subjects] == ["1"] * 4  # type: ignore[union-attr]
    assert all(s.reach is not None for s in result.subjects)
    assert set(levels(result).values()) == {"standard"}
    assert world.messages("warning") == world.messages("log") == []


def test_a_node_that_differs_is_configured_and_looked_at_again(cluster: Cluster, world: World) -> None:
    odd = difference("nccl 1 instead of 2", "nccl")
    world.differs["train-1"] = [(odd,), ()]
    result = run(cluster)
    assert result.before == {**dict.fromkeys(NAMES, ()), "train-1": (odd,)}
    assert result.drift == dict.fromkeys(NAMES, ())
    assert [names for names, _ in world.runs] == [["train-1"]] and world.runs[0][1].roles == {"nccl"}
    assert world.looks[-1] == ("comparing 1 configured node with the lock", ["train-1"], set())
    assert result.configured == ("train-1",) and result.clean("train-1")
    assert [s.source.files["look"].text for s in result.subjects] == ["1", "3", "1", "1"]  # type: ignore[union-attr]
    assert world.messages("log") == [("train-1", "nccl 1 instead of 2")]
    (started,) = [event for event in world.events if event.kind == "started"]
    assert (started.message, started.total) == ("running role nccl on 1 node", 1)


def test_what_no_role_mends_is_no_reason_to_configure(cluster: Cluster, world: World) -> None:
    odd = difference("kernel", mended=False)
    world.differs["train-1"] = [(odd,)]
    result = run(cluster)
    assert world.runs == [] and result.drift["train-1"] == (odd,) and result.clean("train-1")


def test_all_roles_run_where_the_ones_that_differ_did_not_help(cluster: Cluster, world: World) -> None:
    odd = difference("nccl", "nccl")
    world.differs["train-1"], world.differs["train-2"] = [(odd,), (odd,), ()], [(odd,), ()]
    result = run(cluster)
    assert [names for names, _ in world.runs] == [["train-1", "train-2"], ["train-1"]]
    assert [set(passed.roles) for _, passed in world.runs] == [{"nccl"}, {"base", "nccl"}]
    assert result.configured == ("train-1", "train-2") and result.drift["train-1"] == ()
    assert world.messages("warning") == []


def test_files_of_head_nodes_are_made_once_for_all_passes(
    tmp_path: Path, cluster: Cluster, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cluster.yaml").write_text(f"{FILE}monitoring: {{prometheus: {{at: eval}}}}\n")
    watched = open_cluster(tmp_path / "cluster.yaml", sandbox=True)
    calls, make = [], head.archives
    monkeypatch.setattr(head, "archives", lambda *args, **options: calls.append("made") or make(*args, **options))
    monkeypatch.setattr(configuring, "role_variables", role_variables)
    world.differs["train-1"] = [(difference("nccl", "nccl"),)]
    run(watched)
    assert (len(world.runs), calls) == (2, ["made"])
    written = (watched.paths.root / "monitoring/eval.tar").read_bytes()
    variables = role_variables(watched, releases(watched))["gpuprov_prometheus"]["eval"]
    assert variables["sha256"] == hashlib.sha256(written).hexdigest()


def test_what_still_differs_is_said_in_four_lines(cluster: Cluster, world: World) -> None:
    odd = tuple(difference(f"package-{number}") for number in range(6))
    world.differs["train-1"] = [odd]
    result = run(cluster)
    assert [passed for _, passed in world.runs] == [EVERYTHING._replace(roles=frozenset({"base", "nccl"}))]
    lines = "; ".join(f"package-{number}" for number in range(4))
    assert world.messages("log") == [("train-1", f"{lines} and 2 more")]
    assert world.messages("warning") == [("train-1", f"still differs from the lock: {lines}")]
    assert not result.clean("train-1") and result.clean("train-0")
    (event,) = [event for event in world.events if event.kind == "log"]
    assert event.data == {"all": [f"package-{number}" for number in range(6)]}


def test_a_node_whose_roles_fail_is_noted_and_not_warned_about_twice(cluster: Cluster, world: World) -> None:
    world.differs["train-1"] = [(difference("driver"),)]
    world.failing["train-1"] = [["base: no space", "base: left"]]
    result = run(cluster)
    assert result.failed == {"train-1": "base: no space; base: left"} and not result.clean("train-1")
    assert result.outcomes["train-1"].failed == ["base: no space", "base: left"]
    assert world.messages("warning") == []


def test_a_later_run_of_the_roles_that_ends_well_takes_the_failure_back(cluster: Cluster, world: World) -> None:
    odd = difference("nccl", "nccl")
    world.differs["train-1"], world.failing["train-1"] = [(odd,), (odd,), ()], [["nccl: HTTP 503"]]
    result = run(cluster)
    assert result.failed == {} and result.clean("train-1") and len(world.runs) == 2


def test_what_no_role_mends_is_in_no_message(cluster: Cluster, world: World) -> None:
    odd = tuple(difference(f"package-{number}") for number in range(4))
    world.differs["train-1"] = [(difference("kernel", mended=False), *odd)]
    run(cluster)
    lines = "; ".join(f"package-{number}" for number in range(4))
    assert world.messages("log") == [("train-1", lines)]
    assert world.messages("warning") == [("train-1", f"still differs from the lock: {lines}")]


def test_a_node_whose_roles_failed_is_not_clean_whatever_it_shows() -> None:
    assert not ReconcileResult([], {}, failed={"train-1": "no space"}).clean("train-1")
    assert ReconcileResult([], {}).clean("train-1")


def test_a_node_that_fails_in_the_first_run_has_no_second_one(
    cluster: Cluster, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = Pass(frozenset({"nccl"}), "install"), Pass(frozenset({"nccl"}), "configure")
    monkeypatch.setattr(drift, "passes", lambda _: [first, second])
    for name in ("train-0", "train-1"):
        world.differs[name] = [(difference("nccl", "nccl"),), ()]
    world.failing["train-1"] = [["nccl: HTTP 503"], []]
    run(cluster)
    assert world.runs == [
        (["train-0", "train-1"], first), (["train-0"], second),
        (["train-1"], EVERYTHING._replace(roles=frozenset({"base", "nccl"}))),
    ]  # fmt: skip
    messages = [event.message for event in world.events if event.kind == "started"]
    assert messages == [
        "running role nccl (install only) on 2 nodes", "running role nccl (configure only) on 1 node",
        "running the roles on 1 node",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("names", "description"), [("abcd", "roles a, b, c, d"), ("abcde", "the roles"), ("a", "role a")]
)
def test_up_to_four_roles_are_named(
    names: str, description: str, cluster: Cluster, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drift, "passes", lambda _: [Pass(frozenset(names))])
    world.differs["train-0"] = [(difference("nccl", "nccl"),), ()]
    run(cluster)
    assert [e.message for e in world.events if e.kind == "started"] == [f"running {description} on 1 node"]


def test_a_new_machine_is_configured_without_being_asked(cluster: Cluster, world: World) -> None:
    result = run(cluster, new=["train-2"])
    assert world.looks[0][1] == ["train-0", "train-1", "eval-0"]
    assert world.messages("log") == [("train-2", "a new machine")]
    assert [names for names, _ in world.runs] == [["train-2"]]
    assert result.configured == ("train-2",) and "train-2" not in result.before


def test_new_machines_of_a_golden_image_are_asked_for_drift_alone_first(cluster: Cluster, world: World) -> None:
    golden = GoldenImage(name="p4d@stable", build="20260131-031500", id="ami-1")
    world.differs["train-1"] = [(difference("nccl", "nccl"),), ()]
    run(cluster, releases(cluster, lock(train=golden)), new=["train-0", "train-1", "eval-0"])
    assert world.looks[0][1:] == (["train-0", "train-1", "train-2"], {"train-0", "train-1"})
    assert world.looks[1] == ("looking at 1 node", ["train-0"], set())
    assert world.looks[2][1] == ["train-1", "eval-0"]
    assert world.runs[0][1].roles == {"base", "nccl"}, "a machine that nobody asked needs all"


def test_nodes_that_were_proven_with_their_lock_are_judged_without_load(cluster: Cluster, world: World) -> None:
    note_proven(cluster, "train-0", "train-1")
    note_proven(cluster, "train-2", healthy=False)
    Ledger(cluster.paths).record(NODES[3:], lock("590.2"))
    node_state.note(cluster.paths, nodes={"eval-0": {"stage": "verified", "ok": True}})  # with another lock
    world.differs["train-1"] = [(difference("nccl", "nccl"),), ()]
    result = run(cluster)
    assert levels(result) == {"train-0": "quick", "train-1": "standard", "train-2": "standard", "eval-0": "standard"}
    assert world.levels[0] == {**levels(result), "train-1": "quick"}
    assert world.messages("log")[0] == (None, "quick checks, no load: 2 nodes verified with this lock")


def test_each_release_has_a_run_and_an_inventory_of_its_own(cluster: Cluster, world: World) -> None:
    for name in ("train-0", "train-1"):
        world.differs[name] = [(difference("nccl", "nccl"),), ()]
    run(cluster, releases(cluster, train_1=lock("590.2")))
    assert [names for names, _ in world.runs] == [["train-0"], ["train-1"]]
    assert world.inventories == [(["train-0", "train-2", "eval-0"], "580.1"), (["train-1"], "590.2")]


def test_the_inventory_has_nodes_that_this_run_leaves_out(cluster: Cluster, world: World) -> None:
    world.differs["train-0"] = [(difference("nccl", "nccl"),), ()]
    reconcile(cluster, NODES[:1], releases(cluster), cluster.paths.root)
    assert world.inventories == [(NAMES, "580.1")]


def test_a_node_of_a_group_that_a_release_does_not_have_is_in_none_of_its_inventories(
    cluster: Cluster, world: World
) -> None:
    old = Lock(request={}, simulated=True, groups={"train": lock().groups["train"]})
    world.differs["train-0"] = [(difference("nccl", "nccl"),), ()]
    reconcile(cluster, NODES[:1], {"train-0": release_of(cluster.spec, old)}, cluster.paths.root)
    assert world.inventories == [(["train-0", "train-1", "train-2"], "580.1")]


def test_what_a_node_is_compared_with_follows_from_its_release(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    releases_by_node = releases(cluster, train_1=lock("590.2"))
    requests: list[tuple[str, str]] = []

    def desired(plan: Any, group: str, variables: Mapping[str, Any]) -> dict[str, str]:
        requests.append((str(plan.group(group).stack.driver), group))
        return {"stamp": f"{requests[-1]} {variables}"}

    monkeypatch.setattr(stamps, "desired", desired)
    monkeypatch.setattr(drift, "desired_state", lambda plan, group, stamp, units: (group.name, stamp, units))
    first, *other_subjects = subjects_of(cluster, NODES, releases_by_node)
    subjects = [replace(first, expected=replace(first.expected, units=None)), *other_subjects]
    states: Any = desired_states(NODES, releases_by_node, subjects, {"key": 1})
    assert list(states) == NAMES and requests == [("580.1", "train"), ("590.2", "train"), ("580.1", "eval")]
    assert states["train-2"][:2] == states["train-0"][:2] != states["train-1"][:2]
    assert states["eval-0"][0] == "eval"
    assert [states[s.name][2] for s in subjects] == [(), *(s.expected.units for s in other_subjects)]


def test_roles_are_told_of_blocks_mirrors_and_file_systems(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    mirror = type("Mirror", (), {"role_variables": lambda _: {"mirror": "here"}})()
    monkeypatch.setattr(block_ends, "variables", lambda _: {"ends": 1})
    monkeypatch.setattr(mounts, "variables", lambda _, nodes: {"mounts": [node.name for node in nodes]})
    monkeypatch.setattr(type(cluster.providers.at("here")), "sandbox_mirror", mirror, raising=False)
    monkeypatch.setattr(cluster.providers.at("here"), "sandbox_mirror", mirror, raising=False)
    assert role_variables(cluster, releases(cluster)) == {"ends": 1, "mirror": "here", "mounts": NAMES}


def test_a_look_asks_each_node_what_is_judged_of_it(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[Event] = []
    cluster.events.subscribe(events.append)
    calls: list[tuple[Any, Any, dict[str, Any]]] = []

    def collect(targets: Any, requests: Any, **options: Any) -> dict[str, Bundle]:
        calls.append((targets, requests, options))
        return {name: Bundle({}) for name in targets}

    monkeypatch.setattr(collecting, "collect", collect)
    subjects = subjects_of(cluster, NODES[:2], releases(cluster))
    assert look(cluster, [], "nothing") == {} and events == []
    assert list(look(cluster, subjects, "looking", for_drift=["train-1"])) == ["train-0", "train-1"]
    (started,) = events
    assert (started.message, started.total, started.data) == ("looking", 2, {"nodes": ["train-0", "train-1"]})
    assert started.until is not None
    ((targets, requests, options),) = calls
    assert list(targets) == ["train-0", "train-1"] and options["stage"] == "configure"
    assert options["events"] is cluster.events
    assert requests["train-0"] == request_for(subjects[0].expected) != drift_request(subjects[0].expected)
    assert requests["train-1"] == drift_request(subjects[1].expected)


def test_a_subject_whose_outputs_are_there_is_not_asked(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collecting, "collect", lambda targets, *_, **__: dict.fromkeys(targets))
    first, second = subjects_of(cluster, NODES[:2], releases(cluster))
    assert list(look(cluster, [replace(first, source=Bundle({})), second], "looking")) == ["train-1"]
