"""`python -m tests.support.alicloud_sandbox up FILE`: gpuprov whose Alibaba Cloud has simulated machines.

Everything is as there but two answers of the provider: packages and images are those of the sandbox's mirror, and its
registry has a CA of its own.
"""

from __future__ import annotations

import base64
import itertools
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from provisioner.cli.main import run
from provisioner.machines.providers.alicloud import provider as alicloud
from provisioner.machines.providers.base import Place
from provisioner.machines.providers.sandbox.provider import Mirror
from provisioner.sandbox import network
from tests.support.alicloud_api import Account
from tests.support.aws_machines import Machines
from tests.support.schema_provider import Cloud


class SandboxRun(alicloud.Alicloud):
    """Alibaba Cloud with simulated machines."""

    simulated = True

    def __init__(self, site_context: Place) -> None:
        super().__init__(site_context)
        self.sandbox_mirror = Mirror()


@contextmanager
def attached(cloud: Cloud, account: Account, machines: Machines) -> Iterator[None]:
    """The cloud's instances are these machines: one boots when it gets its elastic address, shows its host key on its
    console, and goes with its instance. What is left of them when the block ends is removed."""
    public = itertools.count(network.FIRST)
    instances: list[dict[str, Any]] = account.rows.setdefault("DescribeInstances", [])

    def on_created(kind: str, new: dict[str, Any]) -> None:
        if kind == "alicloud_instance":
            new["private_ip"] = new["primary_ip_address"] = f"{machines.prefix}.{next(machines.numbers)}"
            tags = [{"TagKey": key, "TagValue": value} for key, value in new["tags"].items()]
            instances.append({"InstanceId": new["id"], "Status": "Running", "Tags": {"Tag": tags}})
        elif kind == "alicloud_eip_address":
            new["ip_address"] = f"127.77.{machines.octet}.{next(public)}"
        elif kind == "alicloud_eip_association":
            instance = cloud.objects["alicloud_instance", new["instance_id"]]
            address = cloud.objects["alicloud_eip_address", new["allocation_id"]]["ip_address"]
            machines.boot(_instance(instance), address)

    def on_deleted(kind: str, old: dict[str, Any]) -> None:
        if kind == "alicloud_instance":
            machines.remove(old["id"])
            instances[:] = [row for row in instances if row["InstanceId"] != old["id"]]

    cloud.on_created, cloud.on_deleted = on_created, on_deleted
    account.answers["GetInstanceConsoleOutput"] = lambda arguments: {
        "ConsoleOutput": base64.b64encode(machines.console(arguments["InstanceId"]).encode()).decode()
    }
    try:
        yield
    finally:
        machines.close()


def _instance(resource: dict[str, Any]) -> Any:
    """As `Machines.boot` reads one."""
    return SimpleNamespace(
        id=resource["id"], instance_type=resource["instance_type"], private_ip=resource["private_ip"],
        lifecycle="normal" if resource["spot_strategy"] == "NoSpot" else "spot",
        user_data=base64.b64decode(resource["user_data"]),
        get_tags=lambda: [{"key": key, "value": value} for key, value in resource["tags"].items()],
    )  # fmt: skip


if __name__ == "__main__":
    alicloud.PROVIDER = SandboxRun
    sys.exit(run(sys.argv[1:]))
