"""What `gpuprov image` does with the builds of a recipe, and the documents that it shows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from provisioner.common.errors import GpuprovError
from provisioner.common.paths import private_dir
from provisioner.lifecycle.images import disk_images as disk
from provisioner.lifecycle.images import failure, page, pipeline, work
from provisioner.lifecycle.images import manifest as manifests
from provisioner.lifecycle.images.book import CHANNELS
from provisioner.lifecycle.images.builder import images_of
from provisioner.lifecycle.images.journal import Journal
from provisioner.lifecycle.images.manifest import Manifest
from provisioner.lifecycle.images.recipe import Recipe
from provisioner.machines.terraform.binary import Binary
from provisioner.output.image import (
    FailedBuild,
    ImageDiffOutput,
    ImageListOutput,
    ImageMoveOutput,
    ImagePruneOutput,
    ListedBuild,
    Moved,
)
from provisioner.stack import lockfile
from provisioner.stack.models import Lock


def refuse_unbuildable(recipe: Recipe) -> None:
    """Raise GpuprovError where this computer can't make the images, whatever its owner says; nothing is changed."""
    for name in recipe.targets:
        images_of(recipe.cluster, name)
        disk.refuse_unmakeable(recipe, name, recipe.cluster.spec.stack.os)


@contextmanager
def locked_recipe(recipe: Recipe, command: str) -> Iterator[Path]:
    """Be the only one at work on a recipe, on this machine."""
    private_dir(recipe.folder)  # so that a run that is broken off leaves its journal
    with recipe.cluster.alone_here(f"image {command}") as run_dir:
        yield run_dir


def build(recipe: Recipe, binary: Binary, *, renew: bool = False) -> Manifest:
    """Make all images of a recipe. One that was killed goes on; what failed before is left to `prune`."""
    with locked_recipe(recipe, "build"):
        return build_locked(recipe, binary, lambda: pipeline.solved(recipe, renew=renew))


def build_locked(recipe: Recipe, binary: Binary, solve: Callable[[], Lock]) -> Manifest:
    """As `build`, for who holds the recipe's lock. `solve` is asked where no build goes on."""
    _clean_up(recipe, binary)
    begun = work.unfinished(recipe)
    for old in begun[:-1]:
        _abandon(recipe, binary, old, "a later build was begun")
    if begun:
        lock = lockfile.read(recipe.folder / begun[-1] / "recipe.lock")
        unchanged = lock is not None and pipeline.same_inputs(recipe, begun[-1], lock)
        if recipe.book.is_published(begun[-1]):
            manifest = pipeline.end_published(recipe, begun[-1])
            if unchanged:
                return manifest
        elif lock is not None and unchanged:
            recipe.cluster.events("image", "log", f"going on with build {begun[-1]}")
            return pipeline.build(work.Build(recipe, binary, begun[-1], lock))
        else:
            recipe.cluster.events("image", "log", f"build {begun[-1]} was begun with something else: it is given up")
            _abandon(recipe, binary, begun[-1], "the recipe, or gpuprov's roles, have changed since it was begun")
    return pipeline.build(work.Build(recipe, binary, work.new_id(recipe), solve()))


def _abandon(recipe: Recipe, binary: Binary, build_id: str, reason: str) -> None:
    """Remove what an older build that was killed has left, unless it was published. Raises GpuprovError where something
    stays."""
    if recipe.book.is_published(build_id):
        pipeline.end_published(recipe, build_id)
        return
    Journal(recipe.folder / build_id).fail("abandoned", "", reason)
    remaining = failure.cleaned(recipe, binary, build_id)
    if remaining:
        raise GpuprovError(f"build {build_id} could not be removed: {'; '.join(remaining)}", where=recipe.name)


def _clean_up(recipe: Recipe, binary: Binary) -> None:
    """Try again what earlier builds could not remove."""
    for old in work.unclean(recipe):
        for sentence in failure.cleaned(recipe, binary, old):
            recipe.cluster.events("image", "warning", f"build {old} left something that costs money: {sentence}")
    for sentence in failure.remove_remains(recipe, binary):
        recipe.cluster.events("image", "warning", sentence)


def overview(recipe: Recipe) -> ImageListOutput:
    """{"image", "simulated", "channels": {channel: build}, "builds": [{"build", "made", "channels", "driver", "ids"}],
    "failed": [{"build", "target", "step", "message", "evidence"}], "history": [{"channel", "build", "before", "at",
    "why"}]}; builds newest first."""
    registry, channels = recipe.book, recipe.book.channels()
    rows = []
    for build_id in reversed(registry.builds()):
        manifest = registry.manifest(build_id)
        rows.append(
            ListedBuild(
                build=build_id,
                made=manifest.made,
                channels=[name for name in CHANNELS if channels.get(name) == build_id],
                driver={name: target.stack.driver for name, target in manifest.targets.items()},
                ids={name: target.ids for name, target in manifest.targets.items()},
            )
        )
    return ImageListOutput(
        image=recipe.name,
        simulated=recipe.sandbox,
        channels=channels,
        builds=rows,
        failed=failed(recipe),
        history=[Moved(**asdict(move)) for move in registry.history()],
    )


def failed(recipe: Recipe) -> list[FailedBuild]:
    """Builds that failed and whose evidence is kept, newest first."""
    return [
        FailedBuild(build=journal.build, **journal.failed, evidence=str(journal.file.parent))
        for journal in reversed(work.journals(recipe))
        if journal.failed is not None
    ]


def show(recipe: Recipe, reference: str) -> dict[str, Any]:
    """The manifest of a build or channel."""
    registry = recipe.book
    return registry.manifest(registry.resolve(reference)).model_dump(mode="json")


def compare(recipe: Recipe, earlier: str, after: str) -> ImageDiffOutput:
    """What differs between two builds or channels."""
    registry = recipe.book
    old, new = (registry.manifest(registry.resolve(reference)) for reference in (earlier, after))
    return ImageDiffOutput(
        image=recipe.name, before=old.build, after=new.build, differences=manifests.differences(old, new)
    )


def promote(recipe: Recipe, channel: str, build_id: str | None) -> ImageMoveOutput:
    """Move a channel on."""
    _refuse_channel(channel)
    if not recipe.book.builds():
        recipe.book.resolve(channel)  # raises: a recipe that was never built leaves nothing behind
    with locked_recipe(recipe, "promote"):
        document = ImageMoveOutput(image=recipe.name, **asdict(recipe.book.promote(channel, build_id)))
        _renew_page(recipe)
        return document


def rollback(recipe: Recipe, channel: str) -> ImageMoveOutput:
    """Move a channel back to what it had before; as `promote`."""
    _refuse_channel(channel)
    recipe.book.resolve(channel)
    with locked_recipe(recipe, "rollback"):
        document = ImageMoveOutput(image=recipe.name, **asdict(recipe.book.rollback(channel)))
        _renew_page(recipe)
        return document


def _renew_page(recipe: Recipe) -> None:
    """Write the page of the nights again. A failure is no error of the command: the channel has moved already."""
    import jinja2

    try:
        page.write(recipe)
    except (GpuprovError, OSError, jinja2.TemplateError) as error:
        recipe.cluster.events("image", "warning", f"nights.html is not up to date: {error}")


def _refuse_channel(channel: str) -> None:
    if channel not in CHANNELS:
        raise GpuprovError(f"there is no channel {channel}", hint=f"one of {', '.join(CHANNELS)}")


def prune(recipe: Recipe, binary: Binary, locks: Sequence[Path] = (), *, everything: bool = False) -> ImagePruneOutput:
    """Remove old builds. Kept are the newest `image.keep`,
    what a channel has or had before, what one of these locks names, what a machine of the account was made of, and what
    could not be asked about. `everything`, of a sandbox alone: its channels end, and its newest builds go too. Raises
    GpuprovError where that is asked of real images."""
    from provisioner.lifecycle.images.prune import prune as remove

    if everything and not recipe.sandbox:
        hint = "promote another build, or set image.keep; images that fleets start from are not removed at once"
        raise GpuprovError("--all is for the builds of a sandbox", where=recipe.name, hint=hint)
    with locked_recipe(recipe, "prune"):
        return remove(recipe, binary, locks, everything=everything)
