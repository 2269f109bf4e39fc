"""Alibaba Cloud ECS: real machines by terraform/alicloud. See providers/base.py for the contract."""

from __future__ import annotations

from collections.abc import Collection

from provisioner.common.errors import GpuprovError
from provisioner.common.events import Events
from provisioner.common.preflight import Finding
from provisioner.machines.providers.alicloud import image
from provisioner.machines.providers.alicloud import market as ecs_market
from provisioner.machines.providers.alicloud import orphans as in_region
from provisioner.machines.providers.alicloud.access import EcsAccess
from provisioner.machines.providers.alicloud.capacity import EcsCapacity
from provisioner.machines.providers.alicloud.client import Region
from provisioner.machines.providers.alicloud.images import EcsImages
from provisioner.machines.providers.alicloud.module import EcsModule
from provisioner.machines.providers.alicloud.preflight import caller_identity, preflight
from provisioner.machines.providers.alicloud.site import AlicloudSite
from provisioner.machines.providers.base import Place, Provider
from provisioner.machines.providers.market import Market
from provisioner.machines.providers.orphans import Orphans
from provisioner.machines.providers.public_address import PublicAddress
from provisioner.machines.providers.removal import SOMEWHERE, forgotten
from provisioner.plan.models import Plan
from provisioner.stack.models import BaseImage


class Alicloud(Provider):
    """One region."""

    name = "alicloud"

    def __init__(self, site_context: Place) -> None:
        super().__init__(site_context)
        assert isinstance(site_context.settings, AlicloudSite)
        self._site = site_context.settings
        self._public_address = PublicAddress(called=self._site.internet == "public" and self._site.jump is None)
        self._zones = EcsCapacity(site_context, self._site)
        self.capacity = self._zones
        self.access = EcsAccess(self._site.region)
        self.images = EcsImages(site_context, self._site)
        self.module = EcsModule(site_context, self._site, self._zones, self._public_address)

    def base_image(self, system: str) -> BaseImage:
        return image.base_image(Region(self._site.region), system)

    def who(self) -> Finding:
        return caller_identity(Region(self._site.region))

    def preflight(self, plan: Plan, existing_nodes: Collection[str]) -> list[Finding]:
        settings, site = self._site, self.place.site
        groups = [group for group in plan.groups if group.site == site]
        images = {group.name: base.id if (base := plan.base(group)) else None for group in groups}
        findings = preflight(
            Region(settings.region), settings, groups, self._zones.listed_zones, images, existing_nodes
        )
        for group in groups:
            base = plan.base(group)
            if base is None or base.id is None:
                message = f"the lock has no image of {group.boots}" + (f": {base.why}" if base else "")
                findings.append(
                    Finding("blocks", f"group {group.name}", message, "run `gpuprov lock` again, signed in")
                )
        if settings.storage.nas is not None:
            path = settings.storage.nas.path
            message = (
                f"`gpuprov down` removes the NAS file system at {path} with its data; its price is in no figure here"
            )
            findings.append(Finding("warning", "storage", message, "keep a copy of what has to stay"))
        if self._public_address.is_needed(plan):
            try:
                findings.append(Finding("ok", "access", f"ssh is open to {self._public_address.network} alone"))
            except GpuprovError as error:
                findings.append(Finding("blocks", "access", error.message, "say in access.allow who may log in"))
        return findings

    @classmethod
    def market(cls) -> Market:
        return ecs_market.market()

    @classmethod
    def orphans(cls, region: str) -> Orphans:
        return in_region.orphans(region)

    def clean(self, events: Events) -> list[str]:
        return forgotten(self.place, in_region.orphans(self._site.region), events, own_reason=SOMEWHERE)


PROVIDER = Alicloud
