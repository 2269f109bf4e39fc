"""cluster.yaml as frozen models: shapes only.

What a value means for a machine (MIG on a V100, EFA on a machine without it) is checked in spec/rules.py, where
the catalogue is at hand; what can be said from the file alone is said here. docs/cluster-yaml.md describes every key.
"""

from __future__ import annotations

from ipaddress import IPv4Network, IPv6Network
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

Name = Annotated[
    str,
    Field(pattern=r"^[a-z]([a-z0-9-]{0,30}[a-z0-9])?$", description="lower-case letters, digits and hyphens, at most 32"),
]
"""Names end up in host names, cloud tags and file names: lower case, digits, hyphens, at most 32 characters."""

ImageReference = Annotated[str, Field(min_length=1, max_length=255, pattern=r"^[a-z0-9][a-zA-Z0-9._:/@-]*$")]


class Model(BaseModel):
    """Base of every key: immutable, unknown keys refused, no silent conversion of types."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class AwsSite(Model):
    provider: Literal["aws"]
    region: str
    zones: tuple[str, ...] = ()


class AlicloudSite(Model):
    provider: Literal["alicloud"]
    region: str
    zones: tuple[str, ...] = ()


class AzureSite(Model):
    provider: Literal["azure"]
    region: str
    zones: tuple[str, ...] = ()


class TencentSite(Model):
    provider: Literal["tencent"]
    region: str
    zones: tuple[str, ...] = ()


class BareMetalSite(Model):
    provider: Literal["baremetal"]
    method: Literal["ssh", "maas", "redfish"] = "ssh"


Site = Annotated[AwsSite | AlicloudSite | AzureSite | TencentSite | BareMetalSite, Field(discriminator="provider")]

CapacityKind = Literal["on-demand", "spot", "reservation", "block"]


class Capacity(Model):
    """How the machines are bought. `id` names the reservation or block."""

    kind: CapacityKind = "on-demand"
    fallback: tuple[CapacityKind, ...] = ()
    id: str | None = None


class Storage(Model):
    """`root_gb`: decimal GB of the root disk; `scratch`: where local NVMe is mounted as one RAID0."""

    root_gb: Annotated[int, Field(ge=20, le=16384)] = 200
    scratch: Annotated[str, Field(pattern=r"^/[A-Za-z0-9._/-]+$")] | None = None


class GpuOptions(Model):
    """`mig`: a profile such as 1g.5gb or null for whole GPUs."""

    mig: Annotated[str, Field(pattern=r"^[1-7]g\.[0-9]+gb$")] | None = None
    persistence: bool = True
    ecc: bool = True


class NetworkOptions(Model):
    """`efa`: null takes what the machine has; true demands EFA, false leaves it off."""

    efa: bool | None = None


class Group(Model):
    """`count` machines of one type."""

    machine: str
    count: Annotated[int, Field(ge=1, le=10_000)] = 1
    site: str | None = None
    capacity: Capacity = Capacity()
    placement: Literal["cluster"] | None = None
    network: NetworkOptions = NetworkOptions()
    storage: Storage = Storage()
    gpu: GpuOptions = GpuOptions()
    image: str | None = None


class StackRequest(Model):
    """What is pinned; everything left out is chosen and written to cluster.lock."""

    pytorch: Annotated[str, Field(pattern=r"^[0-9]+(\.[0-9]+){0,2}$")] | None = None
    driver: Annotated[str, Field(pattern=r"^[0-9]{3}(\.[0-9]+){0,2}$")] | None = None
    cuda: Annotated[str, Field(pattern=r"^[0-9]+\.[0-9]+(\.[0-9]+)?$")] | None = None
    nccl: Annotated[str, Field(pattern=r"^[0-9]+(\.[0-9]+){1,2}$")] | None = None
    containers: tuple[ImageReference, ...] = ()


class Access(Model):
    """Who may log in, with which key, from which networks (CIDR)."""

    user: Annotated[str, Field(pattern=r"^[a-z_][a-z0-9_-]{0,31}$")] = "ubuntu"
    ssh_key: str | None = None
    allow: tuple[IPv4Network | IPv6Network, ...] = ()


class Monitoring(Model):
    dcgm_exporter: bool = True
    prometheus: bool = False
    grafana: bool = False


class Verify(Model):
    """`min_healthy`: a number of nodes or a percentage of the fleet; `checks`: directories of your own checks."""

    level: Literal["quick", "standard", "stress"] = "standard"
    min_healthy: Annotated[str, Field(pattern=r"^(100|[1-9]?[0-9])%$")] | Annotated[int, Field(ge=0)] = "100%"
    checks: tuple[str, ...] = ()


class State(Model):
    backend: Literal["local", "s3", "oss", "azurerm", "cos", "http"] = "local"


class ClusterSpec(Model):
    """The whole file."""

    name: Name
    sites: Annotated[dict[Name, Site], Field(min_length=1)]
    groups: Annotated[dict[Name, Group], Field(min_length=1)]
    stack: StackRequest = StackRequest()
    access: Access = Access()
    monitoring: Monitoring = Monitoring()
    verify: Verify = Verify()
    state: State = State()

    def site_of(self, group: str) -> str:
        """The site of a group; where there is one site it may be left out (rules.py refuses the rest)."""
        return self.groups[group].site or next(iter(self.sites))
