"""terraform/azure: what the module is told."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from provisioner.common.errors import GpuprovError, ProviderError
from provisioner.machines.providers import first_boot
from provisioner.machines.providers.azure import machines
from provisioner.machines.providers.azure.capacity import AzureCapacity
from provisioner.machines.providers.azure.client import Subscription
from provisioner.machines.providers.base import Module, Place, ProviderBlock, Standing
from provisioner.machines.providers.capacity import Choices
from provisioner.machines.providers.public_address import PublicAddress
from provisioner.machines.providers.trouble import Trouble
from provisioner.plan.models import Plan, PlannedGroup

VERSION = ">= 4.75, < 5.0"
"""As terraform/azure/versions.tf; a test holds them equal."""
CREATE_S = 1200
"""What the module takes by itself."""
PLAIN_NETWORK = ("Standard_ND40rs_v2", "Standard_NC6s_v3", "Standard_NC24rs_v3")
"""Sizes without accelerated networking.
https://learn.microsoft.com/azure/virtual-machines/sizes/gpu-accelerated/ndv2-series, …/ncv3-series"""
FEATURES = {
    # A machine that Azure has begun to make is in the state at once: one that it could not finish is replaced by the
    # next apply, not in its way. github.com/hashicorp/terraform-provider-azurerm/issues/7516
    "persist_id_on_create_before_polling_for_completion": True,
    # What a killed run has made is taken over. Every name has the cluster's own id in it.
    "skip_import_check_on_create_and_allow_overwriting_existing_resources": True,
    # Only nodes reach the storage account of a file share: azurerm must not wait until it answers this machine.
    "storage": {"data_plane_available": False},
}
"""https://registry.terraform.io/providers/hashicorp/azurerm/latest/docs/guides/features-block"""


class AzureModule(Module):
    """See providers/base.py for the contract."""

    folder = "azure"
    data_resources = ("azurerm_storage_account", "azurerm_storage_share")

    def __init__(
        self, site_context: Place, subscription: Subscription, capacity: AzureCapacity, public_address: PublicAddress
    ) -> None:
        self._site_context, self._subscription, self._capacity, self._public_address = (
            site_context,
            subscription,
            capacity,
            public_address,
        )
        self._site = subscription.site

    def blocks(self, plan: Plan) -> Mapping[str, ProviderBlock]:  # noqa: ARG002
        try:
            number = self._subscription.id
        except Trouble as error:
            hint = "`az login`, or sites.*.subscription"
            raise GpuprovError(error.message, where=f"site {self._site_context.site}", hint=hint) from None
        configuration = {
            "subscription_id": number, "environment": self._subscription.cloud.terraform,
            "resource_provider_registrations": "none",
        }  # fmt: skip
        return {"azurerm": ProviderBlock("hashicorp/azurerm", VERSION, configuration, {"features": FEATURES})}

    def inputs(self, plan: Plan) -> dict[str, Any]:
        site, site_context = self._site, self._site_context
        allow = [str(network) for network in plan.spec.access.allow if network.version == 4]
        if self._public_address.is_needed(plan):
            allow = [self._public_address.network]
        choices = Choices.read(site_context.workspace)
        groups = [group for group in plan.groups if group.site == site_context.site]
        disk = {"encryption_set_id": site.disk_encryption_set, "encryption_at_host": site.encryption_at_host}
        wait = plan.spec.timeouts.machine_s
        return {
            "site": site_context.site,  # always: a name that changed would be another resource
            "location": site.region,
            "admin_user": plan.spec.user(site_context.site),
            "groups": {group.name: self._group(plan, group, choices) for group in groups},
            "internet": site.internet,
            "access": {"allow": allow},
            **({"resource_group": site.resource_group} if site.resource_group else {}),
            **({"network": {"subnet_id": site.subnet}} if site.subnet else {}),
            **({"identities": list(site.identities)} if site.identities else {}),
            **({"disk": disk} if any(disk.values()) else {}),
            **({"spot": {"max_price": site.spot_max_price}} if site.spot_max_price is not None else {}),
            **({"files": site.storage.files.model_dump()} if site.storage.files else {}),
            **({"create_timeout": f"{wait}s"} if wait != CREATE_S else {}),
        }

    def _group(self, plan: Plan, group: PlannedGroup, choices: Choices) -> dict[str, Any]:
        """What the module is told of a group beside what all modules are."""
        option, without = choices.taken.get(group.name), choices.without.get(group.name)
        base = plan.base(group)
        if base is None or base.id is None:
            raise GpuprovError(
                f"the lock has no image of {group.boots} for {self._site_context.site}",
                hint="run `gpuprov lock` again, signed in to Azure",
            )
        return {
            "image": base.id,
            **({"infiniband": True} if group.machine.network.kind == "infiniband" else {}),
            **({"accelerated_networking": False} if group.machine.name in PLAIN_NETWORK else {}),
            **({"zone": self._capacity.zone(option.zone), "kind": option.kind} if option else {}),
            **({"without": without} if without else {}),
        }

    def user_data(self, plan: Plan, ssh_public_key: str) -> str:
        return first_boot.cloud_config(plan.spec.user(self._site_context.site), ssh_public_key)

    def address(self, node: str) -> str:
        return f'module.site.azurerm_linux_virtual_machine.node["{node}"]'

    def described(self, attributes: Mapping[str, Any]) -> dict[str, Any] | None:
        tags = attributes.get("tags") or {}
        return {
            "id": attributes.get("virtual_machine_id"), "group": tags.get(machines.GROUP),
            "machine": attributes.get("size"), "zone": attributes.get("zone") or "",
            "private_ip": attributes.get("private_ip_address"),
            "public_ip": attributes.get("public_ip_address") or None,
        }  # fmt: skip

    def standing(self) -> list[Standing]:
        site_context = self._site_context
        try:
            site_machines = machines.of_site(self._subscription, site_context.cluster, site_context.site)
        except Trouble as error:
            message = f"which machines stand in {self._site.region}: {error}"
            raise ProviderError(message, where=f"site {site_context.site}") from None
        identity = site_context.identity
        return [
            Standing(
                machine.tags.get(machines.NODE, ""),
                machine.id,
                bool(identity) and machine.tags.get(machines.IDENTITY) == identity,
            )
            for machine in site_machines
        ]
