"""ssh's configuration of a cluster: written for its nodes and jump hosts, and refused where it is not gpuprov's.

Host-key checking is never off: every node has its own alias in known_hosts.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from provisioner.common.errors import GpuprovError
from provisioner.common.paths import ClusterPaths, private_dir, write_whole
from provisioner.transport import ssh_basics, ssh_keys, ssh_pins, ssh_sockets

CONNECT_TIMEOUT_S = 10

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
        f"  IdentityFile {ssh_basics.quoted(ssh_keys.identity(paths))}\n"
        "  IdentitiesOnly yes\n"
        "  IdentityAgent none\n"
        "  BatchMode yes\n"
        "  PasswordAuthentication no\n"
        "  StrictHostKeyChecking yes\n"
        f"  UserKnownHostsFile {ssh_basics.quoted(known_hosts)}\n"
        "  GlobalKnownHostsFile /dev/null\n"
        "  HostKeyAlgorithms ssh-ed25519\n"
        "  UpdateHostKeys no\n"
        f"  ConnectTimeout {CONNECT_TIMEOUT_S}\n"
    )


def save(
    paths: ClusterPaths,
    nodes: Sequence[ssh_basics.Host],
    pins: ssh_pins.Pins,
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
        f"  ControlPath {ssh_sockets.for_all_users(ssh_sockets.control_dir(paths))}\n"
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


LOCAL = "local"
"""File of ssh's folder: names of nodes that are this very machine."""


def local(paths: ClusterPaths) -> frozenset[str]:
    """The nodes that are this very machine: no ssh is needed for them."""
    try:
        return frozenset((paths.ssh / LOCAL).read_text(encoding="utf-8", errors="replace").split())
    except (FileNotFoundError, NotADirectoryError):
        return frozenset()


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
