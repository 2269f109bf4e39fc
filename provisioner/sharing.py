"""What the operators of one cluster share beside Terraform's state, and who of them is at work.

The part of the run directory that others need (SHARED: nodes, pinned host keys, verdicts, quarantine, the locks that
machines run, the last report) is one object, fleet.json.gz, next to Terraform's states. It is read before anything
else, and written by whoever is at work; one who wrote meanwhile is never overwritten. No key is in it, and no code:
what Terraform runs is rendered on each machine from its own cluster.yaml.

holder.json is there while somebody is at work and says who; it is written again every BEAT_S, so that one that is old
was left by a run that died.
"""

from __future__ import annotations

import contextlib
import fnmatch
import getpass
import gzip
import json
import os
import secrets
import shutil
import socket
import threading
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath

from provisioner import fleet, ssh
from provisioner.errors import GpuprovError, LockedError, ProviderError
from provisioner.events import Events
from provisioner.paths import ClusterPaths, private_dir, write_whole
from provisioner.providers.base import Finding, proxies
from provisioner.spec.models import ClusterSpec
from provisioner.workspace.remote import Moved, Remote

SHARED = (
    "id", "nodes.json", "intent.json", "state.json", "applied.json", "locks/*.lock", "quarantine.json", "replace.json",
    "upgrade.json", "baseline.json", "measures.jsonl", "inventory.yml", "ssh/pins.json", "sites/*/provider",
    "sites/*/capacity.json", "sites/*/.terraform.lock.hcl",
)  # fmt: skip
"""Files of the run directory by pattern; `*` is within one folder. Nothing else is ever written from there."""
REPORT = "runs/*/report.*"
"""The last run's report, in its three forms."""
LOCK = "cluster.lock"
"""The lock beside cluster.yaml: written where there is none; where there is one, that is the user's."""
FLEET, HOLDER = "fleet.json.gz", "holder.json"
FORMAT = 1
BEAT_S = 30.0
DEAD_S = 120.0
"""A holder that was not heard of for so long is dead."""
FOLDER = "folder"
"""File in the run directory: what tells it from every other one."""
MINE = "shared.json"
"""File in the run directory: the tag that FLEET had when this machine last read or wrote it."""


@dataclass(frozen=True, slots=True)
class Holder:
    """Who is at work; `since`: seconds since 1970 (UTC) by that machine's clock, `token`: of its run directory, which
    tells it from another one of the same path on another machine of the same name (CI runners)."""

    command: str
    person: str
    machine: str
    folder: str
    token: str
    pid: int
    since: float

    def __str__(self) -> str:
        since = datetime.fromtimestamp(self.since, UTC).strftime("%H:%M:%S UTC")
        return f"`gpuprov {self.command}` of {self.person} on {self.machine}, process {self.pid}, since {since}"


@dataclass(frozen=True, slots=True)
class Seen:
    """holder.json as it was read; `holder` None where it can't be understood, `dead`: it is older than DEAD_S."""

    holder: Holder | None
    tag: str
    dead: bool


class Sharing:
    """One cluster's shared part of its run directory."""

    def __init__(self, paths: ClusterPaths, spec: ClusterSpec, remote: Remote) -> None:
        self._paths, self._spec, self.remote = paths, spec, remote
        self.findings: tuple[Finding, ...] = ()
        """What was found when the place was last prepared."""

    # What is shared

    def pull(self) -> None:
        """Make the shared files here what they are there. Raises ProviderError where that can't be known."""
        known = self._known()
        found = self.remote.read(FLEET, known)
        if found is None:
            if known is not None:  # it was there: somebody has removed the cluster
                for name in self._here():
                    (self._paths.root / name).unlink()
                shutil.rmtree(self._paths.root / "sites", ignore_errors=True)
                (self._paths.root / MINE).unlink()
            return
        if found.tag == known:
            return
        files = _unpacked(found.content, self.remote.where)
        private_dir(self._paths.root)
        for name in set(self._here()) - set(files):
            (self._paths.root / name).unlink()
        for name, text in files.items():
            if name == LOCK:
                if not self._paths.user_lock.exists():
                    write_whole(self._paths.user_lock, text, mode=0o644)
                continue
            file = self._paths.root / name
            for folder in reversed(PurePosixPath(name).parents[:-1]):
                private_dir(self._paths.root / folder)
            write_whole(file, text)
        ssh.ensure_key(self._paths, self._spec.access.ssh_key)
        nodes = fleet.load(self._paths)
        ssh.save(self._paths, nodes, ssh.load_pins(self._paths), self._spec.access.user, proxies(self._spec, nodes))
        self._remember(found.tag)

    def push(self) -> None:
        """Make the shared files there what they are here. Raises Moved where somebody else wrote since `pull`."""
        files = {name: (self._paths.root / name).read_text(encoding="utf-8") for name in self._here()}
        if self._paths.user_lock.exists():
            files[LOCK] = self._paths.user_lock.read_text(encoding="utf-8")
        document = json.dumps({"format": FORMAT, "files": files}, sort_keys=True)
        self._remember(self.remote.write(FLEET, gzip.compress(document.encode(), mtime=0), self._known()))

    def remove(self) -> None:
        """Take everything of the cluster away but the holder; Terraform's states go with it, and nothing is in them."""
        for name in self.remote.names():
            if name != HOLDER:
                self.remote.remove(name)

    def _here(self) -> list[str]:
        """The shared files that are here, by their names in the run directory."""
        root = self._paths.root
        found = {path.relative_to(root).as_posix() for pattern in SHARED for path in root.glob(pattern)}
        last = self._last_report()
        found |= {path.relative_to(root).as_posix() for path in last.parent.glob("report.*")} if last else set()
        return sorted(found)

    def _last_report(self) -> Path | None:
        with contextlib.suppress(FileNotFoundError, ValueError, KeyError, TypeError):
            name = str(json.loads((self._paths.root / "state.json").read_text(encoding="utf-8"))["report"])
            if fnmatch.fnmatch(name, REPORT):
                return self._paths.root / name
        return None

    def _known(self) -> str | None:
        try:
            found = json.loads((self._paths.root / MINE).read_text(encoding="utf-8"))
            return str(found["tag"]) if found["where"] == self.remote.where else None
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return None

    def _remember(self, tag: str) -> None:
        content = {"where": self.remote.where, "tag": tag}
        write_whole(private_dir(self._paths.root) / MINE, json.dumps(content) + "\n")

    # Who is at work

    @contextlib.contextmanager
    def held(self, command: str, events: Events) -> Iterator[None]:
        """Be the one who is at work: what is shared is read when the block begins and written when it ends, whatever
        happens in it. Raises LockedError naming the holder."""
        self.findings = tuple(self.remote.prepare())
        now = datetime.now(UTC).timestamp()
        folder = str(self._paths.root)
        me = Holder(command, _person(), socket.gethostname(), folder, self._token(), os.getpid(), now)
        with _Hold(self.remote, me, events, self._take(me)) as hold:
            self.pull()
            try:
                yield
            finally:
                if hold.lost:
                    raise LockedError(
                        f"somebody has taken {self.remote.where} while this run was at work",
                        hint="what it did is in Terraform's state; run it again when nobody else is at work",
                    )
                if self._paths.root.exists() and self._here():
                    self._push()

    def share(self) -> None:
        """Write what is shared in the middle of a run."""
        self._push()

    def _push(self) -> None:
        try:
            self.push()
        except Moved as moved:
            raise LockedError(f"somebody else has written {moved} meanwhile", hint="run it again") from None

    def _take(self, me: Holder) -> str:
        """The tag of a holder.json that is ours."""
        try:
            return self.remote.write(HOLDER, _text(me), None)
        except Moved:
            pass
        there = self.holder()
        if there is None:
            return self._take(me)  # it has just ended
        if not self._mine(there):
            hint = "nothing was heard of it for minutes: `gpuprov unlock` clears what it left"
            raise LockedError(
                f"another run is at work on {self._spec.name}: {there.holder or f'{HOLDER} can not be read'}",
                where=self.remote.where,
                hint=hint if there.dead else "wait until it ends, or stop it there",
            )
        try:
            return self.remote.write(HOLDER, _text(me), there.tag)
        except Moved:
            raise LockedError(
                "another run has just begun", where=self.remote.where, hint="wait until it ends"
            ) from None

    def holder(self) -> Seen | None:
        """Who is at work; None where nobody is."""
        found = self.remote.read(HOLDER)
        if found is None:
            return None
        holder = None
        with contextlib.suppress(ValueError, TypeError):
            holder = Holder(**json.loads(found.content))
        return Seen(holder, found.tag, found.age_s > DEAD_S)

    def _mine(self, there: Seen) -> bool:
        """Whether it was left by a run in this folder: whoever asks has the folder's own lock from the kernel, so that
        run is dead."""
        return there.holder is not None and there.holder.token == self._token()

    def _token(self) -> str:
        """What tells this run directory from every other one, whatever their names are; made once."""
        file = self._paths.root / FOLDER
        with contextlib.suppress(FileNotFoundError):
            return file.read_text(encoding="utf-8").strip()
        made = secrets.token_hex(16)
        write_whole(private_dir(self._paths.root) / FOLDER, made + "\n")
        return made

    def clear(self) -> list[str]:
        """Remove what a dead run left: its holder.json, and Terraform's locks. Gives what was removed, by name. Raises
        LockedError while the holder lives."""
        there, gone = self.holder(), []
        if there is not None:
            if not (there.dead or self._mine(there)):
                said = f"{there.holder or HOLDER} was heard of in the last {DEAD_S:.0f} seconds"
                raise LockedError(said, where=self.remote.where, hint="wait until it ends, or stop it there")
            self.remote.remove(HOLDER)
            gone.append(HOLDER)
        for name in self.remote.names():
            if name.endswith(".tflock"):
                self.remote.remove(name)
                gone.append(name)
        return gone


class _Hold:
    """holder.json, written again and again until the block ends. `lost`: it is somebody else's now."""

    def __init__(self, remote: Remote, me: Holder, events: Events, tag: str) -> None:
        self._remote, self._me, self._events, self._tag = remote, me, events, tag
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="holder", daemon=True)
        self.lost = False

    def __enter__(self) -> _Hold:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        if not self.lost:
            self._remote.remove(HOLDER)

    def _beat(self) -> None:
        while not self._over.wait(BEAT_S):
            try:
                self._tag = self._remote.write(HOLDER, _text(self._me), self._tag)
            except Moved:
                self.lost = True
                self._events("run", "warning", f"somebody has taken {self._remote.where} from this run")
                return
            except ProviderError as error:  # the next beat may be heard
                self._events("run", "warning", f"{self._remote.where}: {error.message}")


def _text(holder: Holder) -> bytes:
    return (json.dumps(asdict(holder)) + "\n").encode()


def _person() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # an id without a name, as in many containers
        return f"uid {os.getuid()}"


def _unpacked(content: bytes, where: str) -> dict[str, str]:
    """Name → text. Raises GpuprovError for what is damaged, of another format, or names what is not shared."""
    try:
        document = json.loads(gzip.decompress(content))
        files, written = dict(document["files"]), document["format"]
    except (OSError, EOFError, ValueError, KeyError, TypeError) as error:
        hint = "the bucket's versions have the one before"
        raise GpuprovError(f"{FLEET} is damaged: {error}", where=where, hint=hint) from error
    if written != FORMAT:
        raise GpuprovError(f"{FLEET} has format {written}, not {FORMAT}", where=where, hint="use the newer gpuprov")
    for name, text in files.items():
        if not isinstance(text, str) or not _is_shared(name):
            raise GpuprovError(f"{FLEET} names {name!r}, which is never shared", where=where, hint="look who wrote it")
    return files


def _is_shared(name: str) -> bool:
    parts = name.split("/")
    if any(part in ("", ".", "..") for part in parts) or not name.isprintable() or "\\" in name:
        return False
    return name == LOCK or any(
        len(parts) == pattern.count("/") + 1 and all(map(fnmatch.fnmatchcase, parts, pattern.split("/")))
        for pattern in (*SHARED, REPORT)
    )
