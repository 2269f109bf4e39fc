"""Disks and filesystems."""

from __future__ import annotations

from typing import NoReturn

from provisioner.common.text import counted
from provisioner.verify.check import check, fail, saw, skip, unknown
from provisioner.verify.checks.host import NEEDS, host_of, reported
from provisioner.verify.expectations import Expected
from provisioner.verify.facts import Facts
from provisioner.verify.parsers.lsblk import Disk, local_disks

SYSTEM = ("/", "/var", "/var/lib/docker", "/var/lib/containerd", "/home")
"""Places that a system or a job writes to."""
LOCAL_DISKS = ("NVMe Instance Storage", "NVMe Direct Disk")
"""Words in the model of a disk that is the machine's own for sure, and that no system boots from."""
FREE = 500 * 2**20
"""Bytes that are too few whatever the share (leptonai/gpud, components/disk)."""


@check(
    "storage.scratch",
    severity="fatal",
    documented="/proc/self/mountinfo, proc(5); cluster.yaml asks for the mount",
    action="reconfigure",
    needs=NEEDS,
    follows=("storage.nvme_count", "storage.raid"),
    applies=lambda e: e.scratch,
    otherwise="cluster.yaml has no storage.scratch",
    says="Scratch is not there, or smaller than its disks: jobs fill the root disk instead. `gpuprov up` mounts it.",
)
def test_scratch(node: Facts, expected: Expected) -> None:
    host, path = host_of(node), expected.scratch or ""
    mounts = [m for m in reported(host.mounts, "its mounts") if m.place == path]
    fs = next((fs for fs in reported(host.space, "its filesystems") if fs.place == path), None)
    disks = expected.scratch_gb if expected.verified("scratch_gb") else 0.0
    minimum_bytes = disks * 10**9 * (1 - expected.most["scratch.missing_share"])
    saw(expected=f"{path}, {disks:g} GB" if disks else path, actual=f"{fs.size / 1e9:.0f} GB" if fs else "not mounted")
    if not mounts:
        # where no source says that the machine has local disks, and it shows none, there is nothing to be mounted
        has_local_disks = bool(node.disks and local_disks(node.disks))
        fail(
            f"nothing is mounted on {path}",
            unverified=() if has_local_disks or expected.verified("local_nvme") else ("local_nvme",),
        )
    if mounts[-1].read_only:
        fail(f"{path} is mounted read-only", action="reboot")
    if fs is None:
        unknown(f"df does not list {path}")
    if fs.size < minimum_bytes:
        less = f"{path} has {fs.size / 1e9:.0f} GB, the disks {disks:g}"
        fail(less, unverified=expected.unsupported_floor("scratch.missing_share", fs.size, minimum_bytes))


@check(
    "storage.raid",
    severity="fatal",
    documented="docs.kernel.org/admin-guide/md.html: degraded, array_state; github leptonai/gpud",
    action="vendor",
    needs=("mdstat.txt",),
    follows=("storage.nvme_count",),
    says="An array runs without one of its disks, or not at all. Replace the disk; what was on a RAID0 is lost.",
)
def test_raid(node: Facts) -> None:
    arrays = node.arrays
    if not arrays:
        skip("there is no array")
    wrong = [f"{a.name} is {a.state}" for a in arrays if not a.active]
    for array in arrays:
        if array.active and (array.missing or array.failed):
            failed_text = f" ({', '.join(array.lost)} failed)" if array.lost else ""
            rebuilt_text = f", rebuilt to {array.rebuilt}" if array.rebuilt else ""
            wrong.append(
                f"{array.name} misses {counted(array.missing or array.failed, 'disk')}{failed_text}{rebuilt_text}"
            )
    saw(expected="all members up", actual=wrong or [f"{a.name}: {a.level} of {a.members}" for a in arrays])
    if wrong:
        fail("; ".join(wrong))


def _usage(node: Facts, paths: tuple[str, ...]) -> dict[str, tuple[float, int]]:
    """Place → share that is used and bytes that are free, each filesystem once."""
    host = host_of(node)
    if host.space is None:
        unknown("df does not respond")
    usage = {fs.place: (fs.used_share, fs.available) for path in paths if (fs := host.at(path)) is not None}
    if not usage:
        unknown("df does not list the root filesystem")
    return usage


@check(
    "storage.full",
    severity="fatal",
    documented="github facebookresearch/gcm, imbue-ai/cluster-health: disk usage; health.yaml disk.full_share",
    action="clean",
    needs=NEEDS,
    says="A filesystem of the system is full: checkpoints, logs and containers cannot be written, and jobs die.",
)
def test_full(node: Facts, expected: Expected) -> None:
    maximum = expected.most["disk.full_share"]
    full = [f"{p} ({s:.0%})" for p, (s, free) in _usage(node, SYSTEM).items() if s > maximum or free < FREE]
    saw(expected=f"{maximum:.0%} at most", actual={p: f"{s:.0%}" for p, (s, _) in _usage(node, SYSTEM).items()})
    if full:
        fail(f"full: {', '.join(full)}")


@check(
    "storage.root_space",
    severity="warn",
    action="clean",
    needs=NEEDS,
    follows=("storage.full",),
    says="A filesystem of the system is nearly full. Remove old images, logs and checkpoints before a job ends by it.",
)
def test_root_space(node: Facts, expected: Expected) -> None:
    maximum = expected.most["disk.used_share"]
    usage = _usage(node, (*SYSTEM, "/boot"))
    saw(expected=f"{maximum:.0%} at most", actual={p: f"{share:.0%}" for p, (share, _) in usage.items()})
    if high := [f"{path} ({share:.0%})" for path, (share, _) in usage.items() if share > maximum]:
        fail(f"nearly full: {', '.join(high)}; remove old images, logs and checkpoints")


@check(
    "storage.inodes",
    severity="warn",
    action="clean",
    needs=NEEDS,
    says="A filesystem has nearly as many files as it can have: no more can be made, though there is space.",
)
def test_inodes(node: Facts, expected: Expected) -> None:
    host, maximum = host_of(node), expected.most["disk.inodes_share"]
    shares = {fs.place: fs.inode_share for p in (*SYSTEM, "/tmp") if (fs := host.at(p)) and fs.inode_share is not None}  # noqa: S108
    if host.space is None:
        unknown("df does not respond")
    if not shares:
        skip("these filesystems allocate inodes dynamically")
    saw(expected=f"{maximum:.0%} at most", actual={path: f"{share:.0%}" for path, share in shares.items()})
    if high := [f"{path} ({share:.0%})" for path, share in shares.items() if share > maximum]:
        fail(f"inodes used: {', '.join(high)}; remove folders with many small files")


@check(
    "storage.tmp",
    severity="fatal",
    documented="write(2) ENOSPC; health.yaml disk.full_share",
    action="clean",
    needs=NEEDS,
    follows=("storage.full",),
    says="/tmp is full: compilers (Triton, Inductor), sockets and package work fail, and jobs with them. Empty it.",  # noqa: S108
)
def test_tmp(node: Facts, expected: Expected) -> None:
    host, maximum = host_of(node), expected.most["disk.full_share"]
    if host.space is None:
        unknown("df does not respond")
    fs = host.at("/tmp")  # noqa: S108
    if fs is None or fs.place not in ("/tmp", "/var/tmp"):  # noqa: S108
        skip("/tmp is on a filesystem of the system: see storage.full")  # noqa: S108
    saw(expected=f"{maximum:.0%} at most", actual=f"{fs.used_share:.0%}")
    if fs.used_share > maximum:
        fail(f"{fs.available // 2**10} KiB of {fs.size // 2**10} are free")


@check(
    "storage.readonly",
    severity="fatal",
    documented="github kubernetes/node-problem-detector; ext4(5) errors=remount-ro",
    action="reboot",
    needs=NEEDS,
    follows=("log.fs_readonly", "storage.scratch"),
    says="A filesystem is read-only, as the kernel makes it after an error of its disk. Look at the kernel log.",
)
def test_readonly(node: Facts) -> None:
    mounts = {m.place: m for m in reported(host_of(node).mounts, "its mounts")}  # the last one on a place is on top
    wrong = [path for path in (*SYSTEM, "/tmp") if path in mounts and mounts[path].read_only]  # noqa: S108
    saw(expected="writable", actual=wrong or "writable")
    if wrong:
        fail(f"read-only: {', '.join(wrong)}")


@check(
    "storage.nvme_count",
    severity="fatal",
    measured="lsblk/8-nvme-json",
    action="replace",
    needs=("lsblk.json",),
    applies=lambda e: e.local_nvme,
    otherwise="this machine has no local disks, or as many as its owner ordered",
    says="A local NVMe disk is missing. Give the machine back, or have the disk reseated.",
)
def test_nvme_count(node: Facts, expected: Expected) -> None:
    disks = _local_disks(node)
    saw(expected=expected.local_nvme, actual=len(disks))
    if len(disks) < expected.local_nvme:
        fail(f"{len(disks)} local NVMe disks, {expected.local_nvme} are expected")
    sure = [d for d in disks if d.told or any(model_part in (d.model or "") for model_part in LOCAL_DISKS)]
    if len(sure) < expected.local_nvme:
        unknown(f"{len(disks)} NVMe disks are listed, but not which of them the system boots from or are the network's")


def _local_disks(node: Facts) -> list[Disk]:
    return local_disks(node.disks or ())


@check(
    "storage.nvme_size",
    severity="warn",
    action="vendor",
    needs=("lsblk.json",),
    follows=("storage.nvme_count",),
    applies=lambda e: e.verified("disk_gb") and e.disk_gb,
    otherwise="this machine has no local disks, or no source says how large they are",
    says="A local NVMe disk is smaller than its machine's: another disk was put in, or one lost part of its flash.",
)
def test_nvme_size(node: Facts, expected: Expected) -> None:
    sizes = {d.name: d.size / 1e9 for d in _local_disks(node) if d.size is not None}
    minimum = expected.disk_gb * (1 - SIZE_TOLERANCE)
    saw(expected=f"{expected.disk_gb:g} GB each", actual={name: f"{size:.0f} GB" for name, size in sizes.items()})
    if not sizes:
        skip("no local NVMe disk is listed with its size")
    by_size = sorted(sizes.items(), key=lambda name_and_size: name_and_size[1])  # one without any capacity is the worst
    if small := [f"{name} has {size:.0f} GB" for name, size in by_size if size < minimum]:
        fail(f"{'; '.join(small)}; {expected.disk_gb:g} are expected")


SIZE_TOLERANCE = 0.07
"""Makers count GB in powers of ten, some providers in powers of two: 7 per cent."""


@check(
    "storage.nvme_state",
    severity="fatal",
    documented="Linux drivers/nvme/host: state dead; NVM Express base specification, critical warning",
    action="vendor",
    needs=NEEDS,
    says="The kernel has given up an NVMe disk, or the disk says that it fails. Take the node out and replace it.",
)
def test_nvme_state(node: Facts) -> None:
    disks = host_of(node).disks
    if not disks:
        skip("there are no NVMe disks")
    wrong = [f"{d.name} is {d.state}" for d in disks if (d.state or "").startswith(("dead", "deleting"))]
    wrong += [f"{d.name}: critical warning {d.warning:#x}" for d in disks if d.warning]
    saw(expected="live, without a critical warning", actual=wrong or f"{len(disks)} disks live")
    if wrong:
        fail("; ".join(wrong))


def no_health(node: Facts, expected: Expected) -> NoReturn:
    """End a check for which no disk reports its health: unknown where role base was to install nvme-cli and has not."""
    if expected.tuned is not None and node.packages is not None and "nvme-cli" not in node.packages:
        unknown("nvme-cli is not installed: `gpuprov up` installs it with role base")
    skip("no disk reports its health: nvme-cli is not installed, or the disks are virtual")


@check(
    "storage.nvme_wear",
    severity="warn",
    action="vendor",
    needs=NEEDS,
    says="An NVMe disk is at the end of its written life, or its spare blocks run out. Replace it before it fails.",
)
def test_nvme_wear(node: Facts, expected: Expected) -> None:
    told_by = [d for d in host_of(node).disks or () if d.wear is not None or d.spare is not None]
    if not told_by:
        no_health(node, expected)
    maximum = expected.most["disk.wear"]
    wrong = [f"{d.name} is worn to {d.wear:.0%}" for d in told_by if d.wear is not None and d.wear >= maximum]
    wrong += [
        f"{d.name} has {d.spare} % spare blocks, {d.spare_threshold} are the least"
        for d in told_by
        if d.spare is not None and d.spare_threshold is not None and d.spare < d.spare_threshold
    ]
    saw(expected=f"below {maximum:.0%}", actual=wrong or {d.name: f"{d.wear or 0:.0%}" for d in told_by})
    if wrong:
        fail("; ".join(wrong))
