"""A build that fails leaves no machine, no image and no disk, but its evidence."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from provisioner.common.errors import GpuprovError, Interrupted
from provisioner.common.paths import private_dir, remove_tree, write_whole
from provisioner.lifecycle.images import disk_images as disk
from provisioner.lifecycle.images import virtual
from provisioner.lifecycle.images.recipe import Recipe, opened, workplace
from provisioner.lifecycle.images.work import BOOT, BUILD, Build, begun, delete_images, remove_cluster, removed
from provisioner.machines.terraform.binary import Binary
from provisioner.stack import lockfile


@contextlib.contextmanager
def failing(work: Build, target: str) -> Iterator[None]:
    """A step that fails leaves no machine and no image, but its evidence. What was interrupted goes on with the next
    call."""
    try:
        yield
    except Interrupted:
        raise
    except Exception as error:
        known = error if isinstance(error, GpuprovError) else GpuprovError(f"{type(error).__name__}: {error}")
        work.report_event(f"{target or work.recipe.name}: {known.message}", "failed")
        remaining = list[str]()
        is_recorded = _record(work, target, known, [])
        if not is_recorded:  # a disk that is full keeps no machine running
            remaining = _make_room(work)
            is_recorded = _record(work, target, known, remaining)
        if is_recorded:
            remaining = clean(work)
        # else the next build goes on by the journal: the images that this names stay
        if remaining:
            known.hint = "; ".join(filter(None, (known.hint, "not removed: " + "; ".join(remaining))))
        if isinstance(error, (GpuprovError, OSError)):
            raise known from None
        raise


def _record(work: Build, target: str, error: GpuprovError, remaining: list[str]) -> bool:
    """Write down that the build has failed; False where that is impossible, and `left` gets a sentence."""
    with noting(remaining, "why it failed"):
        work.journal.fail(_last(work, target), target, str(error))
        return True
    return False


STEPS = (
    "builder", "installed", "generalised", "captured", "builder removed", "proven", "boot removed", *disk.STEPS,
    "published",
)  # fmt: skip


def _last(work: Build, target: str) -> str:
    """The step that did not end."""
    without = () if target and work.recipe.target(target).disk is not None else disk.STEPS
    steps = (step for step in STEPS if step not in without)
    return next((step for step in steps if work.journal.of(target, step) is None), "manifest")


def clean(work: Build) -> list[str]:
    """Remove every machine and image of a build that will not be; gives what could not be removed, one sentence
    each. Reports and logs stay, and the images of a build that was published: they are the book's."""
    remaining: list[str] = []
    for name in work.targets:
        _remove_machines(work, name, remaining)
    for name in () if work.recipe.book.is_published(work.id) else work.targets:
        with noting(remaining, f"{name}'s disk"):
            disk.removed(work, name)
        if not workplace(work.recipe, work.id, name, BUILD).exists():
            continue
        with noting(remaining, f"{name}'s image"):
            images = begun(work, name).images
            copied = work.journal.of(name, "regions") or ()  # the recipe may have others by now
            regions = list(dict.fromkeys([*work.recipe.target(name).copy_to, *copied]))
            ids = images.copies(work.name(name), regions) | dict(work.journal.of(name, "published") or {})
            delete_images(work, name, images, ids)
    if not remaining and work.journal.failed is not None:
        with noting(remaining, "the journal"):
            work.journal.done("", "cleaned")
        registry = work.recipe.book
        folder = registry.build(work.id)
        if folder.is_dir() and not registry.is_published(work.id):
            remove_tree(folder)
    return remaining


def _remove_machines(work: Build, name: str, remaining: list[str]) -> None:
    """Remove the machines of a target; `left` gets a sentence for each that could not be removed."""
    for purpose in (BUILD, BOOT):
        with noting([], "evidence"):
            keep_evidence(work, name, purpose)
        with noting(remaining, f"{name}'s machine ({purpose})"):
            if purpose == BUILD and virtual.is_virtual(work.recipe, name):
                virtual.forget(work, name)
            else:
                removed(work, name, purpose)


def _make_room(work: Build) -> list[str]:
    """Remove what a build makes again that goes on by its journal: machines, and disks that were not finished. Gives
    what could not be removed, one sentence each."""
    remaining: list[str] = []
    for name in work.targets:
        if work.journal.of(name, "off") is None:  # else its disk is the image
            _remove_machines(work, name, remaining)
        with noting(remaining, f"{name}'s disk"):
            disk.remove_unfinished(work, name)
    return remaining


def remove_remains(recipe: Recipe, binary: Binary) -> list[str]:
    """Remove folders without a journal: of a build that was about to begin, or that was about to be removed. Gives
    what could not be removed, one sentence each."""
    remaining: list[str] = []
    for folder in sorted(recipe.folder.glob("*")):
        if (folder / "journal.json").exists():
            continue
        with noting(remaining, f"what is left of build {folder.name}"):
            for file in sorted(folder.glob("*/*/cluster.yaml")):
                remove_cluster(recipe, binary, file)
            remove_tree(folder)
    return remaining


def cleaned(recipe: Recipe, binary: Binary, build_id: str) -> list[str]:
    """`clean` of a build by its id; nothing where it was never begun."""
    lock = lockfile.read(recipe.folder / build_id / "recipe.lock")
    return clean(Build(recipe, binary, build_id, lock)) if lock is not None else []


def keep_evidence(work: Build, name: str, purpose: str) -> None:
    """Reports, logs and consoles of a target's cluster, which goes."""
    file = workplace(work.recipe, work.id, name, purpose)
    if not file.exists():
        return
    cluster = opened(work.recipe, file)
    for source in sorted(cluster.paths.runs.glob("*/*")):
        if source.is_file() and source.suffix in (".json", ".html", ".log", ".txt", ".jsonl", ".xml"):
            target = private_dir(work.folder / "evidence" / name / purpose / source.parent.name) / source.name
            write_whole(target, source.read_bytes())


@contextlib.contextmanager
def noting(remaining: list[str], subject: str) -> Iterator[None]:
    try:
        yield
    except Interrupted:
        raise
    except Exception as error:
        remaining.append(f"{subject}: {error.message if isinstance(error, GpuprovError) else error}")
