"""The place of a cluster's state, opened."""

from __future__ import annotations

from provisioner.machines.providers.aws.bucket import Bucket
from provisioner.machines.providers.aws.client import Region
from provisioner.machines.providers.aws.state import S3State
from provisioner.spec.models import ClusterSpec


def remote(spec: ClusterSpec) -> Bucket:
    """The bucket of a cluster whose state is in S3 (providers/state.py)."""
    assert isinstance(spec.state, S3State)
    region = spec.state.place(spec.sites)
    assert region is not None  # S3State.findings
    return Bucket(Region(region), spec.state, spec.name)
