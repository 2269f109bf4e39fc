"""One cluster being worked on: its file, its run directory, its nodes, and the lock that keeps two runs apart.

with session.open_cluster(file) as cluster: …     # to look at it
with cluster.exclusively("up"): …                 # to change it
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import secrets
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from filelock import FileLock, Timeout

from provisioner import spec
from provisioner.common import directories, ownership, stored
from provisioner.common.errors import GpuprovError, InputError, Interrupted, LockedError
from provisioner.common.events import Events, jsonl_writer
from provisioner.common.paths import (
    HOLDER,
    IDENTITY,
    IGNORE,
    RUNS,
    ClusterPaths,
    private_dir,
    remove_tree,
    touch,
    write_whole,
)
from provisioner.common.suggest import did_you_mean
from provisioner.common.text import few
from provisioner.common.typed_command import typed_file
from provisioner.lifecycle.sharing import shared_files
from provisioner.lifecycle.sharing.shared_files import SharedFiles
from provisioner.machines.providers.cluster import Providers
from provisioner.machines.providers.state import Remote
from provisioner.rundir import fleet, placement, run_folders
from provisioner.stack import lockfile
from provisioner.stack.models import Lock
from provisioner.transport import keeper, ssh_config, ssh_sockets

if TYPE_CHECKING:
    from provisioner.spec.models import ClusterSpec

LOCK_TRIES = 10
"""Of which each fails where a `down` ends at that moment."""


@dataclass
class Cluster:
    """A cluster.yaml and what is known of the fleet that it asks for."""

    file: Path
    spec: ClusterSpec
    paths: ClusterPaths
    events: Events = field(default_factory=Events)
    sharing: SharedFiles | None = None
    """With whom state is shared; None where it is this machine's alone."""

    @cached_property
    def providers(self) -> Providers:
        """Who makes the machines, site by site."""
        return Providers(self.spec, self.paths)

    @property
    def sandbox(self) -> bool:
        return self.paths.sandbox

    @property
    def label(self) -> str:
        """Its name for a prompt: which of the two of that name it is."""
        return f"{self.spec.name} (sandbox)" if self.sandbox else str(self.spec.name)

    @property
    def typed_file(self) -> str:
        """What stands for FILE in a command on this cluster."""
        return typed_file(self.file, sandbox=self.sandbox)

    @property
    def lock(self) -> Lock:
        """cluster.lock, with the stack of each group at its site. Raises GpuprovError where there is none yet."""
        return self.place_lock(self._whole_lock)

    @cached_property
    def _whole_lock(self) -> Lock:
        lock = lockfile.read(self.paths.lock_file)
        if lock is None:
            raise GpuprovError(
                "no cluster.lock yet", where=str(self.paths.lock_file), hint=f"run `gpuprov up {self.typed_file}` first"
            )
        return lock

    def place_lock(self, lock: Lock) -> Lock:
        """A lock as its groups have it at the sites where they are now."""
        return lock.at(self.spec.group_sites())

    @property
    def needs_terraform(self) -> bool:
        """Whether any of its machines are made; others exist already."""
        providers_by_site = {**{site: self.providers.at(site) for site in self.spec.sites}, **self.providers.made()}
        return any(provider.hosts is None for provider in providers_by_site.values())

    def require_rights(self) -> None:
        """To be asked before anything is made or removed. Raises GpuprovError where this user can't."""
        if self.sandbox:
            from provisioner.sandbox.runtime import require_root

            require_root()

    def place_groups(self) -> None:
        """Take the sites that were chosen for groups with several, as the run directory has them now."""
        self.spec = placement.with_chosen_sites(self.spec, self.paths)

    def nodes(self) -> list[fleet.Node]:
        """The machines that the last run made."""
        return fleet.load(self.paths)

    def node(self, name: str) -> fleet.Node:
        """One machine by name. Raises GpuprovError with the nearest names."""
        nodes = self.nodes()
        for node in nodes:
            if node.name == name:
                return node
        present, expected = [node.name for node in nodes], list(self.spec.node_groups())
        hint = did_you_mean(name, present, limit=3) or f"the file has {few(expected, 5, ',')}"
        if name in expected:
            hint = f"run `gpuprov up {self.typed_file}` first"
        raise GpuprovError(f"there is no node {name}", where=str(self.file), hint=hint)

    @cached_property
    def identity(self) -> str:
        """What tells this cluster from every other one of its name, in tags: 12 hex digits, made once and kept."""
        if recorded := self.recorded_identity():
            return recorded
        identity = secrets.token_hex(6)
        write_whole(private_dir(self.paths.root) / "id", identity + "\n")
        return identity

    def recorded_identity(self) -> str:
        """`identity` where it was made; else an empty string."""
        file = self.paths.root / "id"
        try:
            text = file.read_text(encoding="utf-8", errors="replace") if file.is_file() else ""
        except FileNotFoundError:
            return ""
        if not text and not file.exists():
            return ""
        if not IDENTITY.fullmatch(text):
            hint = "restore it from a backup, or from the tags of this cluster's machines"
            raise GpuprovError(f"{text[:40]!r} is not a cluster id", where=str(file), hint=hint)
        return text.strip()

    @property
    def remote(self) -> Remote | None:
        """Where Terraform's state lies; None: beside its workspace."""
        return self.sharing.remote if self.sharing and self.sharing.remote.there else None

    def share(self) -> None:
        """Let the other operators know what is known by now; the caller is the one at work."""
        if self.sharing:
            self.sharing.share()

    @contextlib.contextmanager
    def exclusively(self, command: str, *, look: bool = False) -> Iterator[Path]:
        """Be the only one at work on the cluster, on this machine and on all others, with a fresh run directory whose
        events.jsonl has everything that happens. `look`: for a command that changes nothing; no place is made for a
        shared state, and nothing is written there. Raises LockedError naming the holder."""
        with self.alone_here(command) as run_dir:
            if self.sharing is None:
                self.place_groups()  # another run may have chosen other sites since this one began
                yield run_dir
            else:
                with self.sharing.held(command, self.events, look=look):
                    self.place_groups()
                    yield run_dir

    @contextlib.contextmanager
    def noted(self, command: str) -> Iterator[bool]:
        """For what is written down after something that needed no lock: shared with the others where they can be kept
        out for it (gives True), else kept here alone."""
        with contextlib.ExitStack() as stack:
            is_exclusive = False
            if self.sharing:
                try:
                    stack.enter_context(self.exclusively(command))
                    is_exclusive = True
                except LockedError as error:
                    self.events("run", "warning", f"results are kept on this machine only: {error.message}")
            yield is_exclusive

    @contextlib.contextmanager
    def alone_here(self, command: str) -> Iterator[Path]:
        """Hold the cluster's lock of this machine. The kernel lets go of it when this process dies."""
        untouched = self.paths.untouched()
        lock, holder = self._locked(), self.paths.root / HOLDER
        run_record = {
            "pid": os.getpid(),
            "command": command,
            "since": time.time(),
            "run": os.environ.get(keeper.NAME),
            "user": ownership.person_name(),
        }
        record = json.dumps(run_record) + "\n"
        try:
            _end_dead(holder, self.paths)
            write_whole(holder, record)
            run_dir = _run_dir(self.paths)
            with _recorded(self.events, run_dir):
                how = "done"
                try:
                    yield run_dir
                except BaseException as error:
                    how = "interrupted" if isinstance(error, (KeyboardInterrupt, Interrupted)) else "failed"
                    # A command that was refused leaves nothing, but what its error tells a person to look at.
                    if untouched and not self.paths.made() and str(run_dir) not in getattr(error, "hint", ""):
                        self.only_looked()
                    raise
                finally:
                    self.events("run", "log", f"gpuprov {command}: {how}", data={"ended": how})
        finally:
            _remove_own(holder, record)
            lock.release()

    def _locked(self) -> FileLock:
        """The run directory's lock, taken. A `down` that ends removes both: they are made anew. Raises LockedError."""
        lock = FileLock(self.paths.run_lock, timeout=0, mode=0o600)
        try:
            for _ in range(LOCK_TRIES):
                with contextlib.suppress(FileNotFoundError):
                    touch(private_dir(self.paths.root) / self.paths.run_lock.name)
                    lock.acquire()
                    return lock
        except Timeout:
            pass
        raise LockedError(
            f"{self.spec.name} is locked by another run{_described(self.paths.root / HOLDER)}",
            where=str(self.paths.run_lock),
            hint="wait until it ends, or stop it with Ctrl-C",
        )

    def only_looked(self) -> None:
        """Remove what a look at a cluster that was never made has left, but the providers that Terraform has fetched
        for it: `up` will want them."""
        has_providers = False
        for workspace in self.paths.root.glob("sites/*"):
            for path in workspace.iterdir():
                if self.sandbox or path.name not in (".terraform", ".terraform.lock.hcl"):
                    _remove(path)
                has_providers = has_providers or (workspace / ".terraform" / "providers").is_dir()
        self.forget(but="sites" if has_providers else "")

    def run_dir(self) -> Path:
        """A fresh directory under runs/: for what holds no lock (`verify`) and has a report to leave."""
        return _run_dir(self.paths)

    def forget(self, *, but: str = "") -> None:
        """Remove the run directory: to be called by the holder of the lock, when nothing is left of the cluster."""
        root = self.paths.root
        for path in root.iterdir() if root.is_dir() else ():  # somebody may have removed it meanwhile
            if path == self.paths.run_lock or path.name == but:
                continue
            _remove(path)
        self.paths.run_lock.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # somebody has put something there
            root.rmdir()
        with contextlib.suppress(OSError):  # another cluster's files are beside ours
            if [path.name for path in root.parent.iterdir()] == [IGNORE]:
                (root.parent / IGNORE).unlink()
            root.parent.rmdir()


def open_cluster(
    file: str | Path, *, sandbox: bool | None = None, events: Events | None = None, offline: bool = False
) -> Cluster:
    """Read cluster.yaml and find its run directory; where others share it, what they have done since is read first, but
    for `offline`.

    `sandbox` None takes what is there: the sandbox where only that has been made, else the real cluster. Raises
    InputError for a bad file, GpuprovError where both exist and nobody said which, and ProviderError where what is
    shared can't be reached.
    """
    path = Path(file)
    return _opened(path, _loaded(path), sandbox, events or Events(), offline=offline)


def open_to_remove(
    file: str | Path, *, sandbox: bool | None = None, events: Events | None = None,
    note: Callable[[str], None] = lambda _: None,
) -> Cluster:  # fmt: skip
    """As open_cluster, for `down`: machines have to go also where the file is not valid any more (a typo, a machine
    type that the catalogue has lost). Then it is as the last run read it that made machines, and `note` is given a
    sentence that says so. Raises InputError with the problems of the file where no such run is known here."""
    path = Path(file)
    try:
        return open_cluster(path, sandbox=sandbox, events=events)
    except InputError as error:
        correct = error.hint or "correct the file, or restore its last version"
        used = [paths for paths in run_folders.used_specs(path) if sandbox in (None, paths.sandbox)]
        if len(used) != 1:
            error.hint = "pass --sandbox or --no-sandbox" if used else correct
            raise
        ownership.refuse_foreign(used[0].root)  # its hooks run, and it says what is removed
        try:
            loaded = spec.load_shape(used[0].used_spec, path.absolute().parent)
        except InputError:
            error.hint = correct
            raise error from None
        if loaded.name != used[0].name:
            raise GpuprovError(
                f"it is of cluster {loaded.name}, and lies in the run directory of {used[0].name}",
                where=str(used[0].used_spec),
                hint="correct cluster.yaml, or restore its last version; another person has put it there",
            ) from None
        problem = f"{error.message}\nThe file is not valid" if os.path.lexists(path) else f"{path} is missing"
        note(f"{problem}: cluster {loaded.name} is removed as {used[0].used_spec} describes it")
        return _opened(path, loaded, used[0].sandbox, events or Events(), offline=False)


def _loaded(path: Path) -> ClusterSpec:
    """Read cluster.yaml. The error of a file that is missing says what the run directories beside it have."""
    try:
        return spec.load(path)
    except InputError as error:
        if not os.path.lexists(path):
            error.hint = run_folders.restoring(path)
        raise


def _opened(path: Path, loaded: ClusterSpec, sandbox: bool | None, events: Events, *, offline: bool) -> Cluster:
    shared = None if sandbox else shared_files.of(path, loaded, offline=offline)
    if sandbox is None:
        both = [ClusterPaths(path, loaded.name, sandbox=s) for s in (False, True)]
        real, in_sandbox = (paths.exists() for paths in both)
        if real and in_sandbox:
            real, in_sandbox = (paths.made() for paths in both)  # nobody means what was only looked at
        if real and in_sandbox:
            raise GpuprovError(
                f"{loaded.name} exists both as a real cluster and as a sandbox",
                where=str(path),
                hint="pass --sandbox or --no-sandbox",
            )
    paths = ClusterPaths(path, loaded.name, sandbox=in_sandbox if sandbox is None else sandbox)
    if not paths.made():
        _refuse_renamed(paths, sandbox)
    sandbox = paths.sandbox
    ownership.refuse_foreign(paths.root)
    cluster = Cluster(path, loaded, paths, events, sharing=None if sandbox else shared)
    providers = cluster.providers
    ssh_config.refuse_foreign(
        paths, lambda: providers.proxies(cluster.nodes()).values(), lambda: providers.local(cluster.nodes())
    )
    ownership.watch(paths.root)
    ssh_sockets.mend(paths)
    cluster.place_groups()
    return cluster


def _refuse_renamed(paths: ClusterPaths, sandbox: bool | None) -> None:
    """Raise GpuprovError where machines were created from the same file under another name: no command would name
    them, and `up` would create a second fleet. Where it was not recorded of which file, no file has that name any more.
    `sandbox` None: whether by a sandbox or not."""
    for other in run_folders.sibling_clusters(paths.spec):
        name, root = other.name, other.root
        if name == paths.name or sandbox not in (None, other.sandbox) or not other.made():
            continue
        source = run_folders.source_name(other)
        if source == paths.spec.name or (not source and not run_folders.is_named(other)):
            kind = "sandbox" if other.sandbox else "cluster"
            option = (
                f", or pass --no-sandbox for a real cluster {paths.name}" if other.sandbox and sandbox is None else ""
            )
            raise GpuprovError(
                f"`name` is {paths.name} now, and {RUNS}/{root.name} has {run_folders.machines_of(other)} that "
                f"{'this file' if source else 'a file of unknown name'} created as {kind} {name}: was the cluster "
                "renamed?",
                where=str(paths.spec),
                hint=f"put `name: {name}` back{option}; a second fleet needs a file of its own",
            )


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        remove_tree(path)
    else:
        path.unlink(missing_ok=True)


def _remove_own(holder: Path, record: str) -> None:
    """Remove holder.json of a run that ends. A run that has removed the run directory leaves that of the next one,
    which may have begun since."""
    with contextlib.suppress(FileNotFoundError):
        if holder.read_text(encoding="utf-8", errors="replace") == record:
            holder.unlink()


def _run_dir(paths: ClusterPaths) -> Path:
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S")
    for suffix in ("", *(f"-{n}" for n in range(2, 100))):
        folder = private_dir(paths.runs) / f"{stamp}{suffix}"
        with contextlib.suppress(FileExistsError), directories.opened(paths.runs) as runs:
            os.mkdir(folder.name, 0o700, dir_fd=runs)
            ownership.give_directory(folder.name, runs)
            return folder
    raise GpuprovError("a hundred runs in one second", where=str(paths.runs))


@contextlib.contextmanager
def _recorded(events: Events, run_dir: Path) -> Iterator[None]:
    """Write all events into events.jsonl of this folder. Raises OSError where it cannot be created; one that cannot be
    written any more (a full disk) is reported on the stream and costs the run nothing."""
    stream = io.TextIOWrapper(directories.append(run_dir / "events.jsonl"), encoding="utf-8")
    writer = jsonl_writer(stream)
    try:
        events.subscribe(writer)
        try:
            yield
        finally:
            events.unsubscribe(writer)
    finally:
        with contextlib.suppress(OSError):  # what is buffered still cannot be written
            stream.close()


def _end_dead(holder: Path, paths: ClusterPaths) -> None:
    """End what is left of the run that was killed while it held the lock: its keeper was killed with it, or waits for
    Terraform."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        run = str(stored.load(holder)["run"])
        keeper.end(run)
        ssh_sockets.abandon(paths, run)


def _described(holder: Path) -> str:
    try:
        document = stored.load(holder)
        since = datetime.fromtimestamp(document["since"], UTC).strftime("%H:%M:%S UTC")
        return f" (`gpuprov {document['command']}`, process {document['pid']}, since {since})"
    except (OSError, ValueError, KeyError, TypeError, OverflowError):
        return ""
