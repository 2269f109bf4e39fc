"""terraform/tencent: what the module is told."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from provisioner.common.errors import GpuprovError, ProviderError
from provisioner.machines.providers import first_boot
from provisioner.machines.providers.base import Module, Place, ProviderBlock, Standing
from provisioner.machines.providers.capacity import Choices
from provisioner.machines.providers.public_address import PublicAddress
from provisioner.machines.providers.tencent import tagged_resources
from provisioner.machines.providers.tencent.capacity import CvmCapacity
from provisioner.machines.providers.tencent.client import INTERNATIONAL
from provisioner.machines.providers.tencent.site import TencentSite
from provisioner.machines.providers.tencent.stock import region_of
from provisioner.machines.providers.trouble import Trouble
from provisioner.plan.models import Plan, PlannedGroup

VERSION = ">= 1.83.25, < 2.0"
"""As terraform/tencent/versions.tf; a test holds them equal."""
CREATE_S = 1200
"""What the module takes by itself."""


class CvmModule(Module):
    """See providers/base.py for the contract."""

    folder = "tencent"
    data_resources = ("tencentcloud_cfs_file_system",)

    def __init__(
        self, site_context: Place, site: TencentSite, capacity: CvmCapacity, public_address: PublicAddress
    ) -> None:
        self._site_context, self._site, self._capacity, self._public_address = (
            site_context,
            site,
            capacity,
            public_address,
        )

    def blocks(self, plan: Plan) -> Mapping[str, ProviderBlock]:  # noqa: ARG002
        domain = {"domain": INTERNATIONAL} if self._site.account == "international" else {}
        configuration = {"region": self._site.region, **domain}
        return {"tencentcloud": ProviderBlock("tencentcloudstack/tencentcloud", VERSION, configuration)}

    def inputs(self, plan: Plan) -> dict[str, Any]:
        site, site_context = self._site, self._site_context
        allow = [str(network) for network in plan.spec.access.allow if network.version == 4]
        if self._public_address.is_needed(plan):
            allow = [self._public_address.network]
        choices = Choices.read(site_context.workspace)
        groups = [group for group in plan.groups if group.site == site_context.site]
        wait = plan.spec.timeouts.machine_s
        settings = {
            "bandwidth": site.bandwidth.model_dump(exclude_defaults=True),
            "buckets": [bucket.model_dump() for bucket in site.buckets],
            "cfs": site.storage.cfs.model_dump(exclude_none=True) if site.storage.cfs else None,
            "create_timeout": f"{wait}s" if wait != CREATE_S else None,
            "key_pair": site.key_pair,
            "nfs": [mount.model_dump() for mount in site.storage.nfs],
            "project": site.project,
            "role": site.role,
            "root": site.disk.model_dump(exclude_defaults=True),
            "security_groups": list(site.security_groups),
            "spot_max_price": None if site.spot_max_price is None else f"{site.spot_max_price:g}",
            "spread": site.spread,
            "vpc": {"id": site.vpc.id, "subnets": dict(site.vpc.subnets)} if site.vpc else None,
        }
        return {
            "site": site_context.site,
            "zones": list(self._capacity.zones(plan)),
            "groups": {group.name: self._group(plan, group, choices) for group in groups},
            "internet": site.internet,
            "access": {"allow": allow},
            **{key: value for key, value in settings.items() if value not in (None, {}, [])},
        }

    def _group(self, plan: Plan, group: PlannedGroup, choices: Choices) -> dict[str, Any]:
        """What the module is told of a group beside what all modules are."""
        option, without = choices.taken.get(group.name), choices.without.get(group.name)
        base = plan.base(group)
        if base is None or base.id is None:
            raise GpuprovError(
                f"the lock has no image of {group.boots} for {self._site_context.site}",
                hint="run `gpuprov lock` again, signed in to Tencent Cloud",
            )
        return {
            "image_id": base.id,
            **({"zone": option.zone, "kind": option.kind} if option else {}),
            **({"without": without} if without else {}),
        }

    def user_data(self, plan: Plan, ssh_public_key: str) -> str:
        return first_boot.cloud_config(plan.spec.user(self._site_context.site), ssh_public_key)

    def address(self, node: str) -> str:
        return f'module.site.tencentcloud_instance.node["{node}"]'

    def described(self, attributes: Mapping[str, Any]) -> dict[str, Any] | None:
        tags = attributes.get("tags") or {}
        return {
            "id": attributes.get("id"), "group": tags.get("gpuprov-group"), "machine": attributes.get("instance_type"),
            "zone": attributes.get("availability_zone"), "private_ip": attributes.get("private_ip"),
            "public_ip": attributes.get("public_ip") or None,
        }  # fmt: skip

    def standing(self) -> list[Standing]:
        site_context = self._site_context
        try:
            site_machines = tagged_resources.machines(region_of(self._site), site_context.cluster, site_context.site)
        except Trouble as error:
            message = f"which machines stand in {self._site.region}: {error}"
            raise ProviderError(message, where=f"site {site_context.site}") from None
        identity = site_context.identity
        return [
            Standing(
                tags.get(tagged_resources.NODE, ""),
                number,
                bool(identity) and tags.get(tagged_resources.IDENTITY) == identity,
            )
            for number, tags in site_machines
        ]
