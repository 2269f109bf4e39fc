"""`state: {backend: s3}`: Terraform's state in a bucket of one's own. bucket.py works with it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from provisioner import catalog
from provisioner.machines.providers.aws.site import AwsSite
from provisioner.spec.base import Text
from provisioner.spec.site import Site
from provisioner.spec.source_map import Finding, shown
from provisioner.spec.state import State

if TYPE_CHECKING:
    pass


class S3State(State):
    """A folder of a bucket."""

    backend: Literal["s3"] = Field(description="Kind of Terraform backend; s3: in a bucket of Amazon S3")
    bucket: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]$")] | None = Field(
        default=None,
        title="the name of a bucket: 3 to 63 lower-case letters, digits, dots and hyphens, such as acme-gpuprov",
        description="Its bucket; null: gpuprov-<account>-<region>",
        examples=["acme-gpuprov"],
    )
    region: Text | None = Field(
        default=None,
        title="a region name",
        description="The bucket's region; null: that of the first AWS site",
        examples=["us-east-1"],
    )
    prefix: Annotated[str, Field(pattern=r"^([A-Za-z0-9_.-]+/?)*$", max_length=200)] = Field(
        default="gpuprov", title="a folder name", description="Folder in the bucket; each cluster has one in it"
    )
    kms_key: Text | None = Field(
        default=None,
        title="a KMS key",
        description="ARN of the key that encrypts; null: the bucket's own encryption",
        examples=["arn:aws:kms:us-east-1:111122223333:key/1234abcd-12ab-34cd-56ef-1234567890ab"],
    )
    create: bool = Field(default=False, description="Make the bucket where there is none")

    def place(self, sites: Mapping[str, Site]) -> str | None:
        """The bucket's region: that of the first AWS site where the file names none; None where there is none."""
        return self.region or next((site.region for site in sites.values() if isinstance(site, AwsSite)), None)

    def findings(self, sites: Mapping[str, Site]) -> Iterator[Finding]:
        if {".", ".."} & set(self.prefix.split("/")):
            yield Finding(("state", "prefix"), f"{shown(self.prefix)} is not a folder", "names without . and .. in it")
        if self.region is not None and (suggestion := catalog.load().provider("aws").region_typo(self.region)):
            yield Finding(("state", "region"), f"Amazon EC2 has no region {self.region}", f"did you mean {suggestion}?")
        if self.place(sites) is None:
            message = "state.region is required: the file has no AWS site to take it from"
            yield Finding(("state", "region"), message, "region: eu-west-1", at_key=True)
