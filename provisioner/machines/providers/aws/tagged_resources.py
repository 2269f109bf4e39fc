"""Everything in a region that has the tag gpuprov-cluster, as EC2, EFS, FSx and IAM describe it.

One row for each kind of thing that terraform/aws makes. What is terminated or deleted keeps its tags for up to an hour
and is left out. The tag is looked at once more here: nothing is removed because a filter was misread.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from provisioner.common.text import plural
from provisioner.machines.providers.aws.client import Region
from provisioner.machines.providers.aws.findings import unknown
from provisioner.machines.providers.orphans import Found, Thing
from provisioner.machines.providers.removal import HOLDS_DATA, SOMEWHERE
from provisioner.machines.providers.trouble import Trouble

CLUSTER, SITE, NODE, IDENTITY = "gpuprov-cluster", "gpuprov-site", "gpuprov-node", "gpuprov-id"
GONE = {"terminated", "deleted", "delete-complete", "cancelled", "closed", "failed"}
"""Last states of what keeps its tags for a while: instances, NAT gateways, endpoints, spot requests, file systems."""


@dataclass(frozen=True, slots=True)
class Kind:
    """How a kind is asked for. `number`, `state`, `since`: keys of a row. `filtered`: EC2 filters by tag."""

    name: str
    call: str
    key: str
    number: str
    state: str = ""
    since: str = ""
    service: str = "ec2"
    filtered: bool = True
    kept: str = ""

    @property
    def permission(self) -> str:
        service = {"efs": "elasticfilesystem"}.get(self.service, self.service)
        return f"{service}:{''.join(part.capitalize() for part in self.call.split('_'))}"


KINDS = (
    Kind("spot request", "describe_spot_instance_requests", "SpotInstanceRequests", "SpotInstanceRequestId", "State",
         "CreateTime"),
    Kind("instance", "describe_instances", "Reservations", "InstanceId", "State", "LaunchTime"),
    Kind("instance connect endpoint", "describe_instance_connect_endpoints", "InstanceConnectEndpoints",
         "InstanceConnectEndpointId", "State", "CreatedAt"),
    Kind("VPC endpoint", "describe_vpc_endpoints", "VpcEndpoints", "VpcEndpointId", "State", "CreationTimestamp"),
    Kind("NAT gateway", "describe_nat_gateways", "NatGateways", "NatGatewayId", "State", "CreateTime"),
    Kind("network interface", "describe_network_interfaces", "NetworkInterfaces", "NetworkInterfaceId", "Status"),
    Kind("elastic IP address", "describe_addresses", "Addresses", "AllocationId"),
    Kind("volume", "describe_volumes", "Volumes", "VolumeId", "State", "CreateTime"),
    Kind("launch template", "describe_launch_templates", "LaunchTemplates", "LaunchTemplateId", "", "CreateTime"),
    Kind("placement group", "describe_placement_groups", "PlacementGroups", "GroupName", "State"),
    Kind("key pair", "describe_key_pairs", "KeyPairs", "KeyName", "", "CreateTime"),
    Kind("security group", "describe_security_groups", "SecurityGroups", "GroupId"),
    Kind("subnet", "describe_subnets", "Subnets", "SubnetId"),
    Kind("route table", "describe_route_tables", "RouteTables", "RouteTableId"),
    Kind("internet gateway", "describe_internet_gateways", "InternetGateways", "InternetGatewayId"),
    Kind("VPC", "describe_vpcs", "Vpcs", "VpcId"),
    Kind("EFS file system", "describe_file_systems", "FileSystems", "FileSystemId", "LifeCycleState", "CreationTime",
         service="efs", filtered=False, kept=HOLDS_DATA),
    Kind("FSx file system", "describe_file_systems", "FileSystems", "FileSystemId", "Lifecycle", "CreationTime",
         service="fsx", filtered=False, kept=HOLDS_DATA),
)  # fmt: skip


def find(region: Region) -> Found:
    """Everything that has the tag. Raises Trouble where nobody is signed in, or AWS is not reached at all."""
    region.ask("sts", "get_caller_identity")
    resources: list[Thing] = []
    puzzles: list[str] = []
    profiles: dict[str, set[str]] = {}
    for kind in KINDS:
        try:
            for row in _rows(region, kind):
                resource = _resource(region, kind, row)
                if resource is None:
                    continue
                resources.append(resource)
                profiles.setdefault(resource.cluster, set()).update(_profiles(region, kind, row))
        except Trouble as error:
            puzzles.append(_puzzle(plural(kind.name), error, kind.permission))
    for kind_name in ("instance profile", "role"):
        try:
            resources += _iam(region, kind_name, profiles)
        except Trouble as error:
            names = "InstanceProfile" if kind_name == "instance profile" else "Role"
            puzzles.append(_puzzle(f"{kind_name}s", error, f"iam:List{names}s and iam:Get{names}"))
    return Found(tuple(resources), tuple(puzzles))


def existing_ids(region: Region, kind: str) -> set[str]:
    """The ids of a kind that are not gone yet. Raises Trouble."""
    (row,) = [candidate for candidate in KINDS if candidate.name == kind]
    return {
        resource.id
        for resource in (_resource(region, row, entry) for entry in _rows(region, row))
        if resource is not None
    }


def _puzzle(subject: str, error: Trouble, permission: str) -> str:
    finding = unknown(subject, error, permission)
    return f"whether there are {subject}: {finding.message} ({finding.action})"


def _rows(region: Region, kind: Kind) -> Iterator[dict[str, Any]]:
    filters = {"Filters": [{"Name": "tag-key", "Values": [CLUSTER]}]} if kind.filtered else {}
    for row in region.all(kind.service, kind.call, kind.key, **filters):
        yield from row["Instances"] if kind.name == "instance" else (row,)


def tags_of(row: dict[str, Any]) -> dict[str, str]:
    """Of any service's row: each has its own name for them."""
    tags = row.get("Tags") or row.get("TagSet") or ()
    return {tag["Key"]: tag["Value"] for tag in tags}


def rows_of(tags: Mapping[str, str]) -> list[dict[str, str]]:
    """As EC2 takes tags."""
    return [{"Key": key, "Value": value} for key, value in tags.items()]


def _resource(region: Region, kind: Kind, row: dict[str, Any]) -> Thing | None:
    """None for what is gone already, what has no tag, and a VPC's default group, which goes with it."""
    tags, state = tags_of(row), row.get(kind.state, "") if kind.state else ""
    state = str(state["Name"] if isinstance(state, dict) else state)
    default = kind.name == "security group" and row.get("GroupName") == "default"
    if not tags.get(CLUSTER) or state.lower() in GONE or default:
        return None
    since = row.get(kind.since) if kind.since else None
    return Thing(
        kind.name, str(row[kind.number]), tags[CLUSTER], tags.get(SITE, ""), region.name, name=tags.get("Name", ""),
        state="" if state == "available" else state, since=since if isinstance(since, datetime) else None,
        kept=kind.kept, identity=tags.get(IDENTITY, ""),
    )  # fmt: skip


def _profiles(region: Region, kind: Kind, row: dict[str, Any]) -> Iterator[str]:
    """The instance profiles that an instance or a launch template names."""
    if kind.name == "instance" and row.get("IamInstanceProfile"):
        yield str(row["IamInstanceProfile"]["Arn"]).rpartition("/")[2]
    if kind.name == "launch template":
        number = row["LaunchTemplateId"]
        versions = region.ask("ec2", "describe_launch_template_versions", LaunchTemplateId=number, Versions=["$Latest"])
        for version in versions["LaunchTemplateVersions"]:
            if name := version["LaunchTemplateData"].get("IamInstanceProfile", {}).get("Name"):
                yield str(name)


def _iam(region: Region, kind: str, profiles: dict[str, set[str]]) -> Iterator[Thing]:
    """Roles or instance profiles of the module: both have the same name. One that nothing in this region uses is kept,
    because IAM does not say which region's cluster it is of."""
    role = kind == "role"
    call, key, number = ("list_roles", "Roles", "RoleName") if role else (
        "list_instance_profiles", "InstanceProfiles", "InstanceProfileName",
    )  # fmt: skip
    for row in region.all("iam", call, key):
        name = str(row[number])
        if not name.startswith("gpuprov-"):
            continue
        # The list has no tags.
        if role:
            tags = tags_of(region.ask("iam", "get_role", RoleName=name)["Role"])
        else:
            tags = tags_of(region.ask("iam", "get_instance_profile", InstanceProfileName=name)["InstanceProfile"])
        if cluster := tags.get(CLUSTER):
            keep_reason = "" if name in profiles.get(cluster, ()) else SOMEWHERE
            yield Thing(
                kind, name, cluster, tags.get(SITE, ""), "IAM", since=row["CreateDate"], kept=keep_reason,
                identity=tags.get(IDENTITY, ""),
            )  # fmt: skip
