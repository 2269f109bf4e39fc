"""`image` of a recipe: what is built, out of each group, where it is published, and what is told when that fails.

A recipe is a cluster.yaml: each of its groups is one machine of which an image is made, and on whose type it is proven.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from provisioner.spec.base import Command, Model, Name, Text


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
    failed: Command | None = Field(
        default=None,
        title="a shell command",
        description="Run on this machine when a night's build fails, with GPUPROV_IMAGE, GPUPROV_BUILD, GPUPROV_STEP, "
        "GPUPROV_MESSAGE and GPUPROV_PAGE set",
        examples=['curl -fsS --data-urlencode "text=$GPUPROV_IMAGE: $GPUPROV_MESSAGE" https://alerts.example.com'],
    )
