"""The zones that are asked for machines, and what AWS says where they can't be had."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime

from provisioner.common.errors import Diagnostic, GpuprovError
from provisioner.common.preflight import Finding
from provisioner.machines.providers.aws import errors, probe, reservations
from provisioner.machines.providers.aws.client import Region
from provisioner.machines.providers.aws.preflight import zones_selling
from provisioner.machines.providers.aws.site import AwsSite
from provisioner.machines.providers.base import Place
from provisioner.machines.providers.capacity import Choices, Way
from provisioner.machines.providers.cloud_errors import CloudError
from provisioner.machines.providers.trouble import Trouble
from provisioner.plan.models import Plan, PlannedGroup


class Ec2Capacity:
    """See providers/capacity.py for the contract."""

    def __init__(self, site_context: Place, site: AwsSite) -> None:
        self._site_context, self._site = site_context, site
        self.region = site.region

    def zones(self, plan: Plan) -> Sequence[str]:
        """cluster.yaml's zones in its order, or those that sell every machine of the site, found once and kept."""
        workspace = self._site_context.workspace
        choices = Choices.read(workspace)
        if self._site.zones or choices.zones:
            return self._site.zones or choices.zones
        region = Region(self.region)
        names = sorted({group.machine.name for group in plan.groups if group.site == self._site_context.site})
        try:
            sold = [set(zones_selling(region, name)) for name in names]
        except Trouble as error:
            raise GpuprovError(f"which zones sell {names[0]}: {error}", hint="name them in sites.*.zones") from None
        choices.zones = tuple(sorted(set.intersection(*sold)))
        if not choices.zones:
            raise GpuprovError(
                f"no zone of {self.region} sells {' and '.join(names)}", hint="give each group a site of its own"
            )
        choices.write(workspace)
        return choices.zones

    def probe(self, plan: Plan, existing_nodes: Collection[str]) -> list[Finding]:
        site_groups = [
            group for group in plan.groups if group.site == self._site_context.site and group.spec.capacity.probe
        ]
        zones, findings = self.zones(plan), list[Finding]()
        for group in site_groups:
            missing_count = sum(name not in existing_nodes for name in group.node_names())
            if missing_count:
                option, option_findings = probe.ask(
                    Region(self.region), group, missing_count, zones, self._site_context
                )
                findings += option_findings
                if option is not None and missing_count == group.spec.count:  # none stands in another zone
                    choices = Choices.read(self._site_context.workspace)
                    choices.taken[group.name] = option
                    choices.write(self._site_context.workspace)
        return findings

    def ends(self, plan: Plan) -> Mapping[str, datetime]:
        region, end_times = Region(self.region), dict[str, datetime]()
        for group in plan.groups:
            if group.site == self._site_context.site and group.spec.capacity.kind == "block":
                try:
                    ends = reservations.end(region, group)
                except Trouble as error:
                    raise GpuprovError(f"when the block of {group.name} ends: {error}") from None
                end_times |= {group.name: ends} if ends else {}
        return end_times

    def error(self, diagnostic: Diagnostic, group: PlannedGroup | None, option: Way | None) -> CloudError:
        return errors.read(diagnostic, self.region, group, option, errors.decoder(Region(self.region)))
