"""`sites` of cluster.yaml: the models of all providers' folders as one union, told apart by `provider`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import Field, TypeAdapter

from provisioner.spec import folders
from provisioner.spec.site import Site

if TYPE_CHECKING:
    AnySite = Site
else:
    AnySite = Annotated[folders.union("site", Site), Field(discriminator="provider")]

SITE: TypeAdapter[Site] = TypeAdapter(AnySite)
"""Reads one site of a file by itself."""
