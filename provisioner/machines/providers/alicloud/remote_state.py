"""The place of a cluster's state, opened."""

from __future__ import annotations

from provisioner.machines.providers.alicloud.bucket import Bucket
from provisioner.machines.providers.alicloud.oss import Oss
from provisioner.machines.providers.alicloud.state import OssState
from provisioner.spec.models import ClusterSpec


def remote(spec: ClusterSpec) -> Bucket:
    """The bucket of a cluster whose state is in OSS (providers/state.py)."""
    assert isinstance(spec.state, OssState)
    region = spec.state.place(spec.sites)
    assert region is not None  # OssState.findings
    return Bucket(Oss(region), spec.state, spec.name)
