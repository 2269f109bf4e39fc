"""The place of a cluster's state, opened."""

from __future__ import annotations

from provisioner.machines.providers.tencent.client import Region
from provisioner.machines.providers.tencent.cos import CosBucket
from provisioner.machines.providers.tencent.site import TencentSite
from provisioner.machines.providers.tencent.state import CosState
from provisioner.spec.models import ClusterSpec


def remote(spec: ClusterSpec) -> CosBucket:
    """The bucket of a cluster whose state is in COS (providers/state.py)."""
    assert isinstance(spec.state, CosState)
    region = spec.state.place(spec.sites)
    assert region is not None  # CosState.findings
    abroad = any(isinstance(site, TencentSite) and site.account == "international" for site in spec.sites.values())
    return CosBucket(Region(region, international=abroad), spec.state, spec.name)
