"""The builds of a recipe and its channels: a folder of plain files that can live in git.

images/pytorch-a100.yaml        the recipe
images/pytorch-a100/book.json   which build each channel has, and had
images/pytorch-a100/builds/20260131-031500/manifest.json, SBOMs, reports, package lists
images/pytorch-a100/builds/20251201-031500/removing.json   the manifest of a build whose images are being removed
images/pytorch-a100/nights.jsonl   how each night went

Of a sandbox the folder is in its run directory. Who writes holds the recipe's lock.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from provisioner.common import directories, regular_file, stored
from provisioner.common.errors import GpuprovError
from provisioner.common.paths import below, private_dir, remove_tree, write_whole
from provisioner.lifecycle.images.manifest import Manifest

CHANNELS = ("nightly", "candidate", "stable")
"""From what was built last to what fleets start from."""
MANIFEST, REMOVING = "manifest.json", "removing.json"
"""Files of a build: its manifest, and that of a build whose images are being removed."""
RESTORE = "restore it from git or a backup"


def utc_timestamp() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclass(frozen=True, slots=True)
class Move:
    """A channel was moved to a build. `before`: the build that it had; "" for none. `why`: built, promoted, rolled
    back."""

    channel: str
    build: str
    before: str
    at: str
    why: str


class Book:
    """`folder` may be missing: then there are no builds. Raises GpuprovError for files that cannot be read."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name, self.folder = name, folder
        self._file = folder / "book.json"

    @property
    def nights(self) -> Path:
        return self.folder / "nights.jsonl"

    def build(self, build: str) -> Path:
        """The folder of a build."""
        try:
            return below(self.folder / "builds", build)
        except RuntimeError as error:  # links in a circle
            raise GpuprovError(str(error), where=str(self.folder / "builds"), hint=RESTORE) from None

    def builds(self) -> list[str]:
        """All that have a manifest, oldest first."""
        return sorted(file.parent.name for file in self.folder.glob(f"builds/*/{MANIFEST}"))

    def withdrawn(self) -> list[str]:
        """Builds whose images are being removed, oldest first."""
        return sorted(file.parent.name for file in self.folder.glob(f"builds/*/{REMOVING}"))

    def is_published(self, build: str) -> bool:
        """Whether a build is among `builds` or `withdrawn`."""
        return any((self.build(build) / name).exists() for name in (MANIFEST, REMOVING))

    def names(self) -> set[str]:
        """All builds that this folder has ever had, as far as it is known."""
        folders = {folder.name for folder in self.folder.glob("builds/*")}
        return folders.union(*((move.build, move.before) for move in self.history())) - {""}

    def manifest(self, build: str) -> Manifest:
        """Raises GpuprovError for a build that is not there, is damaged, or is another one than it says."""
        return self._parsed(build, MANIFEST)

    def _parsed(self, build: str, name: str) -> Manifest:
        file = self.build(build) / name
        try:
            manifest = Manifest.model_validate(stored.load(file))
        except FileNotFoundError:
            known = ", ".join(self.builds()[-5:]) or "none"
            hint = f"channels: {', '.join(CHANNELS)}; builds: {known}"
            raise GpuprovError(f"{self.name} has no build {build}", hint=hint) from None
        except (OSError, ValueError) as error:  # ValidationError is one
            reason = str(error).splitlines()[0]
            raise GpuprovError(f"is not a manifest ({reason})", where=str(file), hint=RESTORE) from None
        if (manifest.name, manifest.build) != (self.name, build):
            raise GpuprovError(
                f"is the manifest of {manifest.name}, build {manifest.build}", where=str(file), hint=RESTORE
            )
        return manifest

    def channels(self) -> dict[str, str]:
        """Channel → build, for those that have one."""
        return {name: build for name in CHANNELS if (build := self._read()["channels"].get(name))}

    def history(self) -> list[Move]:
        """Oldest first."""
        return [Move(**row) for row in self._read()["history"]]

    def resolve(self, reference: str) -> str:
        """The build of a channel, or the build of that name. Raises GpuprovError where there is none."""
        if reference in CHANNELS:
            build = self.channels().get(reference)
            if build is None:
                moves = f"`gpuprov image promote RECIPE {reference}` gives it what the channel below has"
                hint = moves if self.builds() else "`gpuprov image build RECIPE` makes one"
                raise GpuprovError(f"channel {reference} of {self.name} has no build yet", hint=hint)
            return build
        self.manifest(reference)
        return reference

    def move(self, channel: str, build: str, reason: str) -> Move:
        """Point a channel to a build that has a manifest."""
        self.manifest(build)
        content = self._read()
        moved = Move(channel, build, content["channels"].get(channel, ""), utc_timestamp(), reason)
        content["channels"][channel] = build
        content["history"].append({name: getattr(moved, name) for name in Move.__slots__})
        self._write(content)
        return moved

    def promote(self, channel: str, build: str | None = None) -> Move:
        """Move the build of the channel below, or `build`, to a channel; nothing is moved where it is there already
        (`before` is `build` then). Raises GpuprovError for nightly, which builds move."""
        if channel not in CHANNELS[1:]:
            raise GpuprovError(
                f"builds cannot be promoted to channel {channel}", hint=f"one of {', '.join(CHANNELS[1:])}"
            )
        source = build or self.resolve(CHANNELS[CHANNELS.index(channel) - 1])
        if self.channels().get(channel) == source:
            self.manifest(source)
            return Move(channel, source, source, utc_timestamp(), "is there already")
        return self.move(channel, source, "promoted")

    def clear_channels(self) -> None:
        """No channel has a build, or could go back to one."""
        self._write(self._read() | {"channels": {}, "history": []})

    def rollback(self, channel: str) -> Move:
        """Move a channel back to the build that it had before its present one. Raises GpuprovError where there is no
        such build any more."""
        self.resolve(channel)
        earlier = self.earlier(channel)
        if not earlier:
            raise GpuprovError(
                f"channel {channel} of {self.name} had no other build", hint="`gpuprov image list` shows them"
            )
        return self.move(channel, earlier[-1], "rolled back")

    def earlier(self, channel: str) -> list[str]:
        """The builds that a channel can go back to, the next one last."""
        stack: list[str] = []
        for moved in self.history():
            if moved.channel == channel and moved.why == "rolled back":
                while stack and stack[-1] != moved.build:
                    stack.pop()
                stack = stack or [moved.build]
            elif moved.channel == channel:
                stack.append(moved.build)
        present, known = self.channels().get(channel), set(self.builds())
        return [build for build in stack if build != present and build in known]

    def withdraw(self, build: str) -> Manifest:
        """Begin to remove a build that no channel has: from here on no channel can have it. Gives its manifest, also
        where that was begun before."""
        self._refuse_in_channel(build)
        file = self.build(build) / MANIFEST
        if file.exists():
            self.manifest(build)
            file.replace(file.with_name(REMOVING))
        return self._parsed(build, REMOVING)

    def forget(self, build: str) -> None:
        """Remove the files of a build that no channel has."""
        self._refuse_in_channel(build)
        remove_tree(self.build(build))

    def _refuse_in_channel(self, build: str) -> None:
        if build in self.channels().values():
            raise GpuprovError(f"build {build} is in a channel", hint="promote another one first")

    def note_night(self, row: Mapping[str, Any]) -> None:
        """Add how a night went."""
        private_dir(self.folder)
        with directories.append(self.nights) as stream:
            stream.write(json.dumps(row).encode() + b"\n")

    def told_nights(self) -> list[dict[str, Any]]:
        """How the nights went, oldest first; a line that was cut is left out."""
        try:
            lines = regular_file.read(self.nights, stored.LIMIT).decode("utf-8", "replace").splitlines()
        except FileNotFoundError:
            return []
        except OSError as error:
            raise GpuprovError(f"cannot be read: {error.strerror}", where=str(self.nights), hint=RESTORE) from None
        nights = []
        for line in lines:
            try:
                row = stored.loads(line)
            except ValueError:
                continue
            texts = isinstance(row, dict) and all(isinstance(row.get(key), str) for key in ("at", "outcome", "build"))
            if texts and isinstance(row.get("changed"), list):
                nights.append(row)
        return nights

    def _read(self) -> dict[str, Any]:
        try:
            content = stored.load(self._file)
            channels, history = content["channels"], content["history"]
            moves = [Move(**row) for row in history]
            if not all(isinstance(v, str) for v in (*channels.values(), *(m.build for m in moves))):
                raise ValueError("a channel has no build")
        except FileNotFoundError:
            return {"version": 1, "channels": {}, "history": []}
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise GpuprovError(f"is damaged ({error})", where=str(self._file), hint=RESTORE) from None
        document: dict[str, Any] = content
        return document

    def _write(self, content: dict[str, Any]) -> None:
        private_dir(self.folder)
        write_whole(self._file, json.dumps(content, indent=1) + "\n", mode=0o644)


def sha256(file: Path) -> str:
    """Of a regular file. Raises OSError."""
    with regular_file.opened(file) as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
