"""cluster.yaml as frozen models: shapes only.

What a value means for a machine (MIG on a V100, EFA on a machine without it) is checked in spec/rules.py, where
the catalogue is at hand; what can be said from the file alone is said here. A field's `title` finishes the
sentence "this is not ..." in an error; its `description` is what an editor shows. docs/cluster-yaml.md has every key.
"""

from __future__ import annotations

from ipaddress import IPv4Network, IPv6Network
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

NAME_TITLE = "a name: lower-case letters, digits and hyphens, at most 32, a letter first"
Name = Annotated[str, Field(pattern=r"^[a-z]([a-z0-9-]{0,30}[a-z0-9])?$", title=NAME_TITLE, description=NAME_TITLE)]
"""Names end up in host names, cloud tags and file names: lower case, digits, hyphens, at most 32 characters."""

ImageReference = Annotated[
    str,
    Field(
        min_length=1,
        max_length=255,
        pattern=r"^[a-z0-9][a-zA-Z0-9._:/@-]*$",
        title="a container image such as nvcr.io/nvidia/pytorch:25.10-py3",
    ),
]

Text = Annotated[str, Field(min_length=1, max_length=255)]

Command = Annotated[str, Field(min_length=1, max_length=4096)]

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


class Model(BaseModel):
    """Base of every key: immutable, unknown keys refused, no silent conversion of types."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


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


class OwnRepository(Model):
    """A signed apt repository of one's own, in place of the vendor's."""

    uri: (
        Annotated[str, Field(max_length=1024, pattern=r"^https?://([A-Za-z0-9._~/:%+=\[\]-]|\{os\}|\{codename\})+$")]
        | None
    ) = Field(
        default=None,
        title="the address of an apt repository, http:// or https://, without a password",
        description="Where it is; {os} and {codename} stand for the distribution (ubuntu2404, noble); null: where the "
        "vendor's is",
        examples=["https://mirror.example.com/cuda/{os}/x86_64/"],
    )
    key: Annotated[str, Field(max_length=1024, pattern=r"^(https?://)?[A-Za-z0-9._~/:%+=\[\]-]+$")] | None = Field(
        default=None,
        title="the address or the path of an OpenPGP public key",
        description="The key that it is signed with: an address, or a path beside this file; null: the vendor's",
        examples=["mirror.asc"],
    )
    fingerprint: Annotated[str, Field(pattern=r"^[0-9A-Fa-f]{40}$")] = Field(
        title="the 40 hex digits of a key's full fingerprint",
        description="Full fingerprint of that key, 40 hex digits (`gpg --show-keys FILE`)",
        examples=["EB693B3035CD5710E231E123A4B469963BF863CC"],
    )
    suite: Annotated[str, Field(pattern=r"^([A-Za-z0-9._/-]|\{os\}|\{codename\})+$", max_length=255)] | None = Field(
        default=None,
        title="a suite such as noble, or / for a flat repository",
        description="Suite, or / for a flat repository; null: as the vendor's",
        examples=["/"],
    )
    components: tuple[Annotated[str, Field(pattern=r"^[A-Za-z0-9._/-]+$", max_length=64)], ...] | None = Field(
        default=None,
        max_length=16,
        title="a list of components such as [main]",
        description="Components of the suite; null: as the vendor's",
        examples=[["main"]],
    )


class StackRequest(Model):
    """What is pinned; everything left out is chosen and written to cluster.lock."""

    pytorch: (
        Annotated[
            str, Field(pattern=r"^[0-9]{1,4}(\.[0-9]{1,4}){0,2}(\+(cu[0-9]{3}|rocm[0-9]{1,2}(\.[0-9]{1,2}){1,2}))?$")
        ]
        | None
    ) = Field(
        default=None,
        title='a version in quotes, such as "2.9" or "2.9.1+cu130"',
        description="PyTorch version, or one of its builds; quote it: unquoted, 2.10 is the number 2.1",
        examples=["2.9"],
    )
    tensorflow: Annotated[str, Field(pattern=r"^[0-9]{1,4}(\.[0-9]{1,4}){0,2}$")] | None = Field(
        default=None,
        title='a version in quotes, such as "2.20"',
        description="TensorFlow version; its image comes beside PyTorch's, or in place of it",
        examples=["2.20"],
    )
    driver: Annotated[str, Field(pattern=r"^[0-9]{3}(\.[0-9]{1,4}){0,2}$")] | None = Field(
        default=None,
        title='a driver branch or version in quotes, such as "580" or "580.95.05"',
        description="NVIDIA driver: a branch, or one exact version",
        examples=["580"],
    )
    cuda: Annotated[str, Field(pattern=r"^[0-9]{1,3}\.[0-9]{1,3}(\.[0-9]{1,3})?$")] | None = Field(
        default=None,
        title='a CUDA version in quotes, such as "13.0"',
        description="CUDA toolkit on the nodes",
        examples=["13.0"],
    )
    nccl: Annotated[str, Field(pattern=r"^[0-9]{1,3}(\.[0-9]{1,3}){1,2}$")] | None = Field(
        default=None,
        title='an NCCL version in quotes, such as "2.27.7"',
        description="NCCL on the nodes",
        examples=["2.27.7"],
    )
    cudnn: Annotated[str, Field(pattern=r"^[0-9]{1,3}(\.[0-9]{1,3}){0,3}$")] | None = Field(
        default=None,
        title='a cuDNN version in quotes, such as "9.10"',
        description="cuDNN on the nodes; framework images bring their own, so null installs none",
        examples=["9.10"],
    )
    os: Literal["ubuntu-24.04", "ubuntu-22.04", "debian-12"] | None = Field(
        default=None,
        title="ubuntu-24.04, ubuntu-22.04 or debian-12",
        description="Distribution of the nodes; null takes the newest that has everything else",
        examples=["ubuntu-22.04"],
    )
    kernel: Annotated[str, Field(pattern=r"^[0-9]{1,2}\.[0-9]{1,3}(\.[0-9]{1,3}(-[0-9A-Za-z.-]{1,40})?)?$")] | None = (
        Field(
            default=None,
            title='a kernel in quotes, such as "6.8" or "6.8.0-1066-aws"',
            description="Kernel that the nodes must run: a series, or `uname -r`; null takes the base image's",
            examples=["6.8.0-1066-aws"],
        )
    )
    ofed: Annotated[str, Field(pattern=r"^[0-9]{1,2}(\.[0-9]{1,3}){0,2}$")] | None = Field(
        default=None,
        title='a DOCA version in quotes, such as "3.2"',
        description="DOCA-OFED on InfiniBand and RoCE machines; null leaves the kernel's own RDMA drivers",
        examples=["3.2"],
    )
    gdrcopy: Annotated[str, Field(pattern=r"^[0-9]{1,2}(\.[0-9]{1,3}){0,2}$")] | None = Field(
        default=None,
        title='a GDRCopy version in quotes, such as "2.5"',
        description="GDRCopy on the nodes; null installs none",
        examples=["2.5"],
    )
    containers: tuple[ImageReference, ...] = Field(
        default=(),
        max_length=64,
        title="a list of container images",
        description="Images that every node holds before it is handed over, locked by digest",
        examples=[["nvcr.io/nvidia/pytorch:25.10-py3"]],
    )
    repositories: dict[Name, OwnRepository] = Field(
        default={},
        title="repositories by the names that the stack gives them",
        description="Repositories of your own in place of the vendors' (cuda, container-toolkit, rocm, amdgpu, "
        "lustre, doca, efa, gdrcopy, mount-s3); the last four have no other, and lustre's fingerprint has to be said",
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
