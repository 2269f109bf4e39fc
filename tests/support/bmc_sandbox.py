"""`python -m tests.support.bmc_sandbox up FILE`: gpuprov at a rack of sandbox nodes behind replayed BMCs (bmc.py).

As baremetal_sandbox, and in place of an installer's image each machine gets one that says what its seed would: what
is powered on with it becomes that machine. Waiting is cut to what a sandbox node takes.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from provisioner.cli.main import run
from provisioner.machines import bmc as redfish
from provisioner.machines import installing
from provisioner.machines.installer import iso
from provisioner.machines.installer.seed import Target
from provisioner.machines.providers.baremetal import provider as baremetal
from provisioner.machines.redfish import machine
from tests.support.baremetal_sandbox import SandboxRun

HEAD = b"\0" * 32768 + b"\x01CD001\x01"
"""What a BMC looks at before it takes an image: the first volume descriptor of ISO 9660."""
WAIT_S = 40.0


def write(distribution: str, installer: Path, target: Target, out: Path) -> Path:
    """In place of installer.iso.make."""
    assert installer.exists() and distribution
    out.write_bytes(HEAD + json.dumps(asdict(target)).encode())
    return out


def read(image: bytes) -> dict[str, Any]:
    """The target of an image that `write` made."""
    target: dict[str, Any] = json.loads(image.removeprefix(HEAD))
    return target


class Impatient(redfish.RedfishMachines):
    """Does not wait an hour for a machine that never comes up."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._wait_s = WAIT_S


if __name__ == "__main__":
    baremetal.PROVIDER = SandboxRun  # type: ignore[assignment]
    redfish.RedfishMachines = Impatient  # type: ignore[misc]
    iso.make = write
    machine.MEDIA_S, machine.HOST_MEDIA_S, machine.POLL_S, installing.SSH_PAUSE_S = 3.0, 20.0, 0.2, 0.5
    sys.exit(run(sys.argv[1:]))
