"""Machines behind the stand-in for Azure: every virtual machine that Terraform makes is a sandbox node, and Resource
Manager (azure_api.py) knows of it."""

from __future__ import annotations

import base64
import itertools
from dataclasses import dataclass
from typing import Any

from provisioner.sandbox import network
from tests.support.aws_machines import Machines
from tests.support.azure_api import Api, machine
from tests.support.schema_provider import Cloud

VM, NIC, ADDRESS = "azurerm_linux_virtual_machine", "azurerm_network_interface", "azurerm_public_ip"


@dataclass(frozen=True)
class Instance:
    """What a node is made of, as Machines.boot wants it."""

    id: str
    instance_type: str
    private_ip: str
    lifecycle: str
    user_data: bytes
    tags: dict[str, str]

    def get_tags(self) -> list[dict[str, str]]:
        return [{"key": key, "value": value} for key, value in self.tags.items()]


def attach(cloud: Cloud, api: Api, machines: Machines) -> None:
    """From now on the cloud's machines are these."""
    public = itertools.count(network.FIRST)

    def on_created(kind: str, new: dict[str, Any]) -> None:
        if kind == ADDRESS:
            new["ip_address"] = f"127.77.{machines.octet}.{next(public)}"
        elif kind == NIC:
            new["private_ip_address"] = f"{machines.prefix}.{next(machines.numbers)}"
        elif kind == VM:
            _boot(new)

    def _boot(new: dict[str, Any]) -> None:
        (card,) = [resource for resource in cloud.of(NIC) if resource["id"] == new["network_interface_ids"][0]]
        address_id = card["ip_configuration"][0]["public_ip_address_id"]
        (address,) = [resource for resource in cloud.of(ADDRESS) if resource["id"] == address_id]
        new["private_ip_address"], new["public_ip_address"] = card["private_ip_address"], address["ip_address"]
        number, name = new["virtual_machine_id"], new["name"]
        machines.boot(
            Instance(
                number, new["size"], card["private_ip_address"], new["priority"].lower(),
                base64.b64decode(new["custom_data"]), new["tags"],
            ),
            address["ip_address"],
        )  # fmt: skip
        api.resources.append(machine(new["resource_group_name"], name, number, new["tags"]))
        api.plain[f"/console/{name}"] = lambda: machines.console(number)

    def on_deleted(kind: str, old: dict[str, Any]) -> None:
        if kind == VM:
            machines.remove(old["virtual_machine_id"])
            api.resources[:] = [row for row in api.resources if row["properties"]["vmId"] != old["virtual_machine_id"]]

    cloud.on_created, cloud.on_deleted = on_created, on_deleted
