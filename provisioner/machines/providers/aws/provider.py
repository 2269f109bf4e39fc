"""Amazon EC2: real machines by terraform/aws. See providers/base.py for the contract."""

from __future__ import annotations

import shutil
from collections.abc import Collection, Sequence

from provisioner.common.errors import GpuprovError
from provisioner.common.events import Events
from provisioner.common.preflight import Finding
from provisioner.machines.providers.aws import image, permissions, storage
from provisioner.machines.providers.aws import market as ec2_market
from provisioner.machines.providers.aws import orphans as in_region
from provisioner.machines.providers.aws.access import Ec2Access
from provisioner.machines.providers.aws.capacity import Ec2Capacity
from provisioner.machines.providers.aws.client import Region
from provisioner.machines.providers.aws.images import Ec2Images
from provisioner.machines.providers.aws.module import Ec2Module
from provisioner.machines.providers.aws.preflight import caller_identity, preflight
from provisioner.machines.providers.aws.site import AwsSite
from provisioner.machines.providers.base import Place, Provider
from provisioner.machines.providers.market import Market
from provisioner.machines.providers.orphans import Orphans
from provisioner.machines.providers.public_address import PublicAddress
from provisioner.machines.providers.removal import SOMEWHERE, forgotten
from provisioner.plan.models import Plan, PlannedGroup
from provisioner.stack.models import BaseImage

TUNNEL_PROGRAMS = {"ssm": ("aws", "session-manager-plugin"), "instance-connect": ("aws",)}
INSTALL = (
    "https://docs.aws.amazon.com/cli/latest/userguide/getting-started-install.html, and for Session Manager its plugin"
)


class Aws(Provider):
    """One region."""

    name = "aws"

    def __init__(self, site_context: Place) -> None:
        super().__init__(site_context)
        assert isinstance(site_context.settings, AwsSite)
        self._site = site_context.settings
        self._public_address = PublicAddress(called=self._site.internet == "public" and self._site.connect == "direct")
        self.capacity = Ec2Capacity(site_context, self._site)
        self.module = Ec2Module(site_context, self._site, self.capacity, self._public_address)
        self.access = Ec2Access(self._site)
        self.images = Ec2Images(site_context, self._site)

    @classmethod
    def market(cls) -> Market:
        return ec2_market.market()

    @classmethod
    def orphans(cls, region: str) -> Orphans:
        return in_region.orphans(region)

    def base_image(self, system: str) -> BaseImage:
        return image.base_image(Region(self._site.region), system)

    def vendor_image(self, name: str) -> BaseImage:
        return image.vendor_image(Region(self._site.region), name)

    def who(self) -> Finding:
        return caller_identity(Region(self._site.region))

    def preflight(self, plan: Plan, existing_nodes: Collection[str]) -> list[Finding]:
        settings, site = self._site, self.place.site
        groups = [group for group in plan.groups if group.site == site]
        findings = preflight(
            Region(settings.region), groups, settings.zones, own_vpc=settings.vpc is None, internet=settings.internet,
            existing_nodes=existing_nodes,
        )  # fmt: skip
        if findings[0].status == "ok":
            findings += self._permitted(plan, groups)
        for group in groups:
            base = plan.base(group)
            if base is None or base.id is None:
                message = f"the lock has no image of {group.boots}" + (f": {base.why}" if base else "")
                findings.append(
                    Finding("blocks", f"group {group.name}", message, "run `gpuprov lock` again, signed in")
                )
        if settings.connect != "direct":
            findings += [_program(name) for name in TUNNEL_PROGRAMS[settings.connect]]
        findings += storage.findings(settings)
        for group in groups:
            missing_count = sum(name not in existing_nodes for name in group.node_names())
            if missing_count and group.spec.capacity.kind in ("on-demand", "spot") and not group.spec.capacity.probe:
                message = (
                    f"whether EC2 has {missing_count} × {group.machine.name} now is known only when they are created"
                )
                findings.append(
                    Finding("unknown", f"capacity of {group.name}", message, "capacity.probe: true asks before")
                )
        if self._public_address.is_needed(plan):
            try:
                findings.append(Finding("ok", "access", f"ssh is open to {self._public_address.network} alone"))
            except GpuprovError as error:
                findings.append(Finding("blocks", "access", error.message, "say in access.allow who may log in"))
        return findings

    def _permitted(self, plan: Plan, groups: Sequence[PlannedGroup]) -> list[Finding]:
        """Whether the credentials may do what `up` does."""
        site = self._site
        images = {group.name: base.id for group in groups if (base := plan.base(group))}
        subnet = next(iter(site.vpc.subnets), None) if site.vpc else None
        region = Region(site.region)
        simulated = permissions.simulated(region, plan.spec.name, permissions.required(site))
        return [*simulated, *permissions.tried(region, groups, images, subnet), *storage.buckets(region, site)]

    def clean(self, events: Events) -> list[str]:
        # IAM can't say who uses a role; this one is of nobody else.
        return forgotten(self.place, in_region.orphans(self._site.region), events, own_reason=SOMEWHERE)


def _program(name: str) -> Finding:
    """Whether a program that ssh goes through is on this machine."""
    path = shutil.which(name)
    if path is None:
        return Finding("blocks", "access", f"{name} is not installed, and ssh goes through it", INSTALL)
    return Finding("ok", "access", f"ssh goes through {path}")


PROVIDER = Aws
