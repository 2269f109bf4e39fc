"""The machines of a cluster in detail: where they may be, what is written down of them, and what a failure says."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from provisioner.common.errors import Diagnostic, Exit, GpuprovError, ProviderError
from provisioner.common.events import Event, Events
from provisioner.common.paths import ERRORED, MADE_BY, STATE, private_dir
from provisioner.lifecycle import machines
from provisioner.lifecycle.machines import INCOMPLETE
from provisioner.lifecycle.session import Cluster, open_cluster
from provisioner.machines.base import Action, PartlyMadeError, Planned
from provisioner.machines.providers import capacity
from provisioner.machines.providers.cluster import MARK, SETTINGS
from provisioner.output.cost import SpentOutput, SpentSum
from provisioner.plan.models import Plan, build_plan
from provisioner.rundir import fleet, node_state
from provisioner.rundir.fleet import Node
from provisioner.stack.models import Lock
from tests.support import plans

FILE = """
name: vision
sites:
  virginia: {provider: aws, region: us-east-1}
  ohio: {provider: aws, region: us-east-2}
groups:
  train: {machine: p4d.24xlarge, count: 2, site: virginia}
  infer: {machine: p4d.24xlarge, count: 1, site: ohio}
"""
STACK = plans.planned_group("p4d.24xlarge").stack


def node(name: str, site: str = "virginia", id: str = "") -> Node:
    return Node(name, name.rpartition("-")[0], site, "p4d.24xlarge", id or f"i-{name}", "", "203.0.113.7", "10.0.0.7")


TRAIN, INFER = [node("train-0"), node("train-1")], node("infer-0", "ohio")


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    (tmp_path / "cluster.yaml").write_text(FILE)
    opened = open_cluster(tmp_path / "cluster.yaml", sandbox=True, events=Events())
    private_dir(opened.paths.root)
    return opened


@pytest.fixture
def plan(cluster: Cluster) -> Plan:

    lock = Lock(request={}, simulated=True, groups={"train": STACK, "infer": STACK})
    return build_plan(cluster.spec, lock)


def heard(cluster: Cluster) -> list[Event]:
    events: list[Event] = []
    cluster.events.subscribe(events.append)
    return events


class Site:
    """Machines of a site. `answer`: what an apply gives or raises; `existing`: what stands, or why nobody can tell."""

    def __init__(
        self, site: str, answer: list[Node] | GpuprovError | None = None, existing: list[Node] | Exception | None = None
    ) -> None:
        self.site, self._answer, self._existing = site, answer, existing
        self.query_count = 0

    def apply(self, plan: Plan, planned: Planned, **_: Any) -> list[Node]:
        if isinstance(self._answer, GpuprovError):
            raise self._answer
        return self._answer or []

    def existing_nodes(self) -> list[Node]:
        self.query_count += 1
        if isinstance(self._existing, Exception):
            raise self._existing
        return self._existing or []


def stages(cluster: Cluster) -> dict[str, tuple[str, bool | None]]:
    rows = node_state.load(cluster.paths).nodes
    return {name: (row.stage, row.ok) for name, row in rows.items()}


# where machines may be


def real(tmp_path: Path, *, recorded: str, answers: str = "") -> Cluster:
    """A fleet in virginia; `recorded`: the region where its machines were made, `answers`: the account signed in."""
    (tmp_path / "cluster.yaml").write_text(FILE)
    opened = open_cluster(tmp_path / "cluster.yaml", sandbox=False, events=Events())
    folder = private_dir(opened.paths.site("virginia"))
    (folder / MADE_BY).write_text("aws\n")
    (folder / SETTINGS).write_text(json.dumps({"provider": "aws", "region": recorded}))
    (folder / "account").write_text("111\n")
    finding = SimpleNamespace(account=answers) if answers else None
    opened.providers._account = lambda site: finding.account if finding else ""  # type: ignore[method-assign]
    return opened


def test_a_site_that_moved_is_refused_while_machines_may_exist(tmp_path: Path) -> None:
    moved = real(tmp_path, recorded="us-west-2")
    machines.refuse_moved(moved, "virginia")  # none was made
    fleet.save(moved.paths, TRAIN)
    with pytest.raises(ProviderError, match=r"its machines are in region us-west-2; cluster\.yaml says") as caught:
        machines.refuse_moved(moved, "virginia")
    assert "region us-east-1" in caught.value.message
    assert caught.value.where == "site virginia"
    assert caught.value.hint.startswith("put `region: us-west-2` back")
    machines.refuse_moved(moved, "virginia", home=False)
    machines.refuse_moved(moved, "ohio")


def test_another_account_is_refused_also_where_the_recorded_place_decides(tmp_path: Path) -> None:
    moved = real(tmp_path, recorded="us-east-1", answers="222")
    fleet.save(moved.paths, TRAIN)
    for home in (True, False):
        with pytest.raises(ProviderError, match="account 111; the credentials are of account 222") as caught:
            machines.refuse_moved(moved, "virginia", home=home)
        assert caught.value.hint.startswith("sign in to account 111")


def test_a_site_that_is_where_it_was_is_not_refused(tmp_path: Path) -> None:
    stays = real(tmp_path, recorded="us-east-1", answers="111")
    fleet.save(stays.paths, TRAIN)
    machines.refuse_moved(stays, "virginia")


@pytest.mark.parametrize(
    ("file", "text", "exist"),
    [
        (None, "", False),
        (MARK, "", True),
        (ERRORED, "", True),
        (STATE, '{"resources": []}', False),
        (STATE, '{"resources": [{}]}', True),
        (STATE, '{"resources": [', True),
        (STATE, "{}", True),
        (STATE, "7", True),
    ],
)
def test_machines_may_exist_unless_a_state_says_that_there_are_none(
    cluster: Cluster, file: str | None, text: str, exist: bool
) -> None:
    folder = private_dir(cluster.paths.site("virginia"))
    if file is not None:
        (folder / file).write_text(text)
    assert machines._may_have_machines(cluster, "virginia") == exist
    assert not machines._may_have_machines(cluster, "ohio")
    fleet.save(cluster.paths, [INFER])
    assert machines._may_have_machines(cluster, "ohio")


@pytest.mark.parametrize(
    ("intent", "exist"),
    [('{"sites": ["virginia"]}', True), ('{"sites": ["ohio"]}', False), (None, False), ("{}", False), ("7", False),
     ('{"sites', False)],
)  # fmt: skip
def test_where_the_state_is_shared_the_intent_says_whether_machines_may_exist(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, intent: str | None, exist: bool
) -> None:
    monkeypatch.setattr(Cluster, "remote", SimpleNamespace())
    private_dir(cluster.paths.site("virginia"))
    (cluster.paths.site("virginia") / STATE).write_text('{"resources": [{}]}')
    if intent is not None:
        cluster.paths.intent.write_text(intent)
    assert machines._may_have_machines(cluster, "virginia") == exist


def test_machines_of_a_site_that_no_group_uses_are_not_abandoned(cluster: Cluster, plan: Plan) -> None:
    private_dir(cluster.paths.site("old"))
    (cluster.paths.site("old") / MADE_BY).write_text("sandbox\n")
    with pytest.raises(GpuprovError, match="no group is at old any more"):
        machines.refuse_abandoned(cluster, plan)
    (cluster.paths.site("old") / MADE_BY).unlink()
    (private_dir(cluster.paths.site("virginia")) / MADE_BY).write_text("sandbox\n")
    machines.refuse_abandoned(cluster, plan)


# what is written down


def test_the_intent_names_the_nodes_of_sites_that_have_a_folder(cluster: Cluster, plan: Plan) -> None:
    private_dir(cluster.paths.site("virginia"))
    machines.write_intent(cluster, plan)
    assert json.loads(cluster.paths.intent.read_text()) == {
        "cluster": "vision", "file": "cluster.yaml", "sandbox": True, "sites": ["virginia"],
        "nodes": {name: {"site": "virginia", "machine": "p4d.24xlarge"} for name in ("train-0", "train-1")},
    }  # fmt: skip


def test_machines_that_could_not_be_had_are_asked_for_again(cluster: Cluster, plan: Plan) -> None:
    folder = private_dir(cluster.paths.site("virginia"))
    capacity.do_without(folder, {"train": ["train-1"]})
    machines.ask_again(cluster, plan)
    assert capacity.without(folder) == []
    assert not cluster.paths.site("ohio").exists()


def test_machines_that_only_terraform_knows_are_recorded(cluster: Cluster, plan: Plan) -> None:
    fleet.save(cluster.paths, TRAIN[:1])
    site = Site("virginia", existing=[node("train-0", id="i-other"), TRAIN[1]])
    machines.record_standing(cluster, [(site, Planned("virginia"))], plan)  # type: ignore[list-item]
    assert cluster.nodes() == TRAIN


@pytest.mark.parametrize(
    ("actions", "without", "is_queried"),
    [
        ((), [], True),
        ((Action("create", "a", "train-1"),), [], False),
        ((Action("create", "a", "train-1", attached=True),), [], True),
        ((Action("replace", "a", "train-1"),), [], True),
        ((), ["train-1"], False),
        ((Action("create", "a", "train-1"), Action("delete", "b", "old-0")), [], True),
        ((Action("create", "a", "train-1"), Action("delete", "b")), [], False),
    ],
)
def test_terraform_is_asked_only_where_its_plan_shows_a_machine_that_nobody_recorded(
    cluster: Cluster, plan: Plan, actions: tuple[Action, ...], without: list[str], is_queried: bool
) -> None:
    fleet.save(cluster.paths, TRAIN[:1])
    capacity.do_without(private_dir(cluster.paths.site("virginia")), {"train": without} if without else {})
    site = Site("virginia")
    machines.record_standing(cluster, [(site, Planned("virginia", actions=actions))], plan)  # type: ignore[list-item]
    assert bool(site.query_count) == is_queried


def test_machines_that_a_failed_apply_left_are_not_settled(cluster: Cluster) -> None:
    fleet.save(cluster.paths, TRAIN)
    node_state.note_stage(cluster.paths, INCOMPLETE, ["train-1"], ok=False)
    assert machines.settled(cluster) == TRAIN[:1]


# an apply


def applied(
    cluster: Cluster, plan: Plan, monkeypatch: pytest.MonkeyPatch, *sites: Site,
    silent: dict[str, ProviderError] | None = None,
) -> machines.Made:  # fmt: skip
    monkeypatch.setattr(machines, "contact", lambda *_, **__: silent or {})
    prepared = [(site, Planned(site.site, add=1)) for site in sites]
    return machines.make(cluster, plan, prepared, cluster.events)  # type: ignore[arg-type]


HOST = node("infer-0", "ohio", id="dgx1.lab")


@pytest.mark.parametrize(
    ("hosts", "refused"),
    [
        ({"virginia": ("dgx1.lab",)}, {"virginia"}),
        ({"virginia": ("dgx1.lab",), "ohio": ("dgx2.lab",)}, set()),
        ({"virginia": ("dgx1.lab",), "ohio": ("dgx3.lab",), "oregon": ("i-train-0",)}, set()),
        ({"ohio": ("dgx1.lab",)}, set()),
        ({"ohio": ("i-train-1",), "virginia": ("dgx2.lab", "dgx9.lab")}, {"ohio", "virginia"}),
    ],
    ids=["of a site that is left out", "both sites change", "all sites change", "its own", "one after the other"],
)
def test_a_site_takes_no_host_that_stays_a_node_of_another_one(
    cluster: Cluster, hosts: dict[str, tuple[str, ...]], refused: set[str]
) -> None:
    other_nodes = [node("eval-0", "paris", id="dgx9.lab")] if "dgx9.lab" in hosts.get("virginia", ()) else []
    fleet.save(cluster.paths, [*TRAIN, HOST, *other_nodes])
    planned = {site: Planned(site, hosts=names) for site, names in hosts.items()}
    errors = machines.occupied(cluster, planned)
    assert set(errors) == refused
    if list(hosts) == ["virginia"]:
        (error,) = errors.values()
        assert (error.where, error.message) == (
            "site virginia", "dgx1.lab is infer-0 of site ohio, which this run does not change"
        )  # fmt: skip


def test_a_host_whose_former_site_fails_at_its_apply_is_not_taken(
    cluster: Cluster, plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet.save(cluster.paths, [*TRAIN, HOST])
    monkeypatch.setattr(machines, "contact", lambda *_, **__: {})
    taken = Site("virginia", [node("train-0", id="dgx1.lab")], existing=TRAIN)
    prepared = [
        (taken, Planned("virginia", add=1, hosts=("dgx1.lab",))),
        (Site("ohio", ProviderError("full"), existing=[HOST]), Planned("ohio", add=1, hosts=("dgx2.lab",))),
    ]
    result = machines.make(cluster, plan, prepared, cluster.events)  # type: ignore[arg-type]
    assert (result.nodes, set(result.failed), result.partly) == ([], {"virginia", "ohio"}, {})
    assert cluster.nodes() == [HOST, *TRAIN]


def test_sites_that_are_not_applied_keep_their_nodes(
    cluster: Cluster, plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet.save(cluster.paths, [node("train-0", id="i-old"), INFER])
    result = applied(cluster, plan, monkeypatch, Site("virginia", TRAIN))
    assert (result.nodes, result.failed, result.partly) == (TRAIN, {}, {})
    assert sorted(row.name for row in cluster.nodes()) == ["infer-0", "train-0", "train-1"]
    assert cluster.node("train-0").id == "i-train-0"


def test_a_site_that_fails_says_what_of_it_stands(
    cluster: Cluster, plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    messages = [Diagnostic("no capacity")]
    error = ProviderError("no capacity", where="site virginia", hint="wait", diagnostics=messages)
    error.exit_code = Exit.LOCKED
    fleet.save(cluster.paths, [INFER])
    result = applied(cluster, plan, monkeypatch, Site("virginia", error, [TRAIN[0]]))
    failure = result.failed["virginia"]
    assert failure.message.startswith("no capacity\n  2 machines of the cluster, 1 of them made by this run, stand now")
    assert (failure.where, failure.hint, failure.exit_code) == ("site virginia", "wait", Exit.LOCKED)
    assert list(failure.diagnostics) == messages  # type: ignore[attr-defined]
    assert stages(cluster) == {"train-0": (INCOMPLETE, False), "train-1": ("not made", None)}
    assert [row.name for row in cluster.nodes()] == ["infer-0", "train-0"]


def test_a_node_that_was_there_before_is_missing_where_its_machine_does_not_stand(
    cluster: Cluster, plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet.save(cluster.paths, TRAIN)
    result = applied(cluster, plan, monkeypatch, Site("virginia", ProviderError("x"), [TRAIN[0]]))
    assert result.failed["virginia"].message.startswith("x\n  1 machine of the cluster stands now: ")
    assert stages(cluster) == {"train-1": ("missing", False)}


def test_where_nothing_stands_nothing_is_said(cluster: Cluster, plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    error = ProviderError("no capacity")
    result = applied(cluster, plan, monkeypatch, Site("virginia", error))
    assert result.failed == {"virginia": error}
    assert stages(cluster) == dict.fromkeys(("train-0", "train-1"), ("planned", None))


@pytest.mark.parametrize("error", [ProviderError("no answer"), OSError("disk"), ValueError("half"), KeyError("id")])
def test_what_could_not_be_asked_is_said_and_nothing_recorded_is_forgotten(
    cluster: Cluster, plan: Plan, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    result = applied(cluster, plan, monkeypatch, Site("virginia", ProviderError("x"), error))
    assert result.failed["virginia"].message.startswith("x\n  what stands at virginia could not be asked: ")
    assert stages(cluster) == {}
    fleet.save(cluster.paths, [*TRAIN, INFER])
    second_result = applied(cluster, plan, monkeypatch, Site("virginia", ProviderError("x"), error))
    assert "3 machines of the cluster stand now: `gpuprov up` goes on" in second_result.failed["virginia"].message
    assert "; what stands at virginia could not be asked" in second_result.failed["virginia"].message
    assert sorted(row.name for row in cluster.nodes()) == ["infer-0", "train-0", "train-1"]


def test_a_site_that_ssh_does_not_reach_fails_whole_and_another_does_not(
    cluster: Cluster, plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    silent = {name: ProviderError("no ssh", where=name, hint="look") for name in ("train-0", "train-1")}
    result = applied(
        cluster,
        plan,
        monkeypatch,
        Site("virginia", TRAIN),
        Site("ohio", [INFER]),
        silent={"train-1": silent["train-1"]},
    )
    assert (result.nodes, result.failed, result.partly) == ([INFER], {"virginia": silent["train-1"]}, {})
    both = applied(cluster, plan, monkeypatch, Site("virginia", TRAIN), silent=silent).failed["virginia"]
    assert (both.message, both.hint) == ("train-0: no ssh\n  train-1: no ssh", "look")


def test_machines_that_came_to_be_are_gone_on_with(
    cluster: Cluster, plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = PartlyMadeError(ProviderError("1 of 2"), TRAIN[:1], TRAIN[1:])
    result = applied(cluster, plan, monkeypatch, Site("virginia", error), Site("ohio", ProviderError("x")))
    assert (result.nodes, list(result.failed), result.partly) == (TRAIN[:1], ["ohio"], {"virginia": error})
    assert {row.name for row in cluster.nodes()} == {"train-0", "train-1"}


@pytest.mark.parametrize("failing", [True, False])
def test_an_apply_is_reported_with_what_was_done(
    cluster: Cluster, plan: Plan, monkeypatch: pytest.MonkeyPatch, failing: bool
) -> None:
    events = heard(cluster)
    other = Site("ohio", ProviderError("x") if failing else [INFER])
    applied(cluster, plan, monkeypatch, Site("virginia", TRAIN), other)
    reported = [(event.kind, event.message) for event in events if event.stage == "terraform"]
    wait = f"a machine may take {cluster.spec.timeouts.machine_s} s (timeouts.machine_s)"
    assert reported == [
        ("started", f"virginia, ohio: 2 resources; {wait}"),
        ("done", "virginia: 1 resource" if failing else "virginia, ohio: 2 resources"),
    ]


def test_an_apply_of_nothing_is_not_announced(cluster: Cluster) -> None:
    events = heard(cluster)
    with machines.applying(cluster, [Planned("virginia")]):
        pass
    assert [(event.kind, event.message) for event in events] == [("done", "virginia: 0 resources")]
    events.clear()
    with machines.applying(cluster, [Planned("virginia", add=1)]) as failed:
        failed.add("virginia")
    assert [event.kind for event in events] == ["started"]


# consoles, ssh


class Consoles:
    """A provider with or without consoles."""

    def __init__(self, texts: dict[str, str] | None) -> None:
        self.access = None if texts is None else SimpleNamespace(console=texts.get)


def test_consoles_that_can_be_had_are_kept(cluster: Cluster, tmp_path: Path) -> None:
    texts = {"i-train-0": "booted\r\nlogin:\x1b[2J", "i-train-1": ""}
    providers: dict[str, Consoles] = {"virginia": Consoles(texts), "ohio": Consoles(None)}
    cluster.providers.at = providers.__getitem__  # type: ignore[method-assign,assignment]
    events = heard(cluster)
    (file,) = machines.keep_consoles(cluster, [*TRAIN, INFER, node("old-0", "gone")], tmp_path)
    assert file == tmp_path / "console-train-0.txt"
    assert file.read_text() == "booted\nlogin:\\x1b[2J\n"
    assert [(event.kind, event.node) for event in events] == [("log", "train-0")]


def contacted(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, failed: dict[str, ProviderError], consoles: Sequence[Path] = ()
) -> tuple[dict[str, ProviderError], list[Event]]:
    events = heard(cluster)
    monkeypatch.setattr(machines.fleet, "contact", lambda *_, **__: dict(failed))
    monkeypatch.setattr(machines, "keep_consoles", lambda *_: list(consoles))
    actual = machines.contact(
        cluster, [*TRAIN, INFER], cluster.events, waiting=["train-0", "train-1"], run_dir=Path("/runs/1")
    )
    return actual, [event for event in events if event.stage == "fleet"]


def test_a_node_that_never_answers_is_named_with_its_console(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    silent = {"train-1": ProviderError("no ssh", where="train-1", hint="look")}
    actual, events = contacted(cluster, monkeypatch, silent, [Path("/runs/1/console-train-1.txt")])
    assert (actual["train-1"].message, actual["train-1"].where) == ("no ssh", "train-1")
    assert actual["train-1"].hint == "its console: /runs/1/console-train-1.txt; look"
    assert [(event.kind, event.total) for event in events] == [("started", 2), ("failed", 2)]
    assert events[-1].message == "1 node reachable"
    assert events[0].data["nodes"] == ["train-0", "train-1"]
    wait = cluster.spec.timeouts.ssh_s
    assert events[0].message == f"waiting for ssh on 2 nodes, at most {wait} s (timeouts.ssh_s)"


def test_a_node_without_a_console_is_named_as_it_is(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    silent = {"train-1": ProviderError("no ssh", where="train-1", hint="look")}
    assert contacted(cluster, monkeypatch, silent)[0] == silent


def test_all_nodes_that_answer_are_reachable(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    actual, events = contacted(cluster, monkeypatch, {})
    assert (actual, events[-1].kind, events[-1].message) == ({}, "done", "2 nodes reachable")


# what others learn of it


@pytest.fixture
def notes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """ "share" for each time that the files are shared, and the nodes whose cost is counted from then on."""
    calls: list[str] = []
    monkeypatch.setattr(Cluster, "share", lambda _: calls.append("share"))

    def count_cost(_: Cluster, nodes: Sequence[Node]) -> None:
        calls.append(" ".join(sorted(row.name for row in nodes)))

    monkeypatch.setattr(machines.running_cost, "note_machines", count_cost)
    return calls


def test_machines_cost_from_the_moment_that_they_are_known_and_others_learn_of_them(
    cluster: Cluster, plan: Plan, monkeypatch: pytest.MonkeyPatch, notes: list[str]
) -> None:
    fleet.save(cluster.paths, [INFER])
    applied(cluster, plan, monkeypatch, Site("virginia", TRAIN))
    assert notes == ["infer-0 train-0 train-1", "share"]
    notes.clear()
    applied(cluster, plan, monkeypatch, Site("virginia", ProviderError("x"), TRAIN[:1]))
    assert notes == ["infer-0 train-0", "share", "share"]
    notes.clear()
    machines.record_standing(cluster, [(Site("virginia", existing=TRAIN), Planned("virginia"))], plan)  # type: ignore[list-item]
    assert notes == ["infer-0 train-0 train-1"]
    notes.clear()
    machines.write_intent(cluster, plan)
    assert notes == ["share"]


def test_ssh_is_waited_for_on_the_nodes_of_this_apply_alone(
    cluster: Cluster, plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[dict[str, Any]] = []
    monkeypatch.setattr(machines, "contact", lambda *_, **how: calls.append(how) or {})
    fleet.save(cluster.paths, [INFER])
    prepared: Any = [(Site("virginia", TRAIN), Planned("virginia", add=1))]
    machines.make(cluster, plan, prepared, cluster.events, Path("/runs/1"))
    names = ["train-0", "train-1"]
    assert calls == [{"waiting": names, "only": names, "run_dir": Path("/runs/1")}]
    calls.clear()
    machines.make(cluster, plan, [(Site("virginia", []), Planned("virginia"))], cluster.events)  # type: ignore[list-item]
    assert calls == []


def test_a_machine_that_was_replaced_is_incomplete_and_one_of_another_site_is_not(
    cluster: Cluster, plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet.save(cluster.paths, [node("train-0", id="i-old"), TRAIN[1]])
    failing = Site("virginia", ProviderError("x"), TRAIN)
    failure = applied(cluster, plan, monkeypatch, failing, Site("ohio", [INFER])).failed["virginia"]
    assert "3 machines of the cluster, 2 of them made by this run, stand now" in failure.message
    assert stages(cluster) == {"train-0": (INCOMPLETE, False), "infer-0": ("made", None)}


def test_where_all_machines_are_new_none_is_counted_apart(
    cluster: Cluster, plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    failure = applied(cluster, plan, monkeypatch, Site("virginia", ProviderError("x"), TRAIN)).failed["virginia"]
    assert "2 machines of the cluster stand now: " in failure.message


def test_what_stands_is_told_with_its_price(cluster: Cluster, plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    sums = [
        SpentSum(currency=currency, amount=1.0, hour=hour, dates=[])
        for currency, hour in (("USD", 65.5), ("CNY", 10.0))
    ]
    spent = SpentOutput(since="2026-01-31T12:00:00Z", sums=sums, unknown=[])
    monkeypatch.setattr(machines.running_cost, "so_far", lambda _: spent)
    failure = applied(cluster, plan, monkeypatch, Site("virginia", ProviderError("x"), TRAIN)).failed["virginia"]
    assert " an hour, " in failure.message and " an hour by list prices: `gpuprov up` goes on" in failure.message
    assert "65.5" in failure.message and "10" in failure.message


def test_machines_that_exist_are_entered_by_user_and_proxy(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster.providers.proxies = lambda _: {"train-0": "proxy"}  # type: ignore[method-assign]
    transport = machines._host_access(cluster, TRAIN)
    assert transport.users == {name: cluster.spec.user("virginia") for name in ("train-0", "train-1")}
    assert (transport.paths, transport.identity(), transport.key().startswith("ssh-ed25519 ")) == (
        cluster.paths,
        cluster.identity,
        True,
    )


@pytest.mark.parametrize("sandbox", [True, False])
def test_nodes_are_called_the_way_that_their_provider_knows(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, sandbox: bool
) -> None:
    calls: list[dict[str, Any]] = []
    monkeypatch.setattr(machines.fleet, "contact", lambda *_, **how: calls.append(how) or {})
    monkeypatch.setattr(Cluster, "sandbox", sandbox)
    providers = cluster.providers
    providers.proxies = lambda _: {"train-0": "proxy"}  # type: ignore[method-assign]
    providers.given_keys = lambda _: {"train-0": "key"}  # type: ignore[method-assign]
    providers.local = lambda _: {"train-1"}  # type: ignore[method-assign]
    machines.contact(cluster, TRAIN, cluster.events, waiting=["train-0"], only=["train-0"])
    (how,) = calls
    assert how == {
        "wait_s": float(cluster.spec.timeouts.ssh_s), "only": ["train-0"], "vouched": providers.host_key,
        "carried": {"train-0": "proxy"}, "given": {} if sandbox else {"train-0": "key"},
        "local": {"train-1"}, "listed": [],
    }  # fmt: skip


def test_nodes_behind_a_jump_host_that_does_not_answer_are_not_waited_for(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[dict[str, Any]] = []
    monkeypatch.setattr(machines.fleet, "contact", lambda *_, **how: calls.append(how) or {})
    closed = ProviderError("site virginia: the simulated jump host me@bastion is exited, not running")
    cluster.providers.save_jump_hosts = lambda _: {"virginia": closed}  # type: ignore[method-assign]
    waiting = ["train-0", "infer-0"]
    failed = machines.contact(cluster, [*TRAIN, INFER], cluster.events, waiting=waiting, only=waiting)
    assert (failed, calls[0]["only"]) == ({"train-0": closed}, ["infer-0"])


def test_machines_that_exist_and_answer_are_asked_to_let_gpuprov_in(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    admitted: list[list[str]] = []
    refusal = ProviderError("wrong password", where="train-0")

    def admit(_: object, nodes: Sequence[Node], __: object) -> dict[str, ProviderError]:
        admitted.append([row.name for row in nodes])
        return {"train-0": refusal}

    provider = SimpleNamespace(hosts=SimpleNamespace(listed=lambda _: []), access=None)
    cluster.providers.at = lambda site: provider if site == "virginia" else SimpleNamespace(hosts=None)  # type: ignore[method-assign,assignment,return-value]
    cluster.providers.proxies = lambda _: {}  # type: ignore[method-assign]
    cluster.providers.save_jump_hosts = lambda _: {}  # type: ignore[method-assign]
    monkeypatch.setattr(machines.existing, "admit", admit)
    monkeypatch.setattr(machines.fleet, "contact", lambda *_, **__: {"train-1": ProviderError("no ssh")})
    third, former = node("train-2"), node("old-0", "gone")
    waiting = ["train-0", "train-1", "infer-0", "old-0"]
    events = heard(cluster)
    failed = machines.contact(cluster, [*TRAIN, third, INFER, former], cluster.events, waiting=waiting)
    assert admitted == [["train-0"]], "train-1 does not answer, and train-2 is not waited for"
    assert (list(failed), failed["train-0"]) == (["train-1", "train-0"], refusal)
    assert [(e.message, e.node) for e in events if e.kind == "warning"] == [("wrong password", "train-0")]
    machines.contact(cluster, [INFER, former], cluster.events, waiting=["infer-0", "old-0"])
    assert admitted == [["train-0"]], "nobody is asked where none of them exists already"
