"""/sys/class/infiniband of a simulated node, as the probe and the role nccl read it."""

from __future__ import annotations

import pytest

from provisioner.catalog import load
from provisioner.sandbox.node import sysfs
from provisioner.verify.parsers.rdma_sysfs import parse
from provisioner.verify.probe import node as probe
from tests.support.ansible_modules import shared
from tests.support.sandbox_node import MakeNode


def test_cards_are_where_the_kernel_would_show_them(make_node: MakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    node, row = make_node("dgx-h100"), load().machine("dgx-h100")
    (node.root / sysfs.PLACE).mkdir(parents=True)
    for _ in range(2):  # again after each fault
        sysfs.network_cards()
    monkeypatch.setattr(probe, "RDMA", str(node.root / "sys/class/infiniband"))
    found = parse(probe.rdma()["text"])
    assert {device.name: device.pci for device in found} == dict(zip(row.rdma_devices, row.rdma_pci, strict=True))
    rdma = shared("gpuprov_rdma")
    told, _ = rdma.settings("infiniband", row.network.ports, False, (), str(node.root), row.rdma_pci)
    assert told["NCCL_IB_HCA"] == "=" + ",".join(f"{name}:1" for name in sorted(row.rdma_devices))
