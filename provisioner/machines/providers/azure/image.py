"""Which image a distribution is in a region: the newest version in Azure's Marketplace, resolved once into the lock.
`latest` moves, a version does not.

All are second-generation images without a purchase plan; ND A100 v4 and newer take no others
(https://learn.microsoft.com/azure/virtual-machines/sizes/gpu-accelerated/ndasra100v4-series).
"""

from __future__ import annotations

import re

from provisioner.common.errors import GpuprovError
from provisioner.machines.providers.azure.client import Subscription
from provisioner.machines.providers.trouble import Trouble
from provisioner.stack.models import BaseImage

PLAIN = {
    "ubuntu-22.04": ("Canonical", "0001-com-ubuntu-server-jammy", "22_04-lts-gen2"),
    "ubuntu-24.04": ("Canonical", "ubuntu-24_04-lts", "server"),
    "debian-12": ("Debian", "debian-12", "12-gen2"),
}
"""Publisher, offer, SKU. https://documentation.ubuntu.com/azure/azure-how-to/instances/find-ubuntu-images/;
https://wiki.debian.org/Cloud/MicrosoftAzure (unverified)"""
SIGN_IN = "sign in (`az login`)"


def base_image(subscription: Subscription, system: str) -> BaseImage:
    """The newest image of a distribution. Raises GpuprovError where it is not there, or could not be asked for."""
    return newest(subscription, PLAIN[system], system)


def newest(subscription: Subscription, image: tuple[str, str, str], system: str) -> BaseImage:
    """The newest version of an image, by its exact version. Raises GpuprovError."""
    name = ":".join(image)
    versions = _versions(subscription, image, system)
    if not versions:
        raise _none(subscription, system, name)
    version = max(versions, key=lambda text: [int(part) for part in text.split(".")])
    return BaseImage(id=f"{name}:{version}", why=f"the newest of {name} in {subscription.region}")


def vendor_image(subscription: Subscription, urn: str) -> BaseImage:
    """One of Azure's HPC images, by its URN with the version. Raises GpuprovError where the region has it no more, or
    it could not be asked for."""
    publisher, offer, sku, version = urn.split(":")
    name = f"{publisher}:{offer}:{sku}"
    versions = _versions(subscription, (publisher, offer, sku), urn)
    if version not in versions:
        newest_version = max(versions, key=lambda text: [int(part) for part in text.split(".")], default="none")
        raise GpuprovError(
            f"{urn} is not published in {subscription.region}; the newest of {name} there is {newest_version}, of "
            "which this release of gpuprov does not know what it holds",
            hint="a newer gpuprov, another region, or leave out base: vendor-hpc",
        )
    return BaseImage(id=urn, why=f"Azure's HPC image in {subscription.region}")


def _versions(subscription: Subscription, image: tuple[str, str, str], system: str) -> list[str]:
    """The versions of an image in the region. Raises GpuprovError where none is there, or nobody may ask."""
    publisher, offer, sku = image
    try:
        images = subscription.client("compute").virtual_machine_images
        rows = subscription.all(lambda: images.list(subscription.region, publisher, offer, sku))
    except Trouble as error:
        if error.kind == "absent":
            raise _none(subscription, system, ":".join(image)) from None
        hints = {
            "credentials": SIGN_IN, "settings": SIGN_IN,
            "denied": "allow Microsoft.Compute/locations/publishers/artifacttypes/offers/skus/versions/read",
        }  # fmt: skip
        hint = hints.get(error.kind, "run it again")
        raise GpuprovError(f"the image of {system} could not be asked for: {error}", hint=hint) from None
    return [str(row.name) for row in rows if re.fullmatch(r"[0-9]+(\.[0-9]+){2}", str(row.name))]


def _none(subscription: Subscription, system: str, name: str) -> GpuprovError:
    return GpuprovError(
        f"{system} is not published in {subscription.region} ({name})", hint="another region, or stack.os"
    )
