"""The shape of a group's choice among several sites, as `plan`, `cost`, `status`, `up` and `verify` give it."""

from __future__ import annotations

from pydantic import Field

from provisioner.documents.base import OpenOutput


class SiteChoiceOutput(OpenOutput):
    """The site of a group whose `site` is a list."""

    group: str
    site: str = Field(description="Where the group is, or is created")
    sites: list[str] = Field(description="The list, in the order of cluster.yaml")
    refused: dict[str, str] = Field(description="By site: what it answered when it had no capacity")
