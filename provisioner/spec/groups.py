"""Groups of equal machines: `groups` of cluster.yaml, shapes only."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field

from provisioner.spec.base import Model, Name, Text

IMAGE = r"^([A-Za-z0-9._-]+/)*[a-z]([a-z0-9-]{0,30}[a-z0-9])?(@(nightly|candidate|stable|[0-9]{8}-[0-9]{6}))?$"
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

    probe: bool = Field(
        default=False,
        title="true or false",
        description="Whether `up` asks the provider for the group's capacity before it makes anything: a reservation "
        "for all of its machines, released at once",
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

    rdma: bool | None = Field(
        default=None,
        title="true, false or null",
        description="RDMA between the machines (EFA, InfiniBand, RoCE): null takes what the machine has, true demands "
        "it, false leaves EFA off",
    )


class Group(Model):
    """`count` machines of one type."""

    machine: Text | Annotated[dict[Name, Text], Field(min_length=1)] = Field(
        title="a machine type of `gpuprov catalog`, or a block with one for each site",
        description="Machine type, by its name in `gpuprov catalog`. A block: site → machine type, for each site of a "
        "list",
        examples=["p4d.24xlarge", {"ohio": "p4d.24xlarge", "west": "Standard_ND96asr_v4"}],
    )
    count: int = Field(default=1, ge=1, le=10_000, title="a whole number", description="How many machines")
    site: Text | Annotated[tuple[Text, ...], Field(min_length=2, max_length=8)] | None = Field(
        default=None,
        title="the name of a site, or a list of 2 to 8 of them",
        description="One of `sites`; may be left out where there is one. A list: the sites that are tried, in the "
        "order of `site_order`, until one has capacity for the group",
        examples=["ohio", ["ohio", "oregon"]],
    )
    site_order: Literal["file", "price"] = Field(
        default="file",
        title="file or price",
        description="Order in which the sites of a list are tried. file: as the list has them; price: the lowest list "
        "price on demand first, sites without a known price last",
    )
    capacity: Capacity = Field(default=Capacity(), description="How the machines are bought")
    placement: Literal["cluster"] | None = Field(
        default=None, title="cluster or null", description="cluster: all machines close together in one zone"
    )
    network: NetworkOptions = Field(default=NetworkOptions(), description="Network between the machines")
    storage: Storage = Field(default=Storage(), description="Disks of a machine")
    gpu: GpuOptions = Field(default=GpuOptions(), description="How the GPUs are set up")
    base: Literal["plain", "vendor-hpc"] = Field(
        default="plain",
        title="plain or vendor-hpc",
        description="plain: the distribution's own image, on which the whole stack is installed; vendor-hpc: the "
        "cloud's own GPU image, whose driver and libraries are adopted (Azure's ubuntu-hpc, AWS's Deep Learning AMI)",
    )
    image: Annotated[str, Field(pattern=IMAGE, max_length=255)] | None = Field(
        default=None,
        title="an image with a channel (nightly, candidate, stable) or a build, such as pytorch-a100@stable",
        description="Golden image to start from: its recipe (a plain name is one of the folder `images` beside this "
        "file, a path is taken from there) and a channel (nightly, candidate, stable; else stable) or a "
        "build; null takes the provider's base image",
        examples=["pytorch-a100@stable"],
    )

    @property
    def sites(self) -> tuple[str, ...]:
        """The sites that the file names for it, in its order; none where it names none."""
        if self.site is None:
            return ()
        return (self.site,) if isinstance(self.site, str) else self.site

    @property
    def machine_types(self) -> tuple[str, ...]:
        """The machine types that the file names for it, each once."""
        return (self.machine,) if isinstance(self.machine, str) else tuple(dict.fromkeys(self.machine.values()))

    def machine_type(self, site: str = "") -> str:
        """The machine type at a site; the first of the file where it names none for that site."""
        return self.machine if isinstance(self.machine, str) else self.machine.get(site, self.machine_types[0])

    def at(self, site: str) -> Self:
        """The group as it is at one site: with one machine type."""
        return self if isinstance(self.machine, str) else self.model_copy(update={"machine": self.machine_type(site)})

    def node_names(self, group: str) -> tuple[str, ...]:
        """The names of its machines, where the file calls it `group`; the modules of terraform/ number them alike."""
        return tuple(f"{group}-{number}" for number in range(self.count))
