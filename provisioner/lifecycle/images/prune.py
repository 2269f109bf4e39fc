"""Old builds go; none that anything uses."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from provisioner.common.errors import GpuprovError
from provisioner.common.paths import remove_tree
from provisioner.lifecycle.images import disk_images as disk
from provisioner.lifecycle.images import failure, work
from provisioner.lifecycle.images.book import CHANNELS
from provisioner.lifecycle.images.manifest import Manifest
from provisioner.lifecycle.images.recipe import Recipe
from provisioner.machines.terraform.binary import Binary
from provisioner.output.image import ImagePruneOutput, KeptBuild
from provisioner.stack import lockfile


def prune(recipe: Recipe, binary: Binary, locks: Sequence[Path], *, everything: bool = False) -> ImagePruneOutput:
    """See commands.prune. The caller holds the recipe's lock."""
    book = recipe.book
    builds, locked_builds = book.builds(), named_by(recipe, locks)
    if everything:
        book.clear_channels()
    newest = set() if everything else set(builds[-recipe.settings.keep :])
    channels = {build: channel for channel, build in book.channels().items()}
    ways_back = {back[-1]: channel for channel in CHANNELS[1:] if (back := book.earlier(channel))}
    removed, kept_builds, open_builds = [], [], work.unfinished(recipe)
    for build in sorted({*book.withdrawn(), *builds}):
        reason = ""
        if build in open_builds:
            reason = "it is published and has not ended: `gpuprov image build` ends it"
        elif build not in builds:
            reason = _unreachable(recipe, book.withdraw(build))
        elif build in channels:
            reason = f"channel {channels[build]} has it"
        elif build in newest:
            reason = f"one of the newest {recipe.settings.keep}"
        elif build in locked_builds:
            reason = f"{locked_builds[build]} names it"
        elif build in ways_back:
            reason = f"channel {ways_back[build]} goes back to it"
        else:
            reason = _used(recipe, book.manifest(build))
        if reason:
            kept_builds.append(KeptBuild(build=build, why=reason))
            continue
        _remove(recipe, book.withdraw(build))
        book.forget(build)
        removed.append(build)
        recipe.cluster.events("image", "progress", f"removed build {build}")
    removed += _failed(recipe, binary)
    return ImagePruneOutput(image=recipe.name, removed=removed, kept=kept_builds)


def _failed(recipe: Recipe, binary: Binary) -> list[str]:
    """Builds that failed, but for the newest: what they left goes, and their evidence."""
    failed = [journal.build for journal in work.journals(recipe) if journal.failed is not None]
    for build in failed:
        if remaining := failure.cleaned(recipe, binary, build):
            raise GpuprovError(f"build {build}: {'; '.join(remaining)}", where=recipe.name)
    over = failed[:-1]
    for build in over:
        remove_tree(recipe.folder / build)
    return over


def named_by(recipe: Recipe, locks: Sequence[Path]) -> dict[str, str]:
    """Build → the lock that names it. Raises GpuprovError for a lock that cannot be read: it may name any."""
    locks_by_build = {}
    for path in locks:
        lock = lockfile.read(path)
        if lock is None:
            raise GpuprovError(
                "there is no such lock", where=str(path), hint="name the cluster.lock files of your fleets"
            )
        for golden in lock.images.values():
            if Path(golden.name.partition("@")[0]).name == recipe.name:
                locks_by_build[golden.build] = str(path)
    return locks_by_build


def _used(recipe: Recipe, manifest: Manifest) -> str:
    """Why a build has to stay for machines that are made of it, or may be; empty where none is."""
    if reason := _unreachable(recipe, manifest):
        return reason
    for name, target in manifest.targets.items():
        images = recipe.cluster.providers.at(target.site).images
        assert images is not None
        try:
            machines = images.used(target.ids)
        except GpuprovError as error:
            return f"{name}: whether machines use it could not be asked: {error.message}"
        if machines:
            return f"{name}: {', '.join(machines[:5])} {'was' if len(machines) == 1 else 'were'} made of it"
    return ""


def _unreachable(recipe: Recipe, manifest: Manifest) -> str:
    """Why the provider that has the images of a build cannot be asked; empty where it can."""
    sites = recipe.cluster.spec.sites
    for name, target in manifest.targets.items():
        if target.site not in sites or recipe.cluster.providers.at(target.site).images is None:
            return f"{name}: the recipe has no site {target.site} any more, and nobody can be asked"
        present = sites[target.site].provider
        if present != target.provider:
            return f"{name}: its images are at {target.provider}, and site {target.site} is at {present} now"
    return ""


def _remove(recipe: Recipe, manifest: Manifest) -> None:
    for name, target in manifest.targets.items():
        images = recipe.cluster.providers.at(target.site).images
        assert images is not None
        images.delete(
            target.ids, {"gpuprov-image": manifest.name, "gpuprov-build": manifest.build, "gpuprov-target": name}
        )
        disk.delete(recipe, name, manifest.build)
