"""How each kind of thing of an AWS region is deleted: one call, or the few that EC2 and IAM want before it.

Each raises Trouble where AWS refuses; what is not there any more is `absent` or in NO_MORE.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from provisioner.machines.providers.aws.client import Region
from provisioner.machines.providers.trouble import Trouble

NO_MORE = {"NoSuchEntity"}
"""IAM's word for what is gone already: it has no ending that says so."""


def delete(region: Region, kind: str, number: str) -> None:
    """Delete one thing, or begin to. Raises Trouble."""
    try:
        _HOW[kind](region, number)
    except Trouble as error:
        if error.kind != "absent" and error.code not in NO_MORE:
            raise


def close(region: Region, group: str) -> None:
    """Take the rules out of a security group: one that another group's rule names can't be deleted. Raises Trouble."""
    for row in region.all("ec2", "describe_security_groups", "SecurityGroups", GroupIds=[group]):
        if row["IpPermissions"]:
            region.ask("ec2", "revoke_security_group_ingress", GroupId=group, IpPermissions=row["IpPermissions"])
        if row["IpPermissionsEgress"]:
            region.ask("ec2", "revoke_security_group_egress", GroupId=group, IpPermissions=row["IpPermissionsEgress"])


def _plain(call: str, key: str, *, several: bool = False) -> Callable[[Region, str], None]:
    def plain(region: Region, number: str) -> None:
        answer = region.ask("ec2", call, **{key: [number] if several else number})
        for refused in answer.get("Unsuccessful", ()):  # calls for several answer 200 and say it there
            error: dict[str, Any] = refused["Error"]
            code = str(error.get("Code", ""))
            raise Trouble("absent" if code.endswith("NotFound") else "refused", str(error.get("Message") or code), code)

    return plain


def _address(region: Region, number: str) -> None:
    for address in region.ask("ec2", "describe_addresses", AllocationIds=[number])["Addresses"]:
        if association := address.get("AssociationId"):
            region.ask("ec2", "disassociate_address", AssociationId=association)
    region.ask("ec2", "release_address", AllocationId=number)


def _route_table(region: Region, number: str) -> None:
    for route_table in region.all("ec2", "describe_route_tables", "RouteTables", RouteTableIds=[number]):
        for association in route_table.get("Associations", ()):
            if not association.get("Main"):
                region.ask("ec2", "disassociate_route_table", AssociationId=association["RouteTableAssociationId"])
    region.ask("ec2", "delete_route_table", RouteTableId=number)


def _internet_gateway(region: Region, number: str) -> None:
    for gateway in region.all("ec2", "describe_internet_gateways", "InternetGateways", InternetGatewayIds=[number]):
        for attached in gateway.get("Attachments", ()):
            region.ask("ec2", "detach_internet_gateway", InternetGatewayId=number, VpcId=attached["VpcId"])
    region.ask("ec2", "delete_internet_gateway", InternetGatewayId=number)


def _profile(region: Region, name: str) -> None:
    profile = region.ask("iam", "get_instance_profile", InstanceProfileName=name)["InstanceProfile"]
    for role in profile["Roles"]:
        region.ask("iam", "remove_role_from_instance_profile", InstanceProfileName=name, RoleName=role["RoleName"])
    region.ask("iam", "delete_instance_profile", InstanceProfileName=name)


def _role(region: Region, name: str) -> None:
    for policy in region.all("iam", "list_role_policies", "PolicyNames", RoleName=name):
        region.ask("iam", "delete_role_policy", RoleName=name, PolicyName=policy)
    for attached in region.all("iam", "list_attached_role_policies", "AttachedPolicies", RoleName=name):
        region.ask("iam", "detach_role_policy", RoleName=name, PolicyArn=attached["PolicyArn"])
    region.ask("iam", "delete_role", RoleName=name)


_HOW: dict[str, Callable[[Region, str], None]] = {
    "spot request": _plain("cancel_spot_instance_requests", "SpotInstanceRequestIds", several=True),
    "instance": _plain("terminate_instances", "InstanceIds", several=True),
    "instance connect endpoint": _plain("delete_instance_connect_endpoint", "InstanceConnectEndpointId"),
    "VPC endpoint": _plain("delete_vpc_endpoints", "VpcEndpointIds", several=True),
    "NAT gateway": _plain("delete_nat_gateway", "NatGatewayId"),
    "network interface": _plain("delete_network_interface", "NetworkInterfaceId"),
    "elastic IP address": _address,
    "volume": _plain("delete_volume", "VolumeId"),
    "instance profile": _profile,
    "role": _role,
    "launch template": _plain("delete_launch_template", "LaunchTemplateId"),
    "placement group": _plain("delete_placement_group", "GroupName"),
    "key pair": _plain("delete_key_pair", "KeyName"),
    "security group": _plain("delete_security_group", "GroupId"),
    "subnet": _plain("delete_subnet", "SubnetId"),
    "route table": _route_table,
    "internet gateway": _internet_gateway,
    "VPC": _plain("delete_vpc", "VpcId"),
}
