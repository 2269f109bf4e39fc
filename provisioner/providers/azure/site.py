"""`provider: azure`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from provisioner.spec.site import CloudSite


class AzureSite(CloudSite):
    """A region of Azure; zones are "1", "2" and "3"."""

    provider: Literal["azure"] = Field(description="Who sells the machines")
