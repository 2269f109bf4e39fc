"""Parts of host.json about the platform: PCIe above the GPUs, fstab, FUSE, the driver's module and libraries on disk.

Every reader takes any value at all, because the document comes from a node, and gives None for what it does not know.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from provisioner.verify.parsers.host_hardware import read_plain
from provisioner.verify.parsers.untrusted import read_float, read_map, read_strings, read_text, read_whole

_CERTIFICATE = re.compile(r" asymmetri (.{1,200}?): [0-9a-f]{8,}: ")
FORWARDING = 0x04 | 0x08 | 0x10
"""Of an ACS control register: P2P request redirect, P2P completion redirect and upstream forwarding (PCI Express base
specification, 7.7.11.3). Any of them sends what one device writes to another up to the processor first."""


@dataclass(frozen=True, slots=True)
class Pcie:
    """GPUs and InfiniBand cards by their address; `iommu` is the type of each one's IOMMU group (identity, DMA, DMA-FQ
    …; None without one), `redirects` the bridges above them whose ACS sends traffic between devices up."""

    iommu: Mapping[str, str | None]
    redirects: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Entry:
    """A row of /etc/fstab."""

    place: str
    kind: str
    options: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Fuse:
    """One connection of a filesystem in user space."""

    name: str
    waiting: int
    most: int | None
    """Requests that it keeps in the background before it calls itself full (max_background)."""


@dataclass(frozen=True, slots=True)
class Remote:
    """One file system of the network: `fault` says why it does not answer, empty where it does."""

    place: str
    kind: str
    fault: str = ""


@dataclass(frozen=True, slots=True)
class OnDisk:
    """NVIDIA's module that the next load takes; `kernel` is the release that it was built for."""

    version: str | None
    kernel: str | None = None
    signer: str | None = None
    asked: bool = field(default=False)
    """Whether more than its version was asked (older probes ask for that alone)."""


def read_pcie(value: Any) -> Pcie | None:
    if not isinstance(value, dict):
        return None
    devices = {name: read_map(row) for name, row in read_map(value.get("devices")).items()}
    control = {name: read_whole(number) or 0 for name, number in read_map(value.get("acs")).items()}
    above = {bridge for row in devices.values() for bridge in read_strings(row.get("bridges")) or ()}
    return Pcie(
        {name: read_text(row.get("iommu")) for name, row in devices.items()},
        tuple(sorted(bridge for bridge in above if control.get(bridge, 0) & FORWARDING)),
    )


def read_fstab(value: Any) -> tuple[Entry, ...] | None:
    rows = [line.split(" ") for line in read_strings(value) or ()]
    plain = [(read_plain(row[0]), *row[1:]) for row in rows if len(row) == 3]
    return tuple(Entry(p, k, tuple(o.split(","))) for p, k, o in plain) if isinstance(value, list) else None


def read_fuse(value: Any) -> tuple[Fuse, ...] | None:
    if not isinstance(value, dict):
        return None
    rows = {name: read_map(row) for name, row in sorted(read_map(value).items())}
    return tuple(
        Fuse(name, waiting, read_whole(row.get("max_background")))
        for name, row in rows.items()
        if (waiting := read_whole(row.get("waiting"))) is not None
    )


def read_remote(value: Any) -> tuple[Remote, ...] | None:
    if not isinstance(value, dict):
        return None
    mounts = []
    for path, answer in sorted(value.items()):
        fields = read_map(answer)
        status, error = read_whole(fields.get("rc")), (read_text(fields.get("error")) or "").strip()
        fault = f"read error: {error[-120:] or f'status {status}'}" if status else ""
        if fields.get("timed_out") is True:
            fault = f"no answer within {read_float(fields.get('seconds')) or 0:.0f} s"
        mounts.append(Remote(str(path)[:200], read_text(fields.get("kind")) or "?", fault))
    return tuple(mounts)


def read_module(text: str | None) -> OnDisk | None:
    """`modinfo nvidia`; the version alone of older probes."""
    if not (text or "").strip():
        return None
    fields = dict(re.findall(r"^(version|vermagic|signer):[ \t]*(.*)$", text or "", re.MULTILINE))
    if not fields:
        return OnDisk((text or "").strip()[:100])
    kernel = fields.get("vermagic", "").split(" ")[0]
    return OnDisk(read_text(fields.get("version")), kernel or None, read_text(fields.get("signer")), asked=True)


def read_keys(value: Any) -> tuple[str, ...] | None:
    """Rows of /proc/keys: the names of the certificates that the kernel knows ("Debian Secure Boot CA"), each before
    the identifier of its key (linux, crypto/asymmetric_keys/x509_public_key.c)."""
    rows = read_strings(value)
    if rows is None:
        return None
    return tuple(sorted({match[1] for row in rows if (match := _CERTIFICATE.search(row))}))


def read_signed_only(files: Mapping[str, str], secure_boot: bool | None) -> bool | None:
    """Whether the kernel takes signed modules alone: locked down, or told so (kernel_lockdown(7), module.sig_enforce).
    Where neither can be read, what the firmware says of Secure Boot, with which Debian and Ubuntu lock down."""
    lockdown = re.search(r"\[(\w+)\]", files.get("sys/kernel/security/lockdown", ""))
    enforce = files.get("sys/module/module/parameters/sig_enforce", "").strip()
    if enforce == "Y" or (lockdown and lockdown[1] != "none"):
        return True
    return False if lockdown and enforce == "N" else secure_boot


def read_libraries(text: str | None) -> tuple[str, ...] | None:
    """Names of the libraries (libcuda.so.1) in the rows of `ldconfig -p`."""
    names = re.findall(r"^\s*(lib[\w.+-]+\.so[\w.]*) \(", text or "", re.MULTILINE)
    return tuple(sorted(set(names))) if text is not None else None


def read_free_blocks(text: str | None, order: int) -> Mapping[str, int] | None:
    """/proc/buddyinfo: NUMA node → free blocks of that order or more in its zone Normal."""
    blocks: dict[str, int] = {}
    for number, row in re.findall(r"^Node +(\d+), zone +Normal +([\d ]+)$", text or "", re.MULTILINE):
        blocks[number] = sum(int(count) for count in row.split()[order:] if len(count) < 19)
    return blocks or None


def read_offset(text: str | None) -> float | None:
    """`chronyc -c tracking`: seconds by which the system's clock is off, the fifth value."""
    rows = list(csv.reader((text or "").splitlines()[:1]))
    return read_float(rows[0][4]) if rows and len(rows[0]) == 14 else None


def read_allowances(value: Any) -> dict[str, int]:
    """Counter → packets, over all interfaces."""
    totals: dict[str, int] = {}
    for row in read_map(value).values():
        for name, count in read_map(row).items():
            totals[name] = totals.get(name, 0) + (read_whole(count) or 0)
    return totals


def read_stage(text: str | None) -> tuple[str | None, tuple[str, ...]] | None:
    """/run/cloud-init/status.json: the stage in which cloud-init is (None: it has ended), and what it calls an error
    that it got over."""
    try:
        v1 = json.loads(text or "")["v1"]
        stage = read_text(v1.get("stage"))
        lists = [
            read_map(read_map(stage_row).get("recoverable_errors"))
            for stage_row in v1.values()
            if isinstance(stage_row, dict)
        ]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None
    messages = [
        str(line)[:300]
        for errors_by_level in lists
        for level in ("ERROR", "CRITICAL")
        for line in read_strings(errors_by_level.get(level)) or ()
    ]
    return stage, tuple(dict.fromkeys(messages))
