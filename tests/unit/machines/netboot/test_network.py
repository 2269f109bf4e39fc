"""What machines can be given on a network, and which of this computer's addresses is theirs to ask."""

from __future__ import annotations

import json
import subprocess
from ipaddress import IPv4Interface
from typing import Any

import pytest

from provisioner.common.errors import GpuprovError
from provisioner.machines.netboot import network
from provisioner.machines.providers.hosts import Host

HERE = IPv4Interface("10.0.0.5/24")
ETH1: dict[str, Any] = {
    "ifname": "eth1",
    "flags": ["BROADCAST", "MULTICAST", "UP", "LOWER_UP"],
    "addr_info": [
        {"family": "inet6", "local": "fe80::1", "prefixlen": 64},
        {"family": "inet", "local": "10.0.0.5", "prefixlen": 24},
    ],
}


def hosts(*addresses: str) -> list[Host]:
    return [Host(f"n{number}.lab", "train", address) for number, address in enumerate(addresses, 1)]


def test_every_address_that_cannot_be_is_told_with_its_own_reason() -> None:
    listed_hosts = hosts("10.0.0.0", "10.0.0.255", "10.0.0.5", "10.0.0.1", "10.0.1.7", "10.0.0.11")
    with pytest.raises(GpuprovError) as caught:
        network.refuse_unusable(listed_hosts, HERE, "10.0.0.1", "eth1", "site lab")
    assert caught.value.message.split("; ") == [
        "n1.lab is to have the address 10.0.0.0, which is that of the network 10.0.0.0/24 itself",
        "n2.lab is to have the address 10.0.0.255, which is the broadcast address of 10.0.0.0/24",
        "n3.lab is to have the address 10.0.0.5, which is this computer's own",
        "n4.lab is to have the address 10.0.0.1, which is pxe.gateway",
        "n5.lab is to have the address 10.0.1.7, which is not one of 10.0.0.0/24",
    ]


@pytest.mark.parametrize(
    ("own_interface", "address", "gateway"),
    [(HERE, "10.0.0.11", ""), (HERE, "10.0.0.11", "10.0.0.5"), (IPv4Interface("10.0.0.2/31"), "10.0.0.3", "")],
)
def test_what_can_be_is_not_refused(own_interface: IPv4Interface, address: str, gateway: str) -> None:
    """This computer may be the gateway; a network of two has no address of its own."""
    network.refuse_unusable(hosts(address), own_interface, gateway, "eth1", "site lab")


def test_of_very_many_the_first_are_named() -> None:
    with pytest.raises(GpuprovError, match=r"n8.lab .*; and 2 more"):
        network.refuse_unusable(hosts(*(f"10.1.0.{n}" for n in range(1, 11))), HERE, "", "eth1", "site lab")


def listed(monkeypatch: pytest.MonkeyPatch, *rows: dict[str, Any]) -> None:
    done = subprocess.CompletedProcess([], 0, json.dumps(rows), "")
    monkeypatch.setattr(network.subprocess, "run", lambda *_, **__: done)


def test_an_interface_that_is_down_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    listed(monkeypatch, ETH1)
    assert network.address("eth1", "", "site lab") == HERE
    listed(monkeypatch, {**ETH1, "flags": ["BROADCAST", "MULTICAST"]})
    with pytest.raises(GpuprovError, match="eth1 is down") as caught:
        network.address("eth1", "", "site lab")
    assert caught.value.hint == "sudo ip link set eth1 up"
