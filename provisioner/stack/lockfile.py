"""cluster.lock on disk: YAML in a stable order, made to be read and to live in git."""

from __future__ import annotations

from pathlib import Path

import yaml
from pydantic import ValidationError

from provisioner.errors import GpuprovError
from provisioner.paths import write_whole
from provisioner.stack.models import LOCK_VERSION, Lock

_HEAD = """\
# cluster.lock: the exact versions that gpuprov installs. Made by `gpuprov lock`; keep it in git, do not edit it.
"""


def write(path: Path, lock: Lock) -> None:
    """Write the lock, whole or not at all, readable by all (it holds no secret)."""
    body = yaml.safe_dump(lock.model_dump(mode="json"), sort_keys=False, width=120, allow_unicode=True)
    write_whole(path, _HEAD + body, mode=0o644)


def read(path: Path) -> Lock | None:
    """The lock at `path`, or None where there is none. Raises GpuprovError on one that can't be read."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise GpuprovError(
            f"can't be read: {error}", where=str(path), hint="make it again with `gpuprov lock`"
        ) from error
    try:
        loaded = yaml.load(text, Loader=yaml.CSafeLoader)
    except yaml.YAMLError as error:
        raise GpuprovError("is not YAML", where=str(path), hint="make it again with `gpuprov lock`") from error
    if isinstance(loaded, dict) and loaded.get("version") not in (LOCK_VERSION, None):
        raise GpuprovError(
            f"has format {loaded['version']}, this gpuprov reads {LOCK_VERSION}",
            where=str(path),
            hint="upgrade gpuprov, or make the lock again with `gpuprov lock`",
        )
    try:
        return Lock.model_validate(loaded)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise GpuprovError(
            f"is not a lock that gpuprov wrote ({place}: {first['msg']})",
            where=str(path),
            hint="make it again with `gpuprov lock`",
        ) from error


def differences(lock: Lock, request: dict[str, str]) -> list[str]:
    """What has changed in cluster.yaml since the lock was made, one sentence each; empty where the lock still fits."""
    found = []
    for key in sorted({*lock.request, *request}):
        before, after = lock.request.get(key), request.get(key)
        if before != after:
            found.append(f"{key}: {before or 'not there'} when locked, {after or 'not there'} now")
    return found
