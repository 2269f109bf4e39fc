"""What a crash left in a region of Tencent Cloud: found by tag, removed in the order that it accepts."""

from __future__ import annotations

from collections.abc import Mapping

from provisioner.machines.providers.orphans import Found, Thing
from provisioner.machines.providers.removal import PAUSE_S, WAIT_S, Order, Removal, query
from provisioner.machines.providers.tencent import cam_roles, tagged_resources
from provisioner.machines.providers.tencent.client import Region
from provisioner.machines.providers.tencent.findings import credentials
from provisioner.machines.providers.trouble import Trouble, gone_is_fine

BUSY = (
    "ResourceInUse", "MutexOperation", "DesOperation.MutexTaskRunning", "OperationDenied.InstanceOperationInProgress",
    "OperationDenied.MutexTaskRunning", "UnsupportedOperation.MutexOperationTaskRunning", "ResourceUnavailable",
    "FailedOperation.PlacementSetNotEmpty", "InvalidParameterValue.NotEmpty", "UnsupportedOperation.InstanceState",
    "InvalidAddressIdStatus", "InvalidAddressState", "InvalidInstanceState",
    "UnsupportedOperation.AttachmentAlreadyExists",
)  # fmt: skip
"""Beginnings of codes: something that is going still uses it (CVM's and VPC's error codes)."""
PROTECTED = (
    "UnsupportedOperation.InvalidInstanceNotSupportedProtectedInstance",
    "UnsupportedOperation.InstancesProtected",
)
HOW: Mapping[str, tuple[str, str, str, bool]] = {
    "instance": ("cvm", "TerminateInstances", "InstanceIds", True),
    "NAT gateway": ("vpc", "DeleteNatGateway", "NatGatewayId", False),
    "elastic IP address": ("vpc", "ReleaseAddresses", "AddressIds", True),
    "placement group": ("cvm", "DeleteDisasterRecoverGroups", "DisasterRecoverGroupIds", True),
    "key pair": ("cvm", "DeleteKeyPairs", "KeyIds", True),
    "security group": ("vpc", "DeleteSecurityGroup", "SecurityGroupId", False),
    "subnet": ("vpc", "DeleteSubnet", "SubnetId", False),
    "VPC": ("vpc", "DeleteVpc", "VpcId", False),
}
"""Kind → service, call, its argument, and whether that is a list."""


class InRegion(Removal):
    """One region."""

    order = Order(
        machines=("instance",), linger=("NAT gateway",),
        then=("elastic IP address", "placement group", "key pair", cam_roles.KIND),
        network=("security group", "subnet", "VPC"),
    )  # fmt: skip

    def __init__(self, region: Region, *, wait_s: float = WAIT_S, pause_s: float = PAUSE_S) -> None:
        super().__init__(region.name, wait_s=wait_s, pause_s=pause_s)
        self._region = region

    def find(self) -> Found:
        return query(lambda: tagged_resources.find(self._region), self._region.name, credentials)

    def delete(self, resource: Thing) -> None:
        if resource.kind == cam_roles.KIND:
            cam_roles.delete(self._region, resource.id)
            return
        service, call, argument, several = HOW[resource.kind]
        with gone_is_fine():
            self._region.ask(service, call, **{argument: [resource.id] if several else resource.id})

    def existing_ids(self, kind: str) -> set[str]:
        return tagged_resources.existing_ids(self._region, kind)

    def busy(self, error: Trouble) -> bool:
        return error.code.startswith(BUSY)

    def protected(self, error: Trouble) -> bool:
        return error.code in PROTECTED


def orphans(region: str) -> InRegion:
    return InRegion(Region(region))
