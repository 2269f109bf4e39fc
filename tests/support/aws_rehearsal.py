"""`python -m tests.support.aws_rehearsal up FILE`: gpuprov whose AWS has simulated machines (aws_machines.py).

Everything is as on AWS but two answers of the provider: packages and images are those of the rehearsal's mirror, and
its registry has a CA of its own. AWS_ENDPOINT_URL says where moto is.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from provisioner.cli.main import run
from provisioner.events import Events
from provisioner.paths import cache, private_dir
from provisioner.providers.aws import provider as aws
from provisioner.providers.sandbox import provider as sandbox
from provisioner.sandbox.keys import keys
from provisioner.stack.models import Stack


class Rehearsed(aws.Aws):
    simulated = True

    def pin(self, stacks: Mapping[str, Stack], events: Events) -> dict[str, Stack]:
        return sandbox.provider().pin(stacks, events)

    def role_variables(self) -> dict[str, Any]:
        secrets = keys(private_dir(cache() / "sandbox") / "keys")
        return {"gpuprov_registry": sandbox.REGISTRY, "gpuprov_registry_ca": secrets.ca}


if __name__ == "__main__":
    aws.provider = Rehearsed
    sys.exit(run(sys.argv[1:]))
