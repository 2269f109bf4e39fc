"""Every fault on every example's machine: exactly its check fails, on exactly that node; cleared, all is well again."""

from __future__ import annotations

import pytest

from provisioner import catalog
from provisioner.catalog.models import Gpu, Machine
from tests.support.rehearsal import Rehearsal, failing, wrongs

pytestmark = pytest.mark.sandbox

CHECK = {
    "gpu-lost": "gpu.count",
    "gpu-model": "gpu.model",
    "nvlink-down": "nvlink.links",
    "xid-79": "gpu.xid",
    "xid-48": "gpu.xid",
    "ecc-uncorrectable": "gpu.ecc",
    "row-remap-pending": "gpu.remap",
    "wrong-driver": "driver.version",
    "fabric-manager-dead": "nvswitch.fabric",
    "ib-port-down": "ib.ports",
    "ib-port-slow": "ib.rate",
    "ib-link-errors": "rdma.errors",
    "ib-no-subnet-manager": "rdma.lid",
    "ib-firmware": "rdma.firmware",
    "uverbs-lost": "rdma.uverbs",
    "efa-device-lost": "efa.devices",
    "exporter-dead": "dcgm.exporter",
    "wrong-image": "container.image",
    "nvidia-smi-hangs": "driver.responds",
}
"""Fault → the one check that names it."""


def possible(fault: str, machine: Machine, gpu: Gpu) -> bool:
    """Whether such a machine can have that fault, by the catalogue alone."""
    return {
        "nvlink-down": machine.nvlink.topology != "none",
        "fabric-manager-dead": machine.fabric_manager_required,
        "ib-port-down": machine.network.kind == "infiniband",
        "ib-port-slow": machine.network.kind == "infiniband",
        "ib-link-errors": machine.network.kind == "infiniband",
        "ib-no-subnet-manager": machine.network.kind == "infiniband",
        "ib-firmware": machine.network.kind == "infiniband",
        "uverbs-lost": machine.network.kind in ("efa", "infiniband", "roce"),
        "efa-device-lost": machine.network.kind == "efa",
        "ecc-uncorrectable": gpu.ecc,
        "row-remap-pending": gpu.ecc,  # before Ampere a pending page retirement, which the same check finds
    }.get(fault, True)


def try_all(rehearsal: Rehearsal) -> None:
    assert rehearsal.first is not None
    assert rehearsal.first.status == 0, (rehearsal.first.stderr, wrongs(rehearsal.first))
    victim = rehearsal.run("status", rehearsal.file, "--json").json["nodes"][-1]
    machine = catalog.load().machine(victim["machine"])
    gpu = catalog.load().gpu(machine.gpu_model)
    wrong = []
    for fault, check in CHECK.items():
        injected = rehearsal.run("sandbox", "fault", rehearsal.file, victim["name"], fault)
        if not possible(fault, machine, gpu):
            assert injected.status == 2, f"{fault} on {machine.name}"
            continue
        assert injected.status == 0, injected.stderr
        verdict = rehearsal.verify()
        if verdict.status != 1 or failing(verdict.json) != {victim["name"]: {check}}:
            wrong.append(f"{fault}: exit {verdict.status}, failing {failing(verdict.json)}")
        cleared = rehearsal.run("sandbox", "clear", rehearsal.file, victim["name"], fault)
        assert cleared.status == 0, cleared.stderr
    assert wrong == []
    well = rehearsal.verify()
    assert well.status == 0, wrongs(well)


def test_faults_on_p4d(p4d: Rehearsal) -> None:
    try_all(p4d)


def test_example_is_healthy_and_its_faults_are_found(example: Rehearsal) -> None:
    try_all(example)


def test_a_fault_that_the_machine_can_not_have_is_refused(p4d: Rehearsal) -> None:
    said = p4d.run("sandbox", "fault", p4d.file, "train-0", "ib-port-down")
    assert said.status == 2
    assert "InfiniBand" in said.stderr


def test_a_misspelled_fault_gets_the_nearest_word(p4d: Rehearsal) -> None:
    said = p4d.run("sandbox", "fault", p4d.file, "train-0", "gpu-lots")
    assert said.status == 2
    assert "gpu-lost" in said.stderr
