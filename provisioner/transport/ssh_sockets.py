"""Shared connections of ssh: where their sockets lie, each run's own, and their end."""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import os
import re
import secrets
import stat
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from provisioner.common import ownership
from provisioner.common.errors import GpuprovError
from provisioner.common.paths import ClusterPaths, private_dir, write_whole
from provisioner.transport import keeper, process, ssh_basics

CONTROL_PATH = re.compile(r'^  ControlPath "(.*)/%C"$', re.M)

EXIT_TIMEOUT_S = 15
"""Seconds in which the process of a shared connection has to answer that it ends."""

PARALLEL_EXITS = 16
"""Connections that are ended at once: thousands may hang."""

RUN_NAME = re.compile(r"[0-9a-f]{8}")
"""A run's folder among the sockets: the first digits of its name (keeper.NAME), or the process's id."""

SOCKET_PATH_MAX = 107 - 17 - len("/") - 40 - len("/") - 8
"""Bytes of `control_dir`: sun_path holds 107 bytes and a NUL (unix(7)); while it makes a socket ssh adds 17, %C is 40
hex digits, and a run's folder 8."""

SOCKETS = "sockets"
"""File of ssh's folder: the random part of the name of the folder of sockets."""


def control_dir(paths: ClusterPaths) -> Path:
    """Where this user's sockets of shared connections lie: a short path, because a socket's path is limited. Those of
    gpuprov's runs are in a folder of each run (`run_config`). ssh's configuration names it for every user ("%i" is the
    uid), and for people who call ssh with it: with and without sudo one does not meet the other's. Its name is random
    and recorded in the run directory; where another user has made a folder of that name since (/tmp after a reboot),
    a new name is recorded."""
    name = _socket_name(paths)
    for folder in _control_dirs(name):
        if _made_mine(folder):
            return folder
    name = secrets.token_hex(4)
    for folder in _control_dirs(name):
        if _made_mine(folder):
            write_whole(private_dir(paths.ssh) / SOCKETS, name + "\n")
            return folder
    raise _no_control_dir()


def _socket_name(paths: ClusterPaths) -> str:
    """The random part of the sockets' folder's name, 8 hex digits; recorded on first use."""
    file = private_dir(paths.ssh) / SOCKETS
    with contextlib.suppress(OSError, ValueError):
        recorded = file.read_text(encoding="ascii").strip()
        if re.fullmatch(r"[0-9a-f]{8}", recorded):
            return recorded
    name = secrets.token_hex(4)
    write_whole(file, name + "\n")
    return name


def refuse_no_control_dir() -> None:
    """Raise GpuprovError where `control_dir` would. Nothing is made."""
    if not any(os.access(folder.parent, os.W_OK | os.X_OK) for folder in _control_dirs("0" * 8)):
        raise _no_control_dir()


def _control_dirs(random_name: str) -> list[Path]:
    """Where `control_dir` may be, the best place first: in folders that exist and whose paths are short enough."""
    name = f"gpuprov-{os.getuid()}-{random_name}"
    bases = (os.environ.get("XDG_RUNTIME_DIR"), tempfile.gettempdir(), "/tmp")  # noqa: S108 - a private folder in it
    folders = [Path(base) / name for base in bases if base]
    return [folder for folder in folders if folder.parent.is_dir() and _is_short(folder)]


def _is_short(folder: Path) -> bool:
    """Whether a socket in it has a path that the kernel takes."""
    return len(os.fsencode(folder)) <= SOCKET_PATH_MAX


def _no_control_dir() -> GpuprovError:
    longest = SOCKET_PATH_MAX - len(f"/gpuprov-{os.getuid()}-01234567")
    return GpuprovError(
        "no folder for ssh's control sockets: XDG_RUNTIME_DIR, TMPDIR and /tmp are missing, not writable or too long",
        hint=f"set XDG_RUNTIME_DIR to a folder of your own whose path has at most {longest} bytes",
    )


@dataclass(frozen=True, slots=True)
class _RunConfig:
    """The configuration of this run, as a copy of the run directory's when that had this time, inode and size."""

    file: Path
    source: tuple[int, int, int]


_run_guard = threading.Lock()

_run_configs: dict[Path, _RunConfig] = {}
"""By run directory."""

_run_folders: dict[Path, int] = {}
"""Folders of this run's sockets, each with the descriptor whose lock says that the run lives."""


def run_config(paths: ClusterPaths) -> Path:
    """ssh's configuration for gpuprov's own processes: that of the run directory, but the connections are shared within
    this run alone. A run that is killed ends its connections, and another one's sessions may not go with them. The
    file lies beside the sockets and is removed with them when the run ends. Where nothing is configured yet it is the
    missing file of the run directory, which ssh refuses."""
    source = paths.ssh / "config"
    try:
        stat_result = source.stat()
    except (FileNotFoundError, NotADirectoryError):
        return source
    stamp = stat_result.st_mtime_ns, stat_result.st_ino, stat_result.st_size
    with _run_guard:
        known = _run_configs.get(paths.root)
        if known is None or known.source != stamp or not known.file.exists():
            folder = _claim_run_folder(_base(paths))
            control_path = ssh_basics.quoted(folder, "/%C")
            text = source.read_text(encoding="utf-8")
            write_whole(folder / "config", CONTROL_PATH.sub(lambda _: f"  ControlPath {control_path}", text))
            known = _run_configs[paths.root] = _RunConfig(folder / "config", stamp)
    return known.file


def _base(paths: ClusterPaths) -> Path:
    """Where this user's sockets lie: as configured, else `control_dir`."""
    folder = _sockets(paths, os.getuid())
    usable = folder is not None and _is_short(folder) and _made_mine(folder)
    return folder if folder is not None and usable else control_dir(paths)


def _run_name() -> str:
    name = os.environ.get(keeper.NAME, "")
    return name[:8] if keeper.NAMED.fullmatch(name) else f"{os.getpid():08x}"


def _claim_run_folder(base: Path) -> Path:
    """Make this run's folder and lock it; folders of runs that died with their keepers are removed. A process of a
    living run uses the folder that this run has locked."""
    folder = base / _run_name()
    if folder in _run_folders and folder.is_dir():
        return folder
    for other in _folders_of_runs(base):
        if other != folder:
            _remove_dead(other, os.getuid())
    while True:
        is_new = False
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o700)
            is_new = True
        try:
            handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:  # another run has just taken it for a dead one's
            continue
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | (0 if is_new else fcntl.LOCK_NB))
        except BlockingIOError:
            os.close(handle)
            return folder
        if folder.is_dir() and folder.stat().st_ino == os.fstat(handle).st_ino:
            _run_folders[folder] = handle
            if not process.shares(folder):
                atexit.register(keeper.remove_shared, str(folder))
            return folder
        os.close(handle)


def _folders_of_runs(base: Path) -> list[Path]:
    return [path for path in base.iterdir() if RUN_NAME.fullmatch(path.name) and path.is_dir()]


def _remove_dead(folder: Path, uid: int) -> bool:
    """Remove the folder of this user's run that is dead, and end its connections; whether it was dead."""
    try:
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:  # its keeper has just removed it
        return True
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        _remove_sockets(folder, uid)
    except BlockingIOError:
        return False
    finally:
        os.close(handle)
    return True


def _remove_sockets(folder: Path, uid: int) -> None:
    """As keeper.remove_shared, but with sudo no link of another user is followed."""
    keeper.close_shared(str(folder))
    with contextlib.suppress(OSError):  # its keeper does the same
        ownership.remove_flat(folder, uid)


def plain_way(paths: ClusterPaths) -> Path:
    """The run directory by a path without a space, quote, comma or $: a link beside the sockets. Ansible splits a path
    at commas and replaces $NAME in it, and nothing keeps it from that."""
    link = control_dir(paths) / "run"
    if not link.is_symlink() or link.readlink() != paths.root:
        fresh = link.with_name(f"run.{os.getpid()}")
        fresh.unlink(missing_ok=True)
        fresh.symlink_to(paths.root)
        fresh.replace(link)
    return link


def _made_mine(folder: Path) -> bool:
    """Make a folder that is this user's alone, also with sudo; whether it is."""
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
    except OSError:
        return False
    return _is_mine(folder)


def _is_mine(folder: Path) -> bool:
    """Whether a folder is this user's alone."""
    try:
        status = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o077


def for_all_users(folder: Path) -> str:
    """The folder's place in ssh's configuration."""
    prefix = f"gpuprov-{os.getuid()}-"
    return ssh_basics.quoted(folder.parent, "/" + folder.name.replace(prefix, "gpuprov-%i-", 1) + "/%C")


def mend(paths: ClusterPaths) -> None:
    """Make the sockets' folder where it is not: another user's turn, a reboot, a log-out, a cleaned /tmp. ssh needs
    it."""
    config = paths.ssh / "config"
    folder = _sockets(paths, os.getuid())
    if folder is None or (_is_short(folder) and _made_mine(folder)):
        return
    text, current = config.read_text(encoding="utf-8"), for_all_users(control_dir(paths))
    write_whole(config, CONTROL_PATH.sub(lambda _: f"  ControlPath {current}", text))


def _sockets(paths: ClusterPaths, uid: int) -> Path | None:
    """Where ssh's configuration has the sockets of a user; None where nothing is configured yet."""
    try:
        match = CONTROL_PATH.search((paths.ssh / "config").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    if match is None:
        return None
    plain = re.sub(r'\\(["\\])', r"\1", match[1])
    return Path(re.sub("%(.)", lambda c: str(uid) if c[1] == "i" else c[1], plain))


def disconnect(paths: ClusterPaths, names: Sequence[str]) -> None:
    """End the connections to these nodes that this run shares, and those of people who call ssh with the run
    directory's configuration; nothing happens where there is none."""
    run = _run_configs.get(paths.root)
    folder = _sockets(paths, os.getuid())
    if run is not None:
        _disconnect(run.file, run.file.parent, names)
    if folder is not None:
        _disconnect(paths.ssh / "config", folder, names)


def _disconnect(config: Path, folder: Path, names: Sequence[str], *options: str) -> None:
    if not folder.is_dir() or not any(stat.S_ISSOCK(entry.lstat().st_mode) for entry in folder.iterdir()):
        return

    def disconnect_one(name: str) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):  # its process hangs: the connection is of no use either
            command = ["ssh", "-F", str(config), *options, "-O", "exit", name]
            subprocess.run(
                command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=EXIT_TIMEOUT_S, check=False
            )

    with ThreadPoolExecutor(max_workers=PARALLEL_EXITS) as pool:
        list(pool.map(disconnect_one, names))


def abandon(paths: ClusterPaths, run: str) -> None:
    """End the connections that a dead run shared, and remove their folder. `run`: its name, as keeper.end takes it."""
    if keeper.NAMED.fullmatch(run):
        with contextlib.suppress(GpuprovError):  # no folder for sockets: there are none
            _remove_sockets(_base(paths) / run[:8], os.getuid())


def close(paths: ClusterPaths, nodes: Sequence[ssh_basics.Host]) -> None:
    """End all shared connections, this user's and those of whoever called sudo, and remove their sockets. Those of
    another run that is alive stay."""
    person = ownership.person()
    for uid in {os.getuid(), person.uid if person else os.getuid()}:
        folder = _sockets(paths, uid)
        if folder is None or not folder.is_dir() or folder.is_symlink():
            continue
        _disconnect(
            paths.ssh / "config", folder, [node.name for node in nodes], "-S", str(folder).replace("%", "%%") + "/%C"
        )
        with _run_guard:
            alive = [run for run in _folders_of_runs(folder) if not (_close_own(run) or _remove_dead(run, uid))]
        if not alive:
            ownership.remove_flat(folder, uid)


def _close_own(folder: Path) -> bool:
    """Remove a folder of this run's sockets, and end its connections; whether it was this run's."""
    handle = _run_folders.pop(folder, None)
    if handle is None:
        return False
    _remove_sockets(folder, os.getuid())
    os.close(handle)
    return True
