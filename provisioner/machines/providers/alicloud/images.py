"""Custom images of ECS. https://www.alibabacloud.com/help/en/ecs/user-guide/image-overview"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from provisioner.common.errors import ProviderError
from provisioner.machines.providers.alicloud import tags as written
from provisioner.machines.providers.alicloud.client import Region
from provisioner.machines.providers.alicloud.site import AlicloudSite
from provisioner.machines.providers.base import Place
from provisioner.machines.providers.images import PAUSE_S
from provisioner.machines.providers.regional_images import Described, RegionalImages
from provisioner.machines.providers.trouble import Trouble

PART_OF = "gpuprov-part-of"
"""Tag of a snapshot whose image is being removed: the image's id. DeleteImage leaves the snapshots."""
STATES = "Creating,Waiting,Available,UnAvailable,CreateFailed,Deprecated"
"""DescribeImages has the available ones alone by itself.
https://www.alibabacloud.com/help/en/ecs/developer-reference/api-ecs-2014-05-26-describeimages"""
PENDING, READY = ("Creating", "Waiting"), ("Available", "Deprecated")


class EcsImages(RegionalImages):
    """See providers/images.py for the contract."""

    provider = "alicloud"

    def __init__(self, site_context: Place, site: AlicloudSite, *, pause_s: float = PAUSE_S) -> None:
        super().__init__(site_context, site.region, pause_s=pause_s)
        self._site = site
        self._regions = {site.region: Region(site.region)}

    def check(self, regions: Sequence[str], accounts: Sequence[str]) -> None:
        """Nobody else can use what ECS's own key has encrypted, in this region and in those of copies.
        https://www.alibabacloud.com/help/en/ecs/user-guide/share-a-custom-image"""
        copy_regions = [region for region in regions if region != self._home]
        if accounts and (self._site.kms_key is None or copy_regions):
            subject = (
                f"copies in {', '.join(copy_regions)} are" if copy_regions and self._site.kms_key else "the image is"
            )
            raise ProviderError(
                f"image.targets.*.share_with: {subject} encrypted with ECS's own key, which no other account can use",
                where=f"site {self._site_context.site}",
                hint="leave out copy_to"
                if copy_regions and self._site.kms_key
                else "set sites.*.kms_key to your own key",
            )

    def stop(self, machine: str) -> None:
        if not self.stopped(machine):
            self._ask(self._home, "StopInstance", InstanceId=machine)

    def stopped(self, machine: str) -> bool:
        rows = self._all(self._home, "DescribeInstances", "Instances", "Instance", InstanceIds=f'["{machine}"]')
        return bool(rows) and rows[0].get("Status") == "Stopped"

    def create(self, machine: str, name: str, tags: Mapping[str, str]) -> str:
        answer = self._ask(
            self._home, "CreateImage", InstanceId=machine, ImageName=name, Description=f"gpuprov {name}",
            ClientToken=_token(name, self._home), ResourceGroupId=self._site.resource_group, Tag=_rows(tags),
        )  # fmt: skip
        return str(answer["ImageId"])

    def copy(self, image: str, name: str, region: str, tags: Mapping[str, str]) -> None:
        self._ask(
            self._home, "CopyImage", ImageId=image, DestinationRegionId=region, DestinationImageName=name,
            Encrypted=True, ClientToken=_token(name, region), Tag=_rows(tags),
        )  # fmt: skip

    def tag(self, region: str, image: str, tags: Mapping[str, str]) -> None:
        """It has got them when it was begun."""

    def share(self, region: str, image: str, accounts: Sequence[str]) -> None:
        self._ask(region, "ModifyImageSharePermission", ImageId=image, AddAccount=list(accounts))

    def find_by_name(self, region: str, name: str) -> Described | None:
        return self._image(region, ImageName=name)

    def described(self, region: str, image: str) -> Described | None:
        return self._image(region, ImageId=image)

    def remove(self, region: str, image: Described) -> None:
        if image.snapshots:
            mark = _rows({PART_OF: image.id})
            self._ask(region, "TagResources", ResourceType="snapshot", ResourceId=list(image.snapshots), Tag=mark)
        self._ask(region, "DeleteImage", absent_ok=True, ImageId=image.id)

    def sweep(self, region: str, image: str) -> None:
        for row in self._all(region, "DescribeSnapshots", "Snapshots", "Snapshot", Tag=_rows({PART_OF: image})):
            if written.of(row).get(PART_OF) == image:
                self._ask(region, "DeleteSnapshot", absent_ok=True, SnapshotId=str(row["SnapshotId"]))

    def machines(self, region: str, image: str) -> list[str]:
        rows = self._all(region, "DescribeInstances", "Instances", "Instance", ImageId=image)
        return [str(row["InstanceId"]) for row in rows]

    def _image(self, region: str, **query: str) -> Described | None:
        rows = self._all(region, "DescribeImages", "Images", "Image", ImageOwnerAlias="self", Status=STATES, **query)
        if not rows:
            return None
        row, state = rows[0], str(rows[0].get("Status"))
        disks = (row.get("DiskDeviceMappings") or {}).get("DiskDeviceMapping") or ()
        return Described(
            str(row["ImageId"]), str(row.get("ImageName")), pending=state in PENDING,
            why="" if state in (*PENDING, *READY) else f"Alibaba Cloud says {state}", tags=written.of(row),
            snapshots=tuple(str(disk["SnapshotId"]) for disk in disks if disk.get("SnapshotId")),
        )  # fmt: skip

    def _region(self, name: str) -> Region:
        if name not in self._regions:
            self._regions[name] = self._regions[self._home].in_region(name)
        return self._regions[name]

    def _ask(self, region: str, action: str, *, absent_ok: bool = False, **arguments: Any) -> dict[str, Any]:
        """`absent_ok`: what is not there is fine."""
        try:
            return self._region(region).ask("ecs", action, **arguments)
        except Trouble as error:
            if absent_ok and error.kind == "absent":
                return {}
            raise self._error(error, action) from None

    def _all(self, region: str, action: str, *path: str, **arguments: Any) -> list[dict[str, Any]]:
        try:
            return self._region(region).all("ecs", action, *path, **arguments)
        except Trouble as error:
            if error.kind == "absent":
                return []
            raise self._error(error, action) from None

    def _error(self, error: Trouble, action: str) -> ProviderError:
        hint = f"allow ecs:{action} (`gpuprov docs alicloud image`)" if error.kind == "denied" else "run it again"
        return ProviderError(f"{action}: {error}", where=f"site {self._site_context.site}", hint=hint)


def _rows(tags: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"Key": key, "Value": value} for key, value in tags.items()]


def _token(name: str, region: str) -> str:
    """The same for the same image: asked twice, it is made once. At most 64 letters."""
    return hashlib.sha256(f"{name} {region}".encode()).hexdigest()
