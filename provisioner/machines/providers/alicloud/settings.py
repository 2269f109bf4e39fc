"""`provider: alicloud`: a region of Alibaba Cloud, and the file system that its nodes share."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import ConfigDict, Field

from provisioner.spec.base import Model, Text, refused
from provisioner.spec.shared_storage import SharedFileSystem
from provisioner.spec.site import CloudSite, SpotPrice

MountPoint = Annotated[str, Field(pattern=r"^(/[A-Za-z0-9._-]+)+$", max_length=200)]
VswitchId = Annotated[str, Field(pattern=r"^vsw-[0-9a-z]{8,32}$")]


class AlicloudVpc(Model):
    """A VPC that exists."""

    id: Annotated[str, Field(pattern=r"^vpc-[0-9a-z]{8,32}$")] = Field(
        title="the id of a VPC, vpc-…", description="Its id", examples=["vpc-uf6f7l4fg90xxxxxxxxxx"]
    )
    vswitches: Annotated[dict[Text, VswitchId], Field(min_length=1, max_length=32)] = Field(
        title="a vSwitch for each zone, such as cn-shanghai-b: vsw-…",
        description="Its vSwitches for nodes, one for each zone",
        examples=[{"cn-shanghai-b": "vsw-uf6f7l4fg90xxxxxxxxxx"}],
    )


class AlicloudNas(Model):
    """A NAS file system (NFS) that is made with the cluster, and removed with it."""

    path: MountPoint = Field(
        default="/nas",
        title="a directory such as /nas",
        description="Where every node of the site mounts it",
        examples=["/nas"],
    )
    storage_type: Literal["Performance", "Capacity"] = Field(
        default="Performance",
        title="Performance or Capacity",
        description="Performance: SSDs; Capacity: cheaper and slower disks",
    )
    zone: Text | None = Field(
        default=None,
        title="one of the site's zones, or null",
        description="One of `zones`, in which it stands: best where the nodes are; null: the first",
        examples=["cn-shanghai-b"],
    )


CPFS = (
    "CPFS is not mounted: its NFS client is an unsigned download for Ubuntu 20.04 and Debian 10 at most, and its POSIX "
    "client takes three quorum machines of its own",
    "nas: {}, or mount it yourself; https://www.alibabacloud.com/help/en/cpfs/"
    "mount-a-file-system-by-using-the-cpfs-nfs-client-recommended",
)


class AlicloudStorage(Model):
    """File systems that all nodes of a site share."""

    model_config = ConfigDict(json_schema_extra=refused(cpfs=CPFS))

    nas: AlicloudNas | None = Field(
        default=None,
        title="a block, or null",
        description="A NAS file system that `gpuprov down` removes with its data; {} takes what is usual; null: none",
        examples=[{"path": "/nas"}],
    )


class AlicloudBucket(Model):
    """A bucket of yours, or a part of it, that programs on the nodes may use."""

    bucket: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{1,61}[a-z0-9]$")] = Field(
        title="the name of an OSS bucket: 3 to 63 lower-case letters, digits and hyphens, such as my-data-sets",
        description="Its name; it exists, and stays",
        examples=["my-data-sets"],
    )
    prefix: Annotated[str, Field(pattern=r"^([A-Za-z0-9._=-]+/)*$", max_length=512)] = Field(
        default="",
        title="the beginning of keys, which ends with /, such as imagenet/",
        description="Only keys that begin so; nodes may touch nothing else of the bucket",
        examples=["imagenet/"],
    )
    write: bool = Field(
        default=False,
        title="true or false",
        description="Whether nodes may write, overwrite and delete; false: they may read",
    )


class AlicloudSettings(CloudSite):
    """A region of Alibaba Cloud."""

    provider: Literal["alicloud"] = Field(description="Who sells the machines")
    shares: ClassVar[bool] = True
    vpc: AlicloudVpc | None = Field(
        default=None,
        title="a block with id and vswitches, or null",
        description="A VPC of yours; null makes one for the cluster",
        examples=[{"id": "vpc-uf6f7l4fg90xxxxxxxxxx", "vswitches": {"cn-shanghai-b": "vsw-uf6f7l4fg90xxxxxxxxxx"}}],
    )
    internet: Literal["public", "nat", "none"] = Field(
        default="public",
        title="public, nat or none",
        description="public: each node has an elastic IP address that `access.allow` reaches; nat: private addresses "
        "and a NAT gateway, for a gpuprov that runs inside the network or comes through `jump`; none: private, and no "
        "way out",
    )
    bandwidth_mbps: int = Field(
        default=100,
        ge=1,
        le=200,
        title="a whole number of Mbit/s, at most 200",
        description="Mbit/s of each elastic IP address, paid by traffic: what nodes fetch images and packages with",
    )
    ram_role: Annotated[str, Field(pattern=r"^[A-Za-z0-9-]{1,64}$")] | None = Field(
        default=None,
        title="the name of a RAM role, or null",
        description="A RAM role that exists, for the nodes; null: one is made where `buckets` are named, else none",
        examples=["gpu-nodes"],
    )
    buckets: tuple[AlicloudBucket, ...] = Field(
        default=(),
        max_length=16,
        title="a list of buckets, each with bucket",
        description="OSS buckets that programs on the nodes may read, or with `write` change, by a RAM role that is "
        "made for it and may do nothing else",
        examples=[[{"bucket": "my-data-sets"}]],
    )
    kms_key: Annotated[str, Field(pattern=r"^[A-Za-z0-9-]{8,64}$")] | None = Field(
        default=None,
        title="the id of a KMS key, or null",
        description="The KMS key that system disks are encrypted with; null: the account's own for ECS",
        examples=["0e478b7a-4262-4802-b8cb-00d3fb408888"],
    )
    disk_level: Literal["PL0", "PL1", "PL2", "PL3"] = Field(
        default="PL1",
        title="PL0, PL1, PL2 or PL3",
        description="Performance level of the system disks, which are ESSDs; PL2 has at least 461 GiB, PL3 1261",
    )
    spot_max_price: SpotPrice | None = Field(
        default=None,
        title="a price an hour above 0, or null",
        description="Most that a spot machine may cost an hour, in the account's currency; null: the pay-as-you-go "
        "price",
        examples=[31.5],
    )
    security_groups: Annotated[
        tuple[Annotated[str, Field(pattern=r"^sg-[0-9a-z]{8,32}$")], ...], Field(max_length=4)
    ] = Field(
        default=(),
        title="a list of security group ids, sg-…",
        description="Security groups of `vpc` that nodes are in besides the one that is made for them",
        examples=[["sg-uf6f7l4fg90xxxxxxxxxx"]],
    )
    resource_group: Annotated[str, Field(pattern=r"^rg-[0-9a-z]{8,32}$")] | None = Field(
        default=None,
        title="the id of a resource group, rg-…, or null",
        description="Resource group that everything is made in; null: the account's default",
        examples=["rg-acfmxxxxxxxxxxx"],
    )
    storage: AlicloudStorage = Field(
        default=AlicloudStorage(), description="File systems that all nodes of the site share"
    )

    def file_systems(self) -> tuple[SharedFileSystem, ...]:
        nas = self.storage.nas
        return (SharedFileSystem(nas.path, key=("storage", "nas"), title="nas"),) if nas else ()
