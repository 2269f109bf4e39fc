"""Reaching nodes with OpenSSH: pinned host keys, one configuration file, shared connections.

Host-key checking is never off: every node has its own alias in known_hosts, pinned at first contact to the machine's
id, so that neither a reused address nor a replaced machine is taken for the old one.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import hashlib
import json
import os
import re
import secrets
import shlex
import stat
import subprocess
import tempfile
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, Protocol

from provisioner.common import directories, ownership, stored
from provisioner.common.errors import GpuprovError
from provisioner.common.paths import ClusterPaths, private_dir, write_whole
from provisioner.transport import keeper, process


class Host(Protocol):
    """What ssh has to know of a node."""

    @property
    def name(self) -> str: ...
    @property
    def address(self) -> str: ...
    @property
    def port(self) -> int: ...


Pins = dict[str, tuple[str, str]]
"""Node name → (machine id, host key as "ssh-ed25519 AAAA…")."""

CONTROL_PATH = re.compile(r'^  ControlPath "(.*)/%C"$', re.M)
CONNECT_TIMEOUT_S = 10
EXIT_TIMEOUT_S = 15
"""Seconds in which the process of a shared connection has to answer that it ends."""
PARALLEL_EXITS = 16
"""Connections that are ended at once: thousands may hang."""
JUMP, JUMP_KEYS = "jump-", ".known_hosts"
"""Of the files of the sandbox's jump host: jump-SITE and jump-SITE.known_hosts (a dot can't be in a site's name)."""
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
JUMP_WORDS = (
    r" (-p [0-9]{1,5} )?-W \[[0-9A-Za-z.:-]+\]:[0-9]{1,5} ([a-z_][a-z0-9_-]{0,31}@)?[A-Za-z0-9][A-Za-z0-9.-]{0,252}"
)
"""The end of `jump`'s command, for any address and jump host."""
JUMP_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]*")
ADDRESS = re.compile(r"[0-9A-Za-z.:-]+")
KEY = re.compile(r"ssh-ed25519 [A-Za-z0-9+/=]+( [^\n]*)?")
RUN_NAME = re.compile(r"[0-9a-f]{8}")
"""A run's folder among the sockets: the first digits of its name (keeper.NAME), or the process's id."""
SOCKET_PATH_MAX = 107 - 17 - len("/") - 40 - len("/") - 8
"""Bytes of `control_dir`: sun_path holds 107 bytes and a NUL (unix(7)); while it makes a socket ssh adds 17, %C is 40
hex digits, and a run's folder 8."""


def jump(host: str, address: str, to_port: int = 22, config: Path | None = None) -> str:
    """ssh's ProxyCommand to `address` by way of a jump host, [user@]host[:port], as the caller's own ssh reaches it, or
    by another configuration."""
    name, _, port = host.partition(":")
    options = f"-p {port} " if port else ""
    return f"{_jump_command(config)} {options}-W [{address}]:{to_port} {name}"


def _jump_command(config: Path | None) -> str:
    """The beginning of `jump`'s command."""
    options = f"-F {shlex.quote(str(config))} " if config is not None else ""
    return f"ssh {options}-o BatchMode=yes -o ConnectTimeout={CONNECT_TIMEOUT_S}"


def _is_jump(command: str, configs: Collection[Path]) -> bool:
    """Whether `jump` may have written that command, for whatever jump host. With the caller's own configuration, or one
    of these, it runs ssh to a host whose key is known, and nothing else."""
    beginnings = "|".join(re.escape(_jump_command(config)) for config in (None, *configs))
    return re.fullmatch(f"(?:{beginnings}){JUMP_WORDS}", command) is not None


@dataclass(frozen=True, slots=True)
class SimulatedJumpHost:
    """What stands for the jump hosts of a site in the sandbox. `users`: name of a jump host → login name where none is
    given; `address`: where all of them are; `key`: its host key as "ssh-ed25519 AAAA…"."""

    users: Mapping[str, str]
    address: str
    key: str


def jump_config(paths: ClusterPaths, site: str) -> Path:
    """ssh's configuration for a site's simulated jump host."""
    return paths.ssh / f"{JUMP}{site}"


def save_jump(paths: ClusterPaths, site: str, host: SimulatedJumpHost | None) -> None:
    """Write how ssh reaches a site's simulated jump host, and its host key, or remove that. Raises GpuprovError for
    what is no name, address or key."""
    config = jump_config(paths, site)
    known_hosts = config.with_name(config.name + JUMP_KEYS)
    if host is None:
        for file in (config, known_hosts):
            file.unlink(missing_ok=True)
        return
    wrong = [name for name in host.users if not JUMP_NAME.fullmatch(name)]
    if wrong or not ADDRESS.fullmatch(host.address) or not KEY.fullmatch(host.key):
        _refuse(config, f"{wrong or [host.address, host.key]} is no jump host")
    alias = f"{JUMP}{site}.{paths.name}"
    private_dir(paths.ssh)
    write_whole(known_hosts, f"{alias} {host.key}\n")
    blocks = [f"Host {name}\n  HostName {host.address}\n  User {user}\n\n" for name, user in sorted(host.users.items())]
    write_whole(config, "".join(blocks) + "Host *\n" + f"  HostKeyAlias {alias}\n" + _strict(paths, known_hosts))


def _strict(paths: ClusterPaths, known_hosts: Path) -> str:
    """Lines of ssh's configuration: the cluster's key and no other, pinned host keys and no others, no questions."""
    return (
        f"  IdentityFile {_quoted(identity(paths))}\n"
        "  IdentitiesOnly yes\n"
        "  IdentityAgent none\n"
        "  BatchMode yes\n"
        "  PasswordAuthentication no\n"
        "  StrictHostKeyChecking yes\n"
        f"  UserKnownHostsFile {_quoted(known_hosts)}\n"
        "  GlobalKnownHostsFile /dev/null\n"
        "  HostKeyAlgorithms ssh-ed25519\n"
        "  UpdateHostKeys no\n"
        f"  ConnectTimeout {CONNECT_TIMEOUT_S}\n"
    )


def load_pins(paths: ClusterPaths) -> Pins:
    """What was pinned by earlier runs."""
    try:
        return parse_pins(stored.load(paths.ssh / "pins.json"))
    except FileNotFoundError:
        return {}
    except (ValueError, TypeError, AttributeError, LookupError) as error:
        raise GpuprovError(
            "the pinned host keys are damaged",
            where=str(paths.ssh / "pins.json"),
            hint="compare the machines' host keys by hand, then remove the file and run `gpuprov up` to pin them again",
        ) from error


def parse_pins(loaded: Any) -> Pins:
    """The pins of pins.json. Raises ValueError, TypeError, AttributeError or LookupError for what is none."""
    if not all(isinstance(text, str) for pin in loaded.values() for text in (pin[0], pin[1])):
        raise TypeError("a pin is not a text")
    return {name: (pin[0], pin[1]) for name, pin in loaded.items()}


def repin(paths: ClusterPaths, keys: Pins) -> bool:
    """Pin these host keys, which a person has written down, in place of others; whether any differs."""
    pins = load_pins(paths)
    if not keys.items() - pins.items():
        return False
    write_whole(private_dir(paths.ssh) / "pins.json", json.dumps(pins | keys, indent=1) + "\n")
    return True


def unpin(paths: ClusterPaths, machine: str) -> None:
    """Forget the host key of a machine, by its id: it was installed anew, and has made itself another one."""
    pins = load_pins(paths)
    remaining = {name: pin for name, pin in pins.items() if pin[0] != machine}
    if remaining != pins:
        write_whole(paths.ssh / "pins.json", json.dumps(remaining, indent=1) + "\n")


def pin(paths: ClusterPaths, machine: str, key: str) -> None:
    """Pin the host key of a machine, by its id, before anybody asks it: it was reported by its installation."""
    unpin(paths, machine)
    name = "installed-" + hashlib.sha256(machine.encode()).hexdigest()[:12]  # it has no node's name yet (fleet.py)
    pins = load_pins(paths) | {name: (machine, key)}
    private_dir(paths.ssh)
    write_whole(paths.ssh / "pins.json", json.dumps(pins, indent=1) + "\n")


def save(
    paths: ClusterPaths,
    nodes: Sequence[Host],
    pins: Pins,
    users: Mapping[str, str],
    proxies: Mapping[str, str] | None = None,
    local: Collection[str] = (),
) -> None:
    """Write pins, known_hosts and ssh's configuration for these nodes. `users`: node → its account; `proxies`: node →
    the command that carries the connection; `local`: names of this very machine, which has none of it. Raises
    GpuprovError for what is no name, address or key: it would be read as configuration."""
    for node in nodes:
        if not (NAME.fullmatch(node.name) and ADDRESS.fullmatch(node.address)):
            _refuse(paths.nodes, f"{node.name!r} at {node.address!r} is no node")
    for name, (_, key) in pins.items():
        if not (NAME.fullmatch(name) and KEY.fullmatch(key)):
            _refuse(paths.ssh / "pins.json", f"{key!r} is no host key")
    private_dir(paths.ssh)
    write_whole(paths.ssh / "pins.json", json.dumps(pins, indent=1) + "\n")
    write_whole(paths.known_hosts, "".join(f"{name}.{paths.name} {key}\n" for name, (_, key) in sorted(pins.items())))
    head = (
        "Host *\n" + _strict(paths, paths.known_hosts) + "  ServerAliveInterval 10\n"
        "  ServerAliveCountMax 3\n"
        "  ControlMaster auto\n"
        "  ControlPersist 60s\n"
        f"  ControlPath {_for_all_users(control_dir(paths))}\n"
        "  LogLevel ERROR\n"
    )
    carried = {
        name: "  ProxyCommand {}\n".format(command.replace("%", "%%")) for name, command in (proxies or {}).items()
    }
    hosts = [
        f"\nHost {node.name}\n  HostName {node.address}\n"
        + (f"  Port {node.port:d}\n" if node.port != 22 else "")
        + f"  User {users[node.name]}\n"
        f"  HostKeyAlias {node.name}.{paths.name}\n{carried.get(node.name, '')}"
        for node in nodes
        if node.name not in local
    ]
    if local:
        write_whole(paths.ssh / LOCAL, "".join(f"{name}\n" for name in sorted(local)))
    else:
        (paths.ssh / LOCAL).unlink(missing_ok=True)
    write_whole(paths.ssh / "config", "".join(hosts) + "\n" + head)


KEYWORDS = {
    "host", "hostname", "port", "hostkeyalias", "proxycommand", "user", "identityfile", "identitiesonly",
    "identityagent",
    "batchmode", "passwordauthentication", "stricthostkeychecking", "userknownhostsfile", "globalknownhostsfile",
    "hostkeyalgorithms", "updatehostkeys", "connecttimeout", "serveraliveinterval", "serveralivecountmax",
    "controlmaster", "controlpersist", "controlpath", "loglevel",
}  # fmt: skip
"""What `save` writes. Others can run commands (Match exec, LocalCommand, KnownHostsCommand, PKCS11Provider …)."""


def refuse_foreign(
    paths: ClusterPaths, proxies: Callable[[], Collection[str]], local_names: Callable[[], Collection[str]] = frozenset
) -> None:
    """Raise GpuprovError for a configuration that `save` would not write: a run directory may have come with somebody's
    checkout. `proxies`: the commands that may carry a connection; `local_names`: nodes that may be this machine."""
    if (local_nodes := local(paths)) and (foreign := local_nodes - set(local_names())):
        _refuse(paths.ssh / LOCAL, f"{min(foreign)} is this machine there, and not in cluster.yaml")
    jumps = [file for file in sorted(paths.ssh.glob(f"{JUMP}*")) if not file.name.endswith(JUMP_KEYS)]
    for jump_file in jumps:
        _refuse_foreign_lines(jump_file, list, None)
    _refuse_foreign_lines(paths.ssh / "config", proxies, jumps)


def _refuse_foreign_lines(config: Path, proxies: Callable[[], Collection[str]], jumps: Collection[Path] | None) -> None:
    """Raise GpuprovError for a line that is not gpuprov's. Nothing happens where there is no such file. `jumps`: the
    configurations by which a jump host may be reached; None where no jump host may be named. A jump host of an earlier
    cluster.yaml stays until the next `up`."""
    try:
        lines = config.read_text(encoding="utf-8").splitlines()
    except (FileNotFoundError, NotADirectoryError):
        return
    except UnicodeDecodeError:
        _refuse(config, "it is no text")
    allowed: set[str] | None = None
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        keyword, _, value = line.strip().partition(" ")
        if keyword.lower() not in KEYWORDS:
            _refuse(config, f"line {number} is not gpuprov's: {line.strip()[:60]!r}")
        if keyword.lower() == "proxycommand":
            allowed = {command.replace("%", "%%") for command in proxies()} if allowed is None else allowed
            former = jumps is not None and _is_jump(value.replace("%%", "%"), jumps)
            if value not in allowed and not former:
                _refuse(config, f"line {number} is not gpuprov's: {line.strip()[:60]!r}")


def _refuse(file: Path, message: str) -> NoReturn:
    raise GpuprovError(
        message, where=str(file), hint="check who wrote it, remove it, and run `gpuprov up`, which writes it again"
    )


def _quoted(path: Path, last: str = "") -> str:
    """A path as ssh's configuration takes it, `last` added as it is. Raises GpuprovError for what it can't be told."""
    text = str(path)
    if "${" in text or not text.isprintable():  # ssh has no way to write a ${ that is not an environment variable
        raise GpuprovError(
            "ssh's configuration cannot contain this path",
            where=repr(text),
            hint="use a folder whose name has no ${ and no control characters",
        )
    return '"' + re.sub(r'(["\\])', r"\\\1", text).replace("%", "%%") + last + '"'


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
            control_path = _quoted(folder, "/%C")
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


def _for_all_users(folder: Path) -> str:
    """The folder's place in ssh's configuration."""
    prefix = f"gpuprov-{os.getuid()}-"
    return _quoted(folder.parent, "/" + folder.name.replace(prefix, "gpuprov-%i-", 1) + "/%C")


def mend(paths: ClusterPaths) -> None:
    """Make the sockets' folder where it is not: another user's turn, a reboot, a log-out, a cleaned /tmp. ssh needs
    it."""
    config = paths.ssh / "config"
    folder = _sockets(paths, os.getuid())
    if folder is None or (_is_short(folder) and _made_mine(folder)):
        return
    text, current = config.read_text(encoding="utf-8"), _for_all_users(control_dir(paths))
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


def identity(paths: ClusterPaths) -> Path:
    """The private key that the nodes know."""
    pointer = paths.ssh / "identity"
    return Path(pointer.read_text(encoding="utf-8").strip()) if pointer.exists() else paths.ssh / "id_ed25519"


def ensure_key(paths: ClusterPaths, key_file: str | None) -> str:
    """The public key for the nodes: of the key that cluster.yaml names, else of one that gpuprov makes for this
    cluster alone. Returns "ssh-ed25519 AAAA… comment". Raises GpuprovError where there is no such key, or where ssh
    can't be told its place."""
    _quoted(private_dir(paths.ssh))
    if key_file is None:
        own_key = paths.ssh / "id_ed25519"
        if not (own_key.exists() and own_key.with_suffix(".pub").exists()):
            _make_key(own_key, f"gpuprov-{paths.name}")
        (paths.ssh / "identity").unlink(missing_ok=True)
        return own_key.with_suffix(".pub").read_text(encoding="utf-8").strip()
    private = Path(key_file).expanduser()
    public = private.with_name(private.name + ".pub")
    for path, kind in ((private, "private"), (public, "public")):
        if not path.is_file():
            raise GpuprovError(
                f"there is no {kind} key {path}",
                where="access.ssh_key",
                hint=f"make one with `ssh-keygen -t ed25519 -f {private}`, or leave access.ssh_key out",
            )
    _quoted(private.absolute())
    write_whole(paths.ssh / "identity", f"{private.absolute()}\n")
    return public.read_text(encoding="utf-8").strip()


def _make_key(path: Path, comment: str) -> None:
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        fresh = Path(folder) / "key"
        subprocess.run(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", str(fresh)],
            check=True,
            timeout=30,
            capture_output=True,
        )
        directories.move(fresh.with_suffix(".pub"), path.with_suffix(".pub"), mode=0o644)
        directories.move(fresh, path)


LOCAL = "local"
"""File of ssh's folder: names of nodes that are this very machine."""
LOCAL_SHELL = 'if [ $# -eq 0 ]; then exec "${SHELL:-/bin/sh}" -l; fi; exec /bin/sh -c "$*"'
"""Runs its arguments as ssh does on the other side: as one text for a shell, a login where there are none."""


def local(paths: ClusterPaths) -> frozenset[str]:
    """The nodes that are this very machine: no ssh is needed for them."""
    try:
        return frozenset((paths.ssh / LOCAL).read_text(encoding="utf-8", errors="replace").split())
    except (FileNotFoundError, NotADirectoryError):
        return frozenset()


OWN_CONNECTION = "ControlPath=none"
"""An option of ssh: a connection that is not shared, and does not end with this run."""
UNSHARED = ("-o", "ControlMaster=no", "-o", OWN_CONNECTION)
"""For a login or a copy: a command that is killed ends the connections that it shares, and this one must stay."""


def argv(paths: ClusterPaths, node: str, *options: str) -> list[str]:
    """The command that reaches a node, ssh but for this very machine; append one command string to run it there.
    `options`: of ssh."""
    if node in local(paths):
        return ["/bin/sh", "-c", LOCAL_SHELL, "gpuprov"]
    config = paths.ssh / "config" if OWN_CONNECTION in options else run_config(paths)
    return ["ssh", "-F", str(config), *options, node]


def copy_argv(
    paths: ClusterPaths, source: tuple[str, str], target: tuple[str, str], *, recursive: bool = False
) -> list[str]:
    """The command that copies a file. `source`, `target`: node and path; an empty node is this computer."""

    def scp_location(node: str, path: str) -> str:
        if node and node not in local(paths):
            return f"{node}:{path}"
        return path if path.startswith(("/", "./")) else f"./{path}"  # a colon in it names no host

    flags = ["-r"] if recursive else []
    places = [scp_location(*source), scp_location(*target)]
    if {source[0], target[0]} <= local(paths) | {""}:
        return ["cp", *flags, "--", *places]
    config = str(paths.ssh / "config")
    return ["scp", "-q", "-F", config, *UNSHARED, *flags, "--", *places]


FOR_USERS = (
    "identityfile", "identitiesonly", "stricthostkeychecking", "userknownhostsfile", "globalknownhostsfile",
    "hostkeyalgorithms", "updatehostkeys",
)  # fmt: skip
"""What of `Host *` a user's own ssh needs."""


def user_config(paths: ClusterPaths, names: Collection[str]) -> str:
    """ssh's configuration for a person's own ssh: a host CLUSTER-NODE for each of these nodes that is not this very
    machine. Raises GpuprovError where none was written yet."""
    try:
        text = (paths.ssh / "config").read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise GpuprovError("no node can be reached by ssh yet", where=str(paths.ssh)) from error
    blocks = {block.partition("\n")[0]: block.partition("\n")[2] for block in re.split(r"(?m)^Host ", text)[1:]}
    shared = [line for line in blocks.get("*", "").splitlines() if line.strip().partition(" ")[0].lower() in FOR_USERS]
    hosts = [
        f"Host {paths.name}-{name}\n{blocks[name].rstrip()}\n" + "".join(f"{line}\n" for line in shared)
        for name in names
        if name in blocks
    ]
    return "\n".join(hosts)


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


def close(paths: ClusterPaths, nodes: Sequence[Host]) -> None:
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
