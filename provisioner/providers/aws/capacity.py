"""Shortages in EC2's words, and the zones that are asked."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from provisioner.errors import GpuprovError
from provisioner.plan import Plan
from provisioner.providers.aws.client import Region, Trouble
from provisioner.providers.aws.preflight import zones_selling
from provisioner.providers.aws.site import AwsSite
from provisioner.providers.base import Place
from provisioner.providers.capacity import Choices, Shortage

NO_MACHINES = (
    "InsufficientInstanceCapacity", "InsufficientCapacityOnHost", "Unsupported", "ReservationCapacityExceeded",
    "InsufficientFreeAddressesInSubnet",
)  # fmt: skip
"""RunInstances has no room for these machines in that zone, or never sells them there (EC2 API error codes)."""
NO_SPOT = ("SpotMaxPriceTooLow", "MaxSpotInstanceCountExceeded")
"""Another zone would not help: the next kind is asked for."""
_FAILED = re.compile(r'aws_instance\.node\["([^"]+)-\d+"\]: .*?api error (\w+): (.*)')
_ZONE = re.compile(r"\b[a-z]{2}(?:-[a-z]+)+-\d[a-z]\b")


class Ec2Capacity:
    """See providers/capacity.py for the contract."""

    def __init__(self, place: Place, site: AwsSite) -> None:
        self._place, self._site = place, site
        self.region = site.region

    def zones(self, plan: Plan) -> Sequence[str]:
        """cluster.yaml's zones in its order, or those that sell every machine of the site, found once and kept."""
        workspace = self._place.workspace
        choices = Choices.read(workspace)
        if self._site.zones or choices.zones:
            return self._site.zones or choices.zones
        region = Region(self.region)
        names = sorted({group.machine.name for group in plan.groups if group.site == self._place.site})
        try:
            sold = [set(zones_selling(region, name)) for name in names]
        except Trouble as trouble:
            raise GpuprovError(f"which zones sell {names[0]}: {trouble}", hint="name them in sites.*.zones") from None
        choices.zones = tuple(sorted(set.intersection(*sold)))
        if not choices.zones:
            raise GpuprovError(
                f"no zone of {self.region} sells {' and '.join(names)}", hint="give each group a site of its own"
            )
        choices.write(workspace)
        return choices.zones

    def shortages(self, error: str) -> Mapping[str, Shortage]:
        return shortages(error)


def shortages(error: str) -> Mapping[str, Shortage]:
    """Group → the shortage in Terraform's words; a group that failed for another reason as well is left out, because
    another zone would not help it."""
    found: dict[str, Shortage] = {}
    others: set[str] = set()
    for line in error.splitlines():
        for name, code, message in _FAILED.findall(line):
            if code in (*NO_MACHINES, *NO_SPOT):
                found.setdefault(name, Shortage(name, code, _named(message), code in NO_SPOT))
            else:
                others.add(name)
    return {name: shortage for name, shortage in found.items() if name not in others}


def _named(message: str) -> tuple[str, ...]:
    """Zones that the message offers: those after "choosing"."""
    _, offered, rest = message.partition("choosing ")
    return tuple(dict.fromkeys(_ZONE.findall(rest))) if offered else ()
