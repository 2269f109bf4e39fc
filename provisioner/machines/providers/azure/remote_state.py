"""The place of a cluster's state, opened."""

from __future__ import annotations

from provisioner.machines.providers.azure.client import CLOUDS
from provisioner.machines.providers.azure.container import Container
from provisioner.machines.providers.azure.state import AzurermState
from provisioner.spec.models import ClusterSpec


def remote(spec: ClusterSpec) -> Container:
    """The container of a cluster whose state is in Azure (providers/state.py)."""
    assert isinstance(spec.state, AzurermState)
    return Container(CLOUDS[spec.state.environment(spec.sites)], spec.state, spec.name)
