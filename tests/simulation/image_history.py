"""One history of golden images: commands, edits, faults and what happens, with the invariants looked at after every
step."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from tests.simulation import image_commands
from tests.simulation.image_edits import EDITS, EVENTS
from tests.simulation.image_recipe import REGIONS, RecipeText
from tests.simulation.image_seams import installed
from tests.simulation.image_world import ImageWorld, ids_of
from tests.simulation.processes import Process
from tests.simulation.simulation import Typed, corpus_row, drawing

LONG_S = 20000.0
"""After which every image is ready."""
MOST_TRIES = 6
"""Builds until one ends well without faults."""


class BrokenImageInvariant(AssertionError):
    """Something that must hold of images does not; the message is the history, the cloud, and what is broken."""

    def __init__(self, world: ImageWorld, *broken: str) -> None:
        cloud = world.cloud
        rows = [f"  {image.id} {image.name} in {image.region}" for image in cloud.images.values()]
        rows += [f"  {number} of {image.id}" for number, image in cloud.snapshots.items()]
        rows += [f"  {machine.id} of {machine.cluster}, build {machine.build}" for machine in cloud.machines.values()]
        text = [*world.script, "", "cloud:", *rows, "", "to be kept in tests/simulation/corpus/images/:"]
        text += [f"- {json.dumps(step)}" for step in world.steps]
        super().__init__("\n".join([*text, "", *dict.fromkeys(broken)]))


@dataclass
class ImageHistory:
    """`root`: an empty directory. `text`: the recipe as it is now; `former`: as it was, oldest first."""

    root: Path
    world: ImageWorld = field(init=False)
    text: RecipeText = field(default_factory=RecipeText)
    former: list[RecipeText] = field(default_factory=list)
    steps: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    """Kind → how many struck."""
    commands: Counter[str] = field(default_factory=Counter)
    changes: Counter[str] = field(default_factory=Counter)
    """Edit of the recipe → how often it was."""
    states: set[str] = field(default_factory=set)
    """Digests of the states that were seen, for counting."""

    def __post_init__(self) -> None:
        self.world = ImageWorld(self.root)
        self.world.recipe.parent.mkdir(parents=True)
        self.text.write(self.world.recipe)

    # what people do, and what happens

    def edit_by(self, name: str, picks: Sequence[int]) -> None:
        """One of EDITS."""
        edited = self.text.copy()
        sentence = EDITS[name](edited, drawing(picks))
        if edited == self.text:
            return
        self.former.append(self.text)
        self.changes[name] += 1
        self._set(edited, sentence, {"edit": name, "picks": list(picks)})

    def put_back(self) -> None:
        """The recipe as it was before the last edit."""
        if self.former:
            self._set(self.former.pop(), "the recipe is put back as it was before", {"edit": "put_back"})

    def _set(self, text: RecipeText, sentence: str, step: dict[str, Any]) -> None:
        self.text = text
        self.text.write(self.world.recipe)
        self.world.steps.append(step)
        self._say(f"# {sentence}")

    def happen(self, name: str, picks: Sequence[int]) -> None:
        """One of EVENTS."""
        if sentence := EVENTS[name](self.world, drawing(picks)):
            self.world.steps.append({"event": name, "picks": list(picks)})
            self._say(f"# {sentence}")

    def run(self, *typed: Typed, picks: Sequence[int] = ()) -> list[Process]:
        """Commands, side by side where there are several; then everything is looked at. `picks` say who goes on."""
        world, previous = self.world, self.snapshot()
        started = []
        for command in typed:
            process = Process(" ".join(command.words), world.folder, list(command.faults))
            started.append((process, partial(image_commands.call, command.words, world, process)))
        world.processes.pick = drawing(picks)
        with installed(world):
            world.processes.run(started)
        done = [process for process, _ in started]
        rows = [corpus_row(command, process) for command, process in zip(typed, done, strict=True)]
        world.steps.append({"run": rows})
        if picks and len(done) > 1:
            world.steps[-1]["picks"] = list(picks)
        for process in done:
            separator = " &" if process is not done[-1] else ""
            struck = f"   # {'; '.join(process.struck)}" if process.struck else ""
            self._say(f"$ gpuprov image {process.command}{separator}{struck}   → {process.code}")
            self.faults.update(text.partition(" at ")[0] for text in process.struck)
            self.commands[process.command.partition(" ")[0]] += 1
            if process.code and (text := "".join(process.errors).strip()):
                self._say("    " + text.replace("\n", "\n    ")[:1500])
        self._check(done, previous)
        return done

    def _say(self, line: str) -> None:
        self.world.script.append(line)
        self.steps += 1

    # what must hold

    def snapshot(self) -> dict[str, str]:
        """What can change, by name."""
        world = self.world
        files = [world.book / "book.json", *world.book.glob("builds/**/*"), *world.workshop.glob("*/journal.json")]
        parts = {str(f.relative_to(world.folder)): f.read_text(encoding="utf-8") for f in files if f.is_file()}
        return parts | {f"cloud.{key}": repr(sorted(asdict(world.cloud)[key])) for key in
                        ("images", "snapshots", "machines", "fleet")}  # fmt: skip

    def _check(self, done: Sequence[Process], previous: dict[str, str]) -> None:
        world, after = self.world, self.snapshot()
        broken, world.violations = world.violations, []
        self.states.add(hashlib.sha256(json.dumps(after, sort_keys=True).encode()).hexdigest())
        manifests = world.manifests()
        broken += self._builds(manifests, done)
        broken += self._unnamed(manifests)
        for process in done:
            if len(done) == 1:
                broken += self._changed(process, previous, after)
                broken += self._ended_well(process, manifests)
            broken += self._left(process, previous)
        if broken:
            raise BrokenImageInvariant(world, *broken)

    def _builds(self, manifests: dict[str, dict[str, Any]], done: Sequence[Process]) -> Iterator[str]:
        """Builds are proven, exist, never change, and are published once."""
        world = self.world
        for build, manifest in manifests.items():
            earlier = world.published.get(build)
            if earlier is not None and earlier != manifest:
                yield f"the manifest of build {build} has changed"
            if earlier is None:
                for other, published in world.published.items():
                    if shared := ids_of(published) & ids_of(manifest):
                        yield f"builds {other} and {build} both have {', '.join(shared)}"
            world.published[build] = manifest
            for number in sorted(ids_of(manifest) - world.cloud.images.keys()):
                yield f"build {build} has {number}, which does not exist"
            for target in manifest["targets"].values():
                images = [
                    world.cloud.images[number] for number in target["ids"].values() if number in world.cloud.images
                ]
                if images and not any(image.proven for image in images):
                    yield f"build {build} has {images[0].id}, which was never proven"
                if not {manifest["build"], build} <= {build, *(image.build for image in images)}:
                    yield f"build {build} has images of another one"
        for build in world.published.keys() - manifests.keys():
            if not any(process.command == "prune" for process in done) and build in world.listed:
                yield f"build {build} is not in the book any more, and nobody has pruned it"
        world.listed = set(manifests)
        for channel, build in world.channels().items():
            if build not in manifests:
                yield f"channel {channel} has build {build}, which is not in the book"

    def _unnamed(self, manifests: dict[str, dict[str, Any]]) -> Iterator[str]:
        """What exists belongs to a build that a command will end, remove or has published."""
        world = self.world
        journals = {file.parent.name: json.loads(file.read_text(encoding="utf-8"))["steps"]
                    for file in world.workshop.glob("*/journal.json")}  # fmt: skip
        open_builds = {build for build, steps in journals.items() if not steps.get("", {}).get("cleaned")}
        withdrawn = {file.parent.name for file in world.book.glob("builds/*/removing.json")}
        published = {number for manifest in manifests.values() for number in ids_of(manifest)}
        for machine in world.cloud.machines.values():
            if machine.build not in open_builds:
                yield f"{machine.id} of build {machine.build} runs, and no command names it"
        for image in world.cloud.images.values():
            if image.id not in published and image.build not in open_builds | withdrawn:
                yield f"{image.id} of build {image.build} exists, and no command names it"
        for number, image in world.cloud.snapshots.items():
            if image.id not in published and image.build not in open_builds | withdrawn:
                yield f"{number} of {image.id}, build {image.build}, exists, and no command names it"

    def _changed(self, process: Process, previous: dict[str, str], after: dict[str, str]) -> Iterator[str]:
        """What a command that only looks, or that was refused, has changed."""
        command = process.command.partition(" ")[0]
        store_file = f"{self.world.book.relative_to(self.world.folder)}/book.json"
        if (
            command in ("promote", "rollback")
            and process.code not in (0, -9, 130)
            and previous.get(store_file) != after.get(store_file)
        ):
            yield f"`{process.command}` failed and moved a channel"
        refused = process.refused and not process.struck and not process.changes
        if command not in image_commands.LOOKS and not refused:
            return
        changes = [name for name in sorted(previous.keys() | after.keys()) if previous.get(name) != after.get(name)]
        if command in ("build", "nightly"):  # a build that fails is recorded
            changes = [name for name in changes if not name.endswith("journal.json")]
        if changes:
            yield f"`{process.command}` {'was refused and changed' if refused else 'changes'} {', '.join(changes)}"

    def _left(self, process: Process, previous: dict[str, str]) -> Iterator[str]:
        """A build that fails leaves no machine, or names it; one that was killed before stays as it was."""
        if process.command.partition(" ")[0] not in ("build", "nightly") or process.code in (0, -9, 130):
            return
        text = "".join((*process.errors, *process.output))
        explained = "not removed" in text or "could not be removed" in text or "locked by another run" in text
        created = [number for number in self.world.cloud.machines if f"'{number}'" not in previous["cloud.machines"]]
        if created and not explained and "busy" not in text:
            yield f"`{process.command}` failed and left {', '.join(created)}"

    def _ended_well(self, process: Process, manifests: dict[str, dict[str, Any]]) -> Iterator[str]:
        """What a command that ended well has promised."""
        world, command = self.world, process.command.partition(" ")[0]
        if command == "list" and process.code == 0:
            files = [*world.workshop.glob("*/journal.json"), *world.book.glob("builds/*/removing.json")]
            for name in {file.parent.name for file in files} | manifests.keys():
                if name not in "".join(process.output):
                    yield f"`list` does not name build {name}"
        if process.code or not world.published:
            return
        newest = list(world.published)[-1]
        if command in ("build", "nightly"):
            manifest = manifests.get(newest, {"inputs": {"roles": {}}})
            if manifest["inputs"]["roles"].get("base") != f"roles-{world.inputs.roles}":
                yield f"`{process.command}` ended well, and the newest build {newest} has roles of former times"
            moves = json.loads((world.book / "book.json").read_text(encoding="utf-8"))["history"]
            built = [move["build"] for move in moves if move["channel"] == "nightly" and move["why"] == "built"]
            if built[-1] != newest:
                yield f"`{process.command}` ended well, and channel nightly never had {newest}"
            if duplicates := [build for build, number in Counter(built).items() if number > 1]:
                yield f"{', '.join(duplicates)} was moved to nightly as built twice"
        if command == "nightly" and "unchanged" in "".join(process.output):
            driver = next(iter(manifests[newest]["targets"].values()))["stack"]["driver"]
            if driver != world.inputs.driver:
                yield f"`nightly` calls {newest} unchanged: it has driver {driver}, not {world.inputs.driver}"

    # how it ends

    def finish(self) -> None:
        """No more faults: a build ends well, `prune` removes what nothing uses, and nothing else exists."""
        self._say("# no more faults from here on")
        self.world.cloud.defect, self.world.cloud.seconds = "", 20.0
        self.world.sleep(LONG_S)
        for _ in range(MOST_TRIES):
            (process,) = self.run(Typed(("build",)))
            if process.code == 0:
                break
        else:
            raise BrokenImageInvariant(self.world, "`build` does not end well")
        self._end("list")
        for number in range(len(REGIONS)):  # a build may be half removed at either provider
            self.edit_by("provider", [number])
            self._end("prune")
        world, broken = self.world, []
        broken += [
            f"{folder} has no journal" for folder in world.workshop.iterdir() if not (folder / "journal.json").exists()
        ]
        published = {number for manifest in world.manifests().values() for number in ids_of(manifest)}
        broken += [f"{machine_id} is left" for machine_id in world.cloud.machines]
        broken += [f"{image_id} is left" for image_id in world.cloud.images if image_id not in published]
        broken += [
            f"{n} of {image.id} is left" for n, image in world.cloud.snapshots.items() if image.id not in published
        ]
        if broken:
            raise BrokenImageInvariant(world, *broken)

    def _end(self, *arguments: str) -> None:
        (process,) = self.run(Typed(arguments))
        if process.code:
            raise BrokenImageInvariant(self.world, f"`{' '.join(arguments)}` fails")
