"""`image prune`: which builds go, and for what reason each of the others stays."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from provisioner.common.errors import GpuprovError, ProviderError
from provisioner.common.events import Event, Events
from provisioner.lifecycle.images import commands
from provisioner.lifecycle.images import prune as module
from provisioner.lifecycle.images.prune import named_by, prune
from provisioner.output.image import ImagePruneOutput

BUILDS = [f"2026010{day}-000000" for day in range(1, 8)]


@dataclass
class Images:
    """Machines that were made of images, by id; `broken`: nobody can be asked."""

    machines: dict[str, list[str]] = field(default_factory=dict)
    broken: bool = False
    deleted: list[tuple[Any, dict[str, str]]] = field(default_factory=list)

    def used(self, ids: dict[str, str]) -> list[str]:
        if self.broken:
            raise ProviderError("access denied")
        return [machine for id in ids.values() for machine in self.machines.get(id, [])]

    def delete(self, ids: dict[str, str], tags: dict[str, str]) -> None:
        self.deleted.append((ids, tags))


@dataclass
class World:
    """A recipe with seven builds. `earlier`: channel → builds that it had before."""

    folder: Path
    channels: dict[str, str] = field(default_factory=dict)
    earlier: dict[str, list[str]] = field(default_factory=dict)
    images: Images = field(default_factory=Images)
    sites: tuple[str, ...] = ("here",)
    forgotten: list[str] = field(default_factory=list)
    journals: list[Any] = field(default_factory=list)
    leftover: dict[str, list[str]] = field(default_factory=dict)
    """Build that failed → what of it could not be removed."""
    events: list[Event] = field(default_factory=list)
    disks: list[tuple[str, str]] = field(default_factory=list)

    @property
    def recipe(self) -> Any:
        store = SimpleNamespace(
            builds=lambda: list(BUILDS), channels=lambda: self.channels, forget=self.forgotten.append,
            earlier=lambda channel: self.earlier.get(channel, []), manifest=self.manifest, withdraw=self.manifest,
            withdrawn=list, clear_channels=self.clear_channels,
        )  # fmt: skip
        provider = SimpleNamespace(images=self.images)
        cluster = SimpleNamespace(
            providers=SimpleNamespace(at=lambda _: provider), events=Events(self.events.append),
            spec=SimpleNamespace(sites=dict.fromkeys(self.sites, SimpleNamespace(provider="aws"))),
        )  # fmt: skip
        settings = SimpleNamespace(keep=2)
        return SimpleNamespace(name="pytorch", book=store, cluster=cluster, settings=settings, folder=self.folder)

    def clear_channels(self) -> None:
        self.channels, self.earlier = {}, {}

    @staticmethod
    def manifest(build: str) -> Any:
        target = SimpleNamespace(site="here", provider="aws", ids={"us-east-1": f"ami-{build}"})
        return SimpleNamespace(name="pytorch", build=build, targets={"p4d": target})


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    test_world = World(tmp_path)
    monkeypatch.setattr(module.work, "journals", lambda _: test_world.journals)
    monkeypatch.setattr(module.failure, "cleaned", lambda _, __, build: test_world.leftover.get(build, []))
    monkeypatch.setattr(module.disk, "delete", lambda _, name, build: test_world.disks.append((name, build)))
    return test_world


def run(world: World, locks: Collection[Path] = ()) -> ImagePruneOutput:
    return prune(world.recipe, None, list(locks))  # type: ignore[arg-type]


def reason_by_build(result: dict[str, Any]) -> dict[str, str]:
    return {row.build: row.why for row in result.kept}


def test_old_builds_that_nothing_uses_go_with_their_images_and_disks(world: World) -> None:
    result = run(world)
    old = BUILDS[:-2]
    assert (result.image, result.removed, world.forgotten) == ("pytorch", old, old)
    assert reason_by_build(result) == dict.fromkeys(BUILDS[-2:], "one of the newest 2")
    assert world.images.deleted[0] == (
        {"us-east-1": f"ami-{old[0]}"},
        {"gpuprov-image": "pytorch", "gpuprov-build": old[0], "gpuprov-target": "p4d"},
    )
    assert len(world.images.deleted) == 5 and world.disks == [("p4d", build) for build in old]
    assert [(event.kind, event.message) for event in world.events] == [
        ("progress", f"removed build {build}") for build in old
    ]


def test_a_build_of_a_channel_and_the_one_that_it_goes_back_to_stay(world: World) -> None:
    world.channels = {"stable": BUILDS[0], "nightly": BUILDS[6]}
    world.earlier = {"stable": [BUILDS[1], BUILDS[2]], "candidate": [BUILDS[3]], "nightly": [BUILDS[4]]}
    result = run(world)
    assert reason_by_build(result) == {
        BUILDS[0]: "channel stable has it",
        BUILDS[2]: "channel stable goes back to it",
        BUILDS[3]: "channel candidate goes back to it",
        BUILDS[5]: "one of the newest 2",
        BUILDS[6]: "channel nightly has it",
    }
    assert result.removed == [BUILDS[1], BUILDS[4]], "nightly goes back to nothing"


@pytest.mark.parametrize(
    ("machines", "reason"),
    [
        (["i-1"], "p4d: i-1 was made of it"),
        ([f"i-{n}" for n in range(7)], "p4d: i-0, i-1, i-2, i-3, i-4 were made of it"),
    ],
)
def test_a_build_that_machines_were_made_of_stays(world: World, machines: list[str], reason: str) -> None:
    world.images.machines = {f"ami-{BUILDS[1]}": machines}
    result = run(world)
    assert reason_by_build(result)[BUILDS[1]] == reason
    assert BUILDS[1] not in result.removed and BUILDS[0] in result.removed


def test_a_build_that_nobody_can_be_asked_about_stays(world: World) -> None:
    world.images.broken = True
    result = run(world)
    assert result.removed == [] and world.images.deleted == []
    assert reason_by_build(result)[BUILDS[0]] == "p4d: whether machines use it could not be asked: access denied"


def test_a_build_at_a_site_that_the_recipe_does_not_have_any_more_stays(world: World) -> None:
    world.sites = ("elsewhere",)
    result = run(world)
    assert result.removed == []
    assert reason_by_build(result)[BUILDS[0]] == "p4d: the recipe has no site here any more, and nobody can be asked"


# locks


def locks(monkeypatch: pytest.MonkeyPatch, **images: str) -> None:
    """cluster.lock files by name, each with an image and its build: "path@channel build"."""

    def read(path: Path) -> Any:
        if path.name not in images:
            return None
        name, _, build = images[path.name].rpartition(" ")
        return SimpleNamespace(images={"train": SimpleNamespace(name=name, build=build)})

    monkeypatch.setattr(module.lockfile, "read", read)


def test_a_build_that_a_lock_names_stays(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    locks(monkeypatch, a=f"images/pytorch@stable {BUILDS[1]}", b=f"images/other@stable {BUILDS[2]}")
    result = run(world, [Path("a"), Path("b")])
    assert reason_by_build(result)[BUILDS[1]] == "a names it"
    assert BUILDS[2] in result.removed


def test_a_lock_that_is_not_there_may_name_any_build(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    locks(monkeypatch)
    with pytest.raises(GpuprovError, match="there is no such lock") as caught:
        run(world, [Path("fleet.lock")])
    assert caught.value.where == "fleet.lock"
    assert (world.forgotten, world.images.deleted) == ([], [])


def test_a_lock_names_builds_of_this_recipe_alone(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    locks(monkeypatch, a="pytorch 1", b="x/pytorch@nightly 2", c="pytorch-2@stable 3")
    assert named_by(world.recipe, [Path("a"), Path("b"), Path("c")]) == {"1": "a", "2": "b"}


# builds that failed


def test_evidence_of_failed_builds_goes_but_for_the_newest(world: World) -> None:
    for build in ("f1", "f2", "f3", "fine"):
        (world.folder / build).mkdir()
    failure = {"step": "proven"}
    world.journals = [
        SimpleNamespace(build=build, failed=failure if build != "fine" else None)
        for build in ("f1", "fine", "f2", "f3")
    ]
    result = run(world)
    assert result.removed[-2:] == ["f1", "f2"]
    assert sorted(path.name for path in world.folder.iterdir()) == ["f3", "fine"]


def test_a_failed_build_that_left_something_that_costs_money_stops_it(world: World) -> None:
    (world.folder / "f1").mkdir()
    world.journals = [SimpleNamespace(build=build, failed={"step": "proven"}) for build in ("f1", "f2")]
    world.leftover = {"f2": ["p4d's machine: in use"]}
    with pytest.raises(GpuprovError, match="build f2: p4d's machine: in use"):
        run(world)
    assert (world.folder / "f1").exists()


def test_all_takes_the_newest_and_the_channels_and_leaves_what_is_used(world: World) -> None:
    world.channels, world.earlier = {"nightly": BUILDS[6], "stable": BUILDS[5]}, {"stable": [BUILDS[4]]}
    world.images.machines = {f"ami-{BUILDS[0]}": ["i-7"]}
    result = prune(world.recipe, None, [], everything=True)  # type: ignore[arg-type]
    assert result.removed == BUILDS[1:]
    assert [row.build for row in result.kept] == [BUILDS[0]] and "was made of it" in result.kept[0].why
    assert world.channels == {}


def test_all_is_refused_for_real_images() -> None:
    with pytest.raises(GpuprovError, match="--all is for the builds of a sandbox"):
        commands.prune(SimpleNamespace(sandbox=False, name="pytorch"), None, everything=True)  # type: ignore[arg-type]
