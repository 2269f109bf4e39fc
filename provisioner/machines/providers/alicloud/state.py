"""`state: {backend: oss}`: Terraform's state in a bucket of one's own. bucket.py works with it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from provisioner.machines.providers.alicloud.site import AlicloudSite
from provisioner.spec.base import Text
from provisioner.spec.site import Site
from provisioner.spec.source_map import Finding
from provisioner.spec.state import State

if TYPE_CHECKING:
    pass


class OssState(State):
    """A folder of a bucket."""

    backend: Literal["oss"] = Field(description="Kind of Terraform backend; oss: in a bucket of Alibaba Cloud OSS")
    bucket: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{1,61}[a-z0-9]$")] | None = Field(
        default=None,
        title="the name of a bucket: 3 to 63 lower-case letters, digits and hyphens, such as acme-gpuprov",
        description="Its bucket; null: gpuprov-<account>-<region>",
        examples=["acme-gpuprov"],
    )
    region: Text | None = Field(
        default=None,
        title="a region name",
        description="The bucket's region; null: that of the first Alibaba Cloud site",
        examples=["cn-shanghai"],
    )
    prefix: Annotated[str, Field(pattern=r"^([A-Za-z0-9_-][A-Za-z0-9_.-]*/?)*$", max_length=200)] = Field(
        default="gpuprov", title="a folder name", description="Folder in the bucket; each cluster has one in it"
    )
    kms_key: Annotated[str, Field(pattern=r"^[A-Za-z0-9-]{8,64}$")] | None = Field(
        default=None,
        title="the id of a KMS key",
        description="Id of the key that encrypts a bucket that is made; null: OSS's own (AES256)",
        examples=["0e478b7a-4262-4802-b8cb-00d3fb408888"],
    )
    create: bool = Field(default=False, description="Make the bucket where there is none")

    def place(self, sites: Mapping[str, Site]) -> str | None:
        """The bucket's region: that of the first Alibaba Cloud site where the file names none; None where there is
        none."""
        return self.region or next((site.region for site in sites.values() if isinstance(site, AlicloudSite)), None)

    def findings(self, sites: Mapping[str, Site]) -> Iterator[Finding]:
        if self.place(sites) is None:
            message = "state.region is required: the file has no Alibaba Cloud site to take it from"
            yield Finding(("state", "region"), message, "region: cn-shanghai", at_key=True)
