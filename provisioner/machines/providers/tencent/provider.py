"""Tencent Cloud CVM: real machines by terraform/tencent. See providers/base.py for the contract."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from provisioner.common.errors import GpuprovError
from provisioner.common.events import Events
from provisioner.common.preflight import Finding
from provisioner.machines.providers.base import Place, Provider
from provisioner.machines.providers.market import Market
from provisioner.machines.providers.orphans import Orphans
from provisioner.machines.providers.public_address import PublicAddress
from provisioner.machines.providers.removal import SOMEWHERE, forgotten
from provisioner.machines.providers.tencent import image, keys, storage
from provisioner.machines.providers.tencent import market as cvm_market
from provisioner.machines.providers.tencent import orphans as in_region
from provisioner.machines.providers.tencent.capacity import CvmCapacity
from provisioner.machines.providers.tencent.images import CvmImages
from provisioner.machines.providers.tencent.module import CvmModule
from provisioner.machines.providers.tencent.preflight import caller_identity, preflight
from provisioner.machines.providers.tencent.site import TencentSite
from provisioner.machines.providers.tencent.stock import region_of
from provisioner.plan.models import Plan
from provisioner.stack.models import BaseImage


class Tencent(Provider):
    """One region."""

    name = "tencent"

    def __init__(self, site_context: Place) -> None:
        super().__init__(site_context)
        assert isinstance(site_context.settings, TencentSite)
        self._site = site_context.settings
        self._public_address = PublicAddress(called=self._site.internet == "public")
        self.capacity: CvmCapacity = CvmCapacity(site_context, self._site)
        self.images = CvmImages(site_context, self._site)
        self.module = CvmModule(site_context, self._site, self.capacity, self._public_address)

    @classmethod
    def market(cls) -> Market:
        return cvm_market.Cvm()

    @classmethod
    def orphans(cls, region: str) -> Orphans:
        return in_region.orphans(region)

    def base_image(self, system: str) -> BaseImage:
        return image.base_image(region_of(self._site), system)

    def who(self) -> Finding:
        return caller_identity(region_of(self._site))

    def preflight(self, plan: Plan, existing_nodes: Collection[str]) -> list[Finding]:
        site, site_context, region = self._site, self.place, region_of(self._site)
        groups = [group for group in plan.groups if group.site == site_context.site]
        images = {group.name: base.id for group in groups if (base := plan.base(group)) is not None}
        findings = preflight(region, site, groups, self._zones(plan), images, existing_nodes)
        if findings[0].status == "ok" and not existing_nodes:
            findings += keys.findings(region, site, _public_key(plan), site_context.cluster, site_context.site)
        for group in groups:
            base = plan.base(group)
            if base is None or base.id is None:
                message = f"the lock has no image of {group.boots}" + (f": {base.why}" if base else "")
                findings.append(
                    Finding("blocks", f"group {group.name}", message, "run `gpuprov lock` again, signed in")
                )
        findings += storage.findings(site)
        if self._public_address.is_needed(plan):
            try:
                findings.append(Finding("ok", "access", f"ssh is open to {self._public_address.network} alone"))
            except GpuprovError as error:
                findings.append(Finding("blocks", "access", error.message, "say in access.allow who may log in"))
        return findings

    def _zones(self, plan: Plan) -> tuple[str, ...]:
        """The zones that machines are asked for in; () where nobody can tell."""
        try:
            return tuple(self.capacity.zones(plan))
        except GpuprovError:
            return ()  # the preflight asks by itself, and says what it could not

    def clean(self, events: Events) -> list[str]:
        return forgotten(self.place, in_region.InRegion(region_of(self._site)), events, own_reason=SOMEWHERE)


def _public_key(plan: Plan) -> str | None:
    """The public half of the key that cluster.yaml names; one that gpuprov makes is in no account."""
    key_path = plan.spec.access.ssh_key
    if key_path is None:
        return None
    try:
        return Path(f"{key_path}.pub").expanduser().read_text(encoding="utf-8")
    except (OSError, ValueError):
        return None  # ssh says so when it is needed


PROVIDER = Tencent
