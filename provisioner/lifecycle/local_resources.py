"""What a fleet of this size needs of this computer and of gpuprov's own files, compared with what there is before any
machine is made: a limit that is met later is met when machines are paid.

REQUIREMENTS has a row for each of them; docs/reference/cluster-yaml.md has them for people. What grows with the fleet
and has no row has no limit: Ansible and the probe get node names by file and by standard input, hooks run in turns.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

from provisioner.common import stored
from provisioner.common.errors import GpuprovError
from provisioner.common.preflight import Finding
from provisioner.lifecycle import hooks
from provisioner.lifecycle.session import Cluster
from provisioner.lifecycle.sharing import shared_files
from provisioner.plan.models import Plan
from provisioner.transport import process, ssh_sockets

KIB, MIB = 1 << 10, 1 << 20
RECORD_BYTES = 2 * KIB
"""Of one node in the largest file of the run directory, ids of a cloud and reasons of 200 characters among them."""
SHARED_BYTES = 4 * KIB
"""Of one node in fleet.json.gz before it is compressed, without what may be left out (shared_files.OPTIONAL)."""
RUN_BYTES = MIB
"""Of one node in the folder of a run, rounded up: its bundle (51 files with 374 KiB on a DGX H100), its events, its
part of Ansible's output and of the report."""
RUN_FILES = 64
PROVIDER_BYTES = 1024 * MIB
"""Terraform's providers in a site's workspace: that of AWS alone has some 800 MiB."""
MEMORY_BYTES = MIB
"""Of one node while all are judged: the text of its bundle, and what is read of it."""
MEMINFO = Path("/proc/meminfo")
LONGEST_FILE = 256
"""Bytes of the longest path below a run directory, rounded up."""
PATH_MAX = 4096
"""Bytes of a path with its NUL (linux/limits.h)."""
ARGUMENTS_MAX, ARGUMENTS_MIN = 6 * MIB, 128 * KIB
"""Linux gives a process a quarter of its stack limit for arguments and environment, within these (execve(2))."""


@dataclass(frozen=True)
class Fleet:
    """All nodes that cluster.yaml names, and a plan of them or of some sites."""

    cluster: Cluster
    plan: Plan

    @cached_property
    def nodes(self) -> int:
        return len(self.cluster.spec.node_groups())

    @property
    def root(self) -> Path:
        return self.cluster.paths.root

    @cached_property
    def folder(self) -> Path:
        """The run directory, or where it will be made."""
        return next(path for path in (self.root, *self.root.parents) if path.is_dir())


@dataclass(frozen=True, slots=True)
class Requirement:
    """`needed` of a fleet and `available` (None: no limit), in the unit of `shown`. `message` and `action` are texts
    with {nodes}, {needed}, {available}, {number} (what is needed, without its unit) and {folder}."""

    subject: str
    needed: Callable[[Fleet], int]
    available: Callable[[Fleet], int | None]
    message: str
    action: str
    shown: Callable[[int], str] = str
    status: Literal["blocks", "warning"] = "blocks"

    def finding(self, fleet: Fleet) -> Finding | None:
        """What keeps the fleet from being made; None where nothing does."""
        needed, available = self.needed(fleet), self.available(fleet)
        if available is None or needed <= available:
            return None
        values = {
            "nodes": f"{fleet.nodes:,}", "needed": self.shown(needed), "available": self.shown(available),
            "number": str(needed), "folder": str(fleet.root),
        }  # fmt: skip
        return Finding(self.status, self.subject, self.message.format(**values), self.action.format(**values))


def findings(cluster: Cluster, plan: Plan) -> list[Finding]:
    """What of this computer, or of a file, a fleet of this size would run into. Nothing is made or asked."""
    fleet = Fleet(cluster, plan)
    result = [finding for row in REQUIREMENTS if (finding := row.finding(fleet)) is not None]
    try:
        ssh_sockets.refuse_no_control_dir()
    except GpuprovError as error:
        result.append(Finding("blocks", "ssh", error.message, error.hint))
    return result


def _count(number: int) -> str:
    return f"{number:,}"


def _mib(number: int) -> str:
    return f"{-(-number // MIB):,} MiB"


def _kib(number: int) -> str:
    return f"{-(-number // KIB):,} KiB"


def _run_bytes(fleet: Fleet) -> int:
    """A sandbox pays for no machine, and its providers lie beside gpuprov."""
    if fleet.plan.simulated:
        return 0
    cluster = fleet.cluster
    modules = [site for site in fleet.plan.sites() if cluster.providers.at(site).module is not None]
    missing = [site for site in modules if not (cluster.paths.site(site) / ".terraform" / "providers").is_dir()]
    return fleet.nodes * RUN_BYTES + len(missing) * PROVIDER_BYTES


def _run_files(fleet: Fleet) -> int:
    return 0 if fleet.plan.simulated else fleet.nodes * RUN_FILES


def _free_bytes(fleet: Fleet) -> int:
    space = os.statvfs(fleet.folder)
    return (space.f_bavail if os.geteuid() else space.f_bfree) * space.f_frsize


def _free_files(fleet: Fleet) -> int | None:
    space = os.statvfs(fleet.folder)
    return space.f_favail if space.f_files else None  # some file systems make inodes as they are needed


def _argument_bytes(fleet: Fleet) -> int:
    """Of Terraform where every machine of the largest site is made anew, its environment included."""
    sizes = [0]
    for site in fleet.plan.sites():
        if (module := fleet.cluster.providers.at(site).module) is not None:
            names = [name for name, group in fleet.plan.nodes() if group.site == site]
            sizes.append(sum(_argument(f"-replace={module.address(name)}") for name in names))
    return max(sizes) + sum(_argument(f"{name}={value}") for name, value in os.environ.items()) + 4 * KIB


def _argument(text: str) -> int:
    """Its bytes, a NUL, and a pointer."""
    return len(os.fsencode(text)) + 1 + 8


def _arguments_max(_: Fleet) -> int:
    stack = resource.getrlimit(resource.RLIMIT_STACK)[0]
    if stack == resource.RLIM_INFINITY:
        return ARGUMENTS_MAX
    return max(ARGUMENTS_MIN, min(ARGUMENTS_MAX, stack // 4))


def _open_files(fleet: Fleet) -> int:
    commands = fleet.cluster.spec.hooks
    at_once = min(hooks.AT_ONCE, fleet.nodes) if commands.drain or commands.resume else 0
    return hooks.FILES_EACH * at_once + process.OTHER_OPEN_FILES


def _limit_of(number: int, *, hard: bool) -> int | None:
    value = resource.getrlimit(number)[hard]
    return None if value == resource.RLIM_INFINITY else value


def _memory(_: Fleet) -> int | None:
    try:
        lines = MEMINFO.read_text(encoding="ascii").splitlines()
        return next(int(line.split()[1]) * KIB for line in lines if line.startswith("MemAvailable:"))
    except (OSError, ValueError, StopIteration):
        return None


REQUIREMENTS = (
    Requirement(
        "run directory", lambda fleet: fleet.nodes * RECORD_BYTES, lambda _: stored.LIMIT,
        "{nodes} nodes need {needed} in a file of {folder}, and {available} of one are read",
        "split the fleet into several clusters", shown=_mib,
    ),
    Requirement(
        "shared state", lambda fleet: fleet.nodes * SHARED_BYTES if fleet.cluster.sharing else 0,
        lambda _: shared_files.LIMIT,
        "{nodes} nodes need {needed} of shared files, and at most {available} are shared between operators",
        "split the fleet into several clusters, or keep the state of this one on one computer (state.backend: local)",
        shown=_mib,
    ),
    Requirement(
        "run directory", lambda fleet: len(os.fsencode(fleet.root)) + LONGEST_FILE, lambda _: PATH_MAX - 1,
        "paths in {folder} would have {needed} bytes, and Linux takes {available}",
        "move cluster.yaml to a folder with a shorter path",
    ),
    Requirement(
        "disk space", _run_bytes, _free_bytes,
        "a run with {nodes} nodes needs {needed} in {folder}, and {available} are free there",
        "free space on that file system, or move cluster.yaml and .gpuprov to a larger one", shown=_mib,
    ),
    Requirement(
        "disk space", _run_files, _free_files,
        "a run with {nodes} nodes makes {needed} files in {folder}, and {available} more can be made there (df -i)",
        "free inodes on that file system, or move cluster.yaml and .gpuprov to one with more",
        shown=_count,
    ),
    Requirement(
        "Terraform", _argument_bytes, _arguments_max,
        "recreating all machines of a site needs {needed} of arguments, and a process of this shell takes {available}",
        "raise the stack limit, a quarter of which is for arguments: `ulimit -s unlimited`", shown=_kib,
    ),
    Requirement(
        "hooks", _open_files, lambda _: _limit_of(resource.RLIMIT_NOFILE, hard=True),
        "{nodes} nodes, with hooks that run on them, need {needed} open files; a process of this shell has at most "
        "{available}",
        "raise the hard limit of open files: `ulimit -Hn {number}` as root, or nofile in limits.conf(5)",
    ),
    Requirement(
        "ssh", lambda fleet: fleet.nodes + process.OTHER_OPEN_FILES,
        lambda _: _limit_of(resource.RLIMIT_NPROC, hard=False) if os.geteuid() else None,
        "ssh keeps a process for each connection: {nodes} nodes need {needed} processes, and you may have {available}",
        "raise the limit of processes: `ulimit -u {number}`, or nproc in limits.conf(5)", status="warning",
    ),
    Requirement(
        "memory", lambda fleet: 0 if fleet.plan.simulated else fleet.nodes * MEMORY_BYTES, _memory,
        "a verdict on {nodes} nodes needs some {needed} of memory, and {available} are available",
        "run gpuprov on a computer with more memory", shown=_mib, status="warning",
    ),
)  # fmt: skip
