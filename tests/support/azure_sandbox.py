"""`python -m tests.support.azure_sandbox up FILE`: gpuprov whose Azure has simulated machines (azure_machines.py).

Everything is as at Azure but who signs in, where Resource Manager is (ARM of the environment), and two answers of the
provider: packages and images are those of the sandbox's mirror, and its registry has a CA of its own.
"""

from __future__ import annotations

import os
import sys
from dataclasses import replace

from azure.core.pipeline.policies import _authentication

import provisioner.spec  # noqa: F401 - before a provider's folder, whose models it collects
from provisioner.cli.main import run
from provisioner.machines.providers.azure import client
from provisioner.machines.providers.azure import provider as azure
from provisioner.machines.providers.base import Place
from provisioner.machines.providers.sandbox.provider import Mirror
from tests.support.azure_api import Token


class SandboxRun(azure.Azure):
    """Azure with simulated machines."""

    simulated = True

    def __init__(self, site_context: Place) -> None:
        super().__init__(site_context)
        self.sandbox_mirror = Mirror()


def stand_in() -> None:
    """From now on this process's Azure is that one."""
    client.CLOUDS["public"] = replace(client.CLOUDS["public"], arm=os.environ["ARM"])
    client.credential_of = lambda cloud: Token()
    _authentication._enforce_https = lambda request: None  # loopback
    azure.PROVIDER = SandboxRun


if __name__ == "__main__":
    stand_in()
    sys.exit(run(sys.argv[1:]))
