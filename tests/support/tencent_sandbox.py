"""`python -m tests.support.tencent_sandbox up FILE`: gpuprov whose Tencent Cloud has simulated machines.

Everything is as at Tencent Cloud but two answers of the provider: packages and images are those of the sandbox's
mirror, and its registry has a CA of its own.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

from provisioner.cli.main import run
from provisioner.machines.providers.base import Place
from provisioner.machines.providers.sandbox.provider import Mirror
from provisioner.machines.providers.tencent import provider as tencent
from tests.support.aws_machines import Machines
from tests.support.tencent_api import TencentApi

MACHINE = "tencentcloud_instance"


class SandboxRun(tencent.Tencent):
    """Tencent Cloud with simulated machines."""

    simulated = True

    def __init__(self, site_context: Place) -> None:
        super().__init__(site_context)
        self.sandbox_mirror = Mirror()


@dataclass
class Instance:
    """An instance as a sandbox node wants to know it."""

    row: dict[str, Any]
    private_ip: str

    def __post_init__(self) -> None:
        self.id, self.instance_type = self.row["id"], self.row["instance_type"]
        self.user_data = self.row["user_data_raw"].encode()
        self.lifecycle = "spot" if self.row["instance_charge_type"] == "SPOTPAID" else ""

    def get_tags(self) -> list[dict[str, str]]:
        return [{"key": key, "value": value} for key, value in self.row["tags"].items()]


def boot(machines: Machines, api: TencentApi, kind: str, row: dict[str, Any]) -> None:
    """A node behind the addresses of what Terraform's provider has made; the account lists it."""
    if kind != MACHINE:
        return
    number = next(machines.numbers)
    row |= {"private_ip": f"{machines.prefix}.{number}", "public_ip": f"127.77.{machines.octet}.{number}"}
    machines.boot(Instance(row, row["private_ip"]), row["public_ip"])
    tags = [{"Key": key, "Value": value} for key, value in row["tags"].items()]
    api.things["instance"].append({"InstanceId": row["id"], "InstanceState": "RUNNING", "Tags": tags})


def end(machines: Machines, api: TencentApi, kind: str, row: dict[str, Any]) -> None:
    if kind == MACHINE:
        machines.remove(row["id"])
        api.things["instance"] = [
            instance for instance in api.things["instance"] if instance["InstanceId"] != row["id"]
        ]


if __name__ == "__main__":
    tencent.PROVIDER = SandboxRun
    sys.exit(run(sys.argv[1:]))
