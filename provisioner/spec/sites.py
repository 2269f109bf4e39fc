"""`sites` of cluster.yaml: where machines come from, and the file systems that those of one place share."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from provisioner.spec.shapes import Model, Text

Region = Annotated[
    Text, Field(title="a region name", description="Region in the provider's own spelling", examples=["us-east-1"])
]
Zones = Annotated[
    tuple[Text, ...],
    Field(
        max_length=32,
        title="a list of zones",
        description="Zones that machines may be in, tried in this order; empty: any",
        examples=[["us-east-1a", "us-east-1b"]],
    ),
]


class AwsVpc(Model):
    """A VPC that exists."""

    id: Annotated[str, Field(pattern=r"^vpc-[0-9a-f]{8,17}$")] = Field(
        title="the id of a VPC, vpc-…", description="Its id", examples=["vpc-0123456789abcdef0"]
    )
    subnets: Annotated[
        tuple[Annotated[str, Field(pattern=r"^subnet-[0-9a-f]{8,17}$")], ...], Field(min_length=1, max_length=32)
    ] = Field(title="a list of subnet ids", description="Its subnets for nodes, one in each zone")


SharedPath = Annotated[str, Field(pattern=r"^(/[A-Za-z0-9._-]+)+$", max_length=200)]
KmsKey = Annotated[str, Field(pattern=r"^arn:aws[a-z-]*:kms:[a-z0-9-]+:[0-9]{12}:key/[A-Za-z0-9-]+$")]
A_KEY = "arn:aws:kms:us-east-1:111122223333:key/1234abcd-12ab-34cd-56ef-1234567890ab"


class AwsEfs(Model):
    """An EFS file system that is made with the cluster, and removed with it."""

    path: SharedPath = Field(
        default="/efs",
        title="a directory such as /efs",
        description="Where every node of the site mounts it",
        examples=["/efs"],
    )
    throughput: Literal["elastic", "bursting"] = Field(
        default="elastic",
        title="elastic or bursting",
        description="elastic: as fast as it is used, paid for each GB that is read or written; bursting: by what is "
        "stored",
    )
    kms_key_id: KmsKey | None = Field(
        default=None,
        title="the ARN of a KMS key, or null",
        description="The key that it is encrypted with; null: AWS's own for EFS",
        examples=[A_KEY],
    )


class AwsFsx(Model):
    """An FSx for Lustre file system that is made with the cluster, and removed with it."""

    capacity_gib: int = Field(
        ge=1200,
        le=1_000_000,
        title="a whole number of GiB: 1200, or 2400 and its multiples",
        description="Its size in GiB: 1200, or 2400 and its multiples",
        examples=[2400],
    )
    deployment: Literal["PERSISTENT_2", "PERSISTENT_1", "SCRATCH_2"] = Field(
        default="PERSISTENT_2",
        title="PERSISTENT_2, PERSISTENT_1 or SCRATCH_2",
        description="PERSISTENT_2 and PERSISTENT_1 keep every file twice; SCRATCH_2 is cheaper and loses files with a "
        "server",
    )
    throughput: int | None = Field(
        default=None,
        title="MB/s per TiB: 125, 250, 500 or 1000 (PERSISTENT_1: 50, 100 or 200), or null",
        description="MB/s for each TiB: 125, 250, 500 or 1000, of PERSISTENT_1 50, 100 or 200; null: 250, or 200; "
        "SCRATCH_2 has 200 and no choice",
        examples=[500],
    )
    zone: Text | None = Field(
        default=None,
        title="one of the site's zones, or null",
        description="One of `zones`, in which it stands: best where the nodes are; null: the first",
        examples=["us-east-1a"],
    )
    path: SharedPath = Field(
        default="/fsx",
        title="a directory such as /fsx",
        description="Where every node of the site mounts it",
        examples=["/fsx"],
    )
    kms_key_id: KmsKey | None = Field(
        default=None,
        title="the ARN of a KMS key, or null",
        description="The key that a persistent one is encrypted with; null: AWS's own for FSx",
        examples=[A_KEY],
    )


class AwsBucket(Model):
    """A bucket of yours, or a part of it, that every node of the site mounts."""

    bucket: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]$")] = Field(
        title="the name of an S3 bucket", description="Its name; it exists, and stays", examples=["my-data-sets"]
    )
    prefix: Annotated[str, Field(pattern=r"^([A-Za-z0-9._=-]+/)*$", max_length=512)] = Field(
        default="",
        title="the beginning of keys, which ends with /, such as imagenet/",
        description="Only keys that begin so, without this beginning; nodes may touch nothing else of the bucket",
        examples=["imagenet/"],
    )
    path: SharedPath = Field(
        title="a directory such as /data",
        description="Where every node of the site mounts it",
        examples=["/data"],
    )
    write: bool = Field(
        default=False,
        title="true or false",
        description="Whether nodes may write, overwrite and delete; false: they may read",
    )


class AwsStorage(Model):
    """File systems that all nodes of a site share."""

    efs: AwsEfs | None = Field(
        default=None,
        title="a block, or null",
        description="An EFS file system that `gpuprov down` removes with its data; {} takes what is usual; null: none",
        examples=[{"path": "/efs"}],
    )
    fsx: AwsFsx | None = Field(
        default=None,
        title="a block with capacity_gib, or null",
        description="An FSx for Lustre file system that `gpuprov down` removes with its data; null: none",
        examples=[{"capacity_gib": 2400}],
    )
    s3: tuple[AwsBucket, ...] = Field(
        default=(),
        max_length=16,
        title="a list of buckets, each with bucket and path",
        description="Buckets that exist and that nodes may read, or with `write` change",
        examples=[[{"bucket": "my-data-sets", "path": "/data"}]],
    )


class AwsSite(Model):
    """A region of Amazon EC2."""

    provider: Literal["aws"] = Field(description="Who sells the machines")
    region: Region
    zones: Zones = ()
    vpc: AwsVpc | None = Field(
        default=None,
        title="a block with id and subnets, or null",
        description="A VPC of yours; null makes one for the cluster",
        examples=[{"id": "vpc-0123456789abcdef0", "subnets": ["subnet-0123456789abcdef0"]}],
    )
    internet: Literal["public", "nat", "none"] = Field(
        default="public",
        title="public, nat or none",
        description="public: each node has an address that `access.allow` reaches; nat: private addresses, for a "
        "gpuprov that runs inside the network or connects in another way; none: private, and no way out",
    )
    connect: Literal["direct", "ssm", "instance-connect"] = Field(
        default="direct",
        title="direct, ssm or instance-connect",
        description="direct: ssh calls the node's address; ssm: through Session Manager; instance-connect: through an "
        "EC2 Instance Connect endpoint. No port is open to anybody then, and the AWS CLI carries ssh",
    )
    storage: AwsStorage = Field(default=AwsStorage(), description="File systems that all nodes of the site share")


class AlicloudSite(Model):
    """A region of Alibaba Cloud."""

    provider: Literal["alicloud"] = Field(description="Who sells the machines")
    region: Region
    zones: Zones = ()


class AzureSite(Model):
    """A region of Azure; zones are "1", "2" and "3"."""

    provider: Literal["azure"] = Field(description="Who sells the machines")
    region: Region
    zones: Zones = ()


class TencentSite(Model):
    """A region of Tencent Cloud."""

    provider: Literal["tencent"] = Field(description="Who sells the machines")
    region: Region
    zones: Zones = ()


class BareMetalSite(Model):
    """Machines that are yours already."""

    provider: Literal["baremetal"] = Field(description="Machines that are yours already")
    method: Literal["ssh", "maas", "redfish"] = Field(
        default="ssh",
        description="How they are reached: ssh takes machines that run already, maas and redfish install them",
    )


Site = Annotated[AwsSite | AlicloudSite | AzureSite | TencentSite | BareMetalSite, Field(discriminator="provider")]
