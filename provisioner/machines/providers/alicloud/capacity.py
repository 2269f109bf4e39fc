"""The zones that are asked for machines, and what Alibaba Cloud says where they can't be had."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime

from provisioner.common.errors import Diagnostic, GpuprovError
from provisioner.common.preflight import Finding
from provisioner.machines.providers.alicloud import errors
from provisioner.machines.providers.alicloud.client import Region
from provisioner.machines.providers.alicloud.findings import unknown
from provisioner.machines.providers.alicloud.site import AlicloudSite
from provisioner.machines.providers.alicloud.stock import IN_STOCK, stock, zones_selling
from provisioner.machines.providers.base import Place
from provisioner.machines.providers.capacity import LATER, Choices, Way
from provisioner.machines.providers.cloud_errors import CloudError
from provisioner.machines.providers.trouble import Trouble
from provisioner.plan.models import Plan, PlannedGroup


class EcsCapacity:
    """See providers/capacity.py for the contract."""

    def __init__(self, site_context: Place, site: AlicloudSite) -> None:
        self._site_context, self._site = site_context, site
        self.region = site.region

    @property
    def listed_zones(self) -> Sequence[str]:
        """The zones that cluster.yaml names: as `zones`, or by a vSwitch in each."""
        return self._site.zones or (tuple(self._site.vpc.vswitches) if self._site.vpc else ())

    def zones(self, plan: Plan) -> Sequence[str]:
        """cluster.yaml's zones in its order, or those that sell every machine of the site, those with stock first,
        found once and kept."""
        workspace = self._site_context.workspace
        choices = Choices.read(workspace)
        if self.listed_zones or choices.zones:
            return self.listed_zones or choices.zones
        region = Region(self.region)
        names = sorted({group.machine.name for group in plan.groups if group.site == self._site_context.site})
        try:
            sold = [zones_selling(region, name) for name in names]
        except Trouble as error:
            raise GpuprovError(f"which zones sell {names[0]}: {error}", hint="name them in sites.*.zones") from None
        choices.zones = tuple(zone for zone in sold[0] if all(zone in machine_zones for machine_zones in sold))
        if not choices.zones:
            raise GpuprovError(
                f"no zone of {self.region} sells {' and '.join(names)}", hint="give each group a site of its own"
            )
        choices.write(workspace)
        return choices.zones

    def probe(self, plan: Plan, existing_nodes: Collection[str]) -> list[Finding]:
        """By what Alibaba Cloud lists as stock: nothing is reserved, so that it is no promise."""
        findings: list[Finding] = []
        for group in plan.groups:
            missing_count = sum(name not in existing_nodes for name in group.node_names())
            if group.site == self._site_context.site and group.spec.capacity.probe and missing_count:
                findings.append(self._listed(plan, group, missing_count))
        return findings

    def _listed(self, plan: Plan, group: PlannedGroup, missing_count: int) -> Finding:
        subject, kind = f"group {group.name}", group.spec.capacity.kind
        try:
            stock_by_zone = stock(Region(self.region), group.machine.name, kind)
        except Trouble as error:
            return unknown(subject, error, "ecs:DescribeAvailableResource")
        zone = next((zone for zone in self.zones(plan) if stock_by_zone.get(zone) in IN_STOCK), None)
        if zone is None:
            message = f"{self.region} lists no {kind} {group.machine.name} in stock in {', '.join(self.zones(plan))}"
            status = "warning" if group.spec.capacity.fallback else "blocks"
            return Finding(status, subject, message, LATER, no_capacity=True)  # type: ignore[arg-type]
        if missing_count == group.spec.count:  # none stands in another zone
            choices = Choices.read(self._site_context.workspace)
            choices.taken[group.name] = Way(kind, zone)
            choices.write(self._site_context.workspace)
        message = f"{group.machine.name} is listed in stock in {zone}; how many, Alibaba Cloud does not say"
        return Finding("ok", subject, message)

    def ends(self, plan: Plan) -> Mapping[str, datetime]:  # noqa: ARG002
        """Pay-as-you-go, spot and machines of a private pool have no end that was bought."""
        return {}

    def error(self, diagnostic: Diagnostic, group: PlannedGroup | None, option: Way | None) -> CloudError:  # noqa: ARG002
        return errors.read(diagnostic)
