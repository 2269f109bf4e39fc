"""terraform/alicloud: what the module is told."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from provisioner.common.errors import GpuprovError, ProviderError
from provisioner.machines.providers import first_boot
from provisioner.machines.providers.alicloud import client, tags
from provisioner.machines.providers.alicloud.capacity import EcsCapacity
from provisioner.machines.providers.alicloud.client import Region
from provisioner.machines.providers.alicloud.image import WITHOUT_TOKENS
from provisioner.machines.providers.alicloud.site import AlicloudSite
from provisioner.machines.providers.base import Module, Place, ProviderBlock, Standing
from provisioner.machines.providers.capacity import Choices
from provisioner.machines.providers.public_address import PublicAddress
from provisioner.machines.providers.trouble import Trouble
from provisioner.plan.models import Plan, PlannedGroup

VERSION = ">= 1.250, < 2.0"
"""As terraform/alicloud/versions.tf; a test holds them equal."""
CREATE_S = 1200
"""What the module takes by itself."""


class EcsModule(Module):
    """See providers/base.py for the contract."""

    folder = "alicloud"
    data_resources = ("alicloud_nas_file_system",)

    def __init__(
        self, site_context: Place, site: AlicloudSite, capacity: EcsCapacity, public_address: PublicAddress
    ) -> None:
        self._site_context, self._site, self._capacity, self._public_address = (
            site_context,
            site,
            capacity,
            public_address,
        )

    def blocks(self, plan: Plan) -> Mapping[str, ProviderBlock]:  # noqa: ARG002
        return {"alicloud": ProviderBlock("aliyun/alicloud", VERSION, {"region": self._site.region})}

    def environment(self) -> Mapping[str, str]:
        return client.environment()

    def inputs(self, plan: Plan) -> dict[str, Any]:
        site, site_context = self._site, self._site_context
        allow = [str(network) for network in plan.spec.access.allow if network.version == 4]
        if self._public_address.is_needed(plan):
            allow = [self._public_address.network]
        choices = Choices.read(site_context.workspace)
        groups = [group for group in plan.groups if group.site == site_context.site]
        wait, nas = plan.spec.timeouts.machine_s, site.storage.nas
        return {
            "site": site_context.site,
            "zones": list(self._capacity.zones(plan)),
            "groups": {group.name: self._group(plan, group, choices) for group in groups},
            "internet": site.internet,
            "bandwidth": site.bandwidth_mbps,
            "root": {"performance_level": site.disk_level, **({"kms_key_id": site.kms_key} if site.kms_key else {})},
            "access": {"allow": allow},
            **({"create_timeout": f"{wait}s"} if wait != CREATE_S else {}),
            **({"vpc": {"id": site.vpc.id, "vswitches": dict(site.vpc.vswitches)}} if site.vpc else {}),
            **({"nas": {key: value for key, value in nas.model_dump().items() if value is not None}} if nas else {}),
            **{
                key: value
                for key, value in {
                    "ram_role": site.ram_role,
                    "buckets": [bucket.model_dump() for bucket in site.buckets],
                    "spot_price_limit": site.spot_max_price,
                    "security_groups": list(site.security_groups),
                    "resource_group_id": site.resource_group,
                }.items()
                if value
            },
        }

    def _group(self, plan: Plan, group: PlannedGroup, choices: Choices) -> dict[str, Any]:
        """What the module is told of a group beside what all modules are."""
        option, without = choices.taken.get(group.name), choices.without.get(group.name)
        base = plan.base(group)
        if base is None or base.id is None:
            raise GpuprovError(
                f"the lock has no image of {group.boots} for {self._site_context.site}",
                hint="run `gpuprov lock` again, signed in to Alibaba Cloud",
            )
        return {
            "image_id": base.id,
            **({"metadata_tokens": "optional"} if group.stack.os in WITHOUT_TOKENS else {}),
            **({"zone": option.zone, "kind": option.kind} if option else {}),
            **({"without": without} if without else {}),
        }

    def user_data(self, plan: Plan, ssh_public_key: str) -> str:
        return first_boot.cloud_config(plan.spec.user(self._site_context.site), ssh_public_key)

    def address(self, node: str) -> str:
        return f'module.site.alicloud_instance.node["{node}"]'

    def attached(self, node: str) -> Collection[str]:
        return (
            f'module.site.alicloud_eip_association.node["{node}"]',
            f'module.site.alicloud_ecs_ram_role_attachment.node["{node}"]',
        )

    def described(self, attributes: Mapping[str, Any]) -> dict[str, Any] | None:
        machine_tags = attributes.get("tags") or {}
        return {
            "id": attributes.get("id"), "group": machine_tags.get(tags.GROUP),
            "machine": attributes.get("instance_type"), "zone": attributes.get("availability_zone"),
            "private_ip": attributes.get("private_ip"), "public_ip": attributes.get("public_ip") or None,
        }  # fmt: skip

    def standing(self) -> list[Standing]:
        site_context = self._site_context
        try:
            rows = tags.instances(Region(self._site.region), site_context.cluster, site_context.site)
        except Trouble as error:
            message = f"which machines stand in {self._site.region}: {error}"
            raise ProviderError(message, where=f"site {site_context.site}") from None
        identity = site_context.identity
        return [
            Standing(
                machine_tags.get(tags.NODE, ""),
                str(row["InstanceId"]),
                bool(identity) and machine_tags.get(tags.IDENTITY) == identity,
            )
            for row, machine_tags in ((row, tags.of(row)) for row in rows)
        ]
