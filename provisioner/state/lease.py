"""Who of a cluster's operators is at work: holder.json beside the shared state, while somebody is.

It is written again every BEAT_S, so that one that is old was left by a run that died. One that a run of the same run
directory left is known to be dead at once: whoever asks has that directory's own lock from the kernel.
"""

from __future__ import annotations

import contextlib
import getpass
import json
import os
import secrets
import socket
import threading
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from provisioner import stored
from provisioner.errors import LockedError, ProviderError
from provisioner.events import Events
from provisioner.paths import private_dir, write_whole
from provisioner.providers.state import Conflict, Marked, Remote

HOLDER = "holder.json"
BEAT_S = 30.0
DEAD_S = 120.0
"""A holder that was not heard of for so long is dead."""
FOLDER = "folder"
"""File in the run directory: what tells it from every other one."""


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
class LeaseState:
    """holder.json as it was read; `holder` None where it can't be understood, `dead`: it is older than DEAD_S."""

    holder: Holder | None
    tag: str
    dead: bool


class Lease:
    """`with Lease(...) as lease:` is at work until the block ends. `lost`: somebody else has taken it meanwhile.
    Entering raises LockedError naming the holder."""

    def __init__(self, remote: Remote, root: Path, command: str, events: Events) -> None:
        self._remote, self._events = remote, events
        now = datetime.now(UTC).timestamp()
        self._me = Holder(command, _person(), socket.gethostname(), str(root), token(root), os.getpid(), now)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="holder", daemon=True)
        self._tag = ""
        self.lost = False

    def __enter__(self) -> Lease:
        self._tag = self._take()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        if self.lost:
            return
        try:
            self._remote.remove(HOLDER, self._tag)
        except Conflict:  # another run has taken it since the last beat, or that beat's answer was lost
            there = current(self._remote)
            if there is not None and there.holder == self._me:
                with contextlib.suppress(Conflict):
                    self._remote.remove(HOLDER, there.tag)

    def _take(self) -> str:
        """The tag of a holder.json that is ours."""
        try:
            return self._remote.write(HOLDER, _text(self._me), None)
        except Conflict:
            pass
        there = current(self._remote)
        if there is None:
            return self._take()  # it has just ended
        if there.holder is None or there.holder.token != self._me.token:
            hint = "it has not been heard of for minutes: `gpuprov unlock` removes its lease"
            raise LockedError(
                f"another run is active: {there.holder or f'{HOLDER} cannot be read'}",
                where=self._remote.where,
                hint=hint if there.dead else "wait until it ends, or stop it there",
            )
        try:
            return self._remote.write(HOLDER, _text(self._me), there.tag)
        except Conflict:
            hint = "wait until it ends"
            raise LockedError("another run has just started", where=self._remote.where, hint=hint) from None

    def _beat(self) -> None:
        while not self._over.wait(BEAT_S):
            try:
                self._tag = self._remote.write(HOLDER, _text(self._me), self._tag)
            except Conflict:
                self.lost = True
                self._events("run", "warning", f"another run took the lease of {self._remote.where} from this one")
                return
            except ProviderError as error:  # the next beat may be heard
                self._events("run", "warning", f"{self._remote.where}: {error.message}")


def current(remote: Remote) -> LeaseState | None:
    """Who is at work; None where nobody is."""
    found = remote.read(HOLDER)
    if found is None:
        return None
    holder = None
    with contextlib.suppress(ValueError, TypeError):
        holder = _whole(Holder(**stored.loads(found.content)))
    return LeaseState(holder, found.tag, found.age_s > DEAD_S)


def _whole(holder: Holder) -> Holder:
    """The holder. Raises ValueError for one that another program wrote."""
    texts = (holder.command, holder.person, holder.machine, holder.folder, holder.token)
    if not all(isinstance(text, str) and len(text) <= 4096 for text in texts):
        raise ValueError("a text is none")
    if isinstance(holder.pid, bool) or not isinstance(holder.pid, int) or not isinstance(holder.since, int | float):
        raise ValueError("a number is none")
    if not 0 <= holder.since < 1e11 or not 0 <= holder.pid < 1 << 32:
        raise ValueError("a number is out of range")
    return holder


def clear(remote: Remote, root: Path, names: Sequence[str] = (HOLDER,)) -> list[str]:
    """Remove what a dead run left: its holder.json, marks of its writes of `names`, and Terraform's locks. Gives
    what was removed, by name. Raises LockedError while the holder lives."""
    there, gone = current(remote), []
    if there is not None:
        mine = there.holder is not None and there.holder.token == token(root)
        if not (there.dead or mine):
            said = f"{there.holder or HOLDER} was heard of in the last {DEAD_S:.0f} seconds"
            raise LockedError(said, where=remote.where, hint="wait until it ends, or stop it there")
        try:
            remote.remove(HOLDER, there.tag)
        except Conflict:
            raise LockedError("another run has just started", where=remote.where, hint="wait until it ends") from None
        gone.append(HOLDER)
    if isinstance(remote, Marked):
        gone += remote.unlock(names)
    for name in remote.names():
        if name.endswith(".tflock"):
            remote.remove(name)
            gone.append(name)
    return gone


def token(root: Path) -> str:
    """What tells a run directory from every other one, whatever machine and path are called; made once."""
    file = root / FOLDER
    with contextlib.suppress(FileNotFoundError):
        return file.read_text(encoding="utf-8").strip()
    made = secrets.token_hex(16)
    write_whole(private_dir(root) / FOLDER, made + "\n")
    return made


def _text(holder: Holder) -> bytes:
    return (json.dumps(asdict(holder)) + "\n").encode()


def _person() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # an id without a name, as in many containers
        return f"uid {os.getuid()}"
