"""The shape of a group's choice among several sites, as `plan`, `cost`, `status`, `up` and `verify` give it."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from provisioner.output.base import OpenOutput


class SiteChoiceOutput(OpenOutput):
    """The site of a group whose `site` is a list."""

    group: str
    site: str = Field(description="Where the group is, or is created")
    sites: list[str] = Field(description="The list, in the order in which the sites are tried")
    machines: dict[str, str] = Field(default={}, description="By site: the machine type of the group there")
    order: Literal["file", "price"] = Field(default="file", description="`site_order` of the group")
    prices: dict[str, str | None] = Field(
        default={},
        description="By site: the list price of a machine for an hour, null if not known; there with order price, or "
        "with a machine type for each site",
    )
    refused: dict[str, str] = Field(description="By site: what it answered when it had no capacity")
