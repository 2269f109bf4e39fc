"""`state: {backend: cos}`: Terraform's state in a bucket of one's own. cos.py works with it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from provisioner.machines.providers.tencent.site import TencentSite
from provisioner.spec.base import Text
from provisioner.spec.site import Site
from provisioner.spec.source_map import Finding
from provisioner.spec.state import State

if TYPE_CHECKING:
    pass


class CosState(State):
    """A folder of a bucket."""

    backend: Literal["cos"] = Field(description="Kind of Terraform backend; cos: in a bucket of Tencent Cloud's COS")
    bucket: Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?-[0-9]{8,12}$")] = Field(
        title="the name of a bucket with the account's APPID, such as fleet-1250000000",
        description="Its bucket, with the account's APPID at its end",
        examples=["fleet-1250000000"],
    )
    region: Text | None = Field(
        default=None,
        title="a region name",
        description="The bucket's region; null: that of the first Tencent Cloud site",
        examples=["ap-guangzhou"],
    )
    prefix: Annotated[str, Field(pattern=r"^([A-Za-z0-9_-][A-Za-z0-9_.-]*/?)*$", max_length=200)] = Field(
        default="gpuprov", title="a folder name", description="Folder in the bucket; each cluster has one in it"
    )
    create: bool = Field(default=False, description="Make the bucket where there is none")

    def place(self, sites: Mapping[str, Site]) -> str | None:
        """The bucket's region: that of the first Tencent Cloud site where the file names none; None where there is
        none."""
        return self.region or next((site.region for site in sites.values() if isinstance(site, TencentSite)), None)

    def findings(self, sites: Mapping[str, Site]) -> Iterator[Finding]:
        if self.place(sites) is None:
            message = "state.region is required: the file has no Tencent Cloud site to take it from"
            yield Finding(("state", "region"), message, "region: ap-guangzhou", at_key=True)
