"""`image` of a recipe: what is built, out of each group, where it is published, and what is told when that fails.

A recipe is a cluster.yaml: each of its groups is one machine of which an image is made, and on whose type it is proven.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from provisioner.spec.base import Command, Model, Name, Text


def recipe_file(folder: Path, name: str) -> Path:
    """The recipe of a reference's name (`groups.*.image` before its @): a plain name is one of the folder `images`
    beside cluster.yaml, whose folder is given."""
    return folder / (f"{name}.yaml" if "/" in name else f"images/{name}.yaml")


class DiskImage(Model):
    """Files that machines of one's own boot from."""

    path: Text = Field(
        title="the path of a folder",
        description="Folder that the disk images are published in; relative to the recipe",
        examples=["disks"],
    )
    formats: Annotated[tuple[Literal["raw", "qcow2"], ...], Field(min_length=1, max_length=2)] = Field(
        default=("raw", "qcow2"),
        title="a list of raw, qcow2",
        description="Formats: raw for MAAS and for writing onto a disk, qcow2 for libvirt",
        examples=[["raw"]],
    )
    mirror: Annotated[str, Field(pattern=r"^https?://[A-Za-z0-9.-]+(:[0-9]+)?(/[A-Za-z0-9._/-]*)?$")] | None = Field(
        default=None,
        title="a URL",
        description="Mirror of the distribution that the builder's system is made from, and no other; null: the "
        "distribution's own, with its security updates",
        examples=["http://mirror.lab/debian"],
    )


class ImageTarget(Model):
    """What is special about the image of one group."""

    builder: Text | None = Field(
        default=None,
        title="a machine type of the provider",
        description="Type of the machine that the image is built on: one without a GPU is enough. Null: the provider's "
        "usual one",
        examples=["m7i.2xlarge"],
    )
    copy_to: tuple[Text, ...] = Field(
        default=(),
        max_length=32,
        title="a list of regions",
        description="Further regions that have the image",
        examples=[["us-west-2"]],
    )
    share_with: tuple[Text, ...] = Field(
        default=(),
        max_length=128,
        title="a list of accounts",
        description="Further accounts that may start machines of it",
        examples=[["123456789012"]],
    )
    disk: DiskImage | None = Field(
        default=None, description="Disk image for machines of your own: needed for a group of bare metal, of no other"
    )


class Scan(Model):
    """Known vulnerabilities, by a scanner on this machine and its database."""

    database: Text = Field(
        title="the path of a folder",
        description="The scanner's database, kept up to date by you; relative to the recipe",
        examples=["/srv/grype-db"],
    )
    scanner: Literal["grype", "trivy"] = Field(
        default="grype", title="grype or trivy", description="Scanner that reads it; installed by you"
    )


class ImageRecipe(Model):
    """How images are built, proven and kept."""

    targets: dict[Name, ImageTarget] = Field(
        default_factory=dict,
        title="a block for each group that has something special",
        description="What is special about the image of a group, by the group's name",
    )
    boots: int = Field(
        default=2,
        ge=1,
        le=10,
        title="a whole number",
        description="How often a machine of the new image boots and is proven before the image counts",
    )
    keep: int = Field(
        default=7, ge=1, le=1000, title="a whole number", description="Builds that `gpuprov image prune` leaves"
    )
    signed_by: Annotated[str, Field(pattern=r"^[0-9A-F]{40}$")] | None = Field(
        default=None,
        title="an OpenPGP fingerprint of 40 hex digits",
        description="Key that signs the manifest of each build, of your own gpg; null: manifests are not signed",
        examples=["0123456789ABCDEF0123456789ABCDEF01234567"],
    )
    scan: Scan | None = Field(
        default=None,
        description="Scan of each image's bill of materials for known vulnerabilities; null: none is made, and the "
        'images are "not scanned"',
    )
    failed: Command | None = Field(
        default=None,
        title="a shell command",
        description="Run on this machine when a night's build fails, with GPUPROV_IMAGE, GPUPROV_BUILD, GPUPROV_STEP, "
        "GPUPROV_MESSAGE and GPUPROV_PAGE set",
        examples=['curl -fsS --data-urlencode "text=$GPUPROV_IMAGE: $GPUPROV_MESSAGE" https://alerts.example.com'],
    )
