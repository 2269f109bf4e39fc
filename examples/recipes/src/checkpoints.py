"""Checkpoints that survive a lost machine, a full disk and a damaged file.

A checkpoint is a folder `step-00000120` with the state's files and manifest.json: progress, shape of the model, size
and SHA-256 of each file. It is written under another name, synced to the disk and renamed: a folder of that name is
complete.

Each node has its own folder, or several nodes share one on network storage; `Checkpoints` tries which. Every folder
gets a complete copy. At the start all processes agree on the newest checkpoint that is complete and undamaged on at
least one node. Nodes that lack it (a replaced one is empty) get its files from a node that has it.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException

MANIFEST = "manifest.json"
CHUNK = 64 * 2**20
PATIENCE = timedelta(hours=2)
"""How long a process waits for another one that writes or reads a checkpoint."""


class Failure(Exception):
    """The training cannot go on, and all processes know it. Its text is for the user."""


class Checkpoints:
    """The checkpoints of this training. Every process makes one and calls each method at the same time.

    `owner`: lowest number of the nodes that share this node's folder. `leads`: whether this process makes, renames and
    removes folders.
    """

    def __init__(self, folder: Path, keep: int, shape: dict[str, Any], device: torch.device) -> None:
        self.folder, self.keep, self.shape, self.device = folder, keep, shape, device
        self.rank, self.local_world = dist.get_rank(), int(os.environ["LOCAL_WORLD_SIZE"])
        self.node, self.local = divmod(self.rank, self.local_world)
        self.group = dist.new_group(backend="gloo", timeout=PATIENCE)
        self.owner = self._find_owner()
        self.owns = self.owner == self.node
        self.leads = self.owns and self.local == 0
        leaders = [rank for rank, leads in enumerate(self._gather(self.leads)) if leads]
        self.leaders, self.leader_group = leaders, dist.new_group(leaders)

    def save(self, progress: dict[str, Any], write: Callable[[Path], None], parts_everywhere: bool) -> None:
        """Write a checkpoint. `write(folder)`: write this process's part. Raises Failure; the older ones remain."""
        step, identity = progress["step"], self._gather(uuid.uuid4().hex)[0]
        fresh, final = self._fresh(step), self._final(step)
        self._agree(self._make_room(fresh) if self.leads else "", step)
        self._agree(_attempt(lambda: write(fresh)) if self.owns or parts_everywhere else "", step)
        if parts_everywhere:
            for leader in self.leaders:
                self._agree(self._copy_files(leader, fresh, fresh, self.leads), step)
        digests = dict[str, Any]()
        if self.owns:
            error = _attempt(
                lambda: digests.update({name: _digest(fresh / name) for name in self._share(_files(fresh))})
            )
        self._agree(error if self.owns else "", step)
        files = {
            name: row
            for owner, rows in self._gather((self.owner, digests))
            if owner == self.owner
            for name, row in rows.items()
        }
        manifest = {"id": identity, "progress": progress, "shape": self.shape, "files": files}
        self._agree(_attempt(lambda: _write_manifest(fresh, manifest)) if self.leads else "", step)
        self._agree(_attempt(lambda: self._publish(fresh, final)) if self.leads else "", step)

    def restore(self, load: Callable[[Path], None]) -> dict[str, Any] | None:
        """Load the newest checkpoint that is complete and undamaged on any node. Returns its progress; None where no
        node has one. Raises Failure for a checkpoint of another model."""
        verified = set[str]()
        while True:
            offers = {
                owner: manifests
                for owner, manifests in self._gather((self.owner, self._list()))
                if manifests is not None
            }
            newest = max((step for manifests in offers.values() for step in manifests), default=None)
            if newest is None:
                return None
            holder = min(owner for owner, manifests in offers.items() if newest in manifests)
            manifest = offers[holder][newest]
            if manifest["shape"] != self.shape:
                raise Failure(self._describe_other_shape(newest, holder, manifest["shape"]))
            # The same id means the same state: nodes that trained apart from each other have others
            holders = [owner for owner in offers if offers[owner].get(newest, {}).get("id") == manifest["id"]]
            if self._set_damaged_aside(newest, offers[self.owner][newest] if self.owner in holders else None, verified):
                continue
            lacking = [owner for owner in offers if owner not in holders]
            if not lacking:
                break
            self._say(f"{_nodes(lacking)} gets the checkpoint of step {newest} from node {holder}")
            self._fetch(holder, newest, lacking)
        self._say(f"continuing from the checkpoint of step {newest}")
        load(self._final(newest))
        dist.barrier(self.group)
        return dict(manifest["progress"])

    def _find_owner(self) -> int:
        """Lowest number of the nodes that see the same folder: each leaves a file and looks for those of the others."""
        run, error = self._gather(uuid.uuid4().hex)[0], ""
        mark = self.folder / f".node-{self.node}-{run}"
        if self.local == 0:
            try:
                self.folder.mkdir(parents=True, exist_ok=True)
                mark.touch()
            except OSError as failure:
                error = f"node {self.node} cannot write to {self.folder}: {failure.strerror}"
        _raise_first(self._gather(error))
        nodes = [int(path.name.split("-")[1]) for path in self.folder.glob(f".node-*-{run}")]
        dist.barrier(self.group)
        if self.local == 0:
            mark.unlink(missing_ok=True)
        return min(nodes, default=self.node)

    def _list(self) -> dict[int, dict[str, Any]] | None:
        """Manifests of this folder's checkpoints by step; None where another process answers for the folder."""
        if not self.leads:
            return None
        manifests = dict[int, dict[str, Any]]()
        for path in sorted(self.folder.glob("step-*")):
            try:
                manifest = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
                manifests[int(manifest["progress"]["step"])] = manifest
            except (OSError, ValueError, KeyError, TypeError) as failure:
                print(f"node {self.node}: {path.name} is damaged ({MANIFEST}: {failure}); ignored", flush=True)
                _set_aside(path)
        return manifests

    def _set_damaged_aside(self, step: int, manifest: dict[str, Any] | None, verified: set[str]) -> bool:
        """Compare the files of a checkpoint with its manifest, on every node that has it. Returns whether a copy is
        damaged. `manifest`: None on nodes without it. `verified`: ids that need no second look."""
        path, errors = self._final(step), list[str]()
        if self.owns and manifest and manifest["id"] not in verified:
            for name in self._share(sorted(manifest["files"])):
                errors += _compare(path, name, manifest["files"][name])
            verified.add(manifest["id"])
        damaged = {owner: rank_errors[0] for owner, rank_errors in self._gather((self.owner, errors)) if rank_errors}
        for owner, error in damaged.items():
            self._say(f"the checkpoint of step {step} on node {owner} is damaged ({error}); ignored")
        if self.leads and self.owner in damaged:
            _set_aside(path)
        dist.barrier(self.group)
        return bool(damaged)

    def _fetch(self, holder: int, step: int, lacking: list[int]) -> None:
        """Copy a checkpoint from the node `holder` to those that lack it."""
        fresh, final = self._fresh(step), self._final(step)
        receives = self.leads and self.owner in lacking
        self._agree(self._make_room(fresh) if receives else "", step)
        self._agree(self._copy_files(holder * self.local_world, final, fresh, receives), step)
        if receives and final.exists():
            _set_aside(final)  # of a training apart from this one
        self._agree(_attempt(lambda: self._publish(fresh, final)) if receives else "", step)

    def _copy_files(self, source: int, sent: Path, received: Path, receives: bool) -> str:
        """Copy the files of the folder `sent` of the leader `source` into `received` of the other leaders. Returns what
        went wrong here: the process goes on all the same, so that all stay together."""
        if not self.leads or len(self.leaders) == 1:
            return ""
        sends, error = self.rank == source, ""
        listing: list[Any] = [[(name, (sent / name).stat().st_size) for name in _files(sent)] if sends else None]
        dist.broadcast_object_list(listing, src=source, group=self.leader_group)
        for name, size in listing[0]:
            if sends:
                error = self._copy_file(source, size, sent / name, "rb") or error
            elif receives and not error:
                error = self._copy_file(source, size, received / name, "wb")
            else:
                self._copy_file(source, size)
        return error

    def _copy_file(self, source: int, size: int, path: Path | None = None, mode: str = "") -> str:
        """Broadcast a file from `source` in chunks. `path`: to read from or to write to; None drops the chunks."""
        error, file = "", None
        if path:
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                file = path.open(mode)
            except OSError as failure:
                error = str(failure)
        for position in range(0, size, CHUNK):
            buffer = bytearray(min(CHUNK, size - position))
            if file and mode == "rb" and file.readinto(buffer) != len(buffer):
                error = f"{path} changed while it was copied"
            chunk = torch.frombuffer(buffer, dtype=torch.uint8)
            moved = chunk.to(self.device)  # NCCL between GPUs, gloo between CPUs
            dist.broadcast(moved, src=source, group=self.leader_group)
            if file and mode == "wb" and not error:
                chunk.copy_(moved)
                error = _attempt(partial(file.write, buffer))
        if file:
            error = _attempt(file.close) or error
        return error

    def _make_room(self, fresh: Path) -> str:
        """Make an empty folder for a checkpoint. Returns an error if the disk lacks the room of the newest one."""
        for path in (*self.folder.glob("new-*"), *self.folder.glob("damaged-*")):
            shutil.rmtree(path, ignore_errors=True)
        older = sorted(self.folder.glob("step-*"))
        size = sum((older[-1] / name).stat().st_size for name in _files(older[-1])) if older else 0
        if shutil.disk_usage(self.folder).free < size:
            return f"no space left: {older[-1].name} takes {_mib(size)}"
        return _attempt(fresh.mkdir)

    def _agree(self, error: str, step: int) -> None:
        """Raise Failure in every process where one has an error, and remove what was begun."""
        if error:
            free = _mib(shutil.disk_usage(self.folder).free)
            target = f"the checkpoint of step {step} to {self.folder}"
            error = f"node {self.node} could not write {target}: {error} ({free} free)"
        errors = self._gather(error)
        if not any(errors):
            return
        if self.leads:
            shutil.rmtree(self._fresh(step), ignore_errors=True)
        older = sorted(path.name for path in self.folder.glob("step-*"))
        remaining = f"{older[-1]} remains" if older else "there is no older one"
        _raise_first([error and f"{error}; {remaining}" for error in errors])

    def _publish(self, fresh: Path, final: Path) -> None:
        """Give a complete checkpoint its name, so that it survives a loss of power, and remove the oldest."""
        for folder in (fresh, *(path for path in fresh.rglob("*") if path.is_dir())):
            _sync(folder)
        fresh.rename(final)
        _sync(self.folder)
        for path in sorted(self.folder.glob("step-*"))[: -self.keep]:
            shutil.rmtree(path)

    def _fresh(self, step: int) -> Path:
        return self.folder / f"new-{step:08}"

    def _final(self, step: int) -> Path:
        return self.folder / f"step-{step:08}"

    def _share(self, items: list[Any]) -> list[Any]:
        """This process's part of a node's work."""
        return items[self.local :: self.local_world]

    def _gather(self, item: Any) -> list[Any]:
        """The items of all processes, by rank."""
        items: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(items, item, group=self.group)
        return items

    def _describe_other_shape(self, step: int, node: int, shape: dict[str, Any]) -> str:
        keys = sorted(key for key in {*shape, *self.shape} if shape.get(key) != self.shape.get(key))
        differences = ", ".join(f"{key} {shape.get(key)} instead of {self.shape.get(key)}" for key in keys)
        return (
            f"the checkpoint of step {step} in {self.folder} on node {node} is of another model: {differences}. "
            "Train with the same options, or use another folder"
        )

    def _say(self, text: str) -> None:
        if self.rank == 0:
            print(text, flush=True)


def _nodes(numbers: list[int]) -> str:
    return ("node " if len(numbers) == 1 else "each of nodes ") + ", ".join(map(str, sorted(numbers)))


def _mib(size: int) -> str:
    return f"{size / 2**20:.0f} MiB"


def _raise_first(errors: list[str]) -> None:
    for error in errors:
        if error:
            raise Failure(error)


def _attempt(action: Callable[[], object]) -> str:
    """Returns what went wrong; empty for success. PyTorch reports a full disk as one of the other two exceptions."""
    try:
        action()
    except CheckpointException as failures:
        failure: BaseException = next(iter(failures.failures.values()))[0]
    except (OSError, RuntimeError) as error:
        failure = error
    else:
        return ""
    return (str(failure) or type(failure).__name__).splitlines()[0]


def _files(folder: Path) -> list[str]:
    """Names of the files in a folder and its folders."""
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def _digest(path: Path) -> dict[str, Any]:
    """Size and digest of a file, which is on the disk when this returns."""
    _sync(path)
    with path.open("rb") as file:
        return {"bytes": path.stat().st_size, "sha256": hashlib.file_digest(file, "sha256").hexdigest()}


def _compare(folder: Path, name: str, expected: dict[str, Any]) -> Iterator[str]:
    """What is wrong with a file of a checkpoint."""
    try:
        size = (folder / name).stat().st_size
        if size != expected["bytes"]:
            yield f"{name} has {size} bytes instead of {expected['bytes']}"
        elif _digest(folder / name) != expected:
            yield f"{name} has another SHA-256"
    except OSError as failure:
        yield f"{name}: {failure.strerror}"


def _write_manifest(folder: Path, manifest: dict[str, Any]) -> None:
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=1), encoding="utf-8")
    _sync(folder / MANIFEST)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _set_aside(path: Path) -> None:
    """Take a checkpoint out of the way. The next one that is written removes it."""
    aside = path.with_name(f"damaged-{path.name}")
    shutil.rmtree(aside, ignore_errors=True)
    path.rename(aside)
