"""Builds, nights, and what is left of old ones, with machines and images that are rows of a list: killed after every
step and gone on, failed at every step and cleaned up."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from provisioner.cli.image import app
from provisioner.common.errors import ConfigureError, GpuprovError, ProviderError
from provisioner.common.paths import remove_tree
from provisioner.lifecycle import up
from provisioner.lifecycle.down import down as real_down
from provisioner.lifecycle.images import commands, failure, nightly, pipeline, virtual, work
from provisioner.lifecycle.images import disk_images as disk
from provisioner.lifecycle.images.book import Book
from provisioner.lifecycle.images.builder import Builder, Installed
from provisioner.lifecycle.images.disk import base_system, tools
from provisioner.lifecycle.images.manifest import Proof
from provisioner.lifecycle.images.page import html
from provisioner.lifecycle.images.recipe import Recipe, open_recipe
from provisioner.lifecycle.session import open_cluster
from provisioner.machines.providers.images import Image
from provisioner.stack import request, solve
from provisioner.stack.models import BaseImage, Lock
from tests.support.builds import RECIPE, recipe
from tests.support.plans import with_digests

pytestmark = pytest.mark.heavy

TWO = RECIPE.replace("groups: {", "groups: { p5: { machine: p5.48xlarge },")


class Killed(BaseException):
    """The process is gone."""


@dataclass
class World:
    """Machines and images that exist. `die` and `break_`: the step at which the process dies, or which fails."""

    machines: set[str] = field(default_factory=set)
    images: dict[str, str] = field(default_factory=dict)
    steps: list[str] = field(default_factory=list)
    die: str = ""
    fails: str = ""
    refuses: str = ""
    base: str = "ami-0"
    running_of: dict[str, str] = field(default_factory=dict)
    tags: dict[str, dict[str, str]] = field(default_factory=dict)

    def step(self, name: str) -> None:
        """Before a step's end nothing of it is written down."""
        self.steps.append(name)
        if name == self.die:
            self.die = ""
            raise Killed
        if name == self.fails:
            raise ProviderError(f"{name} does not work")

    def builder(self, _group: Any, requested: str | None) -> str:
        return requested or "m7i.2xlarge"

    def check(self, _regions: Any, _accounts: Any) -> None:
        if self.refuses:
            raise ProviderError(self.refuses)

    def find(self, name: str) -> Image | None:
        return Image(self.images[name], ready=True) if name in self.images else None

    def copies(self, name: str, _regions: Any) -> dict[str, str]:
        return {"us-east-1": self.images[name]} if name in self.images else {}

    def capture(self, _node: Any, name: str, tags: dict[str, str], _report: Any) -> str:
        self.images[name] = f"ami-{len(self.tags)}"
        self.tags[self.images[name]] = dict(tags)
        self.step(f"capture {name.split('-')[2]}")
        return self.images[name]

    def publish(self, image: str, name: str, *_: Any) -> dict[str, str]:
        self.step(f"publish {name.split('-')[2]}")
        return {"us-east-1": image}

    def delete(self, ids: dict[str, str], tags: dict[str, str]) -> None:
        for number in ids.values():
            if number in self.images.values() and not tags.items() <= self.tags[number].items():
                raise ProviderError(f"{number} is somebody else's")
        self.images = {name: number for name, number in self.images.items() if number not in ids.values()}

    def used(self, ids: dict[str, str]) -> list[str]:
        return [machine for machine, image in self.running_of.items() if image in ids.values()]


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    test_world = World()

    def make(self: Builder, _binary: Any) -> Any:
        test_world.machines.add(str(self.cluster.file))
        self.cluster.paths.root.mkdir(parents=True, exist_ok=True)
        test_world.step(f"make {self.group}")
        return SimpleNamespace(name=f"{self.group}-0", id="i-1")

    def install(self: Builder, _node: Any) -> Installed:
        test_world.step(f"install {self.group}")
        return Installed({"base": {"digest": "a", "installed": "b"}}, {"jq": "1.7-2build1"}, "6.8", {"jq": "jq 1.7-2"})

    def generalise(self: Builder, _node: Any, identity: dict[str, str]) -> list[str]:
        assert set(identity) == {"image", "build", "target"}
        test_world.step(f"generalise {self.group}")
        return ["host keys"]

    def prove(cluster: Any, _binary: Any, folder: Path, boots: int) -> list[Proof]:
        (group,) = cluster.spec.groups
        test_world.machines.add(str(cluster.file))
        cluster.paths.root.mkdir(parents=True, exist_ok=True)
        test_world.step(f"prove {group}")
        (folder / f"{group}-boot-1.json").write_text("{}")
        results = {"passed": 1, "warned": 0, "unknown": 0, "report": f"{group}-boot-1.json"}
        return [Proof(machine="m", node=f"{group}-0", level="standard", **results) for _ in range(boots)]  # type: ignore[arg-type]

    def down(cluster: Any, _binary: Any) -> None:
        test_world.machines.discard(str(cluster.file))
        test_world.step(f"down {next(iter(cluster.spec.groups))}")

    def solved(recipe: Recipe, *, renew: bool) -> Lock:
        spec = recipe.cluster.spec
        groups = {name: with_digests(stack) for name, stack in solve(spec).items()}
        bases = {"virginia": {"ubuntu-24.04": BaseImage(id=test_world.base, why="newest")}}
        return Lock(request=request(spec), simulated=True, bases=bases, groups=groups)

    monkeypatch.setattr(Builder, "images", property(lambda _: test_world))
    monkeypatch.setattr(Builder, "make", make)
    monkeypatch.setattr(Builder, "install", install)
    monkeypatch.setattr(Builder, "generalise", generalise)
    monkeypatch.setattr(pipeline.boot_test, "prove", prove)
    monkeypatch.setattr(pipeline.boot_test, "lock_for", lambda *_: None)
    monkeypatch.setattr(work, "down", down)
    monkeypatch.setattr(pipeline, "solved", solved)
    numbers = iter(range(100))
    monkeypatch.setattr(work, "new_id", lambda _: f"20260131-0315{next(numbers):02d}")
    return test_world


BINARY: Any = None


def nights(folder: Path, *texts: str, force: bool = False) -> list[nightly.Night]:
    """A night of these recipes, which are called as they say."""
    files = [recipe(folder, text, text.split()[1]) for text in texts or (TWO,)]
    return nightly.run(files, lambda file: open_recipe(file, sandbox=False), lambda: BINARY, force=force)


def opened(folder: Path, text: str = TWO) -> Recipe:
    return open_recipe(recipe(folder, text), sandbox=False)


STEPS = [f"{verb} {group}" for group in ("p5", "p4d") for verb in
         ("make", "install", "generalise", "capture", "down", "prove", "publish")]  # fmt: skip


def test_a_build_leaves_its_images_and_no_machine(tmp_path: Path, world: World) -> None:
    built = commands.build(opened(tmp_path), BINARY)
    assert world.machines == set()
    assert sorted(world.images.values()) == sorted(number for t in built.targets.values() for number in t.ids.values())
    store = opened(tmp_path).book
    assert store.channels() == {"nightly": built.build}
    assert sorted(built.files) == ["p4d-boot-1.json", "p4d.cdx.json", "p5-boot-1.json", "p5.cdx.json"]
    bill = json.loads((store.build(built.build) / "p4d.cdx.json").read_text())
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
    jq = "pkg:deb/ubuntu/jq@1.7-2build1?distro=ubuntu-24.04&upstream=jq%401.7-2"
    assert jq in {component.get("purl") for component in bill["components"]}
    # a scanner takes the only operating system for the distribution, and what depends on it for its packages
    systems = [
        (component["name"], component["version"])
        for component in bill["components"]
        if component["type"] == "operating-system"
    ]
    assert (systems, bill["metadata"]["component"]["type"]) == ([("ubuntu", "24.04")], "platform")
    assert [dependency["ref"] for dependency in bill["dependencies"] if jq in dependency.get("dependsOn", ())] == [
        "ubuntu-24.04"
    ]
    assert not any(opened(tmp_path).folder.iterdir())


@pytest.mark.parametrize("step", STEPS)
def test_killed_at_any_step_it_goes_on_and_makes_nothing_twice(tmp_path: Path, world: World, step: str) -> None:
    world.die = step
    with pytest.raises(Killed):
        commands.build(opened(tmp_path), BINARY)
    built = commands.build(opened(tmp_path), BINARY)
    assert (world.machines, len(world.images), built.build) == (set(), 2, "20260131-031500")
    killed_step, group = step.split()
    for name in ("capture", "prove", "publish"):
        assert world.steps.count(f"{name} {group}") == 1 + (name == killed_step and name != "capture"), world.steps
    if group == "p4d":
        assert [row for row in world.steps if row.endswith(" p5")].count("make p5") == 1


@pytest.mark.parametrize("step", [step for step in STEPS if not step.startswith("down")])
def test_failed_at_any_step_it_leaves_evidence_and_nothing_that_runs(tmp_path: Path, world: World, step: str) -> None:
    first_build = commands.build(opened(tmp_path), BINARY)
    world.fails = step
    with pytest.raises(ProviderError, match=f"{step} does not work"):
        commands.build(opened(tmp_path), BINARY)
    assert world.machines == set()
    assert set(world.images.values()) == {number for t in first_build.targets.values() for number in t.ids.values()}
    overview = commands.overview(opened(tmp_path))
    assert overview.channels == {"nightly": first_build.build}
    (failed,) = overview.failed
    assert (failed.target, step in failed.message) == (step.split()[1], True)
    assert Path(failed.evidence).is_dir()
    world.fails = ""
    assert commands.build(opened(tmp_path), BINARY).build > first_build.build


def test_what_publish_cannot_do_is_said_before_anything_is_made(tmp_path: Path, world: World) -> None:
    world.refuses = "no copy is encrypted in another region"
    with pytest.raises(GpuprovError, match="no copy is encrypted"):
        commands.build(opened(tmp_path), BINARY)
    assert (world.machines, world.images, world.steps) == (set(), {}, [])


def test_what_could_not_be_removed_is_named(tmp_path: Path, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any) -> None:
        raise ProviderError("the cloud is down")

    world.fails = "install p4d"
    monkeypatch.setattr(work, "down", refused)
    with pytest.raises(ProviderError, match=r"not removed: p4d's machine \(build\): the cloud is down"):
        commands.build(opened(tmp_path, RECIPE), BINARY)


@pytest.mark.parametrize(
    "change", [lambda t: t.replace("p4d.24xlarge", "p5.48xlarge"), lambda t: t + "verify: { level: stress }\n"]
)
def test_killed_and_then_changed_it_begins_anew(tmp_path: Path, world: World, change: Callable[[str], str]) -> None:
    world.die = "publish p4d"
    with pytest.raises(Killed):
        commands.build(opened(tmp_path, RECIPE), BINARY)
    built = commands.build(opened(tmp_path, change(RECIPE)), BINARY)
    assert built.build == "20260131-031501"
    assert world.steps.count("prove p4d") == 2
    assert list(world.images.values()) == list(built.targets["p4d"].ids.values())
    assert world.machines == set()


def test_killed_between_the_manifest_and_the_channel_it_gets_there(
    tmp_path: Path, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Book.move

    def move(*_: Any) -> None:
        raise Killed

    monkeypatch.setattr(Book, "move", move)
    with pytest.raises(Killed):
        commands.build(opened(tmp_path, RECIPE), BINARY)
    monkeypatch.setattr(Book, "move", real)
    built = commands.build(opened(tmp_path, RECIPE), BINARY)
    assert opened(tmp_path, RECIPE).book.channels() == {"nightly": built.build} == {"nightly": "20260131-031500"}
    assert len(world.images) == 1
    assert not any(opened(tmp_path, RECIPE).folder.iterdir())


@pytest.mark.parametrize("step", ["channel", "folder"])
@pytest.mark.parametrize("fails", [False, True])
def test_a_build_that_was_published_stays_whatever_changes_next(
    tmp_path: Path, world: World, monkeypatch: pytest.MonkeyPatch, step: str, *, fails: bool
) -> None:
    """Killed after its manifest was written; the next night has other inputs (a newer gpuprov is enough)."""

    def killed(*_: Any) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(*((Book, "move") if step == "channel" else (pipeline, "remove_tree")), killed)
        with pytest.raises(Killed):
            nights(tmp_path, RECIPE)
    store = opened(tmp_path, RECIPE).book
    (first,) = store.builds()
    if step == "folder":
        for channel in ("candidate", "stable"):
            commands.promote(opened(tmp_path, RECIPE), channel, None)
    world.base, world.fails = "ami-new", "make p4d" if fails else ""
    changed = RECIPE + "verify: { level: stress }\n"
    (night,) = nights(tmp_path, changed)
    assert night.outcome == ("failed" if fails else "built")
    assert set(store.manifest(first).targets["p4d"].ids.values()) <= set(world.images.values())
    newest = first if fails else night.build
    promoted = {"candidate": first, "stable": first} if step == "folder" else {}
    assert store.channels() == {"nightly": newest, **promoted}
    assert not (opened(tmp_path, RECIPE).folder / first).exists()


def test_a_build_that_was_published_is_not_made_again_from_what_is_left_of_its_folder(
    tmp_path: Path, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed while the folder was removed: nothing of the build can be written anew, and its images stay."""

    def killed(folder: Path) -> None:
        remove_tree(folder / "proofs")
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(pipeline, "remove_tree", killed)
        with pytest.raises(Killed):
            commands.build(opened(tmp_path, RECIPE), BINARY)
    store = opened(tmp_path, RECIPE).book
    (first,) = store.builds()
    manifest = (store.build(first) / "manifest.json").read_text()
    assert commands.build(opened(tmp_path, RECIPE), BINARY).build == first
    assert (store.build(first) / "manifest.json").read_text() == manifest
    assert len(world.images) == 1


def test_a_published_build_that_left_channel_nightly_does_not_come_back_to_it(
    tmp_path: Path, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    first_build = commands.build(opened(tmp_path, RECIPE), BINARY)

    def killed(*_: Any) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(pipeline, "remove_tree", killed)
        with pytest.raises(Killed):
            commands.build(opened(tmp_path, RECIPE), BINARY)
    commands.rollback(opened(tmp_path, RECIPE), "nightly")
    commands.build(opened(tmp_path, RECIPE), BINARY)  # ends what was killed: nothing has changed since
    assert opened(tmp_path, RECIPE).book.channels() == {"nightly": first_build.build}
    assert len(world.images) == 2


@pytest.mark.parametrize("location", ["builds", "work"])
def test_the_newest_build_has_the_greatest_id_after_a_clock_that_was_ahead(tmp_path: Path, location: str) -> None:
    """`prune`, "unchanged" and the page go by it."""
    image = opened(tmp_path, RECIPE)
    folder = image.book.build("21060207-062815") if location == "builds" else image.folder / "21060207-062815"
    folder.mkdir(parents=True)
    (folder / ("manifest.json" if location == "builds" else "journal.json")).write_text("{}")
    (image.book.folder / "builds" / "notes").mkdir(parents=True)
    (image.book.folder / "builds" / "notes" / "manifest.json").write_text("{}")
    assert work.new_id(image) == "21060207-062816"


def test_the_id_of_a_build_is_when_it_is_begun(tmp_path: Path) -> None:
    earliest = datetime.now(UTC).strftime(work.ID)
    assert earliest <= work.new_id(opened(tmp_path, RECIPE)) <= datetime.now(UTC).strftime(work.ID)


def test_a_build_that_was_cut_off_is_listed_with_how_it_goes_on(tmp_path: Path, world: World) -> None:
    world.die = "install p5"
    with pytest.raises(Killed):
        commands.build(opened(tmp_path), BINARY)
    output = CliRunner().invoke(app, ["list", str(tmp_path / "images" / "pytorch.yaml")]).output
    assert output.startswith("20260131-031500  begun, and not finished yet: `gpuprov image build ")
    assert "never built" not in output


def test_a_damaged_book_is_said_before_anything_is_made(tmp_path: Path, world: World) -> None:
    store = opened(tmp_path, RECIPE).book
    store.folder.mkdir(parents=True)
    (store.folder / "book.json").write_text("<<<<<<< ours\n")
    with pytest.raises(GpuprovError, match="is damaged"):
        commands.build(opened(tmp_path, RECIPE), BINARY)
    assert world.steps == []


def test_a_full_disk_keeps_no_machine_running(tmp_path: Path, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device", "evidence")

    monkeypatch.setattr(failure, "keep_evidence", full)
    monkeypatch.setattr(Builder, "install", full)
    with pytest.raises(GpuprovError, match="No space left"):
        commands.build(opened(tmp_path, RECIPE), BINARY)
    assert world.machines == set()


def test_what_could_not_be_removed_is_tried_again(
    tmp_path: Path, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = work.down

    def refused(*_: Any) -> None:
        raise ProviderError("the cloud is down")

    world.fails = "install p4d"
    monkeypatch.setattr(work, "down", refused)
    with pytest.raises(ProviderError):
        commands.build(opened(tmp_path, RECIPE), BINARY)
    assert len(world.machines) == 1
    monkeypatch.setattr(work, "down", real)
    world.fails = ""
    commands.build(opened(tmp_path, RECIPE), BINARY)
    assert world.machines == set()


def test_a_group_that_is_called_otherwise_by_now_is_removed_all_the_same(tmp_path: Path, world: World) -> None:
    world.die = "install p4d"
    with pytest.raises(Killed):
        commands.build(opened(tmp_path, RECIPE), BINARY)
    commands.build(opened(tmp_path, RECIPE.replace("p4d:", "big:")), BINARY)
    assert world.machines == set()


def test_an_image_that_only_the_manifest_calls_ours_stays(
    tmp_path: Path, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = opened(tmp_path, RECIPE.replace("keep: 2", "keep: 1"))
    old, _ = (commands.build(recipe, BINARY) for _ in range(2))
    world.images["company"], world.tags["ami-company"] = "ami-company", {}
    file = recipe.book.build(old.build) / "manifest.json"
    file.write_text(file.read_text().replace(old.targets["p4d"].ids["us-east-1"], "ami-company"))
    monkeypatch.setattr(recipe.cluster.providers, "at", lambda _: SimpleNamespace(images=world))
    with pytest.raises(ProviderError, match="ami-company is somebody else's"):
        commands.prune(recipe, BINARY)
    assert "ami-company" in world.images.values()


def test_down_of_a_recipe_is_refused(tmp_path: Path, world: World) -> None:
    file = recipe(tmp_path, RECIPE)
    with pytest.raises(GpuprovError, match="is a recipe of images, not a fleet"):
        real_down(open_cluster(file), BINARY)


def test_a_night_without_news_builds_nothing(tmp_path: Path, world: World) -> None:
    (first,) = nights(tmp_path)
    assert (first.outcome, first.changed) == ("built", ("it was never built",))
    previous_steps = list(world.steps)
    (second,) = nights(tmp_path)
    assert (second.outcome, second.build, world.steps) == ("unchanged", first.build, previous_steps)
    world.base = "ami-new"
    (third,) = nights(tmp_path)
    assert (third.outcome, third.changed) == ("built", ("base image of virginia ubuntu-24.04: ami-0 → ami-new",))
    (forced,) = nights(tmp_path, force=True)
    assert (forced.outcome, forced.changed) == ("built", ())
    assert [row["outcome"] for row in opened(tmp_path).book.told_nights()] == ["built", "unchanged", "built", "built"]


@pytest.mark.parametrize(
    ("change", "reasons"),
    [
        (lambda t: t.replace("keep: 2", "keep: 3"), ()),
        (lambda t: t.replace("keep: 2", "boots: 3"), ("the recipe",)),
        (lambda t: t + 'stack: { driver: "570" }\n', ("the recipe", "versions of p4d")),
    ],
)
def test_only_what_changes_an_image_is_news(
    tmp_path: Path, world: World, change: Callable[[str], str], reasons: tuple[str, ...]
) -> None:
    nights(tmp_path, RECIPE)
    (night,) = nights(tmp_path, change(RECIPE))
    assert night.changed == reasons
    assert night.outcome == ("built" if reasons else "unchanged")
    assert world.machines == set()


def test_a_night_that_fails_is_told_and_keeps_no_other_from_its_own(tmp_path: Path, world: World) -> None:
    hook = '{ printf \'%s|%s|%s\' "$GPUPROV_IMAGE" "$GPUPROV_STEP" "$GPUPROV_MESSAGE" > told; }'
    bad = RECIPE.replace("keep: 2", f"failed: {json.dumps(hook)}")
    valid_recipe = RECIPE.replace("name: pytorch", "name: other").replace("p4d:", "p4x:")
    wrong = RECIPE.replace("name: pytorch", "name: wrong").replace("keep: 2", "keep: 2, targets: { p5: {} }")
    world.fails = "prove p4d"
    outcomes = nights(tmp_path, bad, wrong, valid_recipe)
    assert [(night.outcome, night.step) for night in outcomes] == [
        ("failed", "proven"), ("failed", "reading the recipe"), ("built", ""),
    ]  # fmt: skip
    assert (tmp_path / "images" / "told").read_text() == "pytorch|proven|prove p4d does not work"
    assert outcomes[0].alerted == "image.failed ran"
    page = Path(outcomes[0].page).read_text()
    assert "prove p4d does not work" in page
    assert 'class="failed"' in page


def test_a_hook_that_fails_is_said_and_hides_nothing(tmp_path: Path, world: World) -> None:
    world.fails = "install p4d"
    (night,) = nights(tmp_path, RECIPE.replace("keep: 2", "failed: 'echo no network >&2; exit 3'"))
    assert night.outcome == "failed"
    assert night.alerted == "image.failed ended with status 3: no network"


def test_prune_leaves_the_newest_and_all_that_is_used(
    tmp_path: Path, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = opened(tmp_path, RECIPE)
    builds = [commands.build(recipe, BINARY) for _ in range(7)]
    ids = [build.targets["p4d"].ids["us-east-1"] for build in builds]
    names = [build.build for build in builds]
    monkeypatch.setattr(recipe.cluster.providers, "at", lambda _: SimpleNamespace(images=world))
    commands.promote(recipe, "stable", names[0])
    commands.promote(recipe, "stable", names[1])
    world.running_of = {"i-7": ids[2]}
    lock = tmp_path / "cluster.lock"
    from provisioner.stack import lockfile
    from provisioner.stack.models import GoldenImage

    solved = pipeline.solved(recipe, renew=False)
    golden = {"p4d": GoldenImage(name="../images/pytorch@stable", build=names[3], id=ids[3])}
    lockfile.write(lock, solved.model_copy(update={"simulated": True, "images": golden}))
    result = commands.prune(recipe, BINARY, [lock])
    assert result.removed == [names[4]]
    assert {row.build: row.why.split(":")[-1].strip() for row in result.kept} == {
        names[0]: "channel stable goes back to it", names[1]: "channel stable has it", names[2]: "i-7 was made of it",
        names[3]: f"{lock} names it", names[5]: "one of the newest 2", names[6]: "channel nightly has it",
    }  # fmt: skip
    assert ids[4] not in world.images.values()
    assert len(world.images) == 6
    with pytest.raises(GpuprovError, match="there is no such lock"):
        commands.prune(recipe, BINARY, [tmp_path / "none.lock"])


def test_a_build_that_cannot_be_asked_about_stays(
    tmp_path: Path, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = opened(tmp_path, RECIPE.replace("keep: 2", "keep: 1"))
    builds = [commands.build(recipe, BINARY).build for _ in range(2)]

    def silent(_: Any) -> list[str]:
        raise ProviderError("no answer")

    monkeypatch.setattr(world, "used", silent)
    monkeypatch.setattr(recipe.cluster.providers, "at", lambda _: SimpleNamespace(images=world))
    result = commands.prune(recipe, BINARY)
    assert result.removed == []
    assert result.kept[0].to_json() == {
        "build": builds[0],
        "why": "p4d: whether machines use it could not be asked: no answer",
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (RECIPE.replace("image: { keep: 2 }\n", ""), "is not an image recipe"),
        (RECIPE.replace("name: pytorch", "name: other"), "the image is called other and its file pytorch.yaml"),
        (RECIPE.replace("keep: 2", "targets: { p5: {} }"), "has no group p5"),
        (RECIPE.replace("keep: 2", 'targets: { p4d: { share_with: ["1"] } }'), "no other account can use them"),
        (
            RECIPE.replace("machine: p4d.24xlarge", "machine: p4d.24xlarge, count: 2"),
            "an image is built of one machine",
        ),
        (RECIPE.replace("machine: p4d.24xlarge", "machine: p4d.24xlarge, image: x@stable"), "not built of another one"),
    ],
)
def test_what_is_no_recipe_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(GpuprovError, match=message):
        open_recipe(recipe(tmp_path, text), sandbox=False)


def test_a_recipe_is_no_fleet(tmp_path: Path) -> None:
    file = recipe(tmp_path, RECIPE)
    with pytest.raises(GpuprovError, match="is a recipe of images, not a fleet"):
        up.up(open_cluster(file), BINARY, confirm=lambda *_: True)


def test_a_damaged_journal_is_an_error_with_its_file(tmp_path: Path, world: World) -> None:
    world.die = "install p4d"
    with pytest.raises(Killed):
        commands.build(opened(tmp_path, RECIPE), BINARY)
    (file,) = opened(tmp_path, RECIPE).folder.glob("*/journal.json")
    file.write_text("{")
    with pytest.raises(GpuprovError, match="is damaged"):
        commands.build(opened(tmp_path, RECIPE), BINARY)


def test_what_is_wrong_on_the_builder_is_told(tmp_path: Path, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def install(*_: Any) -> Installed:
        raise ConfigureError("what was installed is not what is locked:\n  jq is not held")

    monkeypatch.setattr(Builder, "install", install)
    with pytest.raises(ConfigureError, match="jq is not held"):
        commands.build(opened(tmp_path, RECIPE), BINARY)
    assert (world.machines, world.images) == (set(), {})


@pytest.mark.parametrize(
    ("system", "user", "message"),
    [
        ("ubuntu-22.04", 0, "made of debian-12 or ubuntu-24.04, not of ubuntu-22.04"),
        ("debian-12", 0, "the signing keys of debian-12 are not installed here"),
        ("debian-12", 1000, "not without root"),
    ],
)
def test_a_virtual_machine_that_cannot_be_made_here_is_refused_before_anybody_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, system: str, user: int, message: str
) -> None:
    file = tmp_path / "metal.yaml"
    file.write_text(
        "name: metal\nsites: {rack: {provider: baremetal, hosts: {d1.lab: {}}}}\n"
        "groups: {train: {machine: dgx-h100}}\nimage: {targets: {train: {disk: {path: disks}}}}\n"
        f"stack: {{os: {system}}}\n"
    )
    monkeypatch.setattr(tools, "require", lambda **_: None)
    monkeypatch.setattr("os.geteuid", lambda: user)
    archives = {name: replace(row, keyring=tmp_path / "no.gpg") for name, row in base_system.ARCHIVES.items()}
    monkeypatch.setattr(base_system, "ARCHIVES", archives)
    with pytest.raises(GpuprovError, match=message):
        commands.refuse_unbuildable(open_recipe(file, sandbox=False))


METAL = """\
name: pytorch
sites: { virginia: { provider: baremetal, hosts: { d1.lab: {} } } }
groups: { p4d: { machine: dgx-a100-40gb } }
image: { keep: 1, targets: { p4d: { disk: { path: disks } } } }
"""


@pytest.fixture
def disks(world: World, monkeypatch: pytest.MonkeyPatch) -> World:
    """Disks that are a few bytes."""

    def make_disk(build: work.Build, name: str, _image: str) -> dict[str, str]:
        folder = build.folder / "disks" / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "disk.raw").write_bytes(b"raw")
        (folder / "disk.qcow2").write_bytes(b"qcow2")
        (folder / "console.log").write_text("booting")
        world.step(f"disk {name}")
        return {"kernel": "6.1.0-1-amd64", "root": "1-2"}

    def proven(build: work.Build, name: str) -> list[Proof]:
        world.step(f"disk-proven {name}")
        results = {"level": "image", "passed": 1, "warned": 0, "unknown": 0, "report": f"{name}-disk-boot-1.json"}
        return [Proof(machine="m", node=f"{name}-0", **results)]  # type: ignore[arg-type]

    real = disk._published

    def published(build: work.Build, name: str) -> Any:
        published_disk = real(build, name)
        world.step(f"disk-published {name}")
        return published_disk

    monkeypatch.setattr(virtual, "is_virtual", lambda *_: False)
    monkeypatch.setattr(disk, "check", lambda *_: None)
    monkeypatch.setattr(disk, "_make_disk", make_disk)
    monkeypatch.setattr(disk, "_proven", proven)
    monkeypatch.setattr(disk, "_published", published)
    return world


def published(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "images" / "disks").glob("*"))


def test_a_disk_is_published_with_its_digests_and_removed_with_its_build(
    tmp_path: Path, disks: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = commands.build(opened(tmp_path, METAL), BINARY)
    target = built.targets["p4d"]
    stem = f"pytorch-p4d-{built.build}"
    assert published(tmp_path) == [f"{stem}.{kind}" for kind in ("json", "qcow2", "raw")]
    assert target.disk is not None
    assert (target.disk.kernel, target.disk.root, len(target.disk.proofs)) == ("6.1.0-1-amd64", "1-2", 1)
    assert target.disk.files["raw"].sha256 == hashlib.sha256(b"raw").hexdigest()
    document = json.loads((tmp_path / "images" / "disks" / f"{stem}.json").read_text())
    assert (document["build"], document["simulated"], document["files"]["qcow2"]["bytes"]) == (built.build, True, 5)
    assert not any(opened(tmp_path, METAL).folder.iterdir())
    later = commands.build(opened(tmp_path, METAL), BINARY)
    recipe = opened(tmp_path, METAL)
    monkeypatch.setattr(recipe.cluster.providers, "at", lambda _: SimpleNamespace(images=disks))
    assert commands.prune(recipe, BINARY).removed == [built.build]
    assert published(tmp_path) == [f"pytorch-p4d-{later.build}.{kind}" for kind in ("json", "qcow2", "raw")]


@pytest.mark.parametrize("step", ["disk p4d", "disk-proven p4d", "disk-published p4d"])
def test_killed_while_it_makes_a_disk_it_goes_on(tmp_path: Path, disks: World, step: str) -> None:
    disks.die = step
    with pytest.raises(Killed):
        commands.build(opened(tmp_path, METAL), BINARY)
    built = commands.build(opened(tmp_path, METAL), BINARY)
    assert len(published(tmp_path)) == 3
    assert built.targets["p4d"].disk is not None
    assert [row for row in disks.steps if row.startswith(("make", "prove"))] == ["make p4d", "prove p4d"]
    assert disks.steps.count(step) == 2


@pytest.mark.parametrize("step", ["disk p4d", "disk-proven p4d", "disk-published p4d"])
def test_a_disk_that_fails_leaves_its_console_alone(tmp_path: Path, disks: World, step: str) -> None:
    disks.fails = step
    with pytest.raises(ProviderError, match=f"{step} does not work"):
        commands.build(opened(tmp_path, METAL), BINARY)
    assert published(tmp_path) == []
    assert (disks.machines, disks.images) == (set(), {})
    (failed,) = commands.failed(opened(tmp_path, METAL))
    assert failed.step == step.partition(" ")[0].replace("-", " ")
    remaining_files = sorted(
        path.name for path in Path(failed.evidence).rglob("*") if path.parent.parent.name == "disks"
    )
    assert remaining_files == ["console.log"]


def test_a_disk_that_cannot_be_made_here_is_refused_before_anything_is(
    tmp_path: Path, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk.tools, "PATH", "")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(GpuprovError, match="a disk image is made and booted with"):
        commands.build(opened(tmp_path, METAL), BINARY)
    assert world.steps == []


def test_what_is_vulnerable_is_in_the_manifest_and_on_the_page_or_why_nobody_knows(
    tmp_path: Path, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands.build(opened(tmp_path), BINARY)
    scanned = TWO.replace("keep: 2", "keep: 2, scan: { database: database }")
    monkeypatch.setenv("PATH", str(tmp_path))
    built = commands.build(opened(tmp_path, scanned), BINARY)
    assert (built.targets["p5"].vulnerabilities, built.targets["p5"].not_scanned) == (None, "grype is not installed")
    program = tmp_path / "grype"
    report = json.dumps({"matches": [], "distro": {"name": "ubuntu", "version": "24.04"}, "descriptor": {}})
    program.write_text(f"#!/bin/sh\necho '{report}'\n")
    program.chmod(0o755)
    (tmp_path / "images" / "database").mkdir()
    built = commands.build(opened(tmp_path, scanned), BINARY)
    assert built.targets["p5"].vulnerabilities is not None
    assert "p5.vulnerabilities.json" in built.files
    assert world.machines == set()
    recipe = opened(tmp_path, scanned)
    for build in recipe.book.builds():
        row = nightly.Night("pytorch", "built", build).output().to_json()
        recipe.book.note_night({"at": "x", "seconds": 1, **row})
    page = html(recipe)
    for line in ("p5: none known (grype)", "p5: not scanned: grype is not installed",
                 "p5: not scanned: the recipe names no database (image.scan)"):  # fmt: skip
        assert line in page


def test_a_build_says_where_its_disks_are(tmp_path: Path, disks: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "refuse_unbuildable", lambda _: None)  # without --sandbox nothing makes one yet
    file = recipe(tmp_path, METAL)
    done = CliRunner().invoke(app, ["build", str(file), "--yes", "--terraform", "/bin/true"])
    assert done.exit_code == 0, done.output
    (build,) = opened(tmp_path, METAL).book.builds()
    folder = tmp_path / "images" / "disks"
    for kind in ("raw", "qcow2"):
        assert f"p4d: {folder}/pytorch-p4d-{build}.{kind}, 0.0 GB" in done.output.replace("\n", "")
    assert f"gpuprov image promote {file} candidate` moves it on" in done.output.replace("\n", "")
    output = CliRunner().invoke(app, ["show", str(file), "nightly"]).output
    assert f"pytorch-p4d-{build}.raw: 0.0 GB, sha256 {hashlib.sha256(b'raw').hexdigest()}" in output
    assert "known vulnerabilities: not scanned" in output
    assert disks.machines == set()


def refusal_text(*arguments: str) -> str:
    """What a person reads of a command that is refused."""
    from provisioner.cli.main import run

    with contextlib.redirect_stderr(io.StringIO()) as err, contextlib.redirect_stdout(io.StringIO()) as out:
        assert run(["image", *arguments]) != 0
    return out.getvalue() + err.getvalue()


def test_commands_refuse_before_they_ask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is asked for a word that changes nothing; each error names what to do next, and no file that is not
    there."""
    from provisioner.cli import confirm

    def fail(*_: Any, **__: Any) -> bool:
        raise AssertionError("it asks before it refuses")

    monkeypatch.setattr(confirm, "confirmed", fail)
    monkeypatch.setattr("provisioner.cli.image.confirmed", fail)
    file = recipe(tmp_path, RECIPE)
    message = refusal_text("prune", str(file), str(tmp_path / "no.lock"))
    assert "no.lock: there is no such lock" in message
    metal = file.with_name("metal.yaml")
    metal.write_text(
        "name: metal\nsites: { rack: { provider: baremetal } }\ngroups: { rtx: { machine: workstation-rtx4090 } }\n"
        "image: { targets: { rtx: { disk: { path: disks } } } }\nstack: { os: ubuntu-22.04 }\n"
    )
    monkeypatch.setattr(tools, "require", lambda **_: None)
    monkeypatch.setattr("os.geteuid", lambda: 0)
    assert "made of debian-12 or ubuntu-24.04, not of ubuntu-22.04" in refusal_text("build", str(metal))
    message = refusal_text("promote", str(file), "candidate")
    assert (
        "gpuprov image build RECIPE` makes one" in message and "promote" not in message and "book.json" not in message
    )
    message = refusal_text("nightly", str(tmp_path / "nothing" / "*.yaml"))
    assert f"{tmp_path}/nothing/*.yaml: failed\n" in message and message == message.rstrip(" \n") + "\n"
