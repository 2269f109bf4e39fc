"""Azure: real machines by terraform/azure. See providers/base.py for the contract."""

from __future__ import annotations

from collections.abc import Collection

from provisioner.common.events import Events
from provisioner.common.preflight import Finding
from provisioner.machines.providers.azure import image
from provisioner.machines.providers.azure import market as azure_market
from provisioner.machines.providers.azure import orphans as in_region
from provisioner.machines.providers.azure.access import AzureAccess
from provisioner.machines.providers.azure.capacity import AzureCapacity
from provisioner.machines.providers.azure.client import Subscription
from provisioner.machines.providers.azure.images import GalleryImages
from provisioner.machines.providers.azure.module import AzureModule
from provisioner.machines.providers.azure.preflight import caller_identity, preflight
from provisioner.machines.providers.azure.site import AzureSite
from provisioner.machines.providers.base import Place, Provider
from provisioner.machines.providers.market import Market
from provisioner.machines.providers.orphans import Orphans
from provisioner.machines.providers.public_address import PublicAddress
from provisioner.machines.providers.removal import forgotten
from provisioner.plan.models import Plan
from provisioner.stack.models import BaseImage


class Azure(Provider):
    """One region."""

    name = "azure"

    def __init__(self, site_context: Place) -> None:
        super().__init__(site_context)
        assert isinstance(site_context.settings, AzureSite)
        self._site = site_context.settings
        self._public_address = PublicAddress(called=self._site.internet == "public")
        self._subscription = Subscription(self._site)
        self.capacity = AzureCapacity(site_context, self._site)
        self.access = AzureAccess(self._subscription)
        self.images = GalleryImages(site_context, self._subscription)
        self.module = AzureModule(site_context, self._subscription, self.capacity, self._public_address)

    def base_image(self, system: str) -> BaseImage:
        return image.base_image(self._subscription, system)

    def vendor_image(self, name: str) -> BaseImage:
        return image.vendor_image(self._subscription, name)

    def who(self) -> Finding:
        return caller_identity(self._subscription)

    def preflight(self, plan: Plan, existing_nodes: Collection[str]) -> list[Finding]:
        return preflight(self._subscription, self.place, plan, existing_nodes, self._public_address)

    def clean(self, events: Events) -> list[str]:
        return forgotten(self.place, in_region.InRegion(self._subscription), events)

    @classmethod
    def market(cls) -> Market:
        return azure_market.market()

    @classmethod
    def orphans(cls, region: str) -> Orphans:
        return in_region.orphans(region)


PROVIDER = Azure
