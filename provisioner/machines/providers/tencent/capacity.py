"""The zones that are asked for machines, and what Tencent Cloud says where they can't be had."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime

from provisioner.common.errors import Diagnostic, GpuprovError
from provisioner.common.preflight import Finding
from provisioner.machines.providers.base import Place
from provisioner.machines.providers.capacity import Choices, Way
from provisioner.machines.providers.cloud_errors import CloudError
from provisioner.machines.providers.tencent import dry_run, errors, stock
from provisioner.machines.providers.tencent.site import TencentSite
from provisioner.machines.providers.trouble import Trouble
from provisioner.plan.models import Plan, PlannedGroup


class CvmCapacity:
    """See providers/capacity.py for the contract."""

    def __init__(self, site_context: Place, site: TencentSite) -> None:
        self._site_context, self._site = site_context, site
        self.region = site.region

    def zones(self, plan: Plan) -> Sequence[str]:
        """cluster.yaml's zones in its order, or those of its subnets; else those that sell every machine of the site,
        the best stocked first, found once and kept."""
        workspace, site = self._site_context.workspace, self._site
        choices = Choices.read(workspace)
        if known_zones := site.zones or tuple(site.vpc.subnets if site.vpc else ()) or choices.zones:
            return known_zones
        groups = [group for group in plan.groups if group.site == self._site_context.site]
        region, ranks = stock.region_of(site), dict[str, list[int]]()
        purchases = sorted({(group.machine.name, group.spec.capacity.kind) for group in groups})
        try:
            for machine, kind in purchases:
                for offer in stock.offers(region, machine, kind):
                    ranks.setdefault(offer.zone, []).append(offer.rank)
        except Trouble as error:
            raise GpuprovError(
                f"which zones sell {purchases[0][0]}: {error}", hint="name them in sites.*.zones"
            ) from None
        sold = [zone for zone, zone_ranks in ranks.items() if len(zone_ranks) == len(purchases)]
        if not sold:
            names = " and ".join(sorted({machine for machine, _ in purchases}))
            raise GpuprovError(f"no zone of {self.region} sells {names}", hint="give each group a site of its own")
        choices.zones = tuple(sorted(sold, key=lambda zone: (max(ranks[zone]), zone)))
        choices.write(workspace)
        return choices.zones

    def probe(self, plan: Plan, existing_nodes: Collection[str]) -> list[Finding]:
        site_groups = [
            group for group in plan.groups if group.site == self._site_context.site and group.spec.capacity.probe
        ]
        zones, findings = self.zones(plan), list[Finding]()
        for group in site_groups:
            missing, base = sum(name not in existing_nodes for name in group.node_names()), plan.base(group)
            if missing and base is not None and base.id is not None:
                region = stock.region_of(self._site)
                option, option_findings = dry_run.ask_in_turn(region, self._site, group, base.id, missing, zones)
                findings += option_findings
                if option is not None and missing == group.spec.count:  # none stands in another zone
                    choices = Choices.read(self._site_context.workspace)
                    choices.taken[group.name] = option
                    choices.write(self._site_context.workspace)
        return findings

    def ends(self, plan: Plan) -> Mapping[str, datetime]:  # noqa: ARG002 (nothing is bought for a time)
        return {}

    def error(self, diagnostic: Diagnostic, group: PlannedGroup | None, option: Way | None) -> CloudError:
        international = self._site.account == "international"
        return errors.read(diagnostic, self.region, group, option, international=international)
