"""Everything in a region that has the tag gpuprov-cluster, as ECS, VPC and NAS describe it.

One row for each kind of thing that terraform/alicloud makes. The tag is looked at once more here: nothing is removed
because a filter was misread.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from provisioner.common.text import plural
from provisioner.machines.providers.alicloud import ram_roles, tags
from provisioner.machines.providers.alicloud.client import Region
from provisioner.machines.providers.alicloud.findings import unknown
from provisioner.machines.providers.orphans import Found, Thing
from provisioner.machines.providers.removal import HOLDS_DATA
from provisioner.machines.providers.trouble import Trouble


@dataclass(frozen=True, slots=True)
class Kind:
    """How a kind is asked for. `path`: where the rows lie in an answer; `number`, `name`, `state`: keys of a row;
    `filtered`: the call filters by tag."""

    title: str
    call: str
    path: tuple[str, str]
    number: str
    name: str
    state: str = "Status"
    service: str = "ecs"
    filtered: bool = True
    kept: str = ""

    @property
    def permission(self) -> str:
        return f"{self.service}:{self.call}"


KINDS = (
    Kind("instance", "DescribeInstances", ("Instances", "Instance"), "InstanceId", "InstanceName"),
    Kind("disk", "DescribeDisks", ("Disks", "Disk"), "DiskId", "DiskName"),
    Kind("NAT gateway", "DescribeNatGateways", ("NatGateways", "NatGateway"), "NatGatewayId", "Name", service="vpc"),
    Kind("elastic IP address", "DescribeEipAddresses", ("EipAddresses", "EipAddress"), "AllocationId", "Name",
         service="vpc"),
    Kind("key pair", "DescribeKeyPairs", ("KeyPairs", "KeyPair"), "KeyPairName", "KeyPairName"),
    Kind("deployment set", "DescribeDeploymentSets", ("DeploymentSets", "DeploymentSet"), "DeploymentSetId",
         "DeploymentSetName", filtered=False),
    Kind("security group", "DescribeSecurityGroups", ("SecurityGroups", "SecurityGroup"), "SecurityGroupId",
         "SecurityGroupName"),
    Kind("vSwitch", "DescribeVSwitches", ("VSwitches", "VSwitch"), "VSwitchId", "VSwitchName", service="vpc"),
    Kind("VPC", "DescribeVpcs", ("Vpcs", "Vpc"), "VpcId", "VpcName", service="vpc"),
    Kind("NAS file system", "DescribeFileSystems", ("FileSystems", "FileSystem"), "FileSystemId", "Description",
         service="nas", filtered=False, kept=HOLDS_DATA),
)  # fmt: skip
USUAL = {"Available", "Running", "InUse", "In_use"}
"""States that say nothing."""


def find(region: Region) -> Found:
    """Everything that has the tag. Raises Trouble where nobody is signed in, or Alibaba Cloud is not reached at all."""
    region.ask("sts", "GetCallerIdentity")
    resources: list[Thing] = []
    puzzles: list[str] = []
    for kind in KINDS:
        try:
            resources += [resource for row in rows(region, kind) if (resource := _resource(region, kind, row))]
        except Trouble as error:
            finding = unknown(plural(kind.title), error, kind.permission)
            puzzles.append(f"whether there are {plural(kind.title)}: {finding.message} ({finding.action})")
    try:
        resources += ram_roles.find(region)
    except Trouble as error:
        finding = unknown(plural(ram_roles.KIND), error, "ram:ListRoles")
        puzzles.append(f"whether there are {plural(ram_roles.KIND)}: {finding.message} ({finding.action})")
    return Found(tuple(resources), tuple(puzzles))


def existing_ids(region: Region, kind: str) -> set[str]:
    """The ids of a kind that are not gone yet. Raises Trouble."""
    (row,) = [candidate for candidate in KINDS if candidate.title == kind]
    return {
        resource.id
        for resource in (_resource(region, row, entry) for entry in rows(region, row))
        if resource is not None
    }


def rows(region: Region, kind: Kind) -> Iterator[dict[str, Any]]:
    """What the region has of a kind, with the tag where the call can be asked so. Raises Trouble."""
    query = {"Tag": [{"Key": tags.CLUSTER}]} if kind.filtered else {}
    for row in region.all(kind.service, kind.call, *kind.path, **query):
        if kind.title != "disk" or not row.get("InstanceId"):  # a system disk goes with its machine
            yield row


def _resource(region: Region, kind: Kind, row: dict[str, Any]) -> Thing | None:
    """None for what has no tag."""
    resource_tags = tags.of(row)
    if not resource_tags.get(tags.CLUSTER):
        return None
    state = str(row.get(kind.state) or "")
    return Thing(
        kind.title, str(row[kind.number]), resource_tags[tags.CLUSTER], resource_tags.get(tags.SITE, ""), region.name,
        name=str(row.get(kind.name) or ""), state="" if state in USUAL else state, since=since(row), kept=kind.kept,
        identity=resource_tags.get(tags.IDENTITY, ""),
    )  # fmt: skip


def since(row: dict[str, Any]) -> datetime | None:
    """When a thing was made: 2026-11-22T18:40Z or with seconds, by the service."""
    text = str(row.get("CreationTime") or row.get("AllocationTime") or row.get("CreateTime") or "")
    try:
        return datetime.fromisoformat(text.replace("Z", "+00:00")).astimezone(UTC) if text.endswith("Z") else None
    except ValueError:
        return None
