"""`gpuprov image nightly`: every recipe that is due, one after the other. What has not changed is left alone; what
fails is told, and leaves every channel as it was."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

import jinja2

from provisioner.common.errors import GpuprovError, Interrupted, LockedError
from provisioner.common.events import Kind
from provisioner.common.text import printable
from provisioner.lifecycle.images import commands, page, pipeline, work
from provisioner.lifecycle.images.book import utc_timestamp
from provisioner.lifecycle.images.manifest import Inputs
from provisioner.lifecycle.images.recipe import Recipe
from provisioner.machines.terraform.binary import Binary
from provisioner.output import image as output
from provisioner.spec import load

HOOK_S = 300
"""Seconds that the hook of a failure may take."""
MOST = 8192
"""Characters of a value in its environment."""


@dataclass(frozen=True, slots=True)
class Night:
    """How a night went for one recipe. `changed`: what is new since the last good build, one line each."""

    image: str
    """Its name; the path of one that could not be read."""
    outcome: Literal["built", "unchanged", "busy", "failed"]
    build: str
    changed: tuple[str, ...] = ()
    step: str = ""
    message: str = ""
    page: str = ""
    alerted: str = ""
    """What became of the hook: empty where there is none."""

    def output(self) -> output.Night:
        """As `--json` prints it."""
        return output.Night(**{**asdict(self), "changed": list(self.changed)})


def run(
    recipes: Sequence[Path], opened: Callable[[Path], Recipe], binary: Callable[[], Binary], *, force: bool = False
) -> list[Night]:
    """Do all recipes. One that fails, in whatever way, does not keep the others from theirs. `force`: build also where
    nothing has changed."""
    return [_night(file, opened, binary, force=force) for file in recipes]


def _night(file: Path, opened: Callable[[Path], Recipe], binary: Callable[[], Binary], *, force: bool) -> Night:
    began = time.time()
    try:
        recipe = opened(file)
    except Interrupted:
        raise
    except GpuprovError as error:
        return _unread(file, str(error))
    earlier_failures = _failures(recipe)
    try:
        night = _built(recipe, binary(), force=force)
    except Interrupted:
        raise
    except LockedError as error:
        night = Night(recipe.name, "busy", "", message=str(error))
    except Exception as error:
        known = error if isinstance(error, GpuprovError) else GpuprovError(f"{type(error).__name__}: {error}")
        last = next((row for row in _failures(recipe) if row not in earlier_failures), None)
        build, step = (last.build, last.step) if last else ("", "before the build")
        night = Night(recipe.name, "failed", build, (), step, str(known))
    return _record_night(recipe, night, began)


def _built(recipe: Recipe, binary: Binary, *, force: bool) -> Night:
    with commands.locked_recipe(recipe, "nightly"):
        if work.unfinished(recipe):
            manifest = commands.build_locked(recipe, binary, lambda: pipeline.solved(recipe, renew=True))
            return Night(recipe.name, "built", manifest.build)
        lock = pipeline.solved(recipe, renew=True)
        changed = changes(recipe, pipeline.inputs(recipe, lock))
        if not changed and not force:
            return Night(recipe.name, "unchanged", recipe.book.builds()[-1])
        return Night(recipe.name, "built", commands.build_locked(recipe, binary, lambda: lock).build, changed)


def _failures(recipe: Recipe) -> list[output.FailedBuild]:
    try:
        return commands.failed(recipe)
    except (GpuprovError, OSError):
        return []


def _unread(file: Path, message: str) -> Night:
    """A night of a recipe that is none. Its hook is run where the file says one."""
    night = Night(str(file), "failed", "", (), "reading the recipe", message)
    with contextlib.suppress(GpuprovError):
        loaded = load(file)
        if loaded.image is not None and loaded.image.failed:
            return replace(night, alerted=alert(loaded.image.failed, night, file.absolute().parent, ""))
    return night


def changes(recipe: Recipe, inputs: Inputs) -> tuple[str, ...]:
    """What is new since the last build that was proven; empty where nothing is."""
    registry = recipe.book
    if not registry.builds():
        return ("it was never built",)
    last_inputs = registry.manifest(registry.builds()[-1]).inputs
    phrases = ["the recipe"] if last_inputs.recipe != inputs.recipe else []
    for name in _differing(last_inputs.bases, inputs.bases):
        old, new = last_inputs.bases.get(name) or "none", inputs.bases.get(name) or "none"
        phrases.append(f"base image of {name}: {old} → {new}")
    phrases += [f"versions of {name}" for name in _differing(last_inputs.stacks, inputs.stacks)]
    phrases += [f"role {name}" for name in _differing(last_inputs.roles, inputs.roles)]
    return tuple(phrases)


def _differing(old: Mapping[str, str], new: Mapping[str, str]) -> list[str]:
    return [name for name in sorted({*old, *new}) if old.get(name) != new.get(name)]


def _record_night(recipe: Recipe, night: Night, began: float) -> Night:
    """Have the hook run where it failed, write the night down, renew the page; what of that does not work is said."""
    file, messages = recipe.book.folder / "nights.html", list[str]()
    if night.outcome == "failed" and recipe.settings.failed:
        messages.append(alert(recipe.settings.failed, night, recipe.cluster.file.absolute().parent, str(file)))
    row = {"at": utc_timestamp(), "seconds": round(time.time() - began, 1), **night.output().to_json()}
    try:
        recipe.book.note_night(row)
        page.write(recipe)
    except (GpuprovError, OSError, jinja2.TemplateError) as error:
        messages.append(f"the night could not be written down: {error}")
    kind: Kind = "failed" if night.outcome == "failed" else "done"
    recipe.cluster.events("image", kind, f"{recipe.name}: {night.outcome}", data={"build": night.build})
    return replace(night, page=str(file) if night.outcome == "failed" else "", alerted="; ".join(messages))


def alert(command: str, night: Night, folder: Path, page_file: str) -> str:
    """Run `image.failed`; what became of it. Never raises."""
    values = {
        "IMAGE": night.image,
        "BUILD": night.build,
        "STEP": night.step,
        "MESSAGE": night.message,
        "PAGE": page_file,
    }
    environment = {**os.environ, **{f"GPUPROV_{key}": _plain(value) for key, value in values.items()}}
    try:
        with tempfile.TemporaryFile() as out:
            child = subprocess.Popen(
                ["/bin/sh", "-c", command], env=environment, stdout=out, stderr=out, stdin=subprocess.DEVNULL,
                cwd=folder, start_new_session=True,
            )  # fmt: skip
            try:
                status = child.wait(HOOK_S)
            except subprocess.TimeoutExpired:
                return f"image.failed did not end within {HOOK_S} s"
            finally:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(child.pid, signal.SIGKILL)  # what it has left behind
            out.seek(0)
            lines = out.read().decode("utf-8", "replace").strip().splitlines()
    except (OSError, ValueError) as error:
        return f"image.failed could not be run: {error}"
    return (
        f"image.failed ended with status {status}{': ' + lines[-1] if lines else ''}" if status else "image.failed ran"
    )


def _plain(text: str) -> str:
    """For an environment: printable, and not too long for one."""
    return str(printable(text)).encode("utf-8", "replace").decode()[:MOST]
