"""Which image a distribution is in a region: Tencent Cloud's public one by its name, resolved once into the lock. Names
are in the language of who asks and move; ids do not."""

from __future__ import annotations

import re
from typing import Any

from provisioner.common.errors import GpuprovError
from provisioner.machines.providers.tencent.client import Region
from provisioner.machines.providers.tencent.findings import SIGN_IN
from provisioner.machines.providers.trouble import Trouble
from provisioner.stack.models import BaseImage

NAMES = {
    "ubuntu-22.04": r"Ubuntu Server 22\.04(\.\d)? LTS 64( ?-?bit|位)",
    "ubuntu-24.04": r"Ubuntu Server 24\.04(\.\d)? LTS 64( ?-?bit|位)",
    "debian-12": r"Debian (Server )?12(\.\d+)? 64( ?-?bit|位)",
}
"""The whole name, in English or Chinese: those for UEFI, with a driver or with other software have more in it. Seen in
public repositories: img-487zeit5 is Ubuntu 22.04 and img-mmytdhbn 24.04; Debian's name is by the same pattern
(unverified)."""


def base_image(region: Region, system: str) -> BaseImage:
    """The newest public image of a distribution. Raises GpuprovError where it is not there, or could not be asked
    for."""
    try:
        rows = public(region)
    except Trouble as error:
        hints = {"credentials": f"sign in: {SIGN_IN}", "denied": "allow cvm:DescribeImages", "settings": SIGN_IN}
        hint = hints.get(error.kind, "run it again")
        raise GpuprovError(f"the image of {system} could not be asked for: {error}", hint=hint) from None
    candidates = [
        row for row in rows
        if re.fullmatch(NAMES[system], str(row.get("ImageName"))) and row.get("Architecture") == "x86_64"
        and row.get("ImageState", "NORMAL") == "NORMAL"
    ]  # fmt: skip
    if not candidates:
        hint = "another region, or stack.os"
        raise GpuprovError(f"{region.name} has no public image of {system} for x86_64", hint=hint)
    newest = max(candidates, key=lambda row: (str(row.get("CreatedTime") or ""), str(row["ImageId"])))
    reason = f"public image {newest['ImageName']} of {region.name}"
    return BaseImage(
        id=str(newest["ImageId"]), why=reason + (f", {newest['CreatedTime']}" if newest.get("CreatedTime") else "")
    )


def public(region: Region, machine: str | None = None) -> list[dict[str, Any]]:
    """The public images of a region; those that a machine type boots. Raises Trouble."""
    filters = [{"Name": "image-type", "Values": ["PUBLIC_IMAGE"]}]
    more: dict[str, Any] = {"InstanceType": machine} if machine else {}
    return region.all("cvm", "DescribeImages", "ImageSet", Filters=filters, **more)
