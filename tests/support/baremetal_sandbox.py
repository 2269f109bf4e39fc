"""`python -m tests.support.baremetal_sandbox up FILE`: gpuprov whose bare metal has simulated hardware.

Everything is as on machines of one's own but two answers of the provider: packages and images are those of the
sandbox's mirror, and its registry has a CA of its own. GPUPROV_TEST_CA: the file of it, on a sandbox node that runs
gpuprov itself.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from provisioner.cli.main import run
from provisioner.machines.providers.baremetal import provider as baremetal
from provisioner.machines.providers.base import Place
from provisioner.machines.providers.sandbox.provider import REGISTRY, Mirror


class OnNode(Mirror):
    """The mirror as a node knows it: what comes from there was locked elsewhere."""

    def role_variables(self) -> dict[str, Any]:
        return {"gpuprov_registry": REGISTRY, "gpuprov_registry_ca": Path(os.environ["GPUPROV_TEST_CA"]).read_text()}


class SandboxRun(baremetal.BareMetal):
    """Machines of one's own with simulated hardware."""

    simulated = True

    def __init__(self, site_context: Place) -> None:
        super().__init__(site_context)
        self.sandbox_mirror = OnNode() if "GPUPROV_TEST_CA" in os.environ else Mirror()


@dataclass
class Box:
    """A machine that exists, as a sandbox node wants to know it. `key`: of the person whose machine it is."""

    id: str
    instance_type: str
    private_ip: str
    group: str
    key: str
    lifecycle: str = ""
    image_id: str = ""
    """Of no image that a test has made: it boots what its lock says."""

    @property
    def user_data(self) -> bytes:
        user = {"name": "ubuntu", "ssh_authorized_keys": [self.key]}
        return ("#cloud-config\n" + json.dumps({"users": [user]})).encode()

    def get_tags(self) -> list[dict[str, str]]:
        return [{"key": "gpuprov-group", "value": self.group}, {"key": "gpuprov-node", "value": self.id}]


if __name__ == "__main__":
    baremetal.PROVIDER = SandboxRun  # type: ignore[assignment]
    sys.exit(run(sys.argv[1:]))
