"""Amazon EC2: what is asked before anything is spent (preflight.py). Machines are not made there yet."""

from __future__ import annotations

from provisioner.errors import GpuprovError
from provisioner.providers.base import Provider


def provider() -> Provider:
    """Raises GpuprovError: there is no module yet that makes the machines."""
    raise GpuprovError(
        "gpuprov can rehearse aws but does not make machines there yet",
        hint="add --sandbox to rehearse the file on this machine",
    )
