"""`provider: azure`: a region of Azure, public or sovereign."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from provisioner.spec.base import Model
from provisioner.spec.shared_storage import SharedFileSystem
from provisioner.spec.site import CloudSite, SpotPrice

GUID = r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
IN_GROUP = rf"^/subscriptions/{GUID}/resourceGroups/[A-Za-z0-9._()-]+/providers/Microsoft\."
A_GROUP = "/subscriptions/11111111-2222-3333-4444-555555555555/resourceGroups/shared/providers/Microsoft."
SubscriptionId = Annotated[str, Field(pattern=rf"^{GUID}$")]
SubnetId = Annotated[str, Field(pattern=rf"{IN_GROUP}Network/virtualNetworks/[A-Za-z0-9._-]+/subnets/[A-Za-z0-9._-]+$")]
IdentityId = Annotated[str, Field(pattern=rf"{IN_GROUP}ManagedIdentity/userAssignedIdentities/[A-Za-z0-9_-]+$")]
EncryptionSetId = Annotated[str, Field(pattern=rf"{IN_GROUP}Compute/diskEncryptionSets/[A-Za-z0-9_-]+$")]
Environment = Literal["public", "usgovernment", "china"]


REFUSED_USERS = frozenset((
    "1", "123", "a", "actuser", "adm", "admin", "admin1", "admin2", "administrator", "aspnet", "backup", "console",
    "david", "guest", "john", "owner", "root", "server", "sql", "support", "support_388945a0", "sys", "test", "test1",
    "test2", "test3", "user", "user1", "user2", "user3", "user4", "user5",
))  # fmt: skip
"""https://learn.microsoft.com/azure/virtual-machines/linux/faq (user names)"""


MountPoint = Annotated[str, Field(pattern=r"^(/[A-Za-z0-9._-]+)+$", max_length=200)]


class AzureFiles(Model):
    """An NFS file share of Azure Files that is made with the cluster, and removed with it."""

    path: MountPoint = Field(
        default="/files",
        title="a directory such as /files",
        description="Where every node of the site mounts it",
        examples=["/files"],
    )
    size_gib: int = Field(
        default=1024,
        ge=100,
        le=102_400,
        title="a whole number of GiB, 100 to 102400",
        description="Its size in GiB, which is paid for whether used or not; IOPS and MiB/s grow with it",
        examples=[4096],
    )
    replication: Literal["LRS", "ZRS"] = Field(
        default="LRS",
        title="LRS or ZRS",
        description="LRS: three copies in one zone; ZRS: in three zones, in regions that have it",
    )


class AzureStorage(Model):
    """File systems that all nodes of a site share."""

    files: AzureFiles | None = Field(
        default=None,
        title="a block, or null",
        description="An NFS file share that `gpuprov down` removes with its data; {} takes what is usual; null: none",
        examples=[{"path": "/files"}],
    )


class AzureSettings(CloudSite):
    """A region of Azure; zones are "1", "2" and "3"."""

    refused_users: ClassVar[frozenset[str]] = REFUSED_USERS

    provider: Literal["azure"] = Field(description="Who sells the machines")
    shares: ClassVar[bool] = True
    environment: Environment = Field(
        default="public",
        title="public, usgovernment or china",
        description="Which Azure: public, Azure Government, or Azure operated by 21Vianet in China. `az cloud set` has "
        "to name the same",
    )
    subscription: SubscriptionId | None = Field(
        default=None,
        title="the id of a subscription, or null",
        description="Subscription that the machines are in; null: ARM_SUBSCRIPTION_ID, or that of `az account show`",
        examples=["11111111-2222-3333-4444-555555555555"],
    )
    resource_group: Annotated[str, Field(pattern=r"^[A-Za-z0-9_()-][A-Za-z0-9._()-]{0,88}$")] | None = Field(
        default=None,
        title="the name of a resource group, or null",
        description="A resource group of yours; null makes one, and removes it with the cluster",
        examples=["gpu-fleet"],
    )
    subnet: SubnetId | None = Field(
        default=None,
        title="the id of a subnet, or null",
        description="A subnet of yours; null makes a network for the cluster",
        examples=[f"{A_GROUP}Network/virtualNetworks/hub/subnets/gpu"],
    )
    internet: Literal["public", "nat", "none"] = Field(
        default="public",
        title="public, nat or none",
        description="public: each node has an address that `access.allow` reaches; nat: private addresses, for a "
        "gpuprov that runs inside the network or connects in another way; none: private, and no way out",
    )
    identities: Annotated[tuple[IdentityId, ...], Field(max_length=8)] = Field(
        default=(),
        title="a list of ids of user-assigned managed identities",
        description="Managed identities of yours that programs on the nodes may sign in with; none is made",
        examples=[[f"{A_GROUP}ManagedIdentity/userAssignedIdentities/nodes"]],
    )
    disk_encryption_set: EncryptionSetId | None = Field(
        default=None,
        title="the id of a disk encryption set, or null",
        description="With whose key OS disks are encrypted; null: Azure's own",
        examples=[f"{A_GROUP}Compute/diskEncryptionSets/nodes"],
    )
    encryption_at_host: bool = Field(
        default=False,
        title="true or false",
        description="Whether the host encrypts local disks and caches too; the subscription has to have the feature "
        "EncryptionAtHost",
    )

    spot_max_price: SpotPrice | None = Field(
        default=None,
        title="a price an hour above 0, or null",
        description="Most that a spot machine may cost an hour, in US dollars: one that costs more is evicted; null: "
        "none is evicted for its price, which is at most the price on demand",
        examples=[9.5],
    )
    storage: AzureStorage = Field(default=AzureStorage(), description="File systems that all nodes of the site share")

    def home(self) -> dict[str, str]:
        return {**super().home(), "subscription": self.subscription or ""}

    def file_systems(self) -> tuple[SharedFileSystem, ...]:
        files = self.storage.files
        return (SharedFileSystem(files.path, key=("storage", "files"), title="files"),) if files else ()
