"""What a crash left in a region of Alibaba Cloud: found by tag, removed in the order that it accepts."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from provisioner.common.errors import Diagnostic
from provisioner.machines.providers.alicloud import errors, ram_roles, tagged_resources
from provisioner.machines.providers.alicloud.client import Region
from provisioner.machines.providers.alicloud.findings import credentials
from provisioner.machines.providers.orphans import Found, Thing
from provisioner.machines.providers.removal import PAUSE_S, WAIT_S, Order, Removal, query
from provisioner.machines.providers.trouble import Trouble, gone_is_fine

HOW: Mapping[str, tuple[str, str, Callable[[str], dict[str, Any]]]] = {
    "instance": ("ecs", "DeleteInstance", lambda number: {"InstanceId": number, "Force": True}),
    "disk": ("ecs", "DeleteDisk", lambda number: {"DiskId": number}),
    "NAT gateway": ("vpc", "DeleteNatGateway", lambda number: {"NatGatewayId": number, "Force": True}),
    "elastic IP address": ("vpc", "ReleaseEipAddress", lambda number: {"AllocationId": number}),
    "key pair": ("ecs", "DeleteKeyPairs", lambda name: {"KeyPairNames": json.dumps([name])}),
    "deployment set": ("ecs", "DeleteDeploymentSet", lambda number: {"DeploymentSetId": number}),
    "security group": ("ecs", "DeleteSecurityGroup", lambda number: {"SecurityGroupId": number}),
    "vSwitch": ("vpc", "DeleteVSwitch", lambda number: {"VSwitchId": number}),
    "VPC": ("vpc", "DeleteVpc", lambda number: {"VpcId": number}),
}
"""Kind → service, call and its arguments. `Force` takes a running instance, and a gateway's SNAT entries and address
with it. https://www.alibabacloud.com/help/en/ecs/developer-reference/api-ecs-2014-05-26-deleteinstance"""


class InRegion(Removal):
    """One region."""

    order = Order(
        machines=("instance",), linger=("NAT gateway",),
        then=("elastic IP address", "disk", "key pair", "deployment set", ram_roles.KIND),
        network=("security group", "vSwitch", "VPC"),
    )  # fmt: skip

    def __init__(self, region: Region, *, wait_s: float = WAIT_S, pause_s: float = PAUSE_S) -> None:
        super().__init__(region.name, wait_s=wait_s, pause_s=pause_s)
        self._region = region

    def find(self) -> Found:
        return query(lambda: tagged_resources.find(self._region), self._region.name, credentials)

    def delete(self, resource: Thing) -> None:
        if resource.kind == ram_roles.KIND:
            ram_roles.delete(self._region, resource.id)
            return
        service, call, arguments = HOW[resource.kind]
        with gone_is_fine():
            self._region.ask(service, call, **arguments(resource.id))

    def existing_ids(self, kind: str) -> set[str]:
        return tagged_resources.existing_ids(self._region, kind)

    def busy(self, error: Trouble) -> bool:
        return errors.read(Diagnostic(f"Code: {error.code}, Message: {error.message}")).kind == "conflict"

    def protected(self, error: Trouble) -> bool:
        return "deletion protection" in error.message.lower() or "DeletionProtection" in error.code


def orphans(region: str) -> InRegion:
    return InRegion(Region(region))
