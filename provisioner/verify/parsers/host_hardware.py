"""Parts of host.json about the machine: memory, processors, kernel settings, disks and filesystems.

Every reader takes any value at all, because the document comes from a node, and gives None for what it does not know.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from provisioner.verify.parsers.untrusted import read_float, read_map, read_strings, read_text, read_whole

NODE_LOCAL = frozenset(
    ("root", "resume", "BOOT_IMAGE", "initrd", "ip", "BOOTIF", "ds", "hostname", "systemd.machine_id", "rootflags",
     "rd.luks.uuid", "rd.lvm.lv", "rd.md.uuid", "nfsroot", "url", "cloud-config-url", "iscsi_initiator", "hwaddr")
)  # fmt: skip
"""Arguments of a kernel that differ between nodes that are alike."""


@dataclass(frozen=True, slots=True)
class Memory:
    """KiB, as /proc/meminfo has them; huge pages as a number."""

    total: int
    available: int | None = None
    swap_total: int | None = None
    swap_free: int | None = None
    huge_pages: int | None = None
    huge_page_kib: int | None = None
    """The default size of one."""


@dataclass(frozen=True, slots=True)
class Cpu:
    """Processors that the kernel uses; `models` name → how many of them; MHz at the moment of looking: `socket_mhz` of
    the fastest of each socket; `base_mhz` is the clock that they have without turbo."""

    processors: int
    models: Mapping[str, int] = field(default_factory=dict)
    sockets: int | None = None
    cores: int | None = None
    slowest_mhz: float | None = None
    fastest_mhz: float | None = None
    socket_mhz: Mapping[str, float] = field(default_factory=dict)
    base_mhz: float | None = None

    @property
    def threads_per_core(self) -> int | None:
        return self.processors // self.cores if self.cores else None


@dataclass(frozen=True, slots=True)
class Filesystem:
    """A row of df, bytes and inodes; `inodes` is 0 where a filesystem makes them as it goes."""

    place: str
    device: str
    kind: str
    size: int
    used: int
    available: int
    inodes: int | None = None
    inodes_used: int | None = None

    @property
    def used_share(self) -> float:
        """As df counts: blocks that are kept back for root are left out."""
        return self.used / (self.used + self.available) if self.used + self.available else 0.0

    @property
    def inode_share(self) -> float | None:
        return self.inodes_used / self.inodes if self.inodes and self.inodes_used is not None else None


@dataclass(frozen=True, slots=True)
class Mount:
    place: str
    device: str
    kind: str
    read_only: bool


@dataclass(frozen=True, slots=True)
class Disk:
    """One NVMe controller; `wear` is the share of its life that is used, `warning` the bits of its critical warning."""

    name: str
    model: str | None = None
    state: str | None = None
    transport: str | None = None
    wear: float | None = None
    spare: int | None = None
    spare_threshold: int | None = None
    warning: int | None = None
    media_errors: int | None = None


def read_memory(text: str | None) -> Memory | None:
    rows = dict(re.findall(r"^([A-Za-z_()0-9]+):\s+([0-9]{1,18})", text or "", re.MULTILINE | re.ASCII))
    if "MemTotal" not in rows:
        return None
    names = ("MemTotal", "MemAvailable", "SwapTotal", "SwapFree", "HugePages_Total", "Hugepagesize")
    total, *optional = (int(rows[name]) if name in rows else None for name in names)
    assert total is not None
    return Memory(total, *optional)


def read_cpu(d: Mapping[str, Any]) -> Cpu | None:
    count, clock = read_whole(d.get("processors")), d.get("mhz")
    if not count or count < 0:
        return None
    models = {k: n for k, v in read_map(d.get("models")).items() if (n := read_whole(v)) is not None}
    clocks = [read_float(value) for value in clock] if isinstance(clock, list) and len(clock) == 2 else [None, None]
    return Cpu(
        count, models, read_whole(d.get("sockets")), read_whole(d.get("cores")), clocks[0], clocks[1],
        {k: mhz for k, v in read_map(d.get("socket_mhz")).items() if (mhz := read_float(v))},
        read_float(d.get("base_mhz")),
    )  # fmt: skip


def read_ranges(text: str | None) -> int | None:
    """How many numbers "0-3,8" has."""
    total = 0
    for part in (text or "").strip().split(","):
        match = re.fullmatch(r"([0-9]{1,6})(?:-([0-9]{1,6}))?", part, re.ASCII)
        if not match:
            return None
        total += int(match[2] or match[1]) - int(match[1]) + 1
    return total if total > 0 else None


def read_cmdline(text: str | None) -> tuple[str, ...] | None:
    """Arguments that nodes which are alike share, sorted; None where there is no command line."""
    if not text:
        return None
    return tuple(sorted({argument for argument in text.split() if argument.partition("=")[0] not in NODE_LOCAL}))


def read_chosen(text: str | None) -> str | None:
    """always [madvise] never → madvise; a plain word is itself."""
    match = re.search(r"\[([a-z_]+)\]", text or "") or re.fullmatch(r"\s*([a-z_]+)\s*", text or "")
    return match[1] if match else None


def read_settings(files: Mapping[str, str]) -> dict[str, int]:
    settings = {n.removeprefix("proc/sys/"): read_whole(t) for n, t in files.items() if n.startswith("proc/sys/")}
    if handles := files.get("proc/sys/fs/file-nr", "").split():
        settings["fs/file-nr"] = read_whole(handles[0])
        settings["fs/file-max"] = read_whole(handles[-1])
    return {name: value for name, value in settings.items() if value is not None}


def read_swaps(text: str | None) -> tuple[str, ...] | None:
    return None if text is None else tuple(line.split()[0] for line in text.splitlines()[1:] if line.strip())


def read_edac(d: Mapping[str, Any]) -> tuple[int, int] | None:
    rows = [read_map(row) for row in d.values()]
    corrected = [n for row in rows if (n := read_whole(row.get("ce_count"))) is not None]
    uncorrected = [n for row in rows if (n := read_whole(row.get("ue_count"))) is not None]
    return (sum(corrected), sum(uncorrected)) if corrected and uncorrected else None


def read_mounts(value: Any) -> tuple[Mount, ...] | None:
    rows = [line.split(" ") for line in read_strings(value) or ()]
    mounts = (Mount(read_plain(r[1]), read_plain(r[0]), r[2], "ro" in r[3].split(",")) for r in rows if len(r) == 4)
    return tuple(mounts) if isinstance(value, list) else None


def read_plain(name: str) -> str:
    """The kernel writes a space in a name as \\040."""
    return re.sub(r"\\([0-7]{3})", lambda m: chr(int(m[1], 8)), name)


def read_space(text: str | None) -> tuple[Filesystem, ...] | None:
    if text is None:
        return None
    filesystems = []
    for line in text.splitlines()[1:]:
        match = re.fullmatch(r"(.+?) (\S+) (\S+) ([0-9]+) ([0-9]+) ([0-9]+) (\S+) (\S+)", line.strip(), re.ASCII)
        if match and all(len(match[n]) < 20 for n in (4, 5, 6)):
            filesystems.append(
                Filesystem(
                    match[1],
                    match[2],
                    match[3],
                    int(match[4]),
                    int(match[5]),
                    int(match[6]),
                    read_whole(match[7]),
                    read_whole(match[8]),
                )
            )
    return tuple(filesystems)


def read_count(value: Any) -> int | None:
    """A whole number, or a float or a text that is one."""
    number = read_float(value) if not isinstance(value, bool) else None
    return int(number) if number is not None and number == int(number) else None


def read_disks(rows: Mapping[str, Any], smart: Mapping[str, Any]) -> tuple[Disk, ...]:
    disks = []
    for name, row in sorted(rows.items()):
        values = read_map(row)
        try:
            log = read_map(json.loads(smart.get(name) or "{}"))
        except (ValueError, TypeError, RecursionError):
            log = {}
        wear = read_count(log.get("percent_used", log.get("percentage_used")))
        warning = log.get("critical_warning")
        disks.append(
            Disk(
                name=name,
                model=read_text(values.get("model")),
                state=read_text(values.get("state")),
                transport=read_text(values.get("transport")),
                wear=wear / 100 if wear is not None else None,
                spare=read_count(log.get("avail_spare")),
                spare_threshold=read_count(log.get("spare_thresh")),
                # nvme-cli spells its bits out since 2.11
                warning=read_count(read_map(warning).get("value") if isinstance(warning, dict) else warning),
                media_errors=read_count(log.get("media_errors")),
            )
        )
    return tuple(disks)
