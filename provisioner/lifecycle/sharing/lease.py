"""Which run of a cluster's operators is active: holder.json beside the shared state, as long as the run lasts.

The run writes it again every BEAT_S, so that an old one was left by a run that died. One that a run of the same run
directory left is known to be dead at once: whoever asks holds that directory's own lock from the kernel. Every write
is conditional on the one before, so a run learns that another one took the lease; docs/design/lease.md has
the protocol.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
import socket
import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic

from provisioner.common import ownership, stored
from provisioner.common.errors import LockedError, ProviderError
from provisioner.common.events import Events
from provisioner.common.paths import private_dir, write_whole
from provisioner.common.text import one_line
from provisioner.machines.providers.state import Conflict, Marked, Remote

HOLDER = "holder.json"
BEAT_S = 30.0
"""Seconds between two renewals."""
LOST_S = 120.0
"""A run that could not renew its lease for so many seconds stops. Four renewals."""
DEAD_S = 200.0
"""A holder that was not renewed for so many seconds is dead: `gpuprov unlock` removes it. A run that is only cut off
has stopped by then: LOST_S, 60 s in which Terraform ends (terraform.workspace.STOP_GRACE_S), 10 s in which it is killed
(process.stop), and 10 s more."""
WATCH_S = 1.0
"""Seconds between two looks at whether the lease is still renewed."""
TAKE_ATTEMPTS = 5
"""How often a lease is asked for whose holder ends between two requests."""
FOLDER = "folder"
"""File in the run directory: a random name, which a copy of the directory has too."""
MACHINE_ID = Path("/etc/machine-id")
"""machine-id(5): it is confidential and leaves the machine only as part of a hash."""


@dataclass(frozen=True, slots=True)
class Holder:
    """The run that holds the lease; `since`: seconds since 1970 (UTC) by that machine's clock, `token`: see `token`."""

    command: str
    person: str
    machine: str
    folder: str
    token: str
    pid: int
    since: float

    def __str__(self) -> str:
        since = datetime.fromtimestamp(self.since, UTC).strftime("%H:%M:%S UTC")
        command, person, machine = (one_line(text, 80) for text in (self.command, self.person, self.machine))
        return f"`gpuprov {command}` of {person} on {machine}, process {self.pid}, since {since}"


@dataclass(frozen=True, slots=True)
class LeaseState:
    """holder.json as it was read; `holder`: None where it is not readable, `age_s`: seconds since it was written, by
    the store's clock."""

    holder: Holder | None
    tag: str
    age_s: float

    @property
    def dead(self) -> bool:
        """Whether its run counts as dead for everybody."""
        return self.age_s > DEAD_S


class Lease:
    """`with Lease(...) as lease:` holds the cluster until the block ends. Raises LockedError naming another holder.

    `error`: a LockedError once the lease is lost: another run took it, it was not renewed for LOST_S, or the thread
    that renews it died. `on_lost` is called once with it, in a thread of the lease, and must not wait.
    """

    def __init__(
        self,
        remote: Remote,
        root: Path,
        command: str,
        events: Events,
        on_lost: Callable[[LockedError], None] = lambda _: None,
    ) -> None:
        self._remote, self._events, self._on_lost = remote, events, on_lost
        started = datetime.now(UTC).timestamp()
        owner = (
            command,
            _plain(ownership.account_name()),
            _plain(socket.gethostname()),
            _plain(str(root)),
            token(root),
        )
        self._holder = Holder(*owner, os.getpid(), started)
        self._over, self._guard = threading.Event(), threading.Lock()
        self._beater = threading.Thread(target=self._beat, name="lease", daemon=True)
        self._watcher = threading.Thread(target=self._watch, name="lease-watch", daemon=True)
        self._tag, self._renewed = "", 0.0
        self.error: LockedError | None = None

    @property
    def lost(self) -> bool:
        """Whether another run may hold the cluster by now."""
        return self.error is not None

    def refuse_lost(self) -> None:
        """Raise `error` where the lease is lost."""
        self._check()
        if self.error is not None:
            raise self.error

    def __enter__(self) -> Lease:
        self._take()
        try:
            self._beater.start()
            self._watcher.start()
        except RuntimeError as error:
            self._over.set()
            with contextlib.suppress(Exception):  # the next run of this directory takes it over
                self._remove()
            hint = "this user, or this container, has too many processes: `ulimit -u` and the limit of the cgroup"
            raise ProviderError(f"the lease cannot be renewed: {error}", where="this machine", hint=hint) from None
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._beater.join()
        self._watcher.join()
        try:
            self._remove()
        except Conflict:  # another run has taken it
            return
        except Exception as error:  # the work is done: this costs the others DEAD_S
            wait = f"other runs wait {DEAD_S:.0f} seconds, then `gpuprov unlock` removes it"
            self._warn(f"{HOLDER} could not be removed: {_reason(error)}; {wait}")

    def _take(self) -> None:
        """Write a holder.json of this run. Raises LockedError."""
        for _ in range(TAKE_ATTEMPTS):
            if self._write(None):
                return
            state = current(self._remote)
            if state is None:  # its run ended between the two requests
                continue
            self._refuse_other(state)
            if self._write(state.tag):
                return
            hint = "wait until it ends"
            raise LockedError("another run has just started", where=self._remote.where, hint=hint)
        raise LockedError(f"{HOLDER} changes too fast", where=self._remote.where, hint="run it again")

    def _refuse_other(self, state: LeaseState) -> None:
        """Raise LockedError unless a dead run of this run directory left the holder."""
        if state.holder is not None and state.holder.token == self._holder.token:
            return
        hint = "it was not renewed for minutes: `gpuprov unlock` removes its lease"
        raise LockedError(
            f"another run is active: {state.holder or f'{HOLDER} cannot be read'}",
            where=self._remote.where,
            hint=hint if state.dead else "wait until it ends, or stop it on that machine",
        )

    def _write(self, previous: str | None) -> bool:
        """Write holder.json in place of the one with this tag; False where another run wrote it. A write that was done
        and whose answer was lost counts: a client that repeats it is refused by its own first write. Raises
        ProviderError where nothing is known."""
        requested_at = monotonic()
        try:
            self._tag = self._remote.write(HOLDER, _text(self._holder), previous)
        except (Conflict, ProviderError) as failure:
            requested_at = monotonic()
            state = self._read_own()
            if isinstance(failure, ProviderError) and (state is None or state.tag == previous):
                raise
            if state is None:
                return False
            self._tag, self._renewed = state.tag, max(self._renewed, requested_at - state.age_s)
        else:
            self._renewed = requested_at
        return True

    def _read_own(self) -> LeaseState | None:
        """holder.json where it is of this very run."""
        state = current(self._remote)
        return state if state is not None and state.holder == self._holder else None

    def _remove(self) -> None:
        try:
            self._remote.remove(HOLDER, self._tag)
        except Conflict:  # the answer to the last renewal, or to this removal, was lost
            state = self._read_own()
            if state is not None:
                self._remote.remove(HOLDER, state.tag)

    def _beat(self) -> None:
        try:
            while not self._over.wait(BEAT_S):
                self._renew()
        except BaseException as error:  # a thread that ends without a word would leave a run without a lease
            self._lose(f"the lease of {self._remote.where} is not renewed any more: {_reason(error)}")

    def _renew(self) -> None:
        try:
            if not self._write(self._tag):
                self._lose(f"another run took the lease of {self._remote.where} during this run")
        except Exception as error:  # the next renewal may succeed; `_check` counts the seconds
            self._warn(f"the lease of {self._remote.where} was not renewed: {_reason(error)}")

    def _watch(self) -> None:
        while not self._over.wait(WATCH_S):
            self._check()

    def _check(self) -> None:
        """Lose a lease long before others count it as dead: Terraform needs time to stop. A request may hang for
        minutes, so the thread that renews does not do this. The monotonic clock stands still while the machine sleeps:
        the first renewal after that decides."""
        if monotonic() - self._renewed > LOST_S:
            self._lose(f"the lease of {self._remote.where} was not renewed for {LOST_S:.0f} seconds")

    def _lose(self, message: str) -> None:
        with self._guard:
            if self.error is not None:
                return
            hint = "what this run did is in Terraform's state; run it again when no other run is active"
            self.error = LockedError(message, where=self._remote.where, hint=hint)
        self._over.set()
        self._on_lost(self.error)
        self._warn(f"{message}: this run stops, and its results are not shared")

    def _warn(self, message: str) -> None:
        self._events("run", "warning", message)


def current(remote: Remote) -> LeaseState | None:
    """The lease as it is in the store; None where there is none."""
    blob = remote.read(HOLDER)
    if blob is None:
        return None
    holder = None
    with contextlib.suppress(ValueError, TypeError):
        holder = _validated(Holder(**stored.loads(blob.content)))
    return LeaseState(holder, blob.tag, blob.age_s)


def _validated(holder: Holder) -> Holder:
    """The holder. Raises ValueError for one that another program wrote."""
    texts = (holder.command, holder.person, holder.machine, holder.folder, holder.token)
    if not all(isinstance(text, str) and len(text) <= 4096 for text in texts):
        raise ValueError("a field is not a text")
    if isinstance(holder.pid, bool) or not isinstance(holder.pid, int) or not isinstance(holder.since, int | float):
        raise ValueError("a field is not a number")
    if not 0 <= holder.since < 1e11 or not 0 <= holder.pid < 1 << 32:
        raise ValueError("a number is out of range")
    return holder


def clear(remote: Remote, root: Path, names: Sequence[str] = (HOLDER,)) -> list[str]:
    """Remove what a dead run left: its holder.json, marks of its writes of `names`, and Terraform's locks. Gives
    the names of what was removed. Raises LockedError while the holder lives."""
    state, removed = current(remote), []
    if state is not None:
        is_local = state.holder is not None and state.holder.token == token(root)
        if not (state.dead or is_local):
            message = f"{state.holder or HOLDER} was renewed in the last {DEAD_S:.0f} seconds"
            raise LockedError(message, where=remote.where, hint="wait until it ends, or stop it on that machine")
        try:
            remote.remove(HOLDER, state.tag)
        except Conflict:
            raise LockedError("another run has just started", where=remote.where, hint="wait until it ends") from None
        removed.append(HOLDER)
    if isinstance(remote, Marked):
        removed += remote.unlock(names)
    for name in remote.names():
        if name.endswith(".tflock"):
            remote.remove(name)
            removed.append(name)
    return removed


def token(root: Path) -> str:
    """What tells one run directory on one machine from every other one: 64 hex digits. A copy of the directory has
    another token, on this machine (path, inode) and on others (machine id, hostname: machines made of one image may
    have the same id). Of machines that have all of it in common nothing tells them apart."""
    file = private_dir(root) / FOLDER
    try:
        name = file.read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        name = secrets.token_hex(16)
        write_whole(file, name + "\n")
    parts = (name, _machine_id(), socket.gethostname(), os.path.realpath(root), str(root.stat().st_ino))
    return hashlib.sha256("\0".join(parts).encode(errors="surrogateescape")).hexdigest()


def _machine_id() -> str:
    """Empty where the system has none, as many containers."""
    try:
        return MACHINE_ID.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return ""


def _reason(error: BaseException) -> str:
    return error.message if isinstance(error, ProviderError) else f"{type(error).__name__}: {error}"


def _plain(text: str) -> str:
    """A text that can be written and read again: the bytes of a path need not be UTF-8."""
    return text.encode("utf-8", "backslashreplace").decode()


def _text(holder: Holder) -> bytes:
    return (json.dumps(asdict(holder)) + "\n").encode()
