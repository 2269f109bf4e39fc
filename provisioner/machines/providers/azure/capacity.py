"""The zones that are asked for machines, and what Azure says where they can't be had.

Without zones in cluster.yaml Azure chooses, which is one way: its name is the region's.
https://learn.microsoft.com/azure/reliability/availability-zones-overview
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime

from provisioner.common.errors import Diagnostic
from provisioner.common.preflight import Finding
from provisioner.machines.providers.azure import errors
from provisioner.machines.providers.azure.site import AzureSite
from provisioner.machines.providers.base import Place
from provisioner.machines.providers.capacity import Way
from provisioner.machines.providers.cloud_errors import CloudError
from provisioner.plan.models import Plan, PlannedGroup


class AzureCapacity:
    """See providers/capacity.py for the contract."""

    def __init__(self, site_context: Place, site: AzureSite) -> None:
        self._site_context, self._site = site_context, site
        self.region = site.region

    def zones(self, plan: Plan) -> Sequence[str]:  # noqa: ARG002
        return self._site.zones or (self.region,)

    def zone(self, zone: str) -> str:
        """A way's zone as Azure knows it: empty where it chooses."""
        return "" if zone == self.region else zone

    def probe(self, plan: Plan, existing_nodes: Collection[str]) -> list[Finding]:  # noqa: ARG002
        """Azure tells it only by making a capacity reservation, which ND machines can't have."""
        return [
            Finding("unknown", f"group {group.name}", "capacity is known only when the machines are created",
                    "capacity.probe does nothing at Azure")
            for group in plan.groups
            if group.site == self._site_context.site and group.spec.capacity.probe
        ]  # fmt: skip

    def ends(self, plan: Plan) -> Mapping[str, datetime]:  # noqa: ARG002
        """Nothing of Azure's is bought for a time."""
        return {}

    def error(self, diagnostic: Diagnostic, group: PlannedGroup | None, option: Way | None) -> CloudError:
        return errors.read(diagnostic, self._site, group, option)
