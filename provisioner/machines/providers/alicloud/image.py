"""Which image a distribution is in a region: the newest of Alibaba Cloud's own of that family, resolved once into the
lock. Families move, ids do not."""

from __future__ import annotations

import re

from provisioner.common.errors import GpuprovError
from provisioner.machines.providers.alicloud.client import SIGN_IN, Region
from provisioner.machines.providers.trouble import Trouble
from provisioner.stack.models import BaseImage

IDS = {
    "ubuntu-22.04": r"ubuntu_22_04_x64_20G_alibase_(\d{8})\.vhd",
    "ubuntu-24.04": r"ubuntu_24_04_x64_20G_alibase_(\d{8})\.vhd",
    "debian-12": r"debian_12(?:_\d+)?_x64_20G_alibase_(\d{8})\.vhd",
}
"""Ids of system images, with their date: the same in every region. Seen in public Terraform files and scripts
(ubuntu_24_04_x64_20G_alibase_20240812.vhd, debian_12_11_x64_20G_alibase_20241201.vhd); those with a GPU driver or UEFI
in their name are others."""
WITHOUT_TOKENS = frozenset({"debian-12"})
"""Distributions whose cloud-init asks Alibaba Cloud's metadata service without a token, and gets neither user nor key
where one is demanded: Debian 12's 22.4.2 knows AWS's header alone (its DataSourceEc2.py, DataSourceAliYun.py); Alibaba
Cloud's came with canonical/cloud-init#1865 later. Whether Alibaba Cloud's Debian image has a newer one: unverified."""


def base_image(region: Region, system: str) -> BaseImage:
    """The newest image of a distribution. Raises GpuprovError where it is not there, or could not be asked for."""
    pattern = re.compile(IDS[system])
    try:
        rows = region.all(
            "ecs", "DescribeImages", "Images", "Image", ImageOwnerAlias="system", OSType="linux", Architecture="x86_64",
            Status="Available",
        )  # fmt: skip
    except Trouble as error:
        hints = {"credentials": SIGN_IN, "denied": "allow ecs:DescribeImages", "settings": "correct it"}
        hint = hints.get(error.kind, "run it again")
        raise GpuprovError(f"the image of {system} could not be asked for: {error}", hint=hint) from None
    dated = {match[1]: match[0] for row in rows if (match := pattern.fullmatch(str(row.get("ImageId", ""))))}
    if not dated:
        raise GpuprovError(
            f"Alibaba Cloud has no image of {system} in {region.name}", hint="another region, or stack.os"
        )
    newest = max(dated)
    return BaseImage(id=dated[newest], why=f"the newest system image of {system} in {region.name}, of {newest}")
