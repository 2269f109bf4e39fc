"""Outputs that were cut, or whose cells have run together, accuse nothing that they do not show."""

from __future__ import annotations

import re

import pytest

from provisioner.catalog import load
from provisioner.verify.bundle import Bundle, Output
from provisioner.verify.expectations import expect
from provisioner.verify.facts import read
from provisioner.verify.health import judge
from provisioner.verify.parsers import nvidia_smi, topo
from provisioner.verify.results import CheckResult
from tests.support.healthy_bundle import capture, healthy

HEADER = "\tGPU0\tGPU1\tNIC0\tNIC1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\n"


def judged(machine: str, **files: str) -> dict[str, CheckResult]:
    row = load().machine(machine)
    expected = expect(row, load().gpu(row.gpu_model), None, None, load(), level="quick")
    texts = {name.replace("__", "-").replace("_", "."): text for name, text in files.items()}
    return {c.id: c for c in judge(read(Bundle({n: Output(t) for n, t in texts.items()})), expected).checks}


def test_cells_that_run_together_shift_no_column() -> None:
    topology = topo.parse(
        HEADER + "GPU0\t X \tNV18\tPIX\tPH0-115\t0-3\tN/A\nGPU1\tNV18\t X \tNODE\tPIX\t56-111,168-2231\tN/A\n"
    )
    assert topology.cells["GPU0"]["GPU1"] == "NV18"
    assert topology.near["GPU0"] == {"NIC0": "PIX", "NIC1": None}
    assert topology.near["GPU1"] == {"NIC0": "NODE", "NIC1": "PIX"}
    assert topology.numa == {"GPU0": None, "GPU1": None}


def test_a_matrix_that_was_cut_accuses_no_gpu_of_a_lost_card() -> None:
    complete_text = healthy("dgx-h100")["topo.txt"]
    rows = str(complete_text).splitlines()
    last = next(i for i, row in enumerate(rows) if row.startswith("GPU5"))
    checks = judged("dgx-h100", topo_txt="\n".join(rows[: last + 1]) + "\n")
    assert judged("dgx-h100", topo_txt=str(complete_text))["gpu.nic_affinity"].status in ("pass", "unknown")
    assert checks["gpu.nic_affinity"].status == "unknown"
    assert checks["gpu.numa_affinity"].status == "unknown"


def test_links_that_are_down_are_seen_where_fewer_gpus_are_listed() -> None:
    output = "GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-1)\n" + "".join(
        f"\t Link {n}: {'<inactive>' if n == 3 else '26.562 GB/s'}\n" for n in range(18)
    )
    check = judged("dgx-h100", nvlink_txt=output)["nvlink.links"]
    assert (check.status, check.message) == ("fail", "GPU 0 has 17 of 18")


def test_nobody_says_what_nvidia_smi_lists_without_its_output() -> None:
    two = HEADER + "GPU0\t X \tNV18\tPIX\tPIX\t0-3\t0\tN/A\nGPU1\tNV18\t X \tPIX\tPIX\t0-3\t0\tN/A\n"
    check = judged("dgx-h100", topo_txt=two)["nvlink.topology"]
    assert check.status == "unknown" and "nvidia-smi" not in check.message


def test_active_ports_of_the_other_kind_are_named() -> None:
    ports = "".join(f"link mlx5_{n}/1 state ACTIVE physical_state LINK_UP netdev eth{n}\n" for n in range(6))
    status = "".join(
        f"Infiniband device 'mlx5_{n}' port 1 status:\n\tstate:\t\t 4: ACTIVE\n\tphys state:\t 5: LinkUp\n"
        f"\trate:\t\t 400 Gb/sec (4X NDR)\n\tlink_layer:\t Ethernet\n\n"
        for n in range(6)
    )
    check = judged("dgx-h100", ibstat_txt=status)["ib.ports"]
    assert check.message == "0 of 8 InfiniBand ports are active; 6 active ports are Ethernet"
    assert judged("dgx-h100", ibstat_txt=ports)["ib.ports"].status == "fail"


@pytest.mark.parametrize("version_text", ["590.48.01.", "590.48.01 [Deprecated; use KMD Version instead]"])
def test_a_version_is_a_version(version_text: str) -> None:
    smi = nvidia_smi.parse(f"<nvidia_smi_log><driver_version>{version_text}</driver_version></nvidia_smi_log>")
    assert smi.driver_version == "590.48.01"


def test_no_gpu_has_no_clean_inforom() -> None:
    assert judged("dgx-h100", nvidia__smi_xml="No devices were found\n")["gpu.inforom"].status == "unknown"


def test_a_part_of_lspci_condemns_nothing_that_it_leaves_out() -> None:
    """As `lspci | grep 3D` and `lspci | grep Mellanox` print it; what it shows is judged all the same."""
    lines = str(healthy("dgx-h100")["lspci.txt"]).splitlines(keepends=True)
    gpus = "".join(line for line in lines if "3D controller" in line)
    card = "Infiniband controller [0207]: Mellanox Technologies MT2910 Family [ConnectX-7] [15b3:1021]"
    cards = "".join(f"{bus}:00.0 {card}\n" for bus in ("18", "29", "3a", "5d"))
    checks = judged("dgx-h100", lspci_txt=gpus)
    assert (checks["gpu.bus_present"].status, checks["nvswitch.present"].status) == ("pass", "unknown")
    checks = judged("dgx-h100", lspci_txt=cards)
    assert (checks["gpu.bus_present"].status, checks["nvswitch.present"].status) == ("unknown", "unknown")
    assert checks["nvswitch.present"].message == "0 of 4 NVSwitches are in a part of what lspci prints"
    dead = judged("dgx-h100", lspci_txt=gpus.replace("(rev a1)", "(rev ff)", 1))
    assert dead["gpu.bus_present"].status == "fail"
    lost = [line for line in lines if "NVSwitch" not in line]
    assert judged("dgx-h100", lspci_txt="".join(lost))["nvswitch.present"].status == "fail"


def test_one_card_that_was_asked_for_is_not_seven_that_are_missing() -> None:
    cards = re.split(r"(?m)^(?=CA ')", str(healthy("dgx-h100")["ibstat.txt"]))
    infiniband_card = next(card for card in cards if "Link layer: InfiniBand" in card)
    assert judged("dgx-h100", ibstat_txt=infiniband_card)["ib.ports"].status == "unknown"
    down = infiniband_card.replace("State: Active", "State: Down")
    assert judged("dgx-h100", ibstat_txt=down)["ib.ports"].status == "fail"
    two = "".join([card for card in cards if "Link layer: InfiniBand" in card][:2])
    assert judged("dgx-h100", ibstat_txt=two)["ib.ports"].status == "fail"


def test_a_gpu_that_was_asked_for_is_not_seven_that_are_missing() -> None:
    """`nvidia-smi -i 3`: real tables count their GPUs from 0 on."""
    text = capture("nvidia_smi/table-v100-8gpu-460.txt")
    assert not nvidia_smi.parse(text).excerpt
    rows = list(re.finditer(r"(?m)^\|   (\d)  Tesla .*\n(?:\|.*\n){1,2}\+.*\n", text))
    assert len(rows) == 8
    third = text.replace("".join(row[0] for row in rows), rows[3][0])
    assert [gpu.pci for gpu in nvidia_smi.parse(third).gpus] == [nvidia_smi.parse(text).gpus[3].pci]
    assert nvidia_smi.parse(third).excerpt
    first = text.replace("".join(row[0] for row in rows), rows[0][0])
    assert not nvidia_smi.parse(first).excerpt, "seven that are lost look the same"
