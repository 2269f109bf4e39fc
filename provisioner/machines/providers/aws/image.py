"""Which image a distribution is in a region: the public SSM parameter of whoever publishes it, resolved once into the
lock. Names and aliases move, ids do not."""

from __future__ import annotations

from provisioner.common.errors import GpuprovError
from provisioner.machines.providers.aws.client import Region
from provisioner.machines.providers.trouble import Trouble
from provisioner.stack.models import BaseImage

PARAMETERS = {
    "ubuntu-22.04": "/aws/service/canonical/ubuntu/server/22.04/stable/current/amd64/hvm/ebs-gp2/ami-id",
    "ubuntu-24.04": "/aws/service/canonical/ubuntu/server/24.04/stable/current/amd64/hvm/ebs-gp3/ami-id",
    "debian-12": "/aws/service/debian/release/12/latest/amd64",
}
"""Sources: Canonical's as read in aws-samples/awsome-distributed-training (22.04) and by the same pattern (24.04);
Debian's by the pattern of its wiki's AWS page (unverified)."""


def base_image(region: Region, system: str) -> BaseImage:
    """The newest image of a distribution. Raises GpuprovError where it is not there, or could not be asked for."""
    parameter = PARAMETERS[system]
    try:
        published = region.ask("ssm", "get_parameter", Name=parameter)["Parameter"]
    except Trouble as error:
        if error.kind == "absent":
            hint = "another region, or stack.os"
            raise GpuprovError(f"{system} is not published in {region.name} ({parameter})", hint=hint) from None
        hints = {"credentials": "sign in (`aws sso login`, AWS_PROFILE)", "denied": "allow ssm:GetParameter"}
        hints["settings"] = "`aws configure list` shows what is in force"
        hint = hints.get(error.kind, "run it again")
        raise GpuprovError(f"the image of {system} could not be asked for: {error}", hint=hint) from None
    return BaseImage(id=published["Value"], why=f"{parameter} in {region.name}, version {published['Version']}")


def vendor_image(region: Region, name: str) -> BaseImage:
    """One of AWS's Deep Learning AMIs by its exact name. Raises GpuprovError where the region has it no more, or
    it could not be asked for."""
    filters = [{"Name": "name", "Values": [name]}, {"Name": "architecture", "Values": ["x86_64"]}]
    try:
        rows = region.ask("ec2", "describe_images", Owners=["amazon"], Filters=filters, IncludeDeprecated=True)[
            "Images"
        ]
    except Trouble as error:
        hints = {"credentials": "sign in (`aws sso login`, AWS_PROFILE)", "denied": "allow ec2:DescribeImages"}
        hint = hints.get(error.kind, "run it again")
        raise GpuprovError(f"the image {name} could not be asked for: {error}", hint=hint) from None
    available = [row for row in rows if row.get("State", "available") == "available"]
    if not available:
        hint = "a newer gpuprov, another region, or leave out base: vendor-hpc"
        raise GpuprovError(f"the image {name} is not published in {region.name}", hint=hint)
    newest = max(available, key=lambda row: (str(row.get("CreationDate", "")), row["ImageId"]))
    return BaseImage(id=newest["ImageId"], why=f"{name} of AWS in {region.name}")
