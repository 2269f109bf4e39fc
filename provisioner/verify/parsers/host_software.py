"""Parts of host.json about what runs: interfaces and sockets, processes and limits, docker, sshd, the first boot.

Every reader takes any value at all, because the document comes from a node, and gives None for what it does not know.
"""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from provisioner.verify.parsers import first_line
from provisioner.verify.parsers.untrusted import read_float, read_map, read_strings, read_text, read_whole

UNLIMITED = -1


@dataclass(frozen=True, slots=True)
class Interface:
    """`speed` in Mbit/s, None where there is none to tell (virtual, or without a link)."""

    name: str
    up: bool
    physical: bool
    mtu: int | None = None
    speed: int | None = None
    carrier_losses: int | None = None
    counts: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Socket:
    """A TCP socket that waits for connections."""

    address: str
    port: int

    @property
    def loopback(self) -> bool:
        return ipaddress.ip_address(self.address).is_loopback

    @property
    def everywhere(self) -> bool:
        return ipaddress.ip_address(self.address).is_unspecified


@dataclass(frozen=True, slots=True)
class Limits:
    """Of one process, soft and hard; UNLIMITED is -1, bytes for locked memory and the stack."""

    user: str | None = None
    memlock: tuple[int, int] | None = None
    files: tuple[int, int] | None = None
    processes: tuple[int, int] | None = None
    stack: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Docker:
    version: str | None = None
    storage: str | None = None
    root: str | None = None
    cgroup: str | None = None
    live_restore: bool | None = None
    runtimes: tuple[str, ...] = ()
    error: str | None = None
    """Why the daemon does not answer."""


@dataclass(frozen=True, slots=True)
class Cdi:
    """One description of GPUs for containers."""

    file: str
    kinds: tuple[str, ...]
    devices: tuple[str, ...]
    driver: str | None


@dataclass(frozen=True, slots=True)
class Processes:
    count: int
    zombies: int
    old_zombies: tuple[tuple[str, float], ...] = ()
    """Name and age in seconds of some."""
    stuck: tuple[str, ...] = ()
    users: Mapping[str, int] | None = None
    """User number of a person → processes; None where an older probe looked."""
    running: tuple[str, ...] | None = None
    """Programs that were looked for by name (probe/host_cpu.py: NAMED) and are there."""


def read_boots(value: Any) -> tuple[tuple[str, int], ...] | None:
    if not isinstance(value, list):
        return None
    rows = [row for row in value if isinstance(row, list) and len(row) == 2 and row[0] in ("boot", "shutdown")]
    return tuple((str(row[0]), when) for row in rows if (when := read_whole(row[1])) is not None)


def read_vendor(value: Any) -> dict[str, tuple[str, ...]] | None:
    if not isinstance(value, dict):
        return None
    installer = re.search(r"EFA installer version: ([0-9][0-9.]*)", str(value.get("efa", "")))
    return {"cuda": read_strings(value.get("cuda")) or (), "efa": (installer[1],) if installer else ()}


def read_interfaces(value: Any) -> tuple[Interface, ...] | None:
    if not isinstance(value, dict):
        return None
    interfaces = []
    for name, row in sorted(read_map(value).items()):
        values = read_map(row)
        speed, up = read_whole(values.get("speed")), values.get("operstate")
        counts = {k: n for k, v in read_map(values.get("counts")).items() if (n := read_whole(v)) is not None}
        interfaces.append(
            Interface(
                name=name,
                up=up == "up",
                physical=values.get("device") is True,
                mtu=read_whole(values.get("mtu")),
                speed=speed if speed and 0 < speed < 10_000_000 else None,
                carrier_losses=read_whole(values.get("carrier_down_count")),
                counts=counts,
            )
        )
    return tuple(interfaces)


def read_down(text: str) -> tuple[str, ...]:
    down, name = [], None
    for line in text.splitlines():
        if match := re.match(r"Slave Interface: (\S+)", line):
            name = match[1]
        elif name and line.startswith("MII Status:"):
            down += [] if line.split(":")[1].strip() == "up" else [name]
            name = None
    return tuple(down)


def read_address(text: Any) -> str | None:
    try:
        return str(ipaddress.ip_address(str(text).partition("%")[0]))
    except ValueError:
        return None


def read_addresses(value: Any) -> tuple[str, ...] | None:
    return tuple(a for entry in value if (a := read_address(entry))) if isinstance(value, list) else None


def read_sockets(value: Any) -> tuple[Socket, ...] | None:
    sockets = []
    for line in read_strings(value) or ():
        fields = line.split()
        if (
            len(fields) == 3
            and (address := read_address(fields[1]))
            and (port := read_whole(fields[2]))
            and 0 < port < 65536
        ):
            mapped = getattr(ipaddress.ip_address(address), "ipv4_mapped", None)
            sockets.append(Socket(str(mapped or address), port))
    return tuple(sockets) if isinstance(value, list) else None


def read_nameservers(text: str | None) -> tuple[str, ...] | None:
    rows = re.findall(r"^\s*nameserver\s+(\S+)", text or "", re.MULTILINE)
    return None if text is None else tuple(a for server in rows if (a := read_address(server)))


def read_processes(d: Mapping[str, Any]) -> Processes | None:
    count, zombies = read_whole(d.get("count")), read_whole(d.get("zombie_count"))
    if count is None or zombies is None:
        return None
    listed = d.get("zombies")
    rows = [row for row in listed if isinstance(row, list) and len(row) == 2] if isinstance(listed, list) else []
    old = tuple((str(row[0]), age) for row in rows if (age := read_float(row[1])) is not None)
    users = {name: n for name, v in read_map(d.get("users")).items() if (n := read_whole(v)) is not None}
    return Processes(
        *(count, zombies, old, read_strings(d.get("stuck")) or ()),
        users=users if isinstance(d.get("users"), dict) else None,
        running=read_strings(d.get("running")),
    )


def read_limits(d: Mapping[str, Any]) -> Limits:
    names = ("Max locked memory", "Max open files", "Max processes", "Max stack size")
    return Limits(read_text(d.get("user")), *(read_pair(d.get(name)) for name in names))


def read_pair(value: Any) -> tuple[int, int] | None:
    if not isinstance(value, list) or len(value) != 2:
        return None
    soft, hard = (UNLIMITED if limit == "unlimited" else read_whole(limit) for limit in value)
    return (soft, hard) if soft is not None and hard is not None else None


def read_crashes(value: Any) -> tuple[tuple[str, float], ...] | None:
    if not isinstance(value, list):
        return None
    rows = [row for row in value if isinstance(row, list) and len(row) == 2]
    return tuple((str(row[0]), when) for row in rows if (when := read_float(row[1])) is not None)


def read_cdi(value: Any) -> tuple[Cdi, ...] | None:
    if not isinstance(value, dict):
        return None
    specs = []
    for file, rows in sorted(read_map(value).items()):
        lines = read_strings(rows) or ()
        entries = [
            (m[1], m[2]) for row in lines if (m := re.match(r"-? ?\"?(kind|name)\"?:\s*\"?([^\",]+)\"?,?$", row))
        ]
        versions = {m[1] for row in lines if (m := re.search(r"libcuda\.so\.([0-9]{3}\.[0-9.]*[0-9])", row))}
        specs.append(
            Cdi(
                file, tuple(v for k, v in entries if k == "kind"), tuple(v for k, v in entries if k == "name"),
                versions.pop() if len(versions) == 1 else None,
            )
        )  # fmt: skip
    return tuple(specs)


def read_docker(answer: Mapping[str, Any]) -> Docker | None:
    if not answer or answer.get("missing") is True:
        return None
    try:
        d = read_map(json.loads(answer["text"])) if answer.get("rc") == 0 else {}
    except (ValueError, TypeError, KeyError, RecursionError):
        d = {}
    errors = d.get("errors")
    if not d or not d.get("version"):
        reason = (
            "it hangs"
            if answer.get("timed_out") is True
            else str((errors or [""])[0] if isinstance(errors, list) else "")
        )
        # An older docker fills the form with nothing instead of saying that no daemon answers.
        heard = str(answer.get("error") or "")
        return Docker(
            error=first_line(reason or (heard if "template:" not in heard else "") or "the daemon is not there")
        )
    live = d.get("live_restore")
    return Docker(
        read_text(d.get("version")), read_text(d.get("driver")), read_text(d.get("root")), read_text(d.get("cgroup")),
        live if isinstance(live, bool) else None, tuple(sorted(read_map(d.get("runtimes")))),
    )  # fmt: skip


def read_sshd(text: str | None) -> dict[str, tuple[str, ...]] | None:
    settings: dict[str, tuple[str, ...]] = {}
    for line in (text or "").splitlines():
        key, _, value = line.strip().partition(" ")
        if key and value:
            settings[key.lower()] = (*settings.get(key.lower(), ()), value.strip())
    return settings or None


def read_environment(value: Any) -> dict[str, str] | None:
    rows = [line.partition("=") for line in read_strings(value) or ()]
    return {k.strip(): v.strip().strip("\"'") for k, _, v in rows} if isinstance(value, list) else None


def read_cloud_init(text: str | None) -> tuple[str, ...] | None:
    """/run/cloud-init/result.json: {"v1": {"datasource": …, "errors": [...]}}."""
    try:
        errors = json.loads(text or "")["v1"]["errors"]
        return tuple(str(entry)[:300] for entry in errors) if isinstance(errors, list) else None
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
