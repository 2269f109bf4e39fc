"""File systems that are made with the cluster: what the module is told, and what nobody should learn afterwards."""

from __future__ import annotations

from typing import Any

from provisioner.providers.base import Finding
from provisioner.spec.models import AwsSite

PRICE = "https://aws.amazon.com/efs/pricing/"


def inputs(place: AwsSite) -> dict[str, Any]:
    """The module's `efs`; {} where none is asked for."""
    return {"efs": place.storage.efs.model_dump()} if place.storage.efs else {}


def findings(place: AwsSite) -> list[Finding]:
    if place.storage.efs is None:
        return []
    said = (
        f"`gpuprov down` removes the EFS file system at {place.storage.efs.path} with its data; its price goes by what "
        "is stored and read, and is in no figure here"
    )
    return [Finding("warning", "storage", said, f"keep a copy of what has to stay; prices: {PRICE}")]
