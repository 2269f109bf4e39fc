"""Which image a distribution is in a region: the newest version in Azure's Marketplace, resolved once into the lock.
`latest` moves, a version does not.

All are second-generation images without a purchase plan; ND A100 v4 and newer take no others
(https://learn.microsoft.com/azure/virtual-machines/sizes/gpu-accelerated/ndasra100v4-series).
"""

from __future__ import annotations

import re
from typing import Literal

from provisioner.errors import GpuprovError
from provisioner.providers.azure.client import Subscription
from provisioner.providers.trouble import Trouble
from provisioner.stack.models import BaseImage

PLAIN = {
    "ubuntu-22.04": ("Canonical", "0001-com-ubuntu-server-jammy", "22_04-lts-gen2"),
    "ubuntu-24.04": ("Canonical", "ubuntu-24_04-lts", "server"),
    "debian-12": ("Debian", "debian-12", "12-gen2"),
}
"""Publisher, offer, SKU. https://documentation.ubuntu.com/azure/azure-how-to/instances/find-ubuntu-images/;
https://wiki.debian.org/Cloud/MicrosoftAzure (unverified)"""
HPC = {"ubuntu-22.04": "2204", "ubuntu-24.04": "2404"}
"""SKUs of microsoft-dsvm:ubuntu-hpc, with driver, InfiniBand and NCCL. github.com/Azure/azhpc-images, README.md"""
Flavour = Literal["nvidia", "volta", "rocm"]
SIGN_IN = "sign in (`az login`)"


def urn(system: str) -> tuple[str, str, str]:
    """Publisher, offer and SKU of a distribution's own image; KeyError where it has none."""
    return PLAIN[system]


def hpc(system: str, flavour: Flavour = "nvidia") -> tuple[str, str, str] | None:
    """Publisher, offer and SKU of Azure's HPC image for a distribution and a kind of GPU; None where there is none.
    V100 needs the one with proprietary kernel modules, which there is for 22.04 alone."""
    sku = HPC.get(system)
    if sku is None or (flavour == "volta" and sku != "2204"):
        return None
    ending = {"nvidia": "", "volta": "-v100", "rocm": "-rocm"}[flavour]
    return "microsoft-dsvm", "ubuntu-hpc", sku + ending


def base_image(subscription: Subscription, system: str) -> BaseImage:
    """The newest image of a distribution. Raises GpuprovError where it is not there, or could not be asked for."""
    return newest(subscription, urn(system), system)


def newest(subscription: Subscription, image: tuple[str, str, str], system: str) -> BaseImage:
    """The newest version of an image, by its exact version. Raises GpuprovError."""
    publisher, offer, sku = image
    name = ":".join(image)
    try:
        images = subscription.client("compute").virtual_machine_images
        rows = subscription.all(lambda: images.list(subscription.region, publisher, offer, sku))
    except Trouble as trouble:
        if trouble.kind == "absent":
            raise _none(subscription, system, name) from None
        hints = {
            "credentials": SIGN_IN, "settings": SIGN_IN,
            "denied": "allow Microsoft.Compute/locations/publishers/artifacttypes/offers/skus/versions/read",
        }  # fmt: skip
        hint = hints.get(trouble.kind, "run it again")
        raise GpuprovError(f"the image of {system} could not be asked for: {trouble}", hint=hint) from None
    versions = [str(row.name) for row in rows if re.fullmatch(r"[0-9]+(\.[0-9]+){2}", str(row.name))]
    if not versions:
        raise _none(subscription, system, name)
    version = max(versions, key=lambda one: [int(part) for part in one.split(".")])
    return BaseImage(id=f"{name}:{version}", why=f"the newest of {name} in {subscription.region}")


def _none(subscription: Subscription, system: str, name: str) -> GpuprovError:
    return GpuprovError(
        f"{system} is not published in {subscription.region} ({name})", hint="another region, or stack.os"
    )
