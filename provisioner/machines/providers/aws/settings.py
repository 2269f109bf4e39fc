"""`provider: aws`: a region of Amazon EC2, and the file systems that its nodes share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from provisioner.spec.base import Model, Text
from provisioner.spec.shared_storage import Lustre, MountArguments, SharedFileSystem
from provisioner.spec.site import CloudSite
from provisioner.spec.source_map import Loc


class AwsVpc(Model):
    """A VPC that exists."""

    id: Annotated[str, Field(pattern=r"^vpc-[0-9a-f]{8,17}$")] = Field(
        title="the id of a VPC, vpc-…", description="Its id", examples=["vpc-0123456789abcdef0"]
    )
    subnets: Annotated[
        tuple[Annotated[str, Field(pattern=r"^subnet-[0-9a-f]{8,17}$")], ...], Field(min_length=1, max_length=32)
    ] = Field(title="a list of subnet ids", description="Its subnets for nodes, one in each zone")


MountPoint = Annotated[str, Field(pattern=r"^(/[A-Za-z0-9._-]+)+$", max_length=200)]
KmsKey = Annotated[str, Field(pattern=r"^arn:aws[a-z-]*:kms:[a-z0-9-]+:[0-9]{12}:key/[A-Za-z0-9-]+$")]
A_KEY = "arn:aws:kms:us-east-1:111122223333:key/1234abcd-12ab-34cd-56ef-1234567890ab"


class AwsEfs(Model):
    """An EFS file system that is made with the cluster, and removed with it."""

    path: MountPoint = Field(
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
    path: MountPoint = Field(
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
        title="the name of an S3 bucket: 3 to 63 lower-case letters, digits, dots and hyphens, such as my-data-sets",
        description="Its name; it exists, and stays",
        examples=["my-data-sets"],
    )
    prefix: Annotated[str, Field(pattern=r"^([A-Za-z0-9._=-]+/)*$", max_length=512)] = Field(
        default="",
        title="the beginning of keys, which ends with /, such as imagenet/",
        description="Only keys that begin so, without this beginning; nodes may touch nothing else of the bucket",
        examples=["imagenet/"],
    )
    path: MountPoint = Field(
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


S3_OPTIONS = "_netdev,nosuid,nodev,allow-other,{access}"
"""mount-s3 wants the first three from whoever calls it as mount(8) does; jobs are no root.
https://github.com/awslabs/mountpoint-s3/blob/main/doc/CONFIGURATION.md#automatically-mounting-an-s3-bucket-at-boot"""
S3_ACCESS = {"ro": "ro", "rw": "rw,allow-delete,allow-overwrite,dir-mode=0777,file-mode=0666"}
"""The module's options → mount-s3's. Objects have no owner: who may log in may write, as in /tmp."""


@dataclass(frozen=True, slots=True)
class S3Mount(SharedFileSystem):
    """A bucket that mount-s3 mounts. Its source in the module's output is bucket/prefix."""

    type: str = "s3"
    component: str = "mount_s3"

    def arguments(self, source: str, options: str) -> MountArguments:
        """Every bucket shows itself so (mountpoint-s3-fs/src/fuse/config.rs); the check asks mount-s3's own process."""
        options = S3_OPTIONS.format(access=S3_ACCESS[self.access])
        return MountArguments("mount-s3", f"s3://{source}" if source else "", options, "fuse", "mountpoint-s3")


class AwsSettings(CloudSite):
    """A region of Amazon EC2."""

    provider: Literal["aws"] = Field(description="Who sells the machines")
    shares: ClassVar[bool] = True
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
    permissions_boundary: (
        Annotated[str, Field(pattern=r"^arn:aws[a-z-]*:iam::([0-9]{12}|aws):policy/[A-Za-z0-9_+=,.@/-]+$")] | None
    ) = Field(
        default=None,
        title="the ARN of an IAM policy, or null",
        description="Permissions boundary of the role that is made for the nodes",
        examples=["arn:aws:iam::111122223333:policy/boundary"],
    )
    instance_profile: Annotated[str, Field(pattern=r"^[A-Za-z0-9_+=,.@-]{1,128}$")] | None = Field(
        default=None,
        title="the name of an instance profile, or null",
        description="An instance profile that exists, for the nodes; null: one is made that may do what the file "
        "asks for and nothing else",
        examples=["gpu-nodes"],
    )
    kms_key: KmsKey | None = Field(
        default=None,
        title="the ARN of a KMS key, or null",
        description="The key that root volumes are encrypted with; null: the account's own for EBS",
        examples=[A_KEY],
    )
    security_groups: Annotated[
        tuple[Annotated[str, Field(pattern=r"^sg-[0-9a-f]{8,17}$")], ...], Field(max_length=4)
    ] = Field(
        default=(),
        title="a list of security group ids, sg-…",
        description="Security groups of `vpc` that nodes are in besides the one that is made for them",
        examples=[["sg-0123456789abcdef0"]],
    )
    storage: AwsStorage = Field(default=AwsStorage(), description="File systems that all nodes of the site share")

    def file_systems(self) -> tuple[SharedFileSystem, ...]:
        storage, file_systems = self.storage, list[SharedFileSystem]()
        if storage.fsx is not None:
            file_systems.append(Lustre(storage.fsx.path, key=("storage", "fsx"), title="fsx"))
        if storage.efs is not None:
            file_systems.append(SharedFileSystem(storage.efs.path, key=("storage", "efs"), title="efs"))
        for index, mount in enumerate(storage.s3):
            access: Literal["rw", "ro"] = "rw" if mount.write else "ro"
            key: Loc = ("storage", "s3", index)
            file_systems.append(S3Mount(mount.path, key=key, title=f"bucket {mount.bucket}", access=access))
        return tuple(file_systems)
