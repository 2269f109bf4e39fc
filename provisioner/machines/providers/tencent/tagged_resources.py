"""Everything in a region that has the tag gpuprov-cluster, as CVM, VPC and CFS describe it.

One row for each kind of thing that terraform/tencent makes. The tag is looked at once more here: nothing is removed
because a filter was misread.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from provisioner.common.text import plural
from provisioner.machines.providers.orphans import Found, Thing
from provisioner.machines.providers.removal import HOLDS_DATA
from provisioner.machines.providers.tencent import cam_roles
from provisioner.machines.providers.tencent.client import Region
from provisioner.machines.providers.tencent.findings import unknown
from provisioner.machines.providers.trouble import Trouble

CLUSTER, SITE, NODE, IDENTITY = "gpuprov-cluster", "gpuprov-site", "gpuprov-node", "gpuprov-id"
GONE = {"LAUNCH_FAILED", "DELETING"}
"""States of what is listed for a while and goes by itself: instances that never began, file systems."""


@dataclass(frozen=True, slots=True)
class Kind:
    """How a kind is asked for. `number`, `label`, `state`, `since`: keys of a row. `quoted`: the call wants numbers as
    text. `filtered`: the service filters by tag."""

    name: str
    service: str
    call: str
    key: str
    number: str
    label: str
    state: str = ""
    since: str = ""
    quoted: bool = False
    filtered: bool = True
    kept: str = ""


KINDS = (
    Kind("instance", "cvm", "DescribeInstances", "InstanceSet", "InstanceId", "InstanceName", "InstanceState",
         "CreatedTime"),
    Kind("NAT gateway", "vpc", "DescribeNatGateways", "NatGatewaySet", "NatGatewayId", "NatGatewayName", "State",
         "CreatedTime"),
    Kind("elastic IP address", "vpc", "DescribeAddresses", "AddressSet", "AddressId", "AddressName", "AddressStatus",
         "CreatedTime"),
    Kind("placement group", "cvm", "DescribeDisasterRecoverGroups", "DisasterRecoverGroupSet",
         "DisasterRecoverGroupId", "Name", "", "CreateTime"),
    Kind("key pair", "cvm", "DescribeKeyPairs", "KeyPairSet", "KeyId", "KeyName", "", "CreatedTime"),
    Kind("security group", "vpc", "DescribeSecurityGroups", "SecurityGroupSet", "SecurityGroupId", "SecurityGroupName",
         "", "CreatedTime", quoted=True),
    Kind("subnet", "vpc", "DescribeSubnets", "SubnetSet", "SubnetId", "SubnetName", "", "CreatedTime", quoted=True),
    Kind("VPC", "vpc", "DescribeVpcs", "VpcSet", "VpcId", "VpcName", "", "CreatedTime", quoted=True),
    Kind("CFS file system", "cfs", "DescribeCfsFileSystems", "FileSystems", "FileSystemId", "FsName", "LifeCycleState",
         "CreationTime", filtered=False, kept=HOLDS_DATA),
)  # fmt: skip


def find(region: Region) -> Found:
    """Everything that has the tag. Raises Trouble where nobody is signed in, or Tencent Cloud is not reached at all."""
    region.ask("sts", "GetCallerIdentity")
    resources: list[Thing] = []
    unanswered: list[str] = []
    for kind in KINDS:
        try:
            resources += [
                resource for row in _rows(region, kind) if (resource := _resource(region, kind, row)) is not None
            ]
        except Trouble as error:
            finding = unknown(plural(kind.name), error, f"{kind.service}:{kind.call}")
            unanswered.append(f"whether there are {plural(kind.name)}: {finding.message} ({finding.action})")
    try:
        resources += cam_roles.find(region)
    except Trouble as error:
        finding = unknown(plural(cam_roles.KIND), error, "cam:DescribeRoleList")
        unanswered.append(f"whether there are {plural(cam_roles.KIND)}: {finding.message} ({finding.action})")
    return Found(tuple(resources), tuple(unanswered))


def existing_ids(region: Region, kind: str) -> set[str]:
    """The ids of a kind that are not gone yet. Raises Trouble."""
    (row,) = [candidate for candidate in KINDS if candidate.name == kind]
    return {resource.id for entry in _rows(region, row) if (resource := _resource(region, row, entry)) is not None}


def machines(region: Region, cluster: str, site: str) -> list[tuple[str, Mapping[str, str]]]:
    """The instances of a site that are not gone, with their tags. Raises Trouble."""
    filters = [{"Name": f"tag:{key}", "Values": [value]} for key, value in ((CLUSTER, cluster), (SITE, site))]
    rows = region.all("cvm", "DescribeInstances", "InstanceSet", Filters=filters)
    tagged_machines = [
        (str(row["InstanceId"]), tags_of(row)) for row in rows if row.get("InstanceState") not in {*GONE, "TERMINATING"}
    ]
    return [
        (number, tags) for number, tags in tagged_machines if (tags.get(CLUSTER), tags.get(SITE)) == (cluster, site)
    ]


def _rows(region: Region, kind: Kind) -> list[dict[str, Any]]:
    filters = {"Filters": [{"Name": "tag-key", "Values": [CLUSTER]}]} if kind.filtered else {}
    return region.all(kind.service, kind.call, kind.key, number=str if kind.quoted else int, **filters)


def tags_of(row: Mapping[str, Any]) -> dict[str, str]:
    """Of any service's row: each has its own name for them."""
    tags = row.get("Tags") or row.get("TagSet") or ()
    return {
        str(tag.get("Key") or tag.get("TagKey")): str(tag.get("Value") or tag.get("TagValue") or "") for tag in tags
    }


def _resource(region: Region, kind: Kind, row: Mapping[str, Any]) -> Thing | None:
    """None for what is gone already, and what has no tag."""
    tags, state = tags_of(row), str(row.get(kind.state) or "") if kind.state else ""
    if not tags.get(CLUSTER) or state.upper() in GONE:
        return None
    return Thing(
        kind.name, str(row[kind.number]), tags[CLUSTER], tags.get(SITE, ""), region.name,
        name=str(row.get(kind.label) or ""), state="" if state in ("AVAILABLE", "available") else state,
        since=_moment(row.get(kind.since)), kept=kind.kept, identity=tags.get(IDENTITY, ""),
    )  # fmt: skip


def _moment(text: object) -> datetime | None:
    """CVM writes ISO 8601 in UTC, VPC and CFS the time of China without a zone."""
    try:
        moment = datetime.fromisoformat(str(text))
    except ValueError:
        return None
    return moment if moment.tzinfo else datetime.fromisoformat(f"{text}+08:00").astimezone(UTC)
