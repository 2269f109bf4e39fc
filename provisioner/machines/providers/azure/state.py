"""`state: {backend: azurerm}`: Terraform's state in a storage account of one's own. container.py works with it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from provisioner.machines.providers.azure.settings import Environment
from provisioner.machines.providers.azure.site import AzureSite
from provisioner.spec.site import Site
from provisioner.spec.source_map import Finding
from provisioner.spec.state import State

if TYPE_CHECKING:
    pass


class AzurermState(State):
    """A folder of a container."""

    backend: Literal["azurerm"] = Field(description="Kind of Terraform backend; azurerm: in a storage account of Azure")
    account: Annotated[str, Field(pattern=r"^[a-z0-9]{3,24}$")] = Field(
        title="the name of a storage account",
        description="Its storage account; it exists",
        examples=["acmegpuprov"],
    )
    container: Annotated[str, Field(pattern=r"^[a-z0-9](-?[a-z0-9]){2,62}$")] = Field(
        default="gpuprov", title="the name of a blob container", description="Its container in the account"
    )
    prefix: Annotated[str, Field(pattern=r"^([A-Za-z0-9_-][A-Za-z0-9_.-]*/?)*$", max_length=200)] = Field(
        default="gpuprov", title="a folder name", description="Folder in the container; each cluster has one in it"
    )
    create: bool = Field(default=False, description="Make the container where there is none")

    def environment(self, sites: Mapping[str, Site]) -> Environment:
        """That of the file's Azure sites; the public one where it has none."""
        return next((site.environment for site in sites.values() if isinstance(site, AzureSite)), "public")

    def findings(self, sites: Mapping[str, Site]) -> Iterator[Finding]:
        environments = {site.environment for site in sites.values() if isinstance(site, AzureSite)}
        if len(environments) > 1:
            several = ", ".join(sorted(environments))
            message = f"the sites are in several Azures ({several}): which one the account is of is not known"
            yield Finding(("state", "account"), message, "another file for each of them")
