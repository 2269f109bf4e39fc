"""`down` in detail: what it reports, what it does at the end and in no other case, and fleets that others made."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import Any

import pytest

from provisioner.common.errors import GpuprovError, Interrupted, ProviderError
from provisioner.common.events import Event
from provisioner.common.paths import ERRORED, MADE_BY, STATE, private_dir
from provisioner.lifecycle import down
from provisioner.lifecycle.quarantine import book as quarantine_book
from provisioner.lifecycle.rollout import Place
from provisioner.lifecycle.session import Cluster
from provisioner.lifecycle.upgrade import journal as upgrade_journal
from provisioner.stack.models import Lock
from tests.support import plans
from tests.unit.lifecycle.test_down import World, cluster, take_down, world

__all__ = ["cluster", "world"]

STACK = plans.planned_group("p4d.24xlarge").stack


def heard(cluster: Cluster) -> list[Event]:
    events: list[Event] = []
    cluster.events.subscribe(events.append)
    return events


def reported(events: list[Event]) -> list[tuple[str, str]]:
    return [(event.kind, event.message) for event in events if event.stage == "down"]


@pytest.fixture
def ending(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is done when nothing is left."""
    calls: list[str] = []
    monkeypatch.setattr(down.quarantine, "forget", lambda _: calls.append("scheduler"))
    monkeypatch.setattr(down.ssh_sockets, "close", lambda _, nodes: calls.append(f"ssh {len(nodes)}"))
    return calls


def test_a_removal_is_reported_and_ends_what_belonged_to_the_machines(
    cluster: Cluster, world: World, ending: list[str]
) -> None:
    events = heard(cluster)
    take_down(cluster)
    assert reported(events) == [
        ("started", "here: removing machines"), ("done", "5 resources removed, nothing is left")
    ]  # fmt: skip
    assert ending == ["scheduler", "ssh 1"]


def test_an_upgrade_is_ended_before_its_nodes_are_resumed(
    cluster: Cluster, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    (node,) = cluster.nodes()
    upgrade_journal.Journal("b", "moving", nodes={node.name: Place("a", "drained")}).save(cluster.paths)
    records: list[tuple[bool, list[str]]] = []

    def forget(cluster: Cluster) -> None:
        entries = quarantine_book.load(cluster.paths).nodes
        records.append((upgrade_journal.load(cluster.paths).busy, [*entries]))

    monkeypatch.setattr(down.quarantine, "forget", forget)
    take_down(cluster)
    assert records == [(False, [node.name])]


def test_while_something_is_left_nothing_of_that_is_done(cluster: Cluster, world: World, ending: list[str]) -> None:
    world.leftover = ["instance i-7 is still there"]
    with pytest.raises(ProviderError):
        take_down(cluster)
    assert ending == []


def test_a_refusal_is_reported(cluster: Cluster, world: World) -> None:
    world.refused, events = ["VPC vpc-1: DependencyViolation"], heard(cluster)
    take_down(cluster)
    (warning,) = [message for kind, message in reported(events) if kind == "warning"]
    assert "DependencyViolation" in warning and warning.endswith("what is left is looked for by its tags")


def site(stays: dict[str, list[str]], *, removed: int = 0, error: Exception | None = None) -> Any:
    def destroy(plan: object = None) -> int:
        if error:
            raise error
        return removed

    return SimpleNamespace(site="here", stays=stays, destroy=destroy)


def test_machines_that_existed_before_run_on(cluster: Cluster, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    provider = SimpleNamespace(hosts=SimpleNamespace(listed=lambda _: [], host_key=lambda _: None), clean=lambda _: [])
    cluster.providers.made = lambda: {"here": provider}  # type: ignore[method-assign,assignment,return-value]
    stays = {"train-0": ["user gpuprov"], "train-1": []}
    monkeypatch.setattr(down.machines, "of_site", lambda *_, **__: site(stays, removed=7))
    events = heard(cluster)
    assert take_down(cluster) == down.Removal(7, [], stays)
    assert reported(events) == [
        ("started", "here: undoing what was configured"),
        ("done", "5 resources removed, nothing is left; 2 machines run on"),
    ]


def test_what_failed_and_what_is_left_elsewhere_is_reported(
    cluster: Cluster, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    private_dir(cluster.paths.site("there"))
    (cluster.paths.site("there") / MADE_BY).write_text("sandbox\n")
    world.leftover = ["disk d-1 is still there"]
    sites = iter([site({}), site({}, error=ProviderError("no credentials"))])
    monkeypatch.setattr(down.machines, "of_site", lambda *_, **__: next(sites))
    events = heard(cluster)
    with pytest.raises(ProviderError, match="no credentials"):
        take_down(cluster)
    assert [message for kind, message in reported(events) if kind == "warning"] == [
        "site there: no credentials", "not removed: disk d-1 is still there"
    ]  # fmt: skip


def test_an_interrupt_stops_at_once(cluster: Cluster, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    private_dir(cluster.paths.site("there"))
    (cluster.paths.site("there") / MADE_BY).write_text("sandbox\n")
    sites: list[str] = []

    def of_site(_: object, name: str, *__: object, **___: object) -> Any:
        sites.append(name)
        return site({}, error=Interrupted("Ctrl-C"))

    monkeypatch.setattr(down.machines, "of_site", of_site)
    with pytest.raises(Interrupted):
        take_down(cluster)
    assert sites == ["here"]


def test_a_recipe_of_images_is_refused(cluster: Cluster, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: Cluster) -> None:
        raise GpuprovError("is a recipe of images")

    monkeypatch.setattr(down, "refuse_recipe", refuse)
    with pytest.raises(GpuprovError, match="is a recipe of images"):
        take_down(cluster)
    assert world.calls == []


@pytest.mark.parametrize(
    ("intent", "names"),
    [
        ('{"nodes": {"train-1": {}}}', ["train-0", "train-1"]),
        ('{"nodes": ["train-1", 7, "../x", ""]}', ["train-0", "train-1"]),
        ('{"nodes": 7}', ["train-0"]),
        ("{}", ["train-0"]),
        ('{"nodes', ["train-0"]),
        ("7", ["train-0"]),
        (None, ["train-0"]),
    ],
)
def test_nodes_that_were_about_to_be_made_count(cluster: Cluster, intent: str | None, names: list[str]) -> None:
    if intent is not None:
        cluster.paths.intent.write_text(intent)
    assert down.recorded_nodes(cluster) == names


# a fleet that another computer made


@pytest.fixture
def shared(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    monkeypatch.setattr(Cluster, "remote", SimpleNamespace(terraform=lambda _: ("s3", {})))
    monkeypatch.setattr(Cluster, "lock", Lock(request={}, simulated=True, groups={"train": STACK}))
    return cluster


def test_the_plan_is_made_where_the_root_module_is_missing(shared: Cluster) -> None:
    assert down._plan_to_render(shared, "here") is None
    (shared.paths.site("here") / "main.tf").unlink()
    plan = down._plan_to_render(shared, "here")
    assert plan is not None and plan.sites() == ["here"]
    with pytest.raises(GpuprovError, match="machines exist at site there, which no group uses any more"):
        down._plan_to_render(shared, "there")


def test_a_fleet_of_this_computer_alone_needs_no_plan(cluster: Cluster) -> None:
    folder = cluster.paths.site("here")
    (folder / "main.tf").unlink()
    (folder / STATE).unlink(missing_ok=True)
    assert down._plan_to_render(cluster, "here") is None
    (folder / STATE).write_text("{}")
    with pytest.raises(GpuprovError, match=r"neither its main\.tf nor cluster\.lock is here") as raised:
        down._plan_to_render(cluster, "here")
    assert raised.value.hint == f"restore {folder / 'main.tf'}"


@pytest.mark.parametrize("name", [STATE, ERRORED])
def test_a_state_without_its_root_module_needs_one(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(Cluster, "lock", Lock(request={}, simulated=True, groups={"train": STACK}))
    cluster.paths.lock_file.write_text("")
    for site in ("here", "there"):
        private_dir(cluster.paths.site(site))
        (cluster.paths.site(site) / "main.tf").unlink(missing_ok=True)
        (cluster.paths.site(site) / name).write_text("{}")
    plan = down._plan_to_render(cluster, "here")
    assert plan is not None and plan.sites() == ["here"]
    with pytest.raises(GpuprovError, match=r"machines exist at site there, which no group uses any more") as raised:
        down._plan_to_render(cluster, "there")
    assert f"restore {cluster.paths.site('there') / 'main.tf'}" in raised.value.hint


def test_what_is_shared_is_removed_last(
    cluster: Cluster, world: World, ending: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.sharing = SimpleNamespace(  # type: ignore[assignment]
        remove=lambda: ending.append("shared"), share=lambda: None, remote=None, findings=(),
        held=lambda *_, **__: contextlib.nullcontext(),
    )  # fmt: skip
    monkeypatch.setattr(Cluster, "remote", None)
    take_down(cluster)
    assert ending == ["scheduler", "ssh 1", "shared"]


def test_what_terraform_refuses_twice_and_no_tag_finds_is_named_as_left(cluster: Cluster, world: World) -> None:
    world.refused = ["role: DeleteConflict"] * 2
    with pytest.raises(ProviderError) as caught:
        take_down(cluster)
    assert caught.value.message.startswith("not removed: ") and "DeleteConflict" in caught.value.message
