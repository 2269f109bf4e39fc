"""Which lock each machine runs: written down when a machine was configured by it and proven, and asked ever after.

cluster.yaml and cluster.lock say what is wanted; this says what a running fleet was given, so that a lock that changed
moves nobody by accident. Kept in the run directory: applied.json, and every lock that is still in use under locks/.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import field
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import Field
from pydantic.dataclasses import dataclass

from provisioner.common.errors import DamagedFileError, GpuprovError
from provisioner.common.paths import ClusterPaths, below, private_dir
from provisioner.common.text import counted
from provisioner.plan.models import Plan, build_plan
from provisioner.rundir import records
from provisioner.rundir.fleet import Node
from provisioner.spec.models import ClusterSpec
from provisioner.stack import lockfile
from provisioner.stack.components import COMPONENTS, title
from provisioner.stack.models import Image, Lock, Stack, on_node

_RELEASE = re.compile(r"[0-9a-f]{12}")
ANOTHER_RELEASE = "its content is not the release that its name says"
"""Of a kept lock that somebody has edited: its name is the digest of what it installs."""


@dataclasses.dataclass(frozen=True, slots=True)
class Release:
    """A lock with the plan of its groups. Two locks that install the same have the same `id` (12 hex digits)."""

    id: str
    lock: Lock
    plan: Plan

    def stack(self, group: str) -> Stack:
        return self.lock.groups[group]


def content(stack: Stack, *, simulated: bool) -> dict[str, Any]:
    """What a stack puts on a node. Why it was chosen is no part of it; neither are the digests and keys of a sandbox,
    which follow from the machine of the sandbox."""
    installed = on_node(stack)
    if simulated:
        for image in installed["images"]:
            image.update(digest="", pull="")
        for repository in installed["repositories"]:
            repository.update(uri="", key_url="", fingerprint="")
            for late in ("archives", "packages"):
                repository.pop(late, None)
    return installed


def identity(lock: Lock) -> str:
    """The `id` of a release."""
    text = {group: content(stack, simulated=lock.simulated) for group, stack in lock.groups.items()}
    return hashlib.sha256(json.dumps(text, sort_keys=True).encode()).hexdigest()[:12]


def same(first_lock: Lock, other: Lock, group: str) -> bool:
    """Whether both locks put the same on the nodes of a group."""
    stacks = [lock.groups.get(group) for lock in (first_lock, other)]
    first, second = (content(s, simulated=first_lock.simulated) if s else None for s in stacks)
    return first is not None and first == second


@dataclass(config=records.STRICT, frozen=True, slots=True)
class Applied:
    """What one node runs. `id`: of its machine; `lock`: of the release that it was proven with."""

    id: str
    lock: Annotated[str, Field(pattern=f"^{_RELEASE.pattern}$")]


@dataclass(config=records.STRICT, slots=True)
class AppliedFile:
    """applied.json: node name → what it runs."""

    FILE: ClassVar[str] = "applied.json"
    REPAIR: ClassVar[str] = "remove it: the next `gpuprov up` then configures every node with cluster.lock"

    nodes: dict[str, Applied] = field(default_factory=dict)


class Ledger:
    """applied.json and locks/ of one cluster."""

    def __init__(self, paths: ClusterPaths) -> None:
        self._paths, self._file = paths, paths.root / AppliedFile.FILE
        self._locks = paths.root / "locks"
        self._entries = (records.load(paths, AppliedFile) or AppliedFile()).nodes
        self._parsed: dict[str, Lock] = {}

    def of(self, node: Node) -> str | None:
        """The id of the release that this machine was proven with; None for a machine that never was."""
        entry = self._entries.get(node.name)
        return entry.lock if entry and entry.id == node.id else None

    def machines(self) -> dict[str, str]:
        """Node → the id of the machine that was proven as it."""
        return {name: entry.id for name, entry in self._entries.items()}

    def lock(self, release: str) -> Lock:
        """The lock of a release that is in use. Raises GpuprovError where it is gone."""
        if release not in self._parsed:
            kept_lock = self._read(below(self._locks, f"{release}.lock"))
            if kept_lock is None:
                raise self._missing(release)
            self._parsed[release] = kept_lock
        return self._parsed[release]

    def _missing(self, release: str) -> GpuprovError:
        """What names the lock: applied.json, or else the journal of an upgrade."""
        if any(entry.lock == release for entry in self._entries.values()):
            users = "which nodes run"
            hint = f"remove {self._file}: the next `gpuprov up` then configures every node with cluster.lock"
        else:
            users = "between which and another one an upgrade moves nodes"
            hint = "check with `gpuprov status` which nodes are out of service, put them back, then remove "
            hint += str(self._file.with_name("upgrade.json"))
        return GpuprovError(f"the lock {release}, {users}, is missing", where=str(self._locks), hint=hint)

    def without(self, release: str, group: str) -> GpuprovError:
        """A release whose lock does not have the group of a node that runs it."""
        return DamagedFileError(
            f"it has no group {group}, and nodes of that group run it",
            str(below(self._locks, f"{release}.lock")),
            hint="remove it: the next command takes the shared one, or says what to do without it",
        )

    def has(self, release: str) -> bool:
        """Whether its lock is kept."""
        return below(self._locks, f"{release}.lock").exists()

    def _read(self, file: Path) -> Lock | None:
        """A lock that was kept. Raises GpuprovError where it is damaged, or another one than its name says."""
        try:
            kept_lock = lockfile.read(file)
            if kept_lock is not None and identity(kept_lock) != file.stem:
                raise GpuprovError(ANOTHER_RELEASE)
            return kept_lock
        except GpuprovError as error:
            hint = f"remove it; if nodes run it, remove {self._file} too: `gpuprov up` then configures every node"
            raise DamagedFileError(error.message, str(file), hint=hint) from error

    def in_use(self, nodes: Iterable[Node]) -> list[str]:
        """Ids of the releases that these machines run, each once."""
        return sorted({release for node in nodes if (release := self.of(node)) is not None})

    def keep(self, lock: Lock) -> str:
        """Store a lock; its id."""
        release = identity(lock)
        lockfile.write(private_dir(self._locks) / f"{release}.lock", lock)
        return release

    def refuse_damaged_locks(self, lock: Lock) -> None:
        """Raise GpuprovError where a kept lock is damaged, which `obsolete` needs; `keep` writes `lock` again. Where
        nodes.json was lost, also for a lock that is missing: machines are taken in before their locks are read."""
        rewritten = identity(lock)
        for file in sorted(self._locks.glob("*.lock")):
            if file.stem != rewritten:
                self._read(file)
        if not self._paths.nodes.exists():
            for release in sorted({entry.lock for entry in self._entries.values()} - {rewritten}):
                if not self.has(release):
                    raise self._missing(release)

    def obsolete(self, lock: Lock) -> dict[str, list[str]]:
        """Group → packages that a kept lock put on its nodes and this one does not: eras of a stack differ in names."""
        kept_locks = [
            kept_lock for file in sorted(self._locks.glob("*.lock")) if (kept_lock := self._read(file)) is not None
        ]
        names: dict[str, list[str]] = {}
        for group, stack in lock.groups.items():
            had = {p.name for other in kept_locks if group in other.groups for p in other.groups[group].packages}
            vendor_packages = {package.name for package in stack.vendor.packages} if stack.vendor else set()
            names[group] = sorted(had - vendor_packages - {package.name for package in stack.packages})
        return names

    def record(self, nodes: Collection[Node], lock: Lock) -> None:
        """These machines were configured by this lock and proven."""
        if not nodes:
            return
        release = self.keep(lock)
        self._entries |= {node.name: Applied(node.id, release) for node in nodes}
        records.save(self._paths, AppliedFile(self._entries))

    def prune(self, nodes: Collection[Node], also: Collection[str] = ()) -> None:
        """Forget machines that are gone, and locks that neither a machine nor `also` needs."""
        names = {node.name for node in nodes}
        entries = {name: entry for name, entry in self._entries.items() if name in names}
        if entries != self._entries:
            self._entries = entries
            records.save(self._paths, AppliedFile(entries))
        releases = {entry.lock for entry in entries.values()} | set(also)
        for file in self._locks.glob("*.lock") if self._locks.is_dir() else ():
            if file.stem not in releases:
                self._parsed.pop(file.stem, None)
                file.unlink()


def release_of(spec: ClusterSpec, lock: Lock) -> Release:
    """A lock with the plan of the groups that it and cluster.yaml both have."""
    lock = lock.at(spec.group_sites())
    return Release(identity(lock), lock, build_plan(spec, lock, partly=True))


def assigned_releases(spec: ClusterSpec, ledger: Ledger, nodes: Sequence[Node], lock: Lock) -> dict[str, Release]:
    """Node name → the release that it is held to: the one that it was proven with, where that installs something else
    than `lock` does; for all others that of `lock`."""
    current = release_of(spec, lock)
    known = {current.id: current}
    by_group: dict[tuple[str, str], Release] = {}  # by release and group, which thousands of nodes share
    for node in nodes:
        applied = ledger.of(node) or current.id
        if applied not in known:
            known[applied] = release_of(spec, ledger.lock(applied))
        if applied != current.id and node.group not in known[applied].lock.groups:
            raise ledger.without(applied, node.group)
        if (applied, node.group) not in by_group:
            unchanged = same(known[applied].lock, lock, node.group)
            by_group[applied, node.group] = current if unchanged else known[applied]
    return {node.name: by_group[ledger.of(node) or current.id, node.group] for node in nodes}


def changes(old: Stack, new: Stack) -> list[str]:
    """What differs between two stacks, one short phrase each: versions by name, images by reference, and how many
    packages move; empty where both install the same."""
    phrases = []
    for name in COMPONENTS:
        versions = old.version_of(name), new.version_of(name)
        if versions[0] != versions[1]:
            phrases.append(f"{title(name)} {versions[0] or 'none'} → {versions[1] or 'none'}")
    images = {i.reference for i in old.images}, {i.reference for i in new.images}
    phrases += [f"without {name}" for name in sorted(images[0] - images[1])]
    phrases += [f"with {name}" for name in sorted(images[1] - images[0])]
    phrases += [f"{i.reference} by another digest" for i in new.images if _moved(i, old)]
    old_packages, new_packages = ({p.name: p.version for p in s.packages} for s in (old, new))
    moved = sum(old_packages.get(name) != new_packages.get(name) for name in {*old_packages, *new_packages})
    if moved:
        phrases.append(counted(moved, "package"))
    return phrases


def _moved(image: Image, old: Stack) -> bool:
    return any(i.reference == image.reference and i.digest != image.digest for i in old.images)
