"""`provider: tencent`: a region of Tencent Cloud's CVM, and the file systems that its nodes share."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import ConfigDict, Field

from provisioner.spec.base import Model, Text, refused
from provisioner.spec.shared_storage import SharedFileSystem
from provisioner.spec.site import CloudSite, SpotPrice

MountPoint = Annotated[str, Field(pattern=r"^(/[A-Za-z0-9._-]+)+$", max_length=200)]
SubnetId = Annotated[str, Field(pattern=r"^subnet-[0-9a-z]{8}$")]
GroupId = Annotated[str, Field(pattern=r"^sg-[0-9a-z]{8}$")]


class TencentVpc(Model):
    """A VPC that exists."""

    id: Annotated[str, Field(pattern=r"^vpc-[0-9a-z]{8}$")] = Field(
        title="the id of a VPC, vpc-…", description="Its id", examples=["vpc-0a1b2c3d"]
    )
    subnets: Annotated[dict[Text, SubnetId], Field(min_length=1, max_length=32)] = Field(
        title="a subnet id for each zone",
        description="Its subnets for nodes, by zone",
        examples=[{"ap-guangzhou-3": "subnet-0a1b2c3d"}],
    )


class TencentBandwidth(Model):
    """The way out to the internet: what is paid for it, and how wide it is."""

    charge: Literal["traffic", "bandwidth", "package"] = Field(
        default="traffic",
        title="traffic, bandwidth or package",
        description="traffic: by GB that go out; bandwidth: by hour and Mbit/s; package: in a package of yours",
    )
    mbps: int = Field(
        default=100,
        ge=1,
        le=2000,
        title="a whole number of Mbit/s",
        description="Mbit/s outwards, of each public address or of the NAT gateway's; by traffic at most 100 in "
        "mainland China, Hong Kong and Singapore, 200 elsewhere",
    )
    package: Annotated[str, Field(pattern=r"^bwp-[0-9a-z]{8}$")] | None = Field(
        default=None,
        title="the id of a bandwidth package, bwp-…, or null",
        description="The package, for `charge: package`",
        examples=["bwp-0a1b2c3d"],
    )


class TencentDisk(Model):
    """The nodes' system disks."""

    type: Literal["CLOUD_BSSD", "CLOUD_HSSD", "CLOUD_PREMIUM", "CLOUD_SSD", "CLOUD_TSSD"] = Field(
        default="CLOUD_HSSD", title="a type of CBS disk", description="Type of CBS disk; CLOUD_HSSD: enhanced SSD"
    )
    encrypt: bool = Field(
        default=True,
        title="true or false",
        description="Whether they are encrypted, which Tencent Cloud has not opened to every account yet",
    )
    kms_key: Text | None = Field(
        default=None,
        title="the id of a KMS key, or null",
        description="The key that they are encrypted with; null: the account's own for disks",
        examples=["kms-abcd1234"],
    )


TURBO = (
    "CFS Turbo is not mounted: its client is an unsigned download of kernel modules, built for some kernels alone",
    "type: HP, or mount it yourself; https://www.tencentcloud.com/document/product/582/9135",
)


class TencentCfs(Model):
    """A CFS file system that is made with the cluster, and removed with it."""

    path: MountPoint = Field(
        default="/cfs",
        title="a directory such as /cfs",
        description="Where every node of the site mounts it",
        examples=["/cfs"],
    )
    type: Literal["SD", "HP"] = Field(
        default="SD",
        title="SD or HP",
        description="SD: general, paid by what is stored; HP: performance",
        json_schema_extra=refused(TB=TURBO, TP=TURBO),
    )
    zone: Text | None = Field(
        default=None,
        title="one of the site's zones, or null",
        description="One of `zones`, in which it stands; null: the first",
        examples=["ap-guangzhou-3"],
    )


class TencentNfs(Model):
    """A file system that exists in the network, and that every node of the site mounts by NFS 4.0."""

    source: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9.-]{0,253}:/[A-Za-z0-9._/-]{0,200}$")] = Field(
        title="server:/export, such as 10.0.0.5:/",
        description="Its mount target and directory; of CFS the address with :/",
        examples=["10.0.0.5:/"],
    )
    path: MountPoint = Field(
        title="a directory such as /data",
        description="Where every node of the site mounts it",
        examples=["/data"],
    )
    write: bool = Field(
        default=False,
        title="true or false",
        description="Whether nodes may write; false: they may read",
    )


NO_TURBO = (TURBO[0], f"cfs: {{type: HP}}{TURBO[1].removeprefix('type: HP')}")


class TencentStorage(Model):
    """File systems that all nodes of a site share."""

    model_config = ConfigDict(json_schema_extra=refused(turbo=NO_TURBO, cfs_turbo=NO_TURBO))

    cfs: TencentCfs | None = Field(
        default=None,
        title="a block, or null",
        description="A CFS file system that `gpuprov down` removes with its data; {} takes what is usual; null: none",
        examples=[{"path": "/cfs"}],
    )
    nfs: tuple[TencentNfs, ...] = Field(
        default=(),
        max_length=16,
        title="a list of file systems, each with source and path",
        description="File systems that exist and that nodes may read, or with `write` change",
        examples=[[{"source": "10.0.0.5:/", "path": "/data"}]],
    )


class TencentBucket(Model):
    """A bucket of yours, or a part of it, that programs on the nodes may use."""

    bucket: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,48}-[0-9]{8,12}$")] = Field(
        title="the name of a COS bucket, such as my-data-sets-1250000000",
        description="Its name, with the account's APPID at its end; it exists, and stays",
        examples=["my-data-sets-1250000000"],
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


class TencentSettings(CloudSite):
    """A region of Tencent Cloud."""

    provider: Literal["tencent"] = Field(description="Who sells the machines")
    shares: ClassVar[bool] = True
    account: Literal["china", "international"] = Field(
        default="china",
        title="china or international",
        description="Whose account it is: of cloud.tencent.com, paid in CNY, or of tencentcloud.com, paid in USD",
    )
    vpc: TencentVpc | None = Field(
        default=None,
        title="a block with id and subnets, or null",
        description="A VPC of yours; null makes one for the cluster",
        examples=[{"id": "vpc-0a1b2c3d", "subnets": {"ap-guangzhou-3": "subnet-0a1b2c3d"}}],
    )
    internet: Literal["public", "nat", "none"] = Field(
        default="public",
        title="public, nat or none",
        description="public: each node has an address that `access.allow` reaches; nat: private addresses, for a "
        "gpuprov that runs inside the network or has a `jump` host; none: private, and no way out",
    )
    bandwidth: TencentBandwidth = Field(
        default=TencentBandwidth(), description="The way out to the internet: what is paid for it, and how wide it is"
    )
    disk: TencentDisk = Field(default=TencentDisk(), description="The nodes' system disks")
    spread: Literal["host", "switch", "rack"] | None = Field(
        default=None,
        title="host, switch, rack or null",
        description="Keeps the machines of each group apart, so that what breaks takes one of them; null: no matter",
    )
    spot_max_price: SpotPrice | None = Field(
        default=None,
        title="a price an hour above 0, or null",
        description="Most that a spot machine may cost an hour, in the account's currency; null: what it costs",
        examples=[25.5],
    )
    key_pair: Annotated[str, Field(pattern=r"^skey-[0-9a-z]{8}$")] | None = Field(
        default=None,
        title="the id of a key pair, skey-…, or null",
        description="The key pair that has the public half of `access.ssh_key`, where the account has it already; "
        "null: one is made",
        examples=["skey-0a1b2c3d"],
    )
    role: Annotated[str, Field(pattern=r"^[A-Za-z0-9_+=,.@-]{1,128}$")] | None = Field(
        default=None,
        title="the name of a CAM role, or null",
        description="A CAM role that exists, for the nodes; null: one is made where `buckets` are named, else none",
        examples=["gpu-nodes"],
    )
    buckets: tuple[TencentBucket, ...] = Field(
        default=(),
        max_length=16,
        title="a list of buckets, each with bucket",
        description="COS buckets that programs on the nodes may read, or with `write` change, by a CAM role that is "
        "made for it and may do nothing else",
        examples=[[{"bucket": "my-data-sets-1250000000"}]],
    )
    security_groups: Annotated[tuple[GroupId, ...], Field(max_length=4)] = Field(
        default=(),
        title="a list of security group ids, sg-…",
        description="Security groups that nodes are in besides the one that is made for them",
        examples=[["sg-0a1b2c3d"]],
    )
    project: int | None = Field(
        default=None,
        ge=0,
        title="the number of a project, or null",
        description="The project that machines are counted to; null: the default one",
        examples=[1000001],
    )
    storage: TencentStorage = Field(
        default=TencentStorage(), description="File systems that all nodes of the site share"
    )

    def file_systems(self) -> tuple[SharedFileSystem, ...]:
        file_systems = list[SharedFileSystem]()
        if self.storage.cfs is not None:
            file_systems.append(SharedFileSystem(self.storage.cfs.path, key=("storage", "cfs"), title="cfs"))
        for index, mount in enumerate(self.storage.nfs):
            access: Literal["rw", "ro"] = "rw" if mount.write else "ro"
            file_systems.append(
                SharedFileSystem(mount.path, key=("storage", "nfs", index), title=mount.source, access=access)
            )
        return tuple(file_systems)
