"""`provider: tencent`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from provisioner.spec.site import CloudSite


class TencentSite(CloudSite):
    """A region of Tencent Cloud."""

    provider: Literal["tencent"] = Field(description="Who sells the machines")
