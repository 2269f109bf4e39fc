"""A build that fails leaves no machine, no image and no disk, but its evidence."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from provisioner.errors import GpuprovError, Interrupted
from provisioner.lifecycle.image import disk, virtual
from provisioner.lifecycle.image.recipe import Recipe, opened, workplace
from provisioner.lifecycle.image.work import BOOT, BUILD, Build, begun, removed, tags_of
from provisioner.paths import private_dir, remove_tree, write_whole
from provisioner.stack import lockfile
from provisioner.workspace.binary import Binary


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
        work.tell(f"{target or work.recipe.name}: {known.message}", "failed")
        left = list[str]()
        with noting(left, "why it failed"):  # a disk that is full keeps no machine running
            work.journal.fail(_last(work, target), target, str(known))
        left += clean(work)
        if left:
            known.hint = "; ".join(filter(None, (known.hint, "not removed: " + "; ".join(left))))
        if isinstance(error, (GpuprovError, OSError)):
            raise known from None
        raise


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
    each. Reports and logs stay."""
    left: list[str] = []
    for name in work.targets:
        for what in (BUILD, BOOT):
            with noting([], "evidence"):
                keep_evidence(work, name, what)
            with noting(left, f"{name}'s machine ({what})"):
                if what == BUILD and virtual.wanted(work.recipe, name):
                    virtual.forget(work, name)
                else:
                    removed(work, name, what)
        with noting(left, f"{name}'s disk"):
            disk.removed(work, name)
        if not workplace(work.recipe, work.id, name, BUILD).exists():
            continue
        with noting(left, f"{name}'s image"):
            images = begun(work, name).images
            regions = work.recipe.target(name).copy_to
            ids = images.copies(work.name(name), regions) | dict(work.journal.of(name, "published") or {})
            if ids:
                images.delete(ids, tags_of(work, name))
    if not left and work.journal.failed is not None:
        with noting(left, "the journal"):
            work.journal.done("", "cleaned")
        folder = work.recipe.book.build(work.id)
        if folder.is_dir() and not (folder / "manifest.json").exists():
            remove_tree(folder)
    return left


def cleaned(recipe: Recipe, binary: Binary, build_id: str) -> list[str]:
    """`clean` of a build by its id; nothing where it was never begun, or was published: its images are the book's."""
    if build_id in recipe.book.builds():
        return []
    lock = lockfile.read(recipe.folder / build_id / "recipe.lock")
    return clean(Build(recipe, binary, build_id, lock)) if lock is not None else []


def keep_evidence(work: Build, name: str, what: str) -> None:
    """Reports, logs and consoles of a target's cluster, which goes."""
    file = workplace(work.recipe, work.id, name, what)
    if not file.exists():
        return
    cluster = opened(work.recipe, file)
    for source in sorted(cluster.paths.runs.glob("*/*")):
        if source.is_file() and source.suffix in (".json", ".html", ".log", ".txt", ".jsonl", ".xml"):
            target = private_dir(work.folder / "evidence" / name / what / source.parent.name) / source.name
            write_whole(target, source.read_bytes())


@contextlib.contextmanager
def noting(left: list[str], what: str) -> Iterator[None]:
    try:
        yield
    except Interrupted:
        raise
    except Exception as error:
        left.append(f"{what}: {error.message if isinstance(error, GpuprovError) else error}")
