"""Faults: each changes what it should and nothing else, and clearing gives back what was there."""

from __future__ import annotations

import json
from copy import deepcopy

import pytest

from provisioner.catalog import load
from provisioner.common.errors import GpuprovError
from provisioner.sandbox import fault_list_cloud, fault_list_fabric, fault_list_host, fault_list_load, faults
from provisioner.sandbox.faults import FAULTS
from provisioner.verify.registry import declared
from tests.support.sandbox_node import MakeNode, healthy

pytestmark = pytest.mark.heavy

OUTPUTS = {
    "xml": ("nvidia-smi", "-q", "-x"),
    "topo": ("nvidia-smi", "topo", "-m"),
    "p2p": ("nvidia-smi", "topo", "-p2p", "r"),
    "links": ("nvidia-smi", "nvlink", "-s"),
    "errors": ("nvidia-smi", "nvlink", "-e"),
    "dmesg": ("dmesg",),
    "ibstat": ("ibstat",),
    "efa": ("fi_info", "-p", "efa"),
    "lspci": ("lspci", "-Dnnx"),
}

XML = ("power-brake", "power-brake-moment",
       "thermal-slowdown", "gpu-hot", "power-limit", "compute-mode", "reset-required", "serial-copied",
       "sram-threshold", "channel-repair", "memory-unrepairable", "pages-retired", "fabric-partition",
       "row-bank-empty", "ecc-corrected", "ecc-pending", "bar-small", "gsp-off", "vbios-mixed",
       "fabric-not-joined", "mig-on")  # fmt: skip
LOG = ("switch-link-fault",
       "rm-init-failed", "gsp-timeout", "aer-fatal", "memory-error", "memory-corrected", "io-error", "disk-readonly",
       "task-hung", "cpu-stuck", "out-of-memory", "iommu-fault", "nic-health", "amd-ras", "amd-ring",
       "cpu-dead", "disk-late", "nfs-silent", "kernel-strange")  # fmt: skip

CHANGES = {
    "gpu-lost": {"xml", "topo", "p2p", "links", "errors", "lspci"},
    "gpu-model": {"xml", "links", "errors"},
    "nvlink-down": {"links"},
    "xid-79": {"dmesg"},
    "xid-48": {"dmesg"},
    "ecc-uncorrectable": {"xml"},
    "row-remap-pending": {"xml"},
    "ecc-off": {"xml"},
    "wrong-driver": {"xml"},
    "bad-driver": {"xml"},
    "driver-mismatch": {"xml", "topo", "p2p", "links", "errors"},
    "persistence-off": {"xml"},
    "hold-lost": set(),
    "fabric-manager-dead": set(),
    "ib-port-down": {"ibstat"},
    "ib-port-slow": {"ibstat"},
    "efa-gpu-memory": set(),
    "efa-device-lost": {"topo", "efa", "lspci"},
    "exporter-dead": set(),
    "wrong-image": set(),
    "ib-link-errors": set(),
    "ib-no-subnet-manager": {"ibstat"},
    "ib-firmware": set(),
    "uverbs-lost": set(),
    "dcgm-health": set(),
    "dcgm-xid": set(),
    "dcgm-rows": set(),
    "xgmi-errors": set(),
    **{name: {"xml"} for name in XML},
    **{name: {"dmesg"} for name in LOG},
    "bus-dead": {"lspci"},
    "nvswitch-lost": {"lspci"},
    "numa-unknown": {"topo"},
    "path-lost": {"topo", "p2p"},
    "imex-stopped": set(),
    "imex-node-lost": set(),
    "imex-domain-down": set(),
    "imex-not-ready": set(),
    "ib-partition": set(),
    "ib-pcie-narrow": set(),
    "peer-access-cut": {"p2p"},
    "nvlink-slow": {"links"},
    "nvlink-errors": {"errors"},
    "nvlink-asymmetry": {"errors"},
    "device-node-lost": set(),
    **{
        fault.name: set()
        for fault in (
            *fault_list_host.FAULTS,
            *fault_list_load.FAULTS,
            *fault_list_fabric.FAULTS,
            *fault_list_cloud.FAULTS,
        )
    },
    "cpus-missing": {"topo"},
    "driver-warning": {"dmesg"},
}
"""Outputs that differ with the fault; all others are the same to the last byte."""

HANGS = "nvidia-smi-hangs"
HEALTHY: dict[str, dict[str, tuple[int, str, str]]] = {}
"""Machine → what its tools say without a fault."""


def test_every_fault_is_in_the_table() -> None:
    assert {fault.name for fault in FAULTS} == {*CHANGES, HANGS}


def test_every_fault_names_a_check_that_exists() -> None:
    assert {fault.check for fault in FAULTS} <= {check.id for check in declared()}


@pytest.mark.parametrize("machine", ["p4d.24xlarge", "dgx-h100", "GN10Xp.20XLARGE320", "workstation-rtx4090"])
@pytest.mark.parametrize("name", sorted(CHANGES))
def test_a_fault_changes_its_outputs_and_no_others(make_node: MakeNode, machine: str, name: str) -> None:
    fault, healthy_state = faults.find_fault(name), healthy(machine)
    if not fault.applies(healthy_state):
        with pytest.raises(GpuprovError, match=r"which .* does not have"):
            faults._refuse(fault, healthy_state)
        return
    node = make_node(machine)
    index = min(3, len(healthy_state["gpus"]) - 1)
    if machine not in HEALTHY:
        HEALTHY[machine] = {key: node.run(*command) for key, command in OUTPUTS.items()}
    healthy_outputs = HEALTHY[machine]
    bad = faults.with_faults(healthy_state, [faults.Active(name, index)], "580.173.02")
    node.become(bad)
    after = {key: node.run(*command) for key, command in OUTPUTS.items()}
    stamp = "<timestamp>"
    differ = {key for key in OUTPUTS if _plain(healthy_outputs[key], stamp) != _plain(after[key], stamp)}
    assert differ == CHANGES[name]
    assert faults.with_faults(healthy_state, [], None) | {"faults": []} == healthy_state | {"faults": []}


def _plain(result: tuple[int, str, str], stamp: str) -> tuple[int, list[str]]:
    return result[0], [line for line in result[1].splitlines() if stamp not in line]


@pytest.mark.parametrize(("version", "healthy_gpus"), [("580.173.02", 7), ("595.91.07", 8)])
def test_a_bad_driver_is_dormant_until_it_is_loaded(make_node: MakeNode, version: str, healthy_gpus: int) -> None:
    node = make_node("p4d.24xlarge")
    name = f"bad-driver:{version}"
    node.become(faults.with_faults(healthy("p4d.24xlarge"), [faults.Active(name, 3)], "580.173.02"))
    assert node.says("nvidia-smi", "-q", "-x").count("<total>40960 MiB</total>") == healthy_gpus


@pytest.mark.parametrize("name", ["gpu-lost:595.91.07", "bad-driver:", "bad-driver:new", "bad-driver:595;reboot"])
def test_a_version_where_none_belongs_is_refused(name: str) -> None:
    with pytest.raises(GpuprovError) as caught:
        faults.find_fault(name)
    assert caught.value.exit_code == 2


def test_faults_do_not_touch_the_healthy_node() -> None:
    for fault in FAULTS:
        healthy_state = healthy("dgx-h100")
        original = deepcopy(healthy_state)
        if fault.applies(healthy_state):
            faults.with_faults(healthy_state, [faults.Active(fault.name, 3)], "580.173.02")
        assert healthy_state == original


def test_a_machine_without_gpus_has_the_faults_of_its_host_alone() -> None:
    checks, healthy_state = {check.id: check for check in declared()}, healthy("m6i.large")
    possible = faults.list_faults("m6i.large")
    assert {"memory-short", "io-error", "dns-broken"} <= {fault.name for fault in possible}
    for fault in possible:
        assert not checks[fault.check].is_about_gpus, fault.name
        active = faults._resolve("head-0", {"healthy": healthy_state, "driver": None}, fault.name, None)
        assert faults.with_faults(healthy_state, [active])["faults"] == [{"name": fault.name, "gpu": 0}]
    with pytest.raises(GpuprovError, match=r"m6i\.large has no GPU 3"):
        faults._resolve("head-0", {"healthy": healthy_state, "driver": None}, "io-error", 3)
    with pytest.raises(GpuprovError, match=r"gpu-lost needs a GPU, which m6i\.large does not have"):
        faults._resolve("head-0", {"healthy": healthy_state, "driver": None}, "gpu-lost", None)


def test_two_faults_at_once_and_one_cleared() -> None:
    healthy_state = healthy("p4d.24xlarge")
    both = faults.with_faults(healthy_state, [faults.Active("gpu-lost", 3), faults.Active("xid-48", 1)])
    single = faults.with_faults(healthy_state, [faults.Active("xid-48", 1)])
    assert [entry["name"] for entry in both["faults"]] == ["gpu-lost", "xid-48"]
    assert not both["gpus"][3]["present"]
    assert single["gpus"] == healthy_state["gpus"]
    json.dumps(both)


def test_an_unknown_fault_gets_the_nearest_word() -> None:
    with pytest.raises(GpuprovError) as caught:
        faults.find_fault("nvlink-dwn")
    assert "nvlink-down" in caught.value.hint
    assert caught.value.exit_code == 2


def test_a_fault_that_does_not_apply_says_where_it_does() -> None:
    with pytest.raises(GpuprovError) as caught:
        faults._refuse(faults.find_fault("ib-port-down"), healthy("p4d.24xlarge"))
    assert "p4d.24xlarge does not have" in caught.value.message
    assert "Standard_ND96asr_v4" in caught.value.hint


@pytest.mark.parametrize("version", ["580.173.02", "535.86.05", "610.57.04", "999.1"])
def test_another_version_of_the_same_branch(version: str) -> None:
    other = faults.other_version(version)
    assert other != version
    assert other.split(".")[0] == version.split(".", maxsplit=1)[0]


def test_hardware_of_every_machine_in_the_catalogue() -> None:
    catalog = load()
    for machine in catalog.machines():
        hardware = healthy(machine.name)
        assert len(hardware["gpus"]) == machine.gpu_count
        assert len({item["uuid"] for item in hardware["gpus"]}) == machine.gpu_count
        assert len({row["slot"] for row in hardware["pci"]}) == len(hardware["pci"]), machine.name
        assert all(hardware["topology"][i][i] == "X" for i in range(machine.gpu_count))
        assert hardware == healthy(machine.name)
