"""Custom images of CVM. https://cloud.tencent.com/document/product/213/4940"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from provisioner.common.errors import ProviderError
from provisioner.machines.providers.base import Place
from provisioner.machines.providers.images import PAUSE_S
from provisioner.machines.providers.regional_images import Described, RegionalImages
from provisioner.machines.providers.tencent.client import Region
from provisioner.machines.providers.tencent.site import TencentSite
from provisioner.machines.providers.tencent.stock import region_of
from provisioner.machines.providers.tencent.tagged_resources import tags_of
from provisioner.machines.providers.trouble import Trouble

MOST_LETTERS = 60
"""Of an image's name (CreateImage, ImageName)."""
PENDING, READY = ("CREATING", "SYNCING", "IMPORTING"), ("NORMAL", "USING")
"""States of an image (DescribeImages, ImageState)."""


class CvmImages(RegionalImages):
    """See providers/images.py for the contract."""

    provider = "tencent"

    def __init__(self, site_context: Place, site: TencentSite, *, pause_s: float = PAUSE_S) -> None:
        super().__init__(site_context, site.region, pause_s=pause_s)
        self._site = site
        self._regions = {site.region: region_of(site)}

    def check(self, regions: Sequence[str], accounts: Sequence[str]) -> None:  # noqa: ARG002
        """An image can be encrypted in its own region alone: SyncImages, Encrypt.
        https://cloud.tencent.com/document/api/213/15711"""
        copies = [region for region in regions if region != self._home]
        if copies and self._site.disk.encrypt:
            raise ProviderError(
                f"image.targets.*.copy_to: Tencent Cloud encrypts no copy in another region ({', '.join(copies)})",
                where=f"site {self._site_context.site}",
                hint="a site of the recipe in that region, which builds its own, or disk.encrypt: false",
            )

    def stop(self, machine: str) -> None:
        if not self.stopped(machine):
            self._ask(
                self._home, "StopInstances", InstanceIds=[machine], StopType="SOFT_FIRST", StoppedMode="KEEP_CHARGING"
            )

    def stopped(self, machine: str) -> bool:
        rows = self._ask(self._home, "DescribeInstances", InstanceIds=[machine]).get("InstanceSet") or []
        return bool(rows) and rows[0].get("InstanceState") == "STOPPED"

    def create(self, machine: str, name: str, tags: Mapping[str, str]) -> str:
        pairs = [{"Key": key, "Value": value} for key, value in tags.items()]
        answer = self._ask(
            self._home, "CreateImage", InstanceId=machine, ImageName=short(name), ImageDescription="gpuprov",
            TagSpecification=[{"ResourceType": "image", "Tags": pairs}],
        )  # fmt: skip
        return str(answer["ImageId"])

    def copy(self, image: str, name: str, region: str, tags: Mapping[str, str]) -> None:  # noqa: ARG002
        self._ask(self._home, "SyncImages", ImageIds=[image], DestinationRegions=[region], ImageName=short(name))

    def tag(self, region: str, image: str, tags: Mapping[str, str]) -> None:
        """SyncImages gives a copy no tags."""
        account = str(self._ask(region, "GetCallerIdentity", service="sts")["AccountId"])
        pairs = [{"TagKey": key, "TagValue": value} for key, value in tags.items()]
        number = f"qcs::cvm:{region}:uin/{account}:image/{image}"
        failed = self._ask(region, "TagResources", service="tag", ResourceList=[number], Tags=pairs)
        if rows := failed.get("FailedResources"):
            raise ProviderError(f"{image} in {region} got no tags: {rows}", where=f"site {self._site_context.site}")

    def share(self, region: str, image: str, accounts: Sequence[str]) -> None:
        self._ask(region, "ModifyImageSharePermission", ImageId=image, AccountIds=list(accounts), Permission="SHARE")

    def find_by_name(self, region: str, name: str) -> Described | None:
        """The filter by name finds those that are alike, too."""
        return self._image(region, "image-name", short(name), "ImageName")

    def described(self, region: str, image: str) -> Described | None:
        return self._image(region, "image-id", image, "ImageId")

    def remove(self, region: str, image: Described) -> None:
        """With its snapshots, in one call."""
        self._ask(region, "DeleteImages", absent_ok=True, ImageIds=[image.id], DeleteBindedSnap=True)

    def sweep(self, region: str, image: str) -> None:
        """Nothing of it is left."""

    def machines(self, region: str, image: str) -> list[str]:
        """There is no filter by image."""
        try:
            rows = self._region(region).all("cvm", "DescribeInstances", "InstanceSet")
        except Trouble as error:
            raise self._error(error, "cvm:DescribeInstances") from None
        return [str(row["InstanceId"]) for row in rows if row.get("ImageId") == image]

    def _image(self, region: str, by: str, value: str, key: str) -> Described | None:
        filters = [{"Name": by, "Values": [value]}, {"Name": "image-type", "Values": ["PRIVATE_IMAGE"]}]
        try:
            rows = self._region(region).all("cvm", "DescribeImages", "ImageSet", Filters=filters)
        except Trouble as error:
            raise self._error(error, "cvm:DescribeImages") from None
        row = next((candidate for candidate in rows if candidate.get(key) == value), None)
        if row is None:
            return None
        state = str(row.get("ImageState"))
        failure = "" if state in (*PENDING, *READY) else f"Tencent Cloud says {state}"
        name = str(row.get("ImageName"))
        return Described(str(row["ImageId"]), name, pending=state in PENDING, why=failure, tags=tags_of(row))

    def _region(self, name: str) -> Region:
        if name not in self._regions:
            self._regions[name] = self._regions[self._home].in_region(name)
        return self._regions[name]

    def _ask(
        self, region: str, action: str, service: str = "cvm", absent_ok: bool = False, **arguments: Any
    ) -> dict[str, Any]:
        """`absent_ok`: what is not there is fine."""
        try:
            return self._region(region).ask(service, action, **arguments)
        except Trouble as error:
            if absent_ok and error.kind == "absent":
                return {}
            raise self._error(error, f"{service}:{action}") from None

    def _error(self, error: Trouble, action: str) -> ProviderError:
        hint = f"allow {action} (`gpuprov docs tencent image`)" if error.kind == "denied" else "run it again"
        return ProviderError(f"{action}: {error}", where=f"site {self._site_context.site}", hint=hint)


def short(name: str) -> str:
    """A build's name within what CVM takes, which is still no other's."""
    if len(name) <= MOST_LETTERS:
        return name
    return f"{name[: MOST_LETTERS - 9]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
