"""`state` of cluster.yaml: where Terraform's state is kept, and with it what other operators of the cluster need.

A provider's folder has the models of its own backends (`providers/<name>/state.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from provisioner.spec import folders
from provisioner.spec.base import Model
from provisioner.spec.site import Site
from provisioner.spec.source_map import Finding


class State(Model):
    """A Terraform backend. A subclass says which (`backend: Literal["s3"]`)."""

    backend: str

    def findings(self, sites: Mapping[str, Site]) -> Iterator[Finding]:  # noqa: ARG002
        """What cannot work with these sites."""
        return iter(())


class LocalState(State):
    """State in the run directory: on this machine alone."""

    backend: Literal["local"] = Field(
        default="local", description="Kind of Terraform backend; local: on this machine alone"
    )


if TYPE_CHECKING:
    AnyState = State
else:
    AnyState = Annotated[folders.union("state", State, LocalState), Field(discriminator="backend")]
