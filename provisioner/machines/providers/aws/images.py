"""AMIs: made of a machine's disk, copied to regions, shared, deprecated, and removed with their snapshots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from provisioner.common.errors import ProviderError
from provisioner.machines.providers.aws.client import Region
from provisioner.machines.providers.aws.site import AwsSite
from provisioner.machines.providers.aws.tagged_resources import rows_of, tags_of
from provisioner.machines.providers.base import Place
from provisioner.machines.providers.images import (
    DEPRECATED,
    PAUSE_S,
    STOP_S,
    Image,
    Tell,
    awaited,
    builder_of,
    not_ours,
    until,
)
from provisioner.machines.providers.trouble import Trouble
from provisioner.plan.models import PlannedGroup
from provisioner.rundir.fleet import Node

PART_OF = "gpuprov-part-of"
"""Tag of a snapshot whose image is being removed: the image's id."""
PENDING = ("pending", "transient")
"""States of an image that will be ready (https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_Image.html)."""


class Ec2Images:
    """See providers/images.py for the contract. `pause_s`: between two looks."""

    def __init__(self, site_context: Place, site: AwsSite, *, pause_s: float = PAUSE_S) -> None:
        self._site_context, self._site, self._pause_s = site_context, site, pause_s
        self._home = Region(site.region)
        self._other_regions: dict[str, Region] = {}

    def builder(self, group: PlannedGroup, requested_type: str | None) -> str:
        return builder_of("aws", group, requested_type)

    def check(self, regions: Sequence[str], accounts: Sequence[str]) -> None:
        """All of it can be done."""

    def find(self, name: str) -> Image | None:
        return self._find(self._home, name)

    def capture(self, node: Node, name: str, tags: Mapping[str, str], report: Tell) -> str:
        image = self.find(name)
        if image is None:
            report(f"stopping {node.id}")
            self._ask(self._home, "stop_instances", InstanceIds=[node.id])
            until(
                lambda: self._stopped(node.id), f"{node.id} has not stopped", STOP_S, where=self._site_context.site,
                pause_s=self._pause_s,
            )  # fmt: skip
            answer = self._ask(
                self._home, "create_image", InstanceId=node.id, Name=name, Description=f"gpuprov {name}",
                TagSpecifications=_marked(name, tags),
            )  # fmt: skip
            report(f"{answer['ImageId']} is being made of its disk")
        return self._ready(self._home, name)

    def publish(
        self, image: str, name: str, regions: Sequence[str], accounts: Sequence[str], tags: Mapping[str, str],
        report: Tell,
    ) -> dict[str, str]:  # fmt: skip
        ids = {self._site.region: image}
        for region in (candidate for candidate in regions if candidate != self._site.region):
            ids[region] = self._copied(region, image, name, tags, report)
        for region, number in ids.items():
            region_client = self._region(region)
            if accounts:
                self._share(region_client, number, accounts)
            until = (datetime.now(UTC) + DEPRECATED).strftime("%Y-%m-%dT%H:%M:00Z")
            self._ask(region_client, "enable_image_deprecation", ImageId=number, DeprecateAt=until)
        return ids

    def copies(self, name: str, regions: Sequence[str]) -> dict[str, str]:
        region_names = list(dict.fromkeys([self._site.region, *regions]))
        images = {region: self._find(self._region(region), name) for region in region_names}
        return {region: image.id for region, image in images.items() if image is not None}

    def delete(self, ids: Mapping[str, str], tags: Mapping[str, str]) -> None:
        for region, number in ids.items():
            region_client = self._region(region)
            row = self._row(region_client, ImageIds=[number])
            if row is not None:
                if not tags.items() <= tags_of(row).items():
                    raise not_ours(number, region, self._site_context.site)
                # once the image is gone nothing says what it consisted of
                self._ask(region_client, "create_tags", Resources=_snapshots(row), Tags=rows_of({PART_OF: number}))
                self._ask(region_client, "deregister_image", ImageId=number)
            marked = [{"Name": f"tag:{PART_OF}", "Values": [number]}]
            for snapshot in self._ask(region_client, "describe_snapshots", OwnerIds=["self"], Filters=marked)[
                "Snapshots"
            ]:
                try:
                    region_client.ask("ec2", "delete_snapshot", SnapshotId=snapshot["SnapshotId"])
                except Trouble as error:
                    if error.kind != "absent":
                        raise self._error(error, "delete_snapshot") from None

    def used(self, ids: Mapping[str, str]) -> list[str]:
        machine_ids: list[str] = []
        for region, number in ids.items():
            filters = [
                {"Name": "image-id", "Values": [number]},
                {"Name": "instance-state-name", "Values": ["pending", "running", "stopping", "stopped"]},
            ]
            try:
                rows = self._region(region).all("ec2", "describe_instances", "Reservations", Filters=filters)
            except Trouble as error:
                raise self._error(error, f"machines of {number}") from None
            machine_ids += [machine["InstanceId"] for row in rows for machine in row["Instances"]]
        return machine_ids

    def _copied(self, region: str, image: str, name: str, tags: Mapping[str, str], report: Tell) -> str:
        """The copy in another region, made once; it is encrypted with that region's default key, as every disk."""
        region_client = self._region(region)
        if self._find(region_client, name) is None:
            self._ask(
                region_client, "copy_image", Name=name, SourceImageId=image, SourceRegion=self._site.region,
                Encrypted=True, TagSpecifications=_marked(name, tags),
            )  # fmt: skip
        report(f"copying it to {region}")
        copy = self._ready(region_client, name)
        self._ask(region_client, "create_tags", Resources=[copy], Tags=rows_of(tags))
        return copy

    def _share(self, region_client: Region, number: str, accounts: Sequence[str]) -> None:
        """Let other accounts start machines of it: the image, and the snapshots that it consists of."""
        add = {"Add": [{"UserId": account} for account in accounts]}
        self._ask(region_client, "modify_image_attribute", ImageId=number, LaunchPermission=add)
        row = self._row(region_client, ImageIds=[number]) or {}
        for snapshot in _snapshots(row):
            self._ask(
                region_client, "modify_snapshot_attribute", SnapshotId=snapshot, Attribute="createVolumePermission",
                OperationType="add", UserIds=list(accounts),
            )  # fmt: skip

    def _ready(self, region_client: Region, name: str) -> str:
        return awaited(lambda: self._find(region_client, name), name, where=region_client.name, pause_s=self._pause_s)

    def _find(self, region_client: Region, name: str) -> Image | None:
        row = self._row(region_client, Owners=["self"], Filters=[{"Name": "name", "Values": [name]}])
        if row is None:
            return None
        state = row.get("State", "")
        reason = row.get("StateReason", {}).get("Message") or state
        failure = "" if state in ("available", *PENDING) else str(reason)
        return Image(row["ImageId"], ready=state == "available", why=failure)

    def _row(self, region_client: Region, **query: Any) -> dict[str, Any] | None:
        try:
            rows = region_client.ask("ec2", "describe_images", **query)["Images"]
        except Trouble as error:
            if error.kind == "absent":
                return None
            raise self._error(error, "images") from None
        return rows[0] if rows else None

    def _stopped(self, machine: str) -> bool | None:
        rows = self._ask(self._home, "describe_instances", InstanceIds=[machine])["Reservations"]
        return True if rows[0]["Instances"][0]["State"]["Name"] == "stopped" else None

    def _region(self, name: str) -> Region:
        if name == self._site.region:
            return self._home
        try:
            if name not in self._other_regions:
                self._other_regions[name] = self._home.in_region(name)
        except Trouble as error:
            raise self._error(error, name) from None
        return self._other_regions[name]

    def _ask(self, region_client: Region, call: str, **arguments: Any) -> dict[str, Any]:
        try:
            return region_client.ask("ec2", call, **arguments)
        except Trouble as error:
            raise self._error(error, call) from None

    def _error(self, error: Trouble, subject: str) -> ProviderError:
        action = "".join(part.capitalize() for part in subject.split("_"))
        hint = f"allow ec2:{action} (`gpuprov docs aws image`)" if error.kind == "denied" else "run it again"
        return ProviderError(f"{subject}: {error}", where=f"site {self._site_context.site}", hint=hint)


def _marked(name: str, tags: Mapping[str, str]) -> list[dict[str, Any]]:
    """Tags of an image and of the snapshots that it consists of."""
    rows = rows_of({**tags, "Name": name})
    return [{"ResourceType": kind, "Tags": rows} for kind in ("image", "snapshot")]


def _snapshots(row: Mapping[str, Any]) -> list[str]:
    """The snapshots that an image consists of."""
    disks = [mapping.get("Ebs", {}) for mapping in row.get("BlockDeviceMappings", ())]
    return [disk["SnapshotId"] for disk in disks if disk.get("SnapshotId")]
