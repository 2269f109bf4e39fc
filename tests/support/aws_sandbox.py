"""`python -m tests.support.aws_sandbox up FILE`: gpuprov whose AWS has simulated machines (aws_machines.py).

Everything is as on AWS but two answers of the provider: packages and images are those of the sandbox's mirror, and
its registry has a CA of its own. AWS_ENDPOINT_URL says where moto is.
"""

from __future__ import annotations

import sys

from provisioner.cli.main import run
from provisioner.machines.providers.aws import provider as aws
from provisioner.machines.providers.base import Place
from provisioner.machines.providers.sandbox.provider import Mirror


class SandboxRun(aws.Aws):
    """Amazon EC2 with simulated machines."""

    simulated = True

    def __init__(self, site_context: Place) -> None:
        super().__init__(site_context)
        self.sandbox_mirror = Mirror()


if __name__ == "__main__":
    aws.PROVIDER = SandboxRun
    sys.exit(run(sys.argv[1:]))
