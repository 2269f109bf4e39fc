"""File systems that all nodes of a site share: what nobody should learn afterwards."""

from __future__ import annotations

from provisioner.common.preflight import Finding
from provisioner.machines.providers.tencent.site import TencentSite

PRICES = "https://cloud.tencent.com/document/product/582/47378"


def findings(site: TencentSite) -> list[Finding]:
    """What is said each time, of what is made and of what it costs."""
    if site.storage.cfs is None:
        return []
    message = (
        f"`gpuprov down` removes the CFS file system at {site.storage.cfs.path} with its data; its price goes by what "
        "is stored, and is in no figure here"
    )
    return [Finding("warning", "storage", message, f"keep a copy of what has to stay; prices: {PRICES}")]
