"""cluster.yaml as frozen models: shapes only.

What a value means for a machine (MIG on a V100, EFA on a machine without it) is checked in spec/rules.py, where
the catalogue is at hand; what can be said from the file alone is said here. A field's `title` finishes the
sentence "this is not ..." in an error; its `description` is what an editor shows. docs/cluster-yaml.md has every key.
"""

from __future__ import annotations

from ipaddress import IPv4Network, IPv6Network
from typing import Annotated, Literal

from pydantic import Field

from provisioner.spec.shapes import NAME_TITLE, Model, Name, Text
from provisioner.spec.sites import Site
from provisioner.spec.stack_request import StackRequest

Command = Annotated[str, Field(min_length=1, max_length=4096)]

CapacityKind = Literal["on-demand", "spot", "reservation", "block"]


class Capacity(Model):
    """How the machines are bought."""

    kind: CapacityKind = Field(default="on-demand", description="What is asked for first")
    fallback: tuple[CapacityKind, ...] = Field(
        default=(),
        max_length=4,
        title="a list of on-demand and spot",
        description="What is tried next, in this order, where `kind` cannot be had",
        examples=[["on-demand"]],
    )
    id: Text | None = Field(
        default=None,
        title="the id of a reservation or block",
        description="The reservation or block; needed for those two kinds and refused for the others",
        examples=["cr-0123456789abcdef0"],
    )

    @property
    def interruptible(self) -> bool:
        """Whether a machine of the group may be one that the provider takes away."""
        return "spot" in (self.kind, *self.fallback)

    min: int | None = Field(
        default=None,
        ge=1,
        le=10_000,
        title="a whole number or null",
        description="With how many machines the group is of use where not all can be had; null: all or none",
        examples=[3],
    )


class Storage(Model):
    """Disks of a machine."""

    root_gb: int = Field(
        default=200, ge=20, le=16384, title="a whole number of GB", description="Size of the root disk, decimal GB"
    )
    scratch: Annotated[str, Field(pattern=r"^/[A-Za-z0-9._/-]+$", max_length=255)] | None = Field(
        default=None,
        title="a directory such as /scratch",
        description="Where local NVMe disks are mounted as one RAID0; null leaves them alone",
        examples=["/scratch"],
    )


class GpuOptions(Model):
    """How the GPUs are set up."""

    mig: Annotated[str, Field(pattern=r"^[1-7]g\.[0-9]+gb$")] | None = Field(
        default=None,
        title="a MIG profile such as 1g.5gb",
        description="MIG profile that every GPU is cut into, or null for whole GPUs",
        examples=["1g.5gb"],
    )
    persistence: bool = Field(
        default=True, title="true or false", description="Keeps the driver loaded while no job runs"
    )
    ecc: bool = Field(
        default=True,
        title="true or false",
        description="Error correction; where the GPU has none (GeForce) leave it out and nothing is expected",
    )


class NetworkOptions(Model):
    """Network between the machines."""

    efa: bool | None = Field(
        default=None,
        title="true, false or null",
        description="Elastic Fabric Adapter: null takes what the machine has, true demands it, false leaves it off",
    )


class Group(Model):
    """`count` machines of one type."""

    machine: Text = Field(
        title="a machine type of `gpuprov catalog`",
        description="Machine type, by its name in `gpuprov catalog`",
        examples=["p4d.24xlarge"],
    )
    count: int = Field(default=1, ge=1, le=10_000, title="a whole number", description="How many machines")
    site: Text | None = Field(
        default=None, title="the name of a site", description="One of `sites`; may be left out where there is one"
    )
    capacity: Capacity = Field(default=Capacity(), description="How the machines are bought")
    placement: Literal["cluster"] | None = Field(
        default=None, title="cluster or null", description="cluster: all machines close together in one zone"
    )
    network: NetworkOptions = Field(default=NetworkOptions(), description="Network between the machines")
    storage: Storage = Field(default=Storage(), description="Disks of a machine")
    gpu: GpuOptions = Field(default=GpuOptions(), description="How the GPUs are set up")
    image: Text | None = Field(
        default=None,
        title="the name of a golden image",
        description="Golden image to start from; null takes the provider's base image",
    )


class Access(Model):
    """Who may log in, with which key, from which networks."""

    user: Annotated[str, Field(pattern=r"^[a-z_][a-z0-9_-]{0,31}$")] = Field(
        default="ubuntu", title="a login name", description="Account on the nodes", examples=["ubuntu"]
    )
    ssh_key: Text | None = Field(
        default=None,
        title="the path of a private key",
        description="Your private key; its public half goes to the nodes. Null makes a key for this cluster",
        examples=["~/.ssh/id_ed25519"],
    )
    allow: tuple[IPv4Network | IPv6Network, ...] = Field(
        default=(),
        max_length=128,
        title="a list of networks such as 203.0.113.0/24",
        description="Networks that may reach ssh; empty: the address that gpuprov runs from",
        examples=[["203.0.113.0/24"]],
    )


class HealthCheck(Model):
    """gpuprov's own checks on the nodes themselves, again and again."""

    every: Annotated[str, Field(pattern=r"^[1-9][0-9]{0,2}[mh]$")] = Field(
        default="10m", title="minutes or hours such as 10m", description="How often", examples=["10m"]
    )
    textfile: Annotated[str, Field(pattern=r"^/([A-Za-z0-9._-]+/)*[A-Za-z0-9._-]+\.prom$", max_length=255)] = Field(
        default="/var/lib/node_exporter/textfile_collector/gpuprov.prom",
        title="the path of a .prom file",
        description="Where the results go, for node_exporter's textfile collector",
    )


class Monitoring(Model):
    """What watches the fleet."""

    dcgm_exporter: bool = Field(
        default=True, title="true or false", description="GPU metrics on port 9400 of each node"
    )
    prometheus: bool = Field(default=False, title="true or false", description="Collects the metrics")
    grafana: bool = Field(default=False, title="true or false", description="Dashboards; needs prometheus")
    health_check: HealthCheck | None = Field(
        default=None,
        title="a block, or null",
        description="Runs gpuprov's quick checks on every node by a timer and writes metrics; null: no timer",
        examples=[{"every": "10m"}],
    )


class Verify(Model):
    """What it takes to be handed over."""

    level: Literal["quick", "standard", "stress"] = Field(default="standard", description="How much is proven")
    min_healthy: Annotated[str, Field(pattern=r"^(100|[1-9]?[0-9])%$")] | Annotated[int, Field(ge=0)] = Field(
        default="100%",
        title="a number of nodes or a percentage such as 90%",
        description="Nodes that must be healthy for the run to succeed: a number, or a percentage of the fleet",
        examples=["100%", 4],
    )
    checks: tuple[Text, ...] = Field(
        default=(), max_length=32, title="a list of directories", description="Directories with checks of your own"
    )


class Hooks(Model):
    """How a node is taken out of service and put back: what your scheduler wants to hear."""

    drain: Command | None = Field(
        default=None,
        title="a shell command",
        description="Takes a node out of service: run on this machine, with GPUPROV_NODE, GPUPROV_ADDRESS, "
        "GPUPROV_ACTION and GPUPROV_REASON set",
        examples=['scontrol update nodename="$GPUPROV_NODE" state=drain reason="gpuprov: $GPUPROV_REASON"'],
    )
    resume: Command | None = Field(
        default=None,
        title="a shell command",
        description="Puts a node back into service, as `drain`",
        examples=['scontrol update nodename="$GPUPROV_NODE" state=resume'],
    )
    interrupted: Command | None = Field(
        default=None,
        title="a shell command",
        description="Run on a spot node, as root, when AWS has announced that it takes it, with GPUPROV_NODE, "
        "GPUPROV_ACTION and GPUPROV_TIME set; about 100 seconds are left to it",
        examples=['scontrol update nodename="$(hostname)" state=drain reason="spot: $GPUPROV_ACTION"'],
    )
    timeout_s: int = Field(
        default=3600,
        ge=1,
        le=604_800,
        title="a whole number of seconds",
        description="How long `drain` and `resume` may take, seconds",
    )


class Quarantine(Model):
    """How many nodes gpuprov may take out of service for their verdict: with more, the cause is not the nodes."""

    automatic: bool = Field(
        default=True,
        title="true or false",
        description="Whether a verdict of `up` and `verify` puts nodes into quarantine; false leaves that to people",
    )
    share: Annotated[str, Field(pattern=r"^(100|[1-9][0-9]?)%$")] = Field(
        default="20%",
        title="a percentage such as 20%",
        description="Nodes that may be in quarantine at once, as a percentage of the fleet, rounded down, at least one",
        examples=["20%"],
    )
    most: int = Field(
        default=8,
        ge=1,
        le=10_000,
        title="a whole number",
        description="Nodes that may be in quarantine at once, however large the fleet",
    )

    def bound(self, nodes: int) -> int:
        """How many of that many nodes may be in quarantine at once.

        >>> Quarantine().bound(4), Quarantine().bound(24), Quarantine().bound(1000)
        (1, 4, 8)
        """
        return min(self.most, max(1, nodes * int(self.share.rstrip("%")) // 100))


class Upgrade(Model):
    """How `gpuprov upgrade` moves a running fleet to a new lock."""

    batch: Annotated[str, Field(pattern=r"^(100|[1-9][0-9]?)%$")] | Annotated[int, Field(ge=1)] = Field(
        default="25%",
        title="a number of nodes or a percentage such as 25%",
        description="Nodes that are moved at once after the canaries: a number, or a percentage of those to be moved",
        examples=["25%", 4],
    )
    canary: int = Field(
        default=1, ge=1, le=100, title="a whole number", description="Nodes of each group that are moved first"
    )


class State(Model):
    """Where Terraform's state is kept, and with it what other operators of the cluster need."""

    backend: Literal["local", "s3", "oss", "azurerm", "cos", "http"] = Field(
        default="local", description="Kind of Terraform backend; local: on this machine alone"
    )
    bucket: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]$")] | None = Field(
        default=None,
        title="the name of a bucket",
        description="s3: its bucket; null: gpuprov-<account>-<region>",
        examples=["acme-gpuprov"],
    )
    region: Text | None = Field(
        default=None,
        title="a region name",
        description="s3: the bucket's region; null: that of the first AWS site",
        examples=["us-east-1"],
    )
    prefix: Annotated[str, Field(pattern=r"^([A-Za-z0-9_.-]+/?)*$", max_length=200)] = Field(
        default="gpuprov", title="a folder name", description="s3: folder in the bucket; each cluster has one in it"
    )
    kms_key: Text | None = Field(
        default=None,
        title="a KMS key",
        description="s3: ARN of the key that encrypts; null: the bucket's own encryption",
        examples=["arn:aws:kms:us-east-1:111122223333:key/1234abcd-12ab-34cd-56ef-1234567890ab"],
    )
    create: bool = Field(default=False, description="s3: make the bucket where there is none")


class ClusterSpec(Model):
    """A GPU fleet, as gpuprov makes it from one file."""

    name: Name = Field(title=NAME_TITLE, description="Name of the cluster", examples=["vision"])
    sites: Annotated[dict[Name, Site], Field(min_length=1)] = Field(
        title="one or more sites", description="Where machines come from; one Terraform root and state for each"
    )
    groups: Annotated[dict[Name, Group], Field(min_length=1)] = Field(
        title="one or more groups", description="Groups of equal machines"
    )
    stack: StackRequest = Field(default=StackRequest(), description="Versions that are pinned; the rest is chosen")
    access: Access = Field(default=Access(), description="Who may log in")
    monitoring: Monitoring = Field(default=Monitoring(), description="What watches the fleet")
    verify: Verify = Field(default=Verify(), description="What it takes to be handed over")
    hooks: Hooks = Field(default=Hooks(), description="How nodes are taken out of service and put back")
    quarantine: Quarantine = Field(
        default=Quarantine(), description="How many nodes may be out of service for their verdict"
    )
    upgrade: Upgrade = Field(default=Upgrade(), description="How a running fleet is moved to a new lock")
    state: State = Field(default=State(), description="Where Terraform's state is kept")

    def site_of(self, group: str) -> str:
        """The site of a group; where there is one site it may be left out (rules.py refuses the rest)."""
        return self.groups[group].site or next(iter(self.sites))
