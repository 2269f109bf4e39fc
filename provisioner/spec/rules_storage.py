"""Refusals of file systems that a site's nodes share: where they are mounted, and what each of them can be."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from provisioner.spec.models import Group
from provisioner.spec.places import Finding, Loc, shown
from provisioner.spec.sites import AwsFsx, AwsSite
from provisioner.spec.stack_request import StackRequest

SYSTEM = re.compile(r"/(bin|boot|dev|etc|lib\w*|proc|root|run|sbin|sys|usr|var)?(/.*)?")
"""Directories that are the system's own."""

KERNEL = re.compile(r"[0-9]+\.[0-9]+\.[0-9]+-[0-9]+-aws")
"""`uname -r` of Ubuntu's kernels for EC2, the only ones that AWS builds Lustre's modules for.
https://docs.aws.amazon.com/fsx/latest/LustreGuide/install-lustre-client.html"""
A_KERNEL = '"6.8.0-1066-aws"'

THROUGHPUT: Mapping[str, tuple[int, ...]] = {"PERSISTENT_2": (125, 250, 500, 1000), "PERSISTENT_1": (50, 100, 200)}
"""MB/s for each TiB of SSD storage; SCRATCH_2 has one figure. The module's preconditions say the same.
https://docs.aws.amazon.com/fsx/latest/LustreGuide/performance.html"""


def shared_storage(
    loc: Loc, site: AwsSite, groups: Mapping[str, Group], stack: StackRequest | None
) -> Iterator[Finding]:
    """Of one site. `groups`: those at this site; `stack`: None where it could not be read."""
    at = (*loc, "storage")
    taken: dict[str, str] = {}
    for where, kind, path in _places(at, site):
        yield from _place(where, kind, path, taken, groups)
        taken.setdefault(path, kind)
    if site.storage.fsx is not None:
        yield from _fsx((*at, "fsx"), site.storage.fsx, site)
        if stack is not None:
            yield from _kernel((*at, "fsx"), stack)
    for index, one in enumerate(site.storage.s3):
        if one.bucket.endswith("--x-s3"):
            said = f"{one.bucket} is a directory bucket (S3 Express), which nodes would not be allowed to open"
            yield Finding((*at, "s3", index, "bucket"), said, "take a bucket of the usual kind")


def _places(at: Loc, site: AwsSite) -> Iterator[tuple[Loc, str, str]]:
    """Where each file system is mounted: the place in cluster.yaml, what it is called, the directory."""
    storage = site.storage
    if storage.efs is not None:
        yield (*at, "efs", "path"), "efs", storage.efs.path
    if storage.fsx is not None:
        yield (*at, "fsx", "path"), "fsx", storage.fsx.path
    for index, one in enumerate(storage.s3):
        yield (*at, "s3", index, "path"), f"bucket {one.bucket}", one.path


def _place(at: Loc, kind: str, path: str, taken: Mapping[str, str], groups: Mapping[str, Group]) -> Iterator[Finding]:
    """Nothing of the system's, of those who log in, of scratch's, and of another file system's."""
    own = f"take a directory of its own, such as /{kind if kind in ('efs', 'fsx') else 'data'}"
    if {".", ".."} & set(path.split("/")) or SYSTEM.fullmatch(path):
        yield Finding(at, f"{path} belongs to the system", own)
    elif _within(path, "/home"):
        yield Finding(at, f"{path} would hide who may log in", own)
    for name, group in groups.items():
        scratch = group.storage.scratch.rstrip("/") if group.storage.scratch else None
        if scratch and (_within(path, scratch) or _within(scratch, path)):
            said = f"{path} and scratch of {name} ({scratch}) are one in the other"
            yield Finding(at, said, "take another directory")
    for other, who in taken.items():
        if _within(path, other) or _within(other, path):
            said = f"{path} is where {who} is" if path == other else f"{path} and {who} ({other}) are one in the other"
            yield Finding(at, said, "take another directory")


def _fsx(at: Loc, fsx: AwsFsx, site: AwsSite) -> Iterator[Finding]:
    if fsx.capacity_gib != 1200 and fsx.capacity_gib % 2400:
        above = (fsx.capacity_gib // 2400 + 1) * 2400
        said = f"there is no FSx for Lustre of {fsx.capacity_gib} GiB"
        yield Finding((*at, "capacity_gib"), said, f"1200, or 2400 and its multiples, such as {above}")
    rates = THROUGHPUT.get(fsx.deployment, ())
    if fsx.throughput is not None and fsx.throughput not in rates:
        said = f"{fsx.deployment} has no throughput of {fsx.throughput} MB/s per TiB"
        hint = f"it is one of {', '.join(map(str, rates))}" if rates else "leave it out: it has 200, and no choice"
        yield Finding((*at, "throughput"), said, hint)
    if fsx.kms_key_id is not None and not rates:
        said = f"{fsx.deployment} is encrypted with AWS's own key"
        yield Finding((*at, "kms_key_id"), said, "leave it out, or take PERSISTENT_2")
    if fsx.zone is not None and fsx.zone not in site.zones:
        hint = f"one of {', '.join(site.zones)}" if site.zones else f"write zones: [{fsx.zone}, …] at the site"
        yield Finding((*at, "zone"), f"{shown(fsx.zone)} is not among the site's zones", hint)


def _kernel(at: Loc, stack: StackRequest) -> Iterator[Finding]:
    """Lustre's client is built for one kernel, and is locked by its name."""
    why = "Lustre's modules are built for one kernel each, and the lock has to name theirs"
    if stack.kernel is None:
        yield Finding(at, f"fsx needs an exact stack.kernel: {why}", f"such as kernel: {A_KERNEL}", at_key=True)
    elif not KERNEL.fullmatch(stack.kernel):
        said = f"{shown(stack.kernel)} is no exact kernel of Ubuntu's for EC2, as fsx needs one: {why}"
        yield Finding(("stack", "kernel"), said, f"`uname -r` of a node, such as {A_KERNEL}")


def _within(path: str, folder: str) -> bool:
    return path == folder or path.startswith(f"{folder}/")
