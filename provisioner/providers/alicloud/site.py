"""`provider: alicloud`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from provisioner.spec.site import CloudSite


class AlicloudSite(CloudSite):
    """A region of Alibaba Cloud."""

    provider: Literal["alicloud"] = Field(description="Who sells the machines")
