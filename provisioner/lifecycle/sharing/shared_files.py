"""What the operators of one cluster share beside Terraform's state.

The part of the run directory that others need (rundir/files.py) is one object, fleet.json.gz, next to Terraform's
states. It is read before anything else, and written by whoever is at work; one who wrote meanwhile is never
overwritten. No key is in it, and no code: what Terraform runs is rendered on each machine from its own cluster.yaml.
Of a report the data is shared and not the page (report/restore.py): a page from elsewhere could show any verdict, or
ask for a password.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import json
import shutil
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import Any

from filelock import FileLock, Timeout

from provisioner.common import stored
from provisioner.common.errors import DamagedFileError, GpuprovError, InputError, LockedError, ProviderError
from provisioner.common.events import Events
from provisioner.common.paths import IDENTITY, ClusterPaths, private_dir, write_whole
from provisioner.common.preflight import Finding
from provisioner.lifecycle.sharing.lease import HOLDER, Lease, clear
from provisioner.machines.providers.cluster import ACCOUNT_LINE, Providers
from provisioner.machines.providers.state import Conflict, Remote, remote_of
from provisioner.rundir import fleet
from provisioner.rundir.files import BY_NODE, OPTIONAL, REPORTS, SHARED, matches
from provisioner.rundir.node_state import is_report
from provisioner.rundir.release import ANOTHER_RELEASE, AppliedFile, identity
from provisioner.spec import problem_at
from provisioner.spec.models import ClusterSpec
from provisioner.stack import lockfile
from provisioner.transport import process, ssh_config, ssh_keys, ssh_pins
from provisioner.verify.report import restore

LIMIT = 64 << 20
"""Bytes of all shared files; ten thousand nodes have some 30 MiB with their report."""
LOCK = "cluster.lock"
"""The lock beside cluster.yaml: written where there is none; where there is one, that is the user's."""
FLEET = "fleet.json.gz"
FORMAT = 1
PINS = "ssh/pins.json"
RECORD = "shared.json"
"""File in the run directory: the tag that FLEET had when this machine last read or wrote it, the names of the files in
it, and the digests of what it sent since without an answer."""
UNANSWERED = 20
"""How many such digests are kept."""


class SharedFiles:
    """One cluster's shared part of its run directory."""

    def __init__(self, paths: ClusterPaths, spec: ClusterSpec, remote: Remote) -> None:
        self._paths, self._spec, self.remote = paths, spec, remote
        self.findings: tuple[Finding, ...] = ()
        """What was found when the place was last prepared."""
        self._lease: Lease | None = None
        """Of the run that holds the cluster by `held`."""
        self._events = Events()
        self._omitted: set[str] = set()
        """Files of which that run's events say that they are left out."""

    def pull(self) -> None:
        """Make the local files equal to the shared ones; of files that are as new or newer here, those that somebody
        has removed come back. Raises ProviderError where the store does not answer."""
        known, missing = self._known(), self._missing()
        blob = self.remote.read(FLEET, None if missing else known)
        if blob is None:
            if known is not None:  # somebody removed the cluster
                for name in self._local():
                    (self._paths.root / name).unlink()
                shutil.rmtree(self._paths.root / "sites", ignore_errors=True)
                (self._paths.root / RECORD).unlink()
            return
        if blob.tag == known:
            self._restore(blob.content, missing)
            return
        if _digest(blob.content) in self._sent():  # the answer to a push was lost: the local files are as new or newer
            self._restore(blob.content, missing)
            self._remember(blob.tag)
            return
        files = _unpacked(blob.content, self.remote.where)
        private_dir(self._paths.root)
        if self._is_of_another(files):  # the cluster was removed, and created anew: what is here is of no machine
            shutil.rmtree(self._paths.root / "sites", ignore_errors=True)
        for name in set(self._local()) - set(files):
            if not _is_optional(name):
                (self._paths.root / name).unlink()
        for name, text in files.items():
            if name == LOCK:
                if not self._paths.user_lock.exists():
                    write_whole(self._paths.user_lock, text, mode=0o644)
                continue
            file = self._write(name, text)
            if file.name == restore.DOCUMENT:
                restore.write_page(file.parent, self._spec.name)
        ssh_keys.ensure_key(self._paths, self._spec.access.ssh_key)
        nodes = fleet.load(self._paths)
        carried = Providers(self._spec, self._paths).proxies(nodes)
        users = {node.name: node.user or self._spec.user(node.site) for node in nodes}
        ssh_config.save(self._paths, nodes, ssh_pins.load_pins(self._paths), users, carried)
        self._remember(blob.tag, names=files)

    def _is_of_another(self, files: Mapping[str, str]) -> bool:
        """Whether the shared files are of another cluster of the name than the local ones."""
        try:
            local_id = (self._paths.root / "id").read_text(encoding="utf-8", errors="replace").strip()
        except FileNotFoundError:
            return False
        return "id" in files and files["id"].strip() != local_id

    def _write(self, name: str, text: str) -> Path:
        """Write one of the shared files, in its folder; its path."""
        for folder in reversed(PurePosixPath(name).parents[:-1]):
            private_dir(self._paths.root / folder)
        write_whole(self._paths.root / name, text)
        return self._paths.root / name

    def _missing(self) -> list[str]:
        """Shared files that this directory had when it last read or wrote them, and has no more."""
        names = self._record().get("files")
        names = names if isinstance(names, list) else []
        return [name for name in names if is_shared(str(name), SHARED) and not (self._paths.root / name).exists()]

    def _restore(self, content: bytes, names: Sequence[str]) -> None:
        """Write these files as FLEET has them: one that is missing here would count as empty."""
        files = _unpacked(content, self.remote.where) if names else {}
        for name in names:
            if name in files and not _is_optional(name) and not _lacks_lock(name, files):
                self._write(name, files[name])

    def push(self) -> None:
        """Make the shared files equal to the local ones. Raises Conflict where somebody else wrote since `pull`,
        GpuprovError before anything is written where they are damaged or larger than LIMIT, and LockedError where the
        lease of this run is lost."""
        self._refuse_lost()
        files = self._read_whole()
        if self._paths.user_lock.exists():
            files[LOCK] = self._paths.user_lock.read_text(encoding="utf-8")
        content, known, sent = self._packed(files), self._known(), self._sent()
        self._remember(known, [*sent, _digest(content)])
        self._refuse_lost()  # this process may have been stopped in between
        try:
            tag = self.remote.write(FLEET, content, known)
        except Conflict:
            tag = self._write_over_own(content, sent)
        self._remember(tag, names=files)

    def refuse_damaged(self) -> None:
        """Raise GpuprovError where `push` would, because a local file is damaged: before machines are created."""
        self._read_whole()

    def _read_whole(self) -> dict[str, str]:
        """The local files. Raises GpuprovError: what one operator's disk has damaged must not reach the others."""
        files = {name: (self._paths.root / name).read_text(encoding="utf-8") for name in self._local()}
        for name, text in files.items():
            _refuse_damage(name, text, str(self._paths.root / name), self._repair(name))
        return files

    def _repair(self, name: str) -> str:
        """What to do about a damaged local file. Without a tag, which `pull` has read, the store has no copy."""
        if self._known() is not None:
            return f"remove {self._paths.root / RECORD}: the next command reads the shared files again"
        if name == "id" or name.endswith("/account"):  # `up` and `down` find the machines by them
            return "no copy of it is shared: restore it from a backup"
        return "no copy of it is shared: restore it from a backup, or remove it"

    def _refuse_lost(self) -> None:
        if self._lease is not None:
            self._lease.refuse_lost()

    def _write_over_own(self, content: bytes, sent: Sequence[str]) -> str:
        """The tag of FLEET after a Conflict whose cause is a write of this directory: of this very content (the client
        repeated it), or of what it sent before, whose answer was lost. Raises Conflict for a write of somebody else."""
        blob = self.remote.read(FLEET)
        if blob is not None and blob.content == content:
            return blob.tag
        if blob is not None and _digest(blob.content) in sent:
            return self.remote.write(FLEET, content, blob.tag)
        raise Conflict(f"{self.remote.where}/{FLEET}")

    def _packed(self, files: Mapping[str, str]) -> bytes:
        """FLEET with these files, less those of OPTIONAL for which there is no room. Raises GpuprovError."""
        retained = dict(files)
        for patterns in ((), *OPTIONAL):
            retained = {name: text for name, text in retained.items() if not is_shared(name, patterns)}
            document = json.dumps({"format": FORMAT, "files": retained}, sort_keys=True).encode()
            if len(document) <= LIMIT:
                self._report_omitted(set(files) - set(retained))
                return gzip.compress(document, mtime=0)
        largest = max(retained, key=lambda name: len(retained[name]))
        raise GpuprovError(
            f"the cluster's shared files are larger than {LIMIT >> 20} MiB; the largest is {largest} with "
            f"{len(retained[largest]) >> 20} MiB",
            where=str(self._paths.root),
            hint="split the fleet into several clusters",
        )

    def _report_omitted(self, names: set[str]) -> None:
        if names - self._omitted:
            listing = ", ".join(sorted(names - self._omitted))
            message = f"{listing}: not shared, because all shared files are larger than {LIMIT >> 20} MiB"
            self._events("run", "warning", message)
            self._omitted |= names

    def clear(self) -> list[str]:
        """See lease.clear."""
        return clear(self.remote, self._paths.root, (HOLDER, FLEET))

    def remove(self) -> None:
        """Remove everything of the cluster but the holder; Terraform's states go with it, and they are empty. Raises
        LockedError where the lease of this run is lost."""
        if self._lease is not None:
            self._lease.refuse_lost()
        for name in self.remote.names():
            if name != HOLDER:
                self.remote.remove(name)

    def _local(self) -> list[str]:
        """The names of the shared files in the run directory."""
        root = self._paths.root
        names = {path.relative_to(root).as_posix() for pattern in SHARED for path in root.glob(pattern)}
        last = self._last_report()
        names |= {path.relative_to(root).as_posix() for path in last.parent.glob("report.*")} if last else set()
        return sorted(name for name in names if is_shared(name))

    def _last_report(self) -> Path | None:
        with contextlib.suppress(FileNotFoundError, ValueError, KeyError, TypeError):
            name = str(stored.load(self._paths.root / "state.json")["report"])
            if is_report(name):
                return self._paths.root / name
        return None

    def _known(self) -> str | None:
        """The tag of FLEET that the local files come from."""
        tag = self._record().get("tag")
        return tag if isinstance(tag, str) else None

    def _sent(self) -> list[str]:
        """The digests of what this directory sent without an answer."""
        sent = self._record().get("sent")
        return [str(digest) for digest in sent] if isinstance(sent, list) else []

    def _record(self) -> dict[str, Any]:
        with contextlib.suppress(FileNotFoundError, ValueError, KeyError, TypeError):
            record = stored.load(self._paths.root / RECORD)
            if record["where"] == self.remote.where:
                return dict(record)
        return {}

    def _remember(self, tag: str | None, sent: Sequence[str] = (), *, names: Iterable[str] | None = None) -> None:
        """Write RECORD; `names`: of the files in FLEET, None: as before."""
        files = self._record().get("files", []) if names is None else sorted(name for name in names if name != LOCK)
        content = {"where": self.remote.where, "tag": tag, "sent": list(sent)[-UNANSWERED:], "files": files}
        write_whole(private_dir(self._paths.root) / RECORD, json.dumps(content) + "\n")

    @contextlib.contextmanager
    def held(self, command: str, events: Events, *, look: bool = False) -> Iterator[None]:
        """Hold the cluster: the shared files are read when the block begins and written when it ends, whatever it
        raises. A command that only looks (`look`) makes no place for the state and writes nothing; where there is no
        place yet, nobody else can hold it.

        Raises LockedError naming the holder. A run that loses its lease stops: its Terraform and Ansible end, nothing
        of it is shared, and it ends with a LockedError, unless the block raises something else.
        """
        self.findings = tuple(self.remote.prepare(make=not look))
        if not self.remote.there:
            self.pull()
            yield
            return
        lease = Lease(self.remote, self._paths.root, command, events, process.stop_followed)
        try:
            with lease:
                self.pull()
                self._lease, self._events, self._omitted = lease, events, set()
                try:
                    yield
                except BaseException:
                    if not look:
                        self._share_after_failure()
                    raise
                if not look:
                    self._share_results()
        finally:
            self._lease = None
            if lease.error is not None:
                process.allow_followed(lease.error)

    def _share_results(self) -> None:
        assert self._lease is not None
        self._lease.refuse_lost()
        if self._paths.root.exists() and self._local():
            self.share()

    def _share_after_failure(self) -> None:
        """Share the results of a run that failed; its own error is what a person has to see."""
        try:
            self._share_results()
        except (GpuprovError, OSError) as error:
            if self._lease is None or error is not self._lease.error:  # the lease reports its loss itself
                self._events("run", "warning", f"the results of this run are not shared: {error}")

    def share(self) -> None:
        """As `push`. Raises LockedError where somebody else wrote since."""
        try:
            self.push()
        except Conflict as conflict:
            raise LockedError(f"{conflict} was changed by another run meanwhile", hint="run it again") from None


def of(path: Path, loaded: ClusterSpec, *, offline: bool) -> SharedFiles | None:
    """What a cluster's operators share, up to date but for `offline`; None where its state is this machine's alone.
    Raises InputError at the key that keeps it from being shared."""
    if loaded.state.backend == "local":
        return None
    try:
        remote = remote_of(loaded)
    except ProviderError:
        raise
    except GpuprovError as error:
        raise InputError([problem_at(path, error.where, error.message, error.hint)]) from None
    assert remote is not None
    paths = ClusterPaths(path, loaded.name, sandbox=False)
    shared = SharedFiles(paths, loaded, remote)
    if not offline:
        with contextlib.suppress(Timeout):  # a run on this machine knows it better
            if paths.root.is_dir():
                with FileLock(paths.run_lock, timeout=0, mode=0o600):
                    shared.pull()
            else:
                shared.pull()
    return shared


def _unpacked(content: bytes, location: str) -> dict[str, str]:
    """Name → text. Raises GpuprovError for what is damaged, of another format, or names what is not shared: nothing of
    it is written then."""
    try:
        unpack = zlib.decompressobj(wbits=31)  # gzip's frame
        plain = unpack.decompress(content, LIMIT + 1)
        if len(plain) > LIMIT:
            raise ValueError(f"it unpacks to more than {LIMIT >> 20} MiB")
        if not unpack.eof:
            raise ValueError("it is cut off")
        document = stored.loads(plain)
        files, written = dict(document["files"]), document["format"]
    except (zlib.error, ValueError, KeyError, TypeError) as error:
        hint = "the bucket's versions have the one before"
        raise GpuprovError(f"{FLEET} is damaged: {error}", where=location, hint=hint) from error
    if written != FORMAT:
        raise GpuprovError(f"{FLEET} has format {written}, not {FORMAT}", where=location, hint="use the newer gpuprov")
    for name, text in files.items():
        if not isinstance(text, str) or not is_shared(name):
            message = f"{FLEET} names {name[:80]!r}, which is never shared"
            raise GpuprovError(message, where=location, hint="check who wrote it")
        _refuse_damage(name, text, f"{location}/{FLEET}: {name}")
    return files


def _refuse_damage(
    name: str, text: str, location: str, hint: str = "check who wrote it; the bucket's versions have the previous one"
) -> None:
    """Raise GpuprovError for a file that can't be what its name says."""
    if name == "id" and not IDENTITY.fullmatch(text):
        raise DamagedFileError(f"{text[:40]!r} is not a cluster's identity", location, hint=hint)
    if name.endswith("/account") and not ACCOUNT_LINE.fullmatch(text):
        raise DamagedFileError(f"{text[:40]!r} is not the number of an account", location, hint=hint)
    if name == LOCK or name.startswith("locks/"):
        if error := _lock_error(text, "" if name == LOCK else Path(name).stem):
            raise DamagedFileError(str(error), location, hint=hint)
    elif name.endswith(".json") or name == "inventory.yml":
        try:
            value = stored.loads(text)
            if name == "nodes.json":
                fleet.parse(value)
            elif name == PINS:
                ssh_pins.parse_pins(value)
            elif name in BY_NODE and not _is_by_node(value):
                raise ValueError("`nodes` is not an object with an object for each node")
        except (ValueError, TypeError, AttributeError, LookupError) as error:
            raise DamagedFileError(str(error), location, hint=hint) from None


@lru_cache(maxsize=64)
def _lock_error(text: str, release: str) -> str:
    """What is wrong with the text of a lock, the one of `release` unless that is empty; empty where nothing is. A run
    shares the same locks many times."""
    try:
        lock = lockfile.parse(text, "")
    except GpuprovError as error:
        return str(error.message)
    return ANOTHER_RELEASE if release and identity(lock) != release else ""


def _is_by_node(value: object) -> bool:
    rows = value.get("nodes") if isinstance(value, dict) else None
    return isinstance(rows, dict) and all(isinstance(row, dict) for row in rows.values())


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _lacks_lock(name: str, files: Mapping[str, str]) -> bool:
    """Whether it is applied.json, and names a lock that is not among the files: who removed it, as the error of that
    lock says, has removed it for good."""
    if name != AppliedFile.FILE:
        return False
    try:
        releases = {str(entry["lock"]) for entry in json.loads(files[name])["nodes"].values()}
    except (ValueError, KeyError, TypeError, AttributeError):
        return False  # damaged: its own error says what to do
    return any(f"locks/{release}.lock" not in files for release in releases)


def _is_optional(name: str) -> bool:
    return any(is_shared(name, patterns) for patterns in OPTIONAL)


def is_shared(name: str, patterns: Sequence[str] = (LOCK, *SHARED, *REPORTS)) -> bool:
    """Whether a file of that name, in the run directory, is one that operators share."""
    return matches(name, patterns)
