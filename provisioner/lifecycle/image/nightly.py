"""`gpuprov image nightly`: every recipe that is due, one after the other. What has not changed is left alone; what
fails is told, and leaves every channel as it was."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from provisioner.errors import GpuprovError, Interrupted
from provisioner.images.book import now
from provisioner.images.manifest import Inputs
from provisioner.lifecycle.image import commands, page, pipeline
from provisioner.lifecycle.image.recipe import Recipe
from provisioner.workspace.binary import Binary

HOOK_S = 300
"""Seconds that the hook of a failure may take."""


@dataclass(frozen=True, slots=True)
class Night:
    """How a night went for one recipe. `changed`: what is new since the last good build, one line each."""

    image: str
    outcome: Literal["built", "unchanged", "failed"]
    build: str
    changed: tuple[str, ...]
    step: str = ""
    message: str = ""
    page: str = ""
    alerted: str = ""
    """What became of the hook: empty where there is none."""

    def to_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in type(self).__slots__} | {"changed": list(self.changed)}


def run(recipes: Sequence[Recipe], binary: Binary, *, force: bool = False) -> list[Night]:
    """Do all recipes. One that fails does not keep the others from theirs. `force`: build also where nothing has
    changed."""
    return [_night(recipe, binary, force=force) for recipe in recipes]


def _night(recipe: Recipe, binary: Binary, *, force: bool) -> Night:
    began, changed = time.time(), tuple[str, ...]()
    try:
        with commands.held(recipe, "nightly"):
            begun = pipeline.unfinished(recipe)
            if not begun:
                lock = pipeline.solved(recipe, anew=True)
                changed = changes(recipe, pipeline.inputs(recipe, lock))
                if not changed and not force:
                    last = recipe.book.builds()[-1]
                    return _told(recipe, Night(recipe.name, "unchanged", last, ()), began)
        made = commands.build(recipe, binary, anew=not begun)
        found = Night(recipe.name, "built", made.build, changed)
    except Interrupted:
        raise
    except GpuprovError as error:
        found = _failed(recipe, changed, error)
    return _told(recipe, found, began)


def _failed(recipe: Recipe, changed: tuple[str, ...], error: GpuprovError) -> Night:
    last = next(iter(commands.failed(recipe)), None)
    build, step = (last["build"], last["step"]) if last else ("", "before the build")
    return Night(recipe.name, "failed", build, changed, step, str(error))


def changes(recipe: Recipe, wanted: Inputs) -> tuple[str, ...]:
    """What is new since the last build that was proven; empty where nothing is."""
    book = recipe.book
    if not book.builds():
        return ("it was never built",)
    before = book.manifest(book.builds()[-1]).inputs
    found = ["the recipe"] if before.recipe != wanted.recipe else []
    for what, old, new in (
        ("versions of", before.stacks, wanted.stacks),
        ("base image of", before.bases, wanted.bases),
        ("role", before.roles, wanted.roles),
    ):
        found += [f"{what} {name}" for name in sorted({*old, *new}) if old.get(name) != new.get(name)]
    return tuple(found)


def _told(recipe: Recipe, night: Night, began: float) -> Night:
    """Write the night down, renew the page, and have the hook run where it failed."""
    row = {"at": now(), "seconds": round(time.time() - began, 1), **night.to_json()}
    recipe.book.note_night(row)
    file = page.write(recipe)
    if night.outcome != "failed":
        recipe.cluster.events("image", "done", f"{recipe.name}: {night.outcome}", data={"build": night.build})
        return night
    alerted = _alert(recipe, night, file) if recipe.settings.failed else ""
    return Night(night.image, night.outcome, night.build, night.changed, night.step, night.message, str(file), alerted)


def _alert(recipe: Recipe, night: Night, file: Path) -> str:
    """Run `image.failed`; what became of it."""
    assert recipe.settings.failed is not None
    variables = {
        "GPUPROV_IMAGE": night.image,
        "GPUPROV_BUILD": night.build,
        "GPUPROV_STEP": night.step,
        "GPUPROV_MESSAGE": night.message,
        "GPUPROV_PAGE": str(file),
    }
    try:
        done = subprocess.run(
            ["/bin/sh", "-c", recipe.settings.failed], env={**os.environ, **variables}, capture_output=True, text=True,
            timeout=HOOK_S, check=False, stdin=subprocess.DEVNULL, encoding="utf-8", errors="replace",
            cwd=recipe.cluster.file.absolute().parent,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return f"image.failed did not end within {HOOK_S} s"
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines()
        return f"image.failed ended with status {done.returncode}{': ' + said[-1] if said else ''}"
    return "image.failed ran"
