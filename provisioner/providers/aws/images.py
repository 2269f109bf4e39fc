"""AMIs: made of a machine's disk, copied to regions, shared, deprecated, and removed with their snapshots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from provisioner.errors import ProviderError
from provisioner.fleet import Node
from provisioner.plan import PlannedGroup
from provisioner.providers.aws.client import Region
from provisioner.providers.aws.site import AwsSite
from provisioner.providers.aws.tagged_resources import rows_of, tags_of
from provisioner.providers.base import Place
from provisioner.providers.images import DEPRECATED, PAUSE_S, STOP_S, Image, Tell, awaited, builder_of, not_ours, until
from provisioner.providers.trouble import Trouble

PART_OF = "gpuprov-part-of"
"""Tag of a snapshot whose image is being removed: the image's id."""
PENDING = ("pending", "transient")
"""States of an image that will be ready (https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_Image.html)."""


class Ec2Images:
    """See providers/images.py for the contract. `pause_s`: between two looks."""

    def __init__(self, place: Place, site: AwsSite, *, pause_s: float = PAUSE_S) -> None:
        self._place, self._site, self._pause_s = place, site, pause_s
        self._home = Region(site.region)
        self._others: dict[str, Region] = {}

    def builder(self, group: PlannedGroup, wanted: str | None) -> str:
        return builder_of("aws", group, wanted)

    def check(self, regions: Sequence[str], accounts: Sequence[str]) -> None:
        """All of it can be done."""

    def find(self, name: str) -> Image | None:
        return self._find(self._home, name)

    def capture(self, node: Node, name: str, tags: Mapping[str, str], tell: Tell) -> str:
        there = self.find(name)
        if there is None:
            tell(f"stopping {node.id}")
            self._ask(self._home, "stop_instances", InstanceIds=[node.id])
            until(
                lambda: self._stopped(node.id), f"{node.id} has not stopped", STOP_S, where=self._place.site,
                pause_s=self._pause_s,
            )  # fmt: skip
            answer = self._ask(
                self._home, "create_image", InstanceId=node.id, Name=name, Description=f"gpuprov {name}",
                TagSpecifications=_marked(name, tags),
            )  # fmt: skip
            tell(f"{answer['ImageId']} is being made of its disk")
        return self._ready(self._home, name)

    def publish(
        self, image: str, name: str, regions: Sequence[str], accounts: Sequence[str], tags: Mapping[str, str],
        tell: Tell,
    ) -> dict[str, str]:  # fmt: skip
        ids = {self._site.region: image}
        for region in (one for one in regions if one != self._site.region):
            ids[region] = self._copied(region, image, name, tags, tell)
        for region, number in ids.items():
            there = self._region(region)
            if accounts:
                self._share(there, number, accounts)
            until = (datetime.now(UTC) + DEPRECATED).strftime("%Y-%m-%dT%H:%M:00Z")
            self._ask(there, "enable_image_deprecation", ImageId=number, DeprecateAt=until)
        return ids

    def copies(self, name: str, regions: Sequence[str]) -> dict[str, str]:
        wanted = list(dict.fromkeys([self._site.region, *regions]))
        found = {region: self._find(self._region(region), name) for region in wanted}
        return {region: one.id for region, one in found.items() if one is not None}

    def delete(self, ids: Mapping[str, str], tags: Mapping[str, str]) -> None:
        for region, number in ids.items():
            there = self._region(region)
            row = self._row(there, ImageIds=[number])
            if row is not None:
                if not tags.items() <= tags_of(row).items():
                    raise not_ours(number, region, self._place.site)
                # once the image is gone nothing says what it consisted of
                self._ask(there, "create_tags", Resources=_snapshots(row), Tags=rows_of({PART_OF: number}))
                self._ask(there, "deregister_image", ImageId=number)
            marked = [{"Name": f"tag:{PART_OF}", "Values": [number]}]
            for found in self._ask(there, "describe_snapshots", OwnerIds=["self"], Filters=marked)["Snapshots"]:
                try:
                    there.ask("ec2", "delete_snapshot", SnapshotId=found["SnapshotId"])
                except Trouble as trouble:
                    if trouble.kind != "absent":
                        raise self._error(trouble, "delete_snapshot") from None

    def used(self, ids: Mapping[str, str]) -> list[str]:
        found: list[str] = []
        for region, number in ids.items():
            asked = [
                {"Name": "image-id", "Values": [number]},
                {"Name": "instance-state-name", "Values": ["pending", "running", "stopping", "stopped"]},
            ]
            try:
                rows = self._region(region).all("ec2", "describe_instances", "Reservations", Filters=asked)
            except Trouble as trouble:
                raise self._error(trouble, f"machines of {number}") from None
            found += [machine["InstanceId"] for row in rows for machine in row["Instances"]]
        return found

    def _copied(self, region: str, image: str, name: str, tags: Mapping[str, str], tell: Tell) -> str:
        """The copy in another region, made once; it is encrypted with that region's default key, as every disk."""
        there = self._region(region)
        if self._find(there, name) is None:
            self._ask(
                there, "copy_image", Name=name, SourceImageId=image, SourceRegion=self._site.region, Encrypted=True,
                TagSpecifications=_marked(name, tags),
            )  # fmt: skip
        tell(f"copying it to {region}")
        copy = self._ready(there, name)
        self._ask(there, "create_tags", Resources=[copy], Tags=rows_of(tags))
        return copy

    def _share(self, there: Region, number: str, accounts: Sequence[str]) -> None:
        """Let other accounts start machines of it: the image, and the snapshots that it consists of."""
        add = {"Add": [{"UserId": account} for account in accounts]}
        self._ask(there, "modify_image_attribute", ImageId=number, LaunchPermission=add)
        row = self._row(there, ImageIds=[number]) or {}
        for snapshot in _snapshots(row):
            self._ask(
                there, "modify_snapshot_attribute", SnapshotId=snapshot, Attribute="createVolumePermission",
                OperationType="add", UserIds=list(accounts),
            )  # fmt: skip

    def _ready(self, there: Region, name: str) -> str:
        return awaited(lambda: self._find(there, name), name, where=there.name, pause_s=self._pause_s)

    def _find(self, there: Region, name: str) -> Image | None:
        row = self._row(there, Owners=["self"], Filters=[{"Name": "name", "Values": [name]}])
        if row is None:
            return None
        state = row.get("State", "")
        reason = row.get("StateReason", {}).get("Message") or state
        why = "" if state in ("available", *PENDING) else str(reason)
        return Image(row["ImageId"], ready=state == "available", why=why)

    def _row(self, there: Region, **asked: Any) -> dict[str, Any] | None:
        try:
            rows = there.ask("ec2", "describe_images", **asked)["Images"]
        except Trouble as trouble:
            if trouble.kind == "absent":
                return None
            raise self._error(trouble, "images") from None
        return rows[0] if rows else None

    def _stopped(self, machine: str) -> bool | None:
        rows = self._ask(self._home, "describe_instances", InstanceIds=[machine])["Reservations"]
        return True if rows[0]["Instances"][0]["State"]["Name"] == "stopped" else None

    def _region(self, name: str) -> Region:
        if name == self._site.region:
            return self._home
        try:
            if name not in self._others:
                self._others[name] = self._home.beside(name)
        except Trouble as trouble:
            raise self._error(trouble, name) from None
        return self._others[name]

    def _ask(self, there: Region, call: str, **arguments: Any) -> dict[str, Any]:
        try:
            return there.ask("ec2", call, **arguments)
        except Trouble as trouble:
            raise self._error(trouble, call) from None

    def _error(self, trouble: Trouble, what: str) -> ProviderError:
        action = "".join(word.capitalize() for word in what.split("_"))
        hint = f"allow ec2:{action} (`gpuprov docs aws image`)" if trouble.kind == "denied" else "run it again"
        return ProviderError(f"{what}: {trouble}", where=f"site {self._place.site}", hint=hint)


def _marked(name: str, tags: Mapping[str, str]) -> list[dict[str, Any]]:
    """Tags of an image and of the snapshots that it consists of."""
    rows = rows_of({**tags, "Name": name})
    return [{"ResourceType": kind, "Tags": rows} for kind in ("image", "snapshot")]


def _snapshots(row: Mapping[str, Any]) -> list[str]:
    """The snapshots that an image consists of."""
    disks = [one.get("Ebs", {}) for one in row.get("BlockDeviceMappings", ())]
    return [disk["SnapshotId"] for disk in disks if disk.get("SnapshotId")]
