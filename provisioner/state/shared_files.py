"""What the operators of one cluster share beside Terraform's state.

The part of the run directory that others need (SHARED: nodes, pinned host keys, verdicts, quarantine, the locks that
machines run, the last report) is one object, fleet.json.gz, next to Terraform's states. It is read before anything
else, and written by whoever is at work; one who wrote meanwhile is never overwritten. No key is in it, and no code:
what Terraform runs is rendered on each machine from its own cluster.yaml.
"""

from __future__ import annotations

import contextlib
import fnmatch
import gzip
import json
import re
import shutil
import zlib
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path, PurePosixPath

from filelock import FileLock, Timeout

from provisioner import fleet, ssh, stored
from provisioner.errors import GpuprovError, InputError, LockedError, ProviderError
from provisioner.events import Events
from provisioner.paths import IDENTITY, ClusterPaths, data, private_dir, write_whole
from provisioner.preflight import Finding
from provisioner.providers.cluster import Providers
from provisioner.providers.state import Conflict, Remote, remote_of
from provisioner.spec import problem_at
from provisioner.spec.models import ClusterSpec
from provisioner.stack import lockfile
from provisioner.state.lease import HOLDER, Lease, clear

SHARED = (
    "id", "nodes.json", "intent.json", "state.json", "applied.json", "locks/*.lock", "quarantine.json", "replace.json",
    "upgrade.json", "baseline.json", "measures.jsonl", "inventory.yml", "ssh/pins.json", "sites/*/provider",
    "sites/*/site.json", "sites/*/capacity.json", "sites/*/bmc.json", "sites/*/netboot.json",
    "sites/*/.terraform.lock.hcl",
)  # fmt: skip
"""Files of the run directory by pattern; `*` is within one folder. Nothing else is ever written from there."""
REPORTS = ("runs/*/report.json", "runs/*/report.xml", "runs/*/report.html")
"""The last run's report, in its three forms."""
LIMIT = 64 << 20
"""Bytes of all shared files; ten thousand nodes have some 30 MiB with their report."""
LOCK = "cluster.lock"
"""The lock beside cluster.yaml: written where there is none; where there is one, that is the user's."""
FLEET = "fleet.json.gz"
FORMAT = 1
_PART = re.compile(r"\.?[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
"""A folder or file that is shared: no .., nothing that a file system could not have."""
MINE = "shared.json"
"""File in the run directory: the tag that FLEET had when this machine last read or wrote it."""


class SharedFiles:
    """One cluster's shared part of its run directory."""

    def __init__(self, paths: ClusterPaths, spec: ClusterSpec, remote: Remote) -> None:
        self._paths, self._spec, self.remote = paths, spec, remote
        self.findings: tuple[Finding, ...] = ()
        """What was found when the place was last prepared."""

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
        carried = Providers(self._spec, self._paths).proxies(nodes)
        users = {node.name: node.user or self._spec.user(node.site) for node in nodes}
        ssh.save(self._paths, nodes, ssh.load_pins(self._paths), users, carried)
        self._remember(found.tag)

    def push(self) -> None:
        """Make the shared files there what they are here. Raises Conflict where somebody else wrote since `pull`."""
        files = {name: (self._paths.root / name).read_text(encoding="utf-8") for name in self._here()}
        if self._paths.user_lock.exists():
            files[LOCK] = self._paths.user_lock.read_text(encoding="utf-8")
        document = json.dumps({"format": FORMAT, "files": files}, sort_keys=True)
        self._remember(self.remote.write(FLEET, gzip.compress(document.encode(), mtime=0), self._known()))

    def clear(self) -> list[str]:
        """See lease.clear."""
        return clear(self.remote, self._paths.root, (HOLDER, FLEET))

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
        return sorted(name for name in found if is_shared(name))

    def _last_report(self) -> Path | None:
        with contextlib.suppress(FileNotFoundError, ValueError, KeyError, TypeError):
            name = str(stored.load(self._paths.root / "state.json")["report"])
            if is_shared(name, REPORTS):
                return self._paths.root / name
        return None

    def _known(self) -> str | None:
        try:
            found = stored.load(self._paths.root / MINE)
            return str(found["tag"]) if found["where"] == self.remote.where else None
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return None

    def _remember(self, tag: str) -> None:
        content = {"where": self.remote.where, "tag": tag}
        write_whole(private_dir(self._paths.root) / MINE, json.dumps(content) + "\n")

    @contextlib.contextmanager
    def held(self, command: str, events: Events, *, make: bool = True) -> Iterator[None]:
        """Be the one who is at work: what is shared is read when the block begins and written when it ends, whatever
        happens in it. Where the place is still to be made and is not (`make`), nobody else can be at work, and nothing
        is shared. Raises LockedError naming the holder."""
        self.findings = tuple(self.remote.prepare(make=make))
        if not self.remote.there:
            self.pull()
            yield
            return
        with Lease(self.remote, self._paths.root, command, events) as lease:
            self.pull()
            try:
                yield
            finally:
                if lease.lost:
                    raise LockedError(
                        f"another run took the lease of {self.remote.where} during this run",
                        hint="what this run did is in Terraform's state; run it again when no other run is active",
                    )
                if self._paths.root.exists() and self._here():
                    self.share()

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


def _unpacked(content: bytes, where: str) -> dict[str, str]:
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
        raise GpuprovError(f"{FLEET} is damaged: {error}", where=where, hint=hint) from error
    if written != FORMAT:
        raise GpuprovError(f"{FLEET} has format {written}, not {FORMAT}", where=where, hint="use the newer gpuprov")
    for name, text in files.items():
        if not isinstance(text, str) or not is_shared(name):
            said = f"{FLEET} names {name[:80]!r}, which is never shared"
            raise GpuprovError(said, where=where, hint="check who wrote it")
        _refuse_damage(name, text, f"{where}/{FLEET}: {name}")
    return {name: text for name, text in files.items() if not name.endswith(".html") or text.startswith(page_head())}


@cache
def page_head() -> str:
    """How every page of gpuprov begins, up to the policy that keeps a browser from running anything in it. A page that
    begins otherwise is left out: somebody may open it."""
    text = (data("templates") / "report.html.j2").read_text(encoding="utf-8")
    begins = text.index("<!DOCTYPE html>")
    return text[begins : text.index(">", text.index("Content-Security-Policy", begins)) + 1]


def _refuse_damage(name: str, text: str, where: str) -> None:
    """Raise GpuprovError for a file that can't be what its name says."""
    if name == "id" and not IDENTITY.fullmatch(text):
        raise GpuprovError(f"{text[:40]!r} is no cluster's identity", where=where, hint="check who wrote it")
    if name == LOCK or name.startswith("locks/"):
        lockfile.parse(text, where)
    elif name.endswith(".json") or name == "inventory.yml":
        try:
            value = stored.loads(text)
            if name == "nodes.json":
                fleet.parse(value)
        except ValueError as error:
            hint = "check who wrote it; the bucket's versions have the previous one"
            raise GpuprovError(f"is damaged: {error}", where=where, hint=hint) from None


def is_report(name: object) -> bool:
    """Whether state.json's `report` is the page of a run."""
    return isinstance(name, str) and is_shared(name, REPORTS)


def is_shared(name: str, patterns: Sequence[str] = (LOCK, *SHARED, *REPORTS)) -> bool:
    """Whether a file of that name, in the run directory, is one that operators share."""
    parts = name.split("/")
    if not all(_PART.fullmatch(part) for part in parts):
        return False
    return any(
        len(parts) == pattern.count("/") + 1 and all(map(fnmatch.fnmatchcase, parts, pattern.split("/")))
        for pattern in patterns
    )
