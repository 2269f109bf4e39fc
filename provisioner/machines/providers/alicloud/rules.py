"""Refusals of an Alibaba Cloud site: what its keys, its disks and the purchase of its machines can be."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from provisioner.machines.providers.alicloud.settings import AlicloudSettings
from provisioner.spec.groups import Group
from provisioner.spec.site import among_zones
from provisioner.spec.source_map import Finding, Loc, shown

LEAST_GIB: Mapping[str, int] = {"PL0": 20, "PL1": 20, "PL2": 461, "PL3": 1261}
MOST_GIB = 2048
"""Of a system disk, by performance level. The module's validations say the same.
https://www.alibabacloud.com/help/en/ecs/user-guide/essds"""
OWN_TAGS = 5
"""gpuprov-cluster, gpuprov-site, gpuprov-id, gpuprov-group and gpuprov-node; 20 fit on each thing.
https://www.alibabacloud.com/help/en/ecs/user-guide/limits-1"""
MOST_TAGS = 20 - OWN_TAGS
RESERVED = re.compile(r"^(aliyun|acs:|https?://)")
POOL = re.compile(r"^(eap|crp)-[0-9a-z]+$")
"""Ids of private pools: elasticity assurances and capacity reservations.
https://www.alibabacloud.com/help/en/ecs/user-guide/overview-of-immediate-capacity-reservation"""


def bought(groups: Mapping[str, Group]) -> Iterator[Finding]:
    """Of how the machines at a site are bought."""
    for name, group in groups.items():
        number = group.capacity.id
        if group.capacity.kind == "reservation" and number and not POOL.match(number):
            message = f"{shown(number)} is not a private pool ID"
            yield Finding(("groups", name, "capacity", "id"), message, "the id of an elasticity assurance (eap-…) or a "
                          "capacity reservation (crp-…)")  # fmt: skip


def disks(site: AlicloudSettings, groups: Mapping[str, Group]) -> Iterator[Finding]:
    """Of the size of system disks."""
    minimum = LEAST_GIB[site.disk_level]
    for name, group in groups.items():
        size, at = group.storage.root_gb, ("groups", name, "storage", "root_gb")
        if size > MOST_GIB:
            yield Finding(at, f"a system disk has at most {MOST_GIB} GiB, not {size}", f"root_gb: {MOST_GIB}")
        elif size < minimum:
            message = f"a system disk of {site.disk_level} has at least {minimum} GiB, not {size}"
            yield Finding(at, message, f"root_gb: {minimum}, or another sites.*.disk_level")


def account(at: Loc, site: AlicloudSettings) -> Iterator[Finding]:
    """Of what an account asks of everything in it; `at`: where the site stands."""
    if site.ram_role is not None and site.buckets:
        message = "buckets are of the RAM role that gpuprov makes, and with ram_role it makes none"
        yield Finding(
            (*at, "buckets"), message, "leave one of them out, and let ram_role have the buckets", at_key=True
        )
    if len(site.tags) > MOST_TAGS:
        message = f"{len(site.tags)} tags: Alibaba Cloud takes 20 on each thing, and gpuprov has {OWN_TAGS} of its own"
        yield Finding((*at, "tags"), message, f"at most {MOST_TAGS}", at_key=True)
    for key, value in site.tags.items():
        if RESERVED.match(key) or RESERVED.match(value):
            message = f"{shown(key)}: no tag begins with aliyun, acs:, http:// or https://"
            yield Finding((*at, "tags", key), message, "another key or value", at_key=True)
        elif len(key) > 64 or len(value) > 128:
            message = f"{shown(key[:20])}…: a tag's key has at most 64 characters, its value 128"
            yield Finding((*at, "tags", key), message, "a shorter one", at_key=True)


def network(at: Loc, site: AlicloudSettings) -> Iterator[Finding]:
    """Of a VPC of the user's own."""
    if site.security_groups and site.vpc is None:
        message = "security_groups requires vpc"
        yield Finding((*at, "security_groups"), message, "name the VPC: vpc: {id: …, vswitches: {…}}", at_key=True)
    if site.vpc is not None:
        for zone in site.zones:
            if zone not in site.vpc.vswitches:
                message = f"no vSwitch of the VPC is named for {zone}"
                yield Finding((*at, "zones"), message, f"vpc.vswitches: {{{zone}: vsw-…}}, or leave the zone out")
    zones = site.zones or tuple(site.vpc.vswitches if site.vpc else ())
    if site.storage.nas and site.storage.nas.zone:
        yield from among_zones((*at, "storage", "nas", "zone"), site.storage.nas.zone, site.region, zones)
