"""What of somebody else holds a cluster's network, so that AWS refuses to delete it: interfaces and security groups in
its VPC that do not have its tags, and groups elsewhere whose rules name one of its own."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

from provisioner.machines.providers.aws.client import Region
from provisioner.machines.providers.aws.tagged_resources import CLUSTER, tags_of
from provisioner.machines.providers.orphans import Thing
from provisioner.machines.providers.trouble import Trouble

OWNERS = ("Owner", "owner", "CreatedBy", "created-by", "aws:cloudformation:stack-name", "kubernetes.io/cluster-name")
"""Tags that say who made something."""


def holders(region: Region, resources: Sequence[Thing]) -> list[str]:
    """One sentence for each thing that holds these, with its owner as far as AWS tells; one for each question that has
    no answer."""
    messages: list[str] = []
    vpcs = [resource.id for resource in resources if resource.kind == "VPC"]
    groups = {resource.id for resource in resources if resource.kind == "security group"}
    clusters = {resource.cluster for resource in resources}
    for subject, query in (("interfaces", _interfaces), ("security groups", _groups)):
        try:
            messages += query(region, vpcs, groups, clusters)
        except Trouble as error:
            messages.append(f"which {subject} hold the network could not be asked: {error.message}")
    return messages


def _interfaces(region: Region, vpcs: Sequence[str], _: Collection[str], clusters: Collection[str]) -> Iterator[str]:
    for row in _within(region, "describe_network_interfaces", "NetworkInterfaces", vpcs):
        if tags_of(row).get(CLUSTER) in clusters:
            continue
        attached = row.get("Attachment", {})
        user = attached.get("InstanceId") or attached.get("InstanceOwnerId") or row.get("RequesterId") or ""
        details = ", ".join(filter(None, (row.get("Description"), row.get("InterfaceType"))))
        of = _owner(row) or user or row.get("OwnerId", "")
        number = row["NetworkInterfaceId"]
        yield f"network interface {number} ({details}) of {of} is in {row.get('SubnetId', row['VpcId'])}"


def _groups(region: Region, vpcs: Sequence[str], groups: Collection[str], clusters: Collection[str]) -> Iterator[str]:
    for row in _within(region, "describe_security_groups", "SecurityGroups", vpcs):
        if row.get("GroupName") != "default" and tags_of(row).get(CLUSTER) not in clusters:
            name, of = row.get("GroupName", ""), _owner(row) or row.get("OwnerId", "")
            yield f"security group {row['GroupId']} ({name}) of {of} is in {row['VpcId']}"
    filters = [{"Name": "ip-permission.group-id", "Values": sorted(groups)}]
    for row in region.all("ec2", "describe_security_groups", "SecurityGroups", Filters=filters) if groups else ():
        if row["GroupId"] not in groups:
            name, of = row.get("GroupName", ""), _owner(row) or row.get("OwnerId", "")
            yield f"a rule of security group {row['GroupId']} ({name}) of {of} names the nodes' group"


def _within(region: Region, call: str, key: str, vpcs: Sequence[str]) -> list[dict[str, Any]]:
    filters = [{"Name": "vpc-id", "Values": list(vpcs)}]
    return region.all("ec2", call, key, Filters=filters) if vpcs else []


def _owner(row: dict[str, Any]) -> str:
    tags = tags_of(row)
    return next((tags[name] for name in OWNERS if tags.get(name)), "")
