"""What is known of a provider besides its machines: frozen models over catalog/data/providers.yaml."""

from __future__ import annotations

import re
from typing import Literal

from pydantic import Field

from provisioner.catalog.models import ProviderName, Row
from provisioner.common.suggest import nearest

SMALL_GIB = 4
"""GiB of memory below which no image is built: apt, docker and the compiler of a driver's modules work there, and
machines without swap end one of them. gpuprov's own bound; how little is enough was not measured."""


class MaintenanceToken(Row):
    """A token that comes before the question: PUT to `path` with the headers `ask`; it goes into `header`."""

    path: str
    ask: dict[str, str]
    header: str


class MaintenanceService(Row):
    """A metadata service that lists events of a machine as JSON: a list, or an object with "Events"."""

    address: str
    path: str
    headers: dict[str, str] = Field(default_factory=dict)
    token: MaintenanceToken | None = None
    name: str | None = None
    """Path that says the machine's own name, where the list has others' events as well."""
    harmless: tuple[str, ...] = ()
    """Kinds of events after which a job goes on."""
    source: str


class Provider(Row):
    """What a provider sells besides machines. `region` and `zone` are regular expressions that match the whole name;
    {region} in `zone` stands for the region."""

    name: ProviderName
    title: str
    capacity: tuple[str, ...]
    infiniband_capacity: tuple[str, ...] | None = None
    """Kinds for machines with InfiniBand, where they are fewer."""
    region: str
    regions: tuple[str, ...] = ()
    """Those that are known by name."""
    zone: str
    example_region: str
    example_zones: tuple[str, ...]
    example_machine: str
    user: str
    spot_notice: str | None = None
    """Address and port of the instance metadata service that announces to a node that its spot machine ends; null where
    the provider announces nothing that gpuprov can hear."""
    block_ends_early_s: int = 0
    """Seconds before the end of a capacity block at which its machines begin to be taken."""
    maintenance: MaintenanceService | None = None
    """Where a machine hears of its scheduled maintenance; null where gpuprov knows of nothing to ask."""
    spot_service: Literal["aws", "azure", "tencent", "alicloud"] = "aws"
    """Whose metadata service that is (role interruption)."""
    virtual: bool = True
    """Whether its machines are virtual ones, or may be."""
    root_disk: tuple[str, str | None] = ("vda", None)
    """Name and model of the disk that a machine boots from; a virtio disk has no model."""
    local_disk: str = "NVMe SSD"
    """Model of a machine's own NVMe disks."""
    adapter_slot: str = "0000:{bus:02x}:00.0"
    """PCI address of a machine's InfiniBand adapters: `nth` counts from 1, `bus` is that of a DGX's."""
    machine_type: str = ""
    """A pattern that the names of all its machine types have; empty where it sells none."""
    builder: str | None = None
    """A machine type without GPUs on which images are built; null where it sells none."""
    small: str = ""
    """A pattern of the machine types with less than SMALL_GIB of memory; empty where names do not tell."""
    arm: str = ""
    """A pattern of the machine types with processors of arm64; empty where names do not tell."""
    source: str

    @property
    def sells(self) -> bool:
        """Whether machines are bought there, in regions."""
        return bool(self.region)

    def is_small(self, machine_type: str) -> bool:
        """Whether its name says that it has less than SMALL_GIB of memory."""
        return bool(self.small) and re.fullmatch(self.small, machine_type) is not None

    def is_arm(self, machine_type: str) -> bool:
        """Whether its name says that it has processors of arm64."""
        return bool(self.arm) and re.fullmatch(self.arm, machine_type) is not None

    def region_typo(self, name: str) -> str:
        """The region that a name stands for which is none; empty where it is one, or may be a new one: another number
        of a known place, or a name that is like no other."""
        places = {re.sub(r"[0-9]+$", "", known_region) for known_region in self.regions}
        if not self.regions or name in self.regions or re.sub(r"[0-9]+$", "", name) in places:
            return ""
        return next(iter(nearest(name, self.regions, alike=85)), "")

    def is_zone(self, name: str, region: str) -> bool:
        """Whether a zone of that region may be called so."""
        return re.fullmatch(self.zone.replace("{region}", re.escape(region)), name) is not None
