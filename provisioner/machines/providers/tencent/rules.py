"""Refusals of a Tencent Cloud site: what its keys, its network and the purchase of its machines can be."""

from __future__ import annotations

import re
from collections.abc import Iterator

from provisioner.machines.providers.tencent.settings import TencentSettings
from provisioner.spec.site import among_zones as among
from provisioner.spec.source_map import Finding, Loc, shown

BY_TRAFFIC, ABROAD = 100, 200
"""Mbit/s that a public address sends at most when it is paid by traffic: in mainland China, Hong Kong and Singapore,
and elsewhere. https://tencentcloud.com/document/product/213/12523"""
MAINLAND = re.compile(
    r"ap-(beijing|chengdu|chongqing|guangzhou|hongkong|nanjing|shanghai|shenzhen|singapore|tianjin|taipei)"
)
ROOMS = 15
"""Zones that a VPC of gpuprov's own has room for, by their number (terraform/tencent/network.tf)."""


def account(at: Loc, site: TencentSettings) -> Iterator[Finding]:
    """Of tags, keys, roles and disks."""
    if site.role is not None and site.buckets:
        message = "buckets are of the CAM role that gpuprov makes, and with role it makes none"
        yield Finding((*at, "buckets"), message, "leave one of them out, and let role have the buckets", at_key=True)
    for key, value in site.tags.items():
        # https://cloud.tencent.com/document/product/651/13354
        if key.lower().startswith(("qcs:", "project", "项目")):
            yield Finding(
                (*at, "tags", key), f"{shown(key)} begins as Tencent Cloud's own tags do", "another key", at_key=True
            )
        if not value.strip():
            yield Finding((*at, "tags", key), f"the tag {shown(key)} has no value", "give it one")
    if site.disk.kms_key is not None and not site.disk.encrypt:
        message = "disk.kms_key is of encrypted disks, and disk.encrypt is false"
        yield Finding((*at, "disk", "kms_key"), message, "leave one of them out", at_key=True)


def network(at: Loc, site: TencentSettings) -> Iterator[Finding]:
    """Of zones, VPC and bandwidth."""
    if site.vpc is not None:
        for zone in site.zones:
            if zone not in site.vpc.subnets:
                message = f"vpc.subnets has no subnet in {shown(zone)}"
                yield Finding((*at, "vpc", "subnets"), message, f"{zone}: subnet-…, or leave the zone out", at_key=True)
        for zone in site.vpc.subnets:
            if not zone.startswith(f"{site.region}-"):
                yield Finding(
                    (*at, "vpc", "subnets"), f"{shown(zone)} is not a zone of {site.region}", f"{site.region}-1, …"
                )
    else:
        for number, zone in enumerate(site.zones):
            match = re.search(r"[0-9]+$", zone)
            if match and not 1 <= int(match[0]) <= ROOMS:
                message = f"a VPC that gpuprov makes has room for zones 1 to {ROOMS} of a region"
                yield Finding((*at, "zones", number), message, "name a VPC and its subnets: vpc: {id: …, subnets: {…}}")
    wide, maximum = site.bandwidth, BY_TRAFFIC if MAINLAND.match(site.region) else ABROAD
    if wide.charge == "traffic" and wide.mbps > maximum:
        message = f"{wide.mbps} Mbit/s is more than charge: traffic allows in {site.region}, {maximum} can"
        yield Finding((*at, "bandwidth", "mbps"), message, f"at most {maximum}, or charge: package")
    if (wide.charge == "package") != (wide.package is not None):
        message = (
            "a bandwidth package is named by its id" if wide.package is None else "package goes with charge: package"
        )
        yield Finding((*at, "bandwidth"), message, "charge: package and package: bwp-…, or neither", at_key=True)


def among_zones(at: Loc, zone: str, site: TencentSettings) -> Iterator[Finding]:
    """Of a zone that something of the site stands in."""
    zones = site.zones or (tuple(site.vpc.subnets) if site.vpc else ())
    yield from among(at, zone, site.region, zones)
