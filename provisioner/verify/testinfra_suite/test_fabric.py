"""What joins GPUs and nodes: NVSwitches, fabric manager, IMEX, InfiniBand or RoCE ports, EFA devices."""

from __future__ import annotations

import re
import shlex
from typing import Any

import pytest
from gpu_node import Node

LINK_LAYER = {"infiniband": "InfiniBand", "roce": "Ethernet"}
NVSWITCH = re.compile(r"^\S+ .*\[0680\]: .*\[10de:", re.M)
ADDRESSES = 'for card in /sys/class/infiniband/*; do echo "${card##*/} $(readlink -f "$card/device")"; done'
"""Each RDMA device, and a path that ends with its PCI address."""


def nvswitches(node: Node) -> int:
    """How many NVSwitches the PCI bus shows."""
    return len(NVSWITCH.findall(node.output("lspci -Dnn")))


def test_nvswitches(node: Node) -> None:
    expected = node.expected["nvswitches"]
    if not expected:
        pytest.skip("no NVSwitch is expected on the PCI bus")
    count = nvswitches(node)
    node.require(count >= expected, f"{count} of {expected} NVSwitches are on the PCI bus", "nvswitches")


def test_fabric_manager(node: Node) -> None:
    if not node.expected["fabric_manager"]:
        pytest.skip("this machine needs no fabric manager")
    # Where no source says that the machine needs it, a switch on its bus does.
    switches = nvswitches(node)
    if not switches and "fabric_manager" in node.expected["unverified"]:
        pytest.skip("no NVSwitch is on the PCI bus")
    _, state, _ = node.run("systemctl is-active nvidia-fabricmanager")
    facts = () if switches else ("fabric_manager",)
    node.require(state.strip() == "active", f"nvidia-fabricmanager is {state.strip()}", *facts)


def test_gpus_have_joined_the_fabric(node: Node) -> None:
    if not node.expected["nvlink_fabric"]:
        pytest.skip("these GPUs join no fabric")
    done = {"fabric_state": ("Completed", "N/A", None), "fabric_status": ("Success", "N/A", None)}
    wrong = [f"GPU {number}: {gpu[key]}" for number, gpu in enumerate(node.gpus()) for key in done
             if gpu[key] not in done[key]]  # fmt: skip
    node.require(
        not wrong, f"not in the NVLink fabric: {', '.join(wrong)}", *("nvlink_fabric",) * (not nvswitches(node))
    )


def test_imex(node: Node) -> None:
    if not node.expected["imex"]:
        pytest.skip("NVLink does not leave the node")
    _, state, _ = node.run("systemctl is-active nvidia-imex")
    node.require(state.strip() == "active", f"nvidia-imex is {state.strip()}", "imex")


def test_rdma_ports(node: Node) -> None:
    layer = LINK_LAYER.get(node.expected["network"])
    if layer is None:
        pytest.skip("neither InfiniBand nor RoCE is expected")
    count, rate = node.expected["rdma_ports"], node.expected["rdma_port_gbps"]
    ports = [port for port in ibstat(node) if port.get("Link layer") == layer]
    devices = training_devices(node, {port["device"] for port in ports})
    ports = [port for port in ports if port["device"] in devices]
    up = [port for port in ports if port.get("State") == "Active" and float(port.get("Rate", "0").split()[0]) >= rate]
    other_ports = ", ".join(
        f"{port['device']} {port.get('State')} {port.get('Rate')}" for port in ports if port not in up
    )
    reason = f"{len(up)} of {count} {layer} ports are active at {rate:g} Gbit/s; the others: {other_ports or 'none'}"
    facts = ("network", "rdma_ports", "rdma_port_gbps", "rdma_devices", "rdma_pci_addresses")
    node.require(len(up) >= count, reason, *facts)


def ibstat(node: Node) -> list[dict[str, Any]]:
    """The ports of all adapters, each with its device and the words of ibstat."""
    ports: list[dict[str, Any]] = []
    device = ""
    for line in node.output("ibstat").splitlines():
        key, _, value = line.strip().partition(":")
        if match := re.match(r"CA '(.+)'", line):
            device = match[1]
        elif re.fullmatch(r"Port \d+", key):
            ports.append({"device": device})
        elif ports and ports[-1]["device"] == device:
            ports[-1][key] = value.strip()
    return ports


def training_devices(node: Node, devices: set[str]) -> set[str]:
    """The devices without those for storage and management, as far as PCI addresses or names tell them apart."""
    expected = node.expected["rdma_pci_addresses"]
    if expected:
        rows = [line.split() for line in node.output(f"sh -c {shlex.quote(ADDRESSES)}").splitlines()]
        training = {name for name, path in rows if path.rpartition("/")[2] in expected}
        devices = devices & training if 2 * len(training) >= len(expected) else devices
    by_name = devices & set(node.expected["rdma_devices"])
    return by_name if len(by_name) >= node.expected["rdma_ports"] else devices


def test_efa_devices(node: Node) -> None:
    if not node.expected["efa"]:
        pytest.skip("no EFA is expected")
    count = node.expected["rdma_ports"]
    _, stdout, _ = node.run("fi_info -p efa")
    devices = set(re.findall(r"^\s*domain:\s*(\S+?)(?:-rdm|-dgrm)?$", stdout, re.M))
    node.require(len(devices) == count, f"{len(devices)} of {count} EFA devices", "efa", "rdma_ports")
