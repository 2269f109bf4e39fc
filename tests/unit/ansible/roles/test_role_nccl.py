"""NCCL's topology files and the unit that puts NCCL's configuration back behind a service of the image."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from ansible.parsing.dataloader import DataLoader
from ansible.plugins.loader import init_plugin_loader
from ansible.template import Templar, trust_as_template

from provisioner.catalog import load
from provisioner.sandbox.hardware import hardware
from provisioner.sandbox.node import nccl
from tests.support.ansible_modules import module
from tests.support.sandbox_cluster import ROOT

ROLE = ROOT / "ansible/roles/nccl"
ND = {m.name: m.nccl_topology for m in load().machines() if m.nccl_topology}
VENDOR = "NCCL_IB_PCI_RELAXED_ORDERING=1\nNCCL_TOPO_FILE=/opt/microsoft/ndv5/topo.xml\n"


def rendered(topology: str, **stack: Any) -> dict[str, Any]:
    """The role's defaults on such a node."""
    init_plugin_loader()
    loader = DataLoader()
    loader.set_basedir(str(ROLE))
    defaults = loader.load_from_file(str(ROLE / "defaults/main.yml"))
    trusted = {name: trust_as_template(value) if isinstance(value, str) else value for name, value in defaults.items()}
    variables = {
        **trusted,
        "gpuprov_nccl_topology": topology,
        "gpuprov_stack": {"packages": [], **stack},
        "ansible_search_path": [str(ROLE)],
    }
    templar = Templar(loader=loader, variables=variables)
    return {name: templar.template(trusted[name]) for name in ("nccl_files", "nccl_absent", "nccl_unit")}


def test_the_rows_are_azures_nd_machines_with_nvidia_gpus_and_nvswitch() -> None:
    assert ND == {
        "Standard_ND96asr_v4": "azure-nd-v4",
        "Standard_ND96amsr_A100_v4": "azure-nd-v4",
        "Standard_ND96isr_H100_v5": "azure-nd-v5",
        "Standard_ND96isr_H200_v5": "azure-nd-v5",
    }


@pytest.mark.parametrize(
    ("file", "bridges"),
    [
        # Bridge → GPUs and cards by PCI domain: Azure/azhpc-images 8e9d055, topology/ndv4-topo.xml and ndv5-topo.xml.
        ("azure-nd-v4", ["0 0003 0103 0004 0104", "1 0001 0101 0002 0102", "2 000d 0107 000e 0108",
                         "3 000b 0105 000c 0106"]),
        ("azure-nd-v5", ["0 0001 0101", "0 0002 0102", "0 0003 0103", "0 0008 0104", "1 0009 0105", "1 000a 0106",
                         "1 000b 0107", "1 000c 0108"]),
    ],
)  # fmt: skip
def test_a_file_joins_each_gpu_with_its_cards(file: str, bridges: list[str]) -> None:
    root = ElementTree.parse(ROLE / "files" / f"{file}.xml").getroot()
    actual_bridges = [
        " ".join([cpu.attrib["numaid"], *(device.attrib["busid"][:4] for device in bridge)])
        for cpu in root
        for bridge in cpu
    ]
    assert actual_bridges == bridges
    classes = {device.attrib["busid"][1]: device.attrib["class"] for device in root.iter("pci")}
    assert classes == {"0": "0x030200", "1": "0x020700", "f": "0x060400"}


@pytest.mark.parametrize("machine", sorted(ND))
def test_simulated_machines_have_the_addresses_and_gpudirect_hangs_on_the_file(machine: str, tmp_path: Path) -> None:
    catalog = load()
    known = catalog.machine(machine)
    node = hardware(known, catalog.gpu(known.gpu_model), "n", catalog)
    topology = ROLE / "files" / f"{ND[machine]}.xml"
    listed = {device.attrib["busid"] for device in ElementTree.parse(topology).getroot().iter("pci")}
    addresses = {gpu["pci"].lower()[-12:] for gpu in node["gpus"]} | {nic["slot"] for nic in node["nics"]}
    assert addresses == {address for address in listed if not address.startswith("ffff")}

    conf = tmp_path / "nccl.conf"
    mounts = [
        {"destination": "/etc/nccl.conf", "source": str(conf)},
        {"destination": "/t.xml", "source": str(topology)},
    ]
    conf.write_text("NCCL_NET=IB\n")
    assert not nccl.direct(node, {}, mounts), "each device on a PCI domain of its own"
    assert nccl.direct(node, {"NCCL_NET_GDR_LEVEL": "SYS"}, mounts)
    conf.write_text("NCCL_TOPO_FILE=/t.xml\nNCCL_TOPO_FILE=/none.xml\n")
    assert nccl.direct(node, {}, mounts)
    assert not nccl.direct(node, {}, mounts[:1]), "the file is not in the container"
    assert not nccl.direct(node, {}, []), "the settings are not in the container"
    assert not nccl.direct(node, {"NCCL_TOPO_FILE": "/none.xml"}, mounts)
    other = {"azure-nd-v4": "azure-nd-v5", "azure-nd-v5": "azure-nd-v4"}[ND[machine]]
    mounts[1] = {"destination": "/t.xml", "source": str(ROLE / "files" / f"{other}.xml")}
    assert not nccl.direct(node, {}, mounts), "the file of another machine type"


def test_other_machines_need_no_file() -> None:
    catalog = load()
    for name in ("p4d.24xlarge", "dgx-h100", "Standard_ND128isr_NDR_GB200_v6"):  # the last by NVLink-C2C
        known = catalog.machine(name)
        assert nccl.direct(hardware(known, catalog.gpu(known.gpu_model), "n", catalog), {}, [])


def test_files_by_machine_and_image() -> None:
    plain = rendered("")
    assert plain["nccl_files"] == []
    assert len(plain["nccl_absent"]) == 2
    with_topology = rendered("azure-nd-v5", vendor={"name": "microsoft-dsvm:ubuntu-hpc:2404:1", "parts": {}})
    topology, unit = with_topology["nccl_files"]
    assert topology["content"] == (ROLE / "files/azure-nd-v5.xml").read_text()
    assert unit["dest"] == "/etc/systemd/system/gpuprov-nccl.service"
    assert with_topology["nccl_absent"] == []
    assert "After=sku-customizations.service\nPartOf=sku-customizations.service\n" in unit["content"]


@pytest.mark.parametrize("times", [1, 2])
def test_the_unit_puts_the_settings_in_front_of_what_the_image_wrote(tmp_path: Path, times: int) -> None:
    """Azure's service writes the file anew at boot; the unit runs behind it, and may run again. What it leaves is what
    the role would write, so neither undoes the other's work."""
    conf = module("nccl_conf")
    settings_file, written = tmp_path / "gpuprov.conf", tmp_path / "nccl.conf"
    ours = [conf.FIRST, "NCCL_IB_HCA==mlx5_ib0:1", "NCCL_IB_PCI_RELAXED_ORDERING=1", conf.LAST]
    settings_file.write_text("".join(f"{line}\n" for line in ours))
    written.write_text(VENDOR)
    unit = rendered("", vendor={"name": "x", "parts": {}})["nccl_unit"].replace("\\\n", "")
    (command,) = re.findall(r"^ExecStart=/bin/sh -c '(.*)'$", unit, re.M)
    assert not set(command) & set("$%"), "systemd would read them"
    paths = {
        "/etc/gpuprov/nccl.conf": settings_file,
        "/etc/nccl.conf": written,
        "/run/gpuprov-nccl.conf": tmp_path / "x",
    }
    command = re.sub("|".join(map(re.escape, paths)), lambda match: str(paths[match[0]]), command)
    for _ in range(times):
        subprocess.run(["sh", "-c", command], check=True, timeout=30)
    text = written.read_text()
    assert text.splitlines() == [*ours, "NCCL_TOPO_FILE=/opt/microsoft/ndv5/topo.xml"]
    assert "\n".join([*ours, *conf.others(text)]) + "\n" == text
