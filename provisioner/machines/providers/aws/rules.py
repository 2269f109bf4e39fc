"""Refusals of an AWS site: what its keys, its file systems and the purchase of its machines can be."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from provisioner.machines.providers.aws.settings import AwsFsx, AwsSettings
from provisioner.spec.groups import Group
from provisioner.spec.source_map import Finding, Loc, shown
from provisioner.spec.stack_request import StackRequest

KERNEL = re.compile(r"[0-9]+\.[0-9]+\.[0-9]+-[0-9]+-aws")
"""`uname -r` of Ubuntu's kernels for EC2, the only ones that AWS builds Lustre's modules for.
https://docs.aws.amazon.com/fsx/latest/LustreGuide/install-lustre-client.html"""
A_KERNEL = '"6.8.0-1066-aws"'

THROUGHPUT: Mapping[str, tuple[int, ...]] = {"PERSISTENT_2": (125, 250, 500, 1000), "PERSISTENT_1": (50, 100, 200)}
"""MB/s for each TiB of SSD storage; SCRATCH_2 has one figure. The module's preconditions say the same.
https://docs.aws.amazon.com/fsx/latest/LustreGuide/performance.html"""


def bought(groups: Mapping[str, Group]) -> Iterator[Finding]:
    """Of how the machines at a site are bought."""
    for name, group in groups.items():
        if group.placement == "cluster" and group.capacity.kind == "block":
            message = "a capacity block takes no placement group: its machines are close together by themselves"
            yield Finding(("groups", name, "placement"), message, "leave it out")
        if group.capacity.kind == "block" and group.capacity.id and not group.capacity.id.startswith("cr-"):
            message = f"{shown(group.capacity.id)} is not a capacity block ID"
            yield Finding(("groups", name, "capacity", "id"), message, "its id, cr-…")
        if group.capacity.probe and group.capacity.kind != "on-demand":
            message = f"capacity.probe asks for on-demand machines, and {name} asks for {group.capacity.kind} first"
            yield Finding(("groups", name, "capacity", "probe"), message, "leave it out")


def account(at: Loc, site: AwsSettings) -> Iterator[Finding]:
    """Of what an account asks of everything in it; `at`: where the site stands."""
    for key in site.tags:
        if key.lower().startswith("aws:"):
            yield Finding((*at, "tags", key), f"{shown(key)} begins as AWS's own tags do", "another key", at_key=True)
    if site.permissions_boundary is not None and site.instance_profile is not None:
        message = "permissions_boundary cannot be combined with instance_profile: gpuprov creates no role then"
        yield Finding((*at, "permissions_boundary"), message, "leave one of them out", at_key=True)
    keys = {
        ("kms_key",): site.kms_key,
        ("storage", "efs", "kms_key_id"): site.storage.efs.kms_key_id if site.storage.efs else None,
        ("storage", "fsx", "kms_key_id"): site.storage.fsx.kms_key_id if site.storage.fsx else None,
    }
    for key_path, key_arn in keys.items():
        if key_arn is not None and key_arn.split(":")[3] != site.region:
            message = f"the key is of {key_arn.split(':')[3]}, the site is in {site.region}"
            yield Finding((*at, *key_path), message, "a KMS key of the same region")
    if site.security_groups and site.vpc is None:
        message = "security_groups requires vpc"
        yield Finding((*at, "security_groups"), message, "name the VPC: vpc: {id: …, subnets: […]}", at_key=True)


def storage(at: Loc, site: AwsSettings, stack: StackRequest | None) -> Iterator[Finding]:
    """Of one site's `storage`, which stands at `at`; `stack`: None where it could not be read."""
    if site.storage.fsx is not None:
        yield from _fsx((*at, "fsx"), site.storage.fsx, site)
        if stack is not None:
            yield from _kernel((*at, "fsx"), stack)
    for index, mount in enumerate(site.storage.s3):
        if mount.bucket.endswith("--x-s3"):
            message = f"{mount.bucket} is a directory bucket (S3 Express), which nodes would not be allowed to open"
            yield Finding((*at, "s3", index, "bucket"), message, "take a bucket of the usual kind")


def _fsx(at: Loc, fsx: AwsFsx, site: AwsSettings) -> Iterator[Finding]:
    if fsx.capacity_gib != 1200 and fsx.capacity_gib % 2400:
        above = (fsx.capacity_gib // 2400 + 1) * 2400
        message = f"there is no FSx for Lustre of {fsx.capacity_gib} GiB"
        yield Finding((*at, "capacity_gib"), message, f"1200, or 2400 and its multiples, such as {above}")
    rates = THROUGHPUT.get(fsx.deployment, ())
    if fsx.throughput is not None and fsx.throughput not in rates:
        message = f"{fsx.deployment} has no throughput of {fsx.throughput} MB/s per TiB"
        hint = f"it is one of {', '.join(map(str, rates))}" if rates else "leave it out: it has 200, and no choice"
        yield Finding((*at, "throughput"), message, hint)
    if fsx.kms_key_id is not None and not rates:
        message = f"{fsx.deployment} is encrypted with AWS's own key"
        yield Finding((*at, "kms_key_id"), message, "leave it out, or take PERSISTENT_2")
    if fsx.zone is not None and fsx.zone not in site.zones:
        hint = f"one of {', '.join(site.zones)}" if site.zones else f"write zones: [{fsx.zone}, …] at the site"
        yield Finding((*at, "zone"), f"{shown(fsx.zone)} is not among the site's zones", hint)


def _kernel(at: Loc, stack: StackRequest) -> Iterator[Finding]:
    """Lustre's client is built for one kernel, and is locked by its name."""
    reason = "Lustre's modules are built for one kernel each, and the lock has to name theirs"
    if stack.kernel is None:
        yield Finding(at, f"fsx needs an exact stack.kernel: {reason}", f"such as kernel: {A_KERNEL}", at_key=True)
    elif not KERNEL.fullmatch(stack.kernel):
        message = f"{shown(stack.kernel)} is not an exact kernel of Ubuntu's for EC2, which fsx needs: {reason}"
        yield Finding(("stack", "kernel"), message, f"`uname -r` of a node, such as {A_KERNEL}")
