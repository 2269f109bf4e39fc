"""/sys/class/infiniband of a simulated node, as the probe and the role nccl read it."""

from __future__ import annotations

import pytest

from provisioner.catalog import load
from provisioner.sandbox.faults import find_fault
from provisioner.sandbox.node import sysfs
from provisioner.verify.bundle import Bundle, Output
from provisioner.verify.check import Failed, Skipped
from provisioner.verify.checks import rdma as checks
from provisioner.verify.expectations import expect
from provisioner.verify.facts import read
from provisioner.verify.parsers.rdma_sysfs import parse
from provisioner.verify.probe import node as probe
from tests.support.ansible_modules import shared
from tests.support.sandbox_node import MakeNode, healthy

CATALOG = load()
INFINIBAND = [row.name for row in CATALOG.machines() if row.network.kind == "infiniband" and not row.retired]


def test_cards_are_where_the_kernel_would_show_them(make_node: MakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    node, row = make_node("dgx-h100"), CATALOG.machine("dgx-h100")
    (node.root / sysfs.PLACE).mkdir(parents=True)
    for _ in range(2):  # again after each fault
        sysfs.network_cards()
    monkeypatch.setattr(probe, "RDMA", str(node.root / "sys/class/infiniband"))
    devices = parse(probe.rdma()["text"])
    assert {device.name: device.pci for device in devices} == dict(zip(row.rdma_devices, row.rdma_pci, strict=True))
    rdma = shared("gpuprov_rdma")
    variables, _ = rdma.settings("infiniband", row.network.ports, False, (), str(node.root), row.rdma_pci)
    assert variables["NCCL_IB_HCA"] == "=" + ",".join(f"{name}:1" for name in sorted(row.rdma_devices))


@pytest.mark.parametrize("machine", INFINIBAND)
def test_a_narrow_link_is_a_fault_where_healthy_cards_show_theirs(
    make_node: MakeNode, monkeypatch: pytest.MonkeyPatch, machine: str
) -> None:
    """A virtual function shows no link: rdma.pcie is skipped on such a node and would never end its quarantine."""
    row = CATALOG.machine(machine)
    node, fault = make_node(machine, None), find_fault("ib-pcie-narrow")
    expected = expect(row, CATALOG.gpu(row.gpu_model), None, None, CATALOG)
    monkeypatch.setattr(probe, "RDMA", str(node.root / "sys/class/infiniband"))
    (node.root / sysfs.PLACE).mkdir(parents=True)

    def judge() -> None:
        sysfs.network_cards()
        checks.test_pcie(read(Bundle({"rdma.json": Output(probe.rdma()["text"], rc=0)})), expected)

    if CATALOG.provider(row.provider).virtual:
        assert not fault.applies(healthy(machine))
        with pytest.raises(Skipped, match="virtual functions"):
            judge()
        return
    judge()
    node.become(fault.apply(healthy(machine), 0))
    with pytest.raises(Failed, match="PCIe carries"):
        judge()
