"""nvidia-smi of the sandbox against outputs of real machines: a parser must not see a difference in shape."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from provisioner.verify.parsers import nvidia_smi, nvlink, topo
from tests.support.sandbox_node import CAPTURES, MakeNode, capture, healthy

VERIFY = Path(__file__).parents[1] / "verify/captures/nvidia_smi"
XML = [
    ("h100-580.xml", "dgx-h100", "580.105.08"),
    ("b200-580.xml", "dgx-b200", "580.105.08"),
    ("a100-570.xml", "p4d.24xlarge", "570.148.08"),
    ("rtx4090-535.xml", "workstation-rtx4090", "535.86.05"),
]
MORE_XML = [
    ("l40s-1gpu-595.xml", "g6e.xlarge", "595.91.07"),
    ("gb300-4gpu-580.xml", "dgx-b200", "580.173.02"),
    ("h100-8gpu-570-pcie-gen4-vm.xml", "Standard_ND96isr_H100_v5", "570.86.15"),
]
"""Captures of the parser's tests: the elements of other releases of a branch, and of other branches."""


def elements(text: str) -> list[tuple[str, str]]:
    """(path, value) of the first GPU in document order, each path once."""
    gpu = ElementTree.fromstring(text).find("gpu")
    assert gpu is not None
    values: dict[str, str] = {}

    def walk(element: ElementTree.Element, path: str) -> None:
        for child in element:
            below = f"{path}/{child.tag}"
            if not below.startswith("/processes/"):
                values.setdefault(below, (child.text or "").strip())
            walk(child, below)

    walk(gpu, "")
    return list(values.items())


def form(value: str) -> str:
    """The form of a value: its unit, its base, or that it is a word."""
    if match := re.fullmatch(r"-?\d+(?:\.(\d+))?( \S+)?", value):
        return f"number{'.' + '0' * len(match[1]) if match[1] else ''}{match[2] or ''}"
    if re.fullmatch(r"GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", value):
        return "uuid"
    if re.fullmatch(r"[0-9A-F]{8}:[0-9A-F]{2}:[0-9A-F]{2}\.0", value):
        return "pci address"
    if re.fullmatch(r"0x[0-9a-f]+", value):
        return "hexadecimal"
    if re.fullmatch(r"[0-9]+x", value):
        return "width"
    return "words"


@pytest.mark.parametrize(("file", "machine", "driver"), XML)
def test_xml_has_the_elements_of_the_real_one(make_node: MakeNode, file: str, machine: str, driver: str) -> None:
    ours = elements(make_node(machine, driver).says("nvidia-smi", "-q", "-x", version=driver))
    real = elements(capture(file))
    assert [path for path, _ in ours] == [path for path, _ in real]


@pytest.mark.parametrize(("file", "machine", "driver"), MORE_XML)
def test_xml_of_other_releases_has_their_elements(make_node: MakeNode, file: str, machine: str, driver: str) -> None:
    ours = elements(make_node(machine, driver).says("nvidia-smi", "-q", "-x", version=driver))
    real = elements((VERIFY / file).read_text())
    assert [path for path, _ in ours] == [path for path, _ in real]


Q = [
    (CAPTURES / "q-h100-590.txt", "p5.4xlarge", "590.48.01"),
    (VERIFY / "q-h100-8gpu-535.txt", "dgx-h100", "535.161.08"),
    (VERIFY / "q-a10-remap-pending-535.txt", "ecs.gn7i-c8g1.2xlarge", "535.129.03"),
]


@pytest.mark.parametrize(("file", "machine", "driver"), Q, ids=[file.stem for file, _, _ in Q])
def test_q_has_the_labels_of_the_real_one(make_node: MakeNode, file: Path, machine: str, driver: str) -> None:
    def labels(text: str) -> list[str]:
        first = text.split("\n\nGPU ", maxsplit=1)[0].strip("\n")
        return [re.sub(r": .*", ":", line) for line in first.splitlines() if not line.startswith(("GPU ", "(sim"))]

    assert labels(make_node(machine, driver).says("nvidia-smi", "-q", version=driver)) == labels(file.read_text())


FREE = (
    "vbios_version",
    "img_version",
    "board_part_number",
    "gpu_part_number",
    "serial",
    "pci_device",
    "pci_bus",
    "latest_",
)
"""Identifiers that differ in form from card to card."""


@pytest.mark.parametrize(("file", "machine", "driver"), XML)
def test_xml_values_have_the_form_of_the_real_ones(make_node: MakeNode, file: str, machine: str, driver: str) -> None:
    real = dict(elements(capture(file)))
    odd = []
    for path, value in elements(make_node(machine, driver).says("nvidia-smi", "-q", "-x", version=driver)):
        other = real[path]
        known = "N/A" not in (value, other) and not any(part in path for part in FREE)
        if known and form(value) != form(other):
            odd.append((path, value, other))
    assert odd == []


@pytest.mark.parametrize(("file", "machine", "driver"), XML)
def test_xml_head(make_node: MakeNode, file: str, machine: str, driver: str) -> None:
    def head(text: str) -> list[str]:
        return [re.sub(r">[^<]*<", "><", line.strip()) for line in text.splitlines()[:7]]

    ours = make_node(machine, driver).says("nvidia-smi", "-q", "-x", version=driver)
    assert head(ours)[:-1] == head(capture(file))[:-1]
    assert f"<driver_version>{driver}</driver_version>" in ours


@pytest.mark.parametrize(
    "machine", ["p4d.24xlarge", "GN10Xp.20XLARGE320", "dgx-h100", "workstation-rtx4090", "Standard_ND96asr_v4"]
)
def test_the_real_parser_reads_it(make_node: MakeNode, machine: str) -> None:
    node, hardware = make_node(machine), healthy(machine)
    read = nvidia_smi.parse(node.says("nvidia-smi", "-q", "-x"))
    assert read.driver_version == "580.173.02"
    assert read.cuda_version == "13.0"
    assert [gpu.model for gpu in read.gpus] == [gpu["name"] for gpu in hardware["gpus"]]
    assert [gpu.memory_mib for gpu in read.gpus] == [gpu["memory_mib"] for gpu in hardware["gpus"]]
    assert [gpu.uuid for gpu in read.gpus] == [gpu["uuid"] for gpu in hardware["gpus"]]
    assert not any(gpu.ecc_uncorrectable or gpu.remap_pending or gpu.remap_failure or gpu.lost for gpu in read.gpus)
    assert all(gpu.persistence for gpu in read.gpus)


def test_topo_is_the_real_one_but_for_the_network_columns(make_node: MakeNode) -> None:
    # The capture was taken in a container without EFA; the machine has four adapters.
    ours = make_node("p4d.24xlarge").says("nvidia-smi", "topo", "-m").splitlines()
    real = capture("topo-p4d.txt").splitlines()
    other_columns = [cell for cell in ours[0].split("\t") if not cell.startswith("NIC")]
    assert other_columns == real[0].split("\t")
    for i in range(1, 9):
        cells = ours[i].split("\t")
        assert cells[:9] + cells[13:] == real[i].split("\t")
    legend = real.index("Legend:")
    assert real[legend:] == ours[ours.index("Legend:") : ours.index("Legend:") + len(real) - legend]
    assert ours[ours.index("NIC Legend:") + 2] == "  NIC0: rdmap16s27"


def test_topo_with_eight_cards_has_the_cells_of_the_real_one(make_node: MakeNode) -> None:
    node = make_node("dgx-h100")
    ours = [re.split(r"\s+", line.strip()) for line in node.says("nvidia-smi", "topo", "-m").splitlines()[:17]]
    real = [re.split(r"\s+", line.strip()) for line in capture("topo-h100-8nic.txt").splitlines()[:17]]
    assert [row[:17] for row in ours] == [row[:17] for row in real]
    assert set(topo.parse(node.says("nvidia-smi", "topo", "-m")).cells["GPU0"].values()) >= {"NV18"}


@pytest.mark.parametrize(
    ("file", "machine"),
    [
        ("nvlink-h100.txt", "dgx-h100"),
        ("nvlink-a100.txt", "p4de.24xlarge"),
        ("nvlink-v100.txt", "GN10Xp.20XLARGE320"),
        ("nvlink-l40s.txt", "g6e.xlarge"),
    ],
)
def test_nvlink_lines(make_node: MakeNode, file: str, machine: str) -> None:
    def first(text: str) -> list[str]:
        block = re.sub(r"GPU-[0-9a-f-]+", "GPU-…", text.split("\nGPU ", maxsplit=1)[0])
        return [re.sub(r"^\s+", "\t ", re.sub(r"^GPU \d", "GPU n", line)) for line in block.splitlines()]

    ours = make_node(machine).says("nvidia-smi", "nvlink", "-s")
    assert first(ours) == first(capture(file))
    nvlink.parse(ours)


def test_table_is_the_real_one_line_by_line(make_node: MakeNode) -> None:
    ours = make_node("dgx-h100", "580.105.08").says("nvidia-smi", version="580.105.08").splitlines()
    real = capture("table-h100-580.txt").splitlines()
    varying = re.compile(r"[0-9A-F]{8}:..:00\.0|\d+C|\d+W|\d+MiB")
    same = range(1, 12)
    assert [varying.sub(lambda m: "#" * len(m[0]), ours[i]) for i in same] == [
        varying.sub(lambda m: "#" * len(m[0]), real[i]) for i in same
    ]
    assert ours[-8:] == real[-8:]


def test_version_lines(make_node: MakeNode) -> None:
    ours = make_node("p4d.24xlarge", "590.48.01").says("nvidia-smi", "--version", version="590.48.01")
    assert ours == capture("version-590.txt")


def test_query_gpu(make_node: MakeNode) -> None:
    node = make_node("p4d.24xlarge")
    rows = node.says("nvidia-smi", "--query-gpu=index,name,memory.total,power.limit", "--format=csv").splitlines()
    assert rows[0] == "index, name, memory.total [MiB], power.limit [W]"
    assert rows[1] == "0, NVIDIA A100-SXM4-40GB, 40960 MiB, 400.00 W"
    bare = node.says("nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits", "-i", "2")
    assert bare == "40960\n"


@pytest.mark.parametrize(
    ("file", "machine", "driver"),
    [("query-gpu-h100-590.csv", "p5.4xlarge", "590.48.01"), ("query-gpu-l40s-595.csv", "g6e.xlarge", "595.80")],
)
def test_query_gpu_has_the_fields_of_the_real_one(make_node: MakeNode, file: str, machine: str, driver: str) -> None:
    node, (header, values) = make_node(machine, driver), capture(file).splitlines()
    fields = ",".join(title.split(" [")[0] for title in header.split(", "))
    ours = node.says("nvidia-smi", f"--query-gpu={fields}", "--format=csv", version=driver).splitlines()
    assert ours[0] == header
    cells = zip(header.split(", "), ours[1].split(", "), values.split(", "), strict=True)
    free = ("timestamp", "vbios_version", "serial", "fabric.", "addressing_mode")
    odd = [(name, our, real) for name, our, real in cells if form(our) != form(real) and not name.startswith(free)]
    assert odd == []
    bare = node.says("nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader,nounits", version=driver)
    assert not re.search(r"[0-9] (MiB|MHz|W|%|us)(, |$)", bare)


def test_query_gpu_shows_faults_of_the_xml(make_node: MakeNode) -> None:
    node, machine = make_node("p4d.24xlarge"), healthy("p4d.24xlarge")
    machine["gpus"][1]["printed"] = {"remapped_rows/remapped_row_pending": "Yes"}
    node.become(machine)
    rows = node.says("nvidia-smi", "--query-gpu=index,remapped_rows.pending", "--format=csv,noheader").splitlines()
    assert rows[:3] == ["0, No", "1, Yes", "2, No"]


def test_power_limits_of_610_are_below_the_ceiling(make_node: MakeNode) -> None:
    """Where 610 prints them (q-rtx2080s-610): no check of power limits may lose them."""
    node = make_node("dgx-h100", "610.60")
    smi = nvidia_smi.parse(node.says("nvidia-smi", "-q", "-x", version="610.60"))
    assert {(gpu.power_limit_w, gpu.power_default_w) for gpu in smi.gpus} == {(700.0, 700.0)}
    text = nvidia_smi.parse(node.says("nvidia-smi", "-q", version="610.60"))
    assert {(gpu.power_limit_w, gpu.power_default_w) for gpu in text.gpus} == {(700.0, 700.0)}
    cells = node.says("nvidia-smi", "--query-gpu=power.limit,power.default_limit", "--format=csv,noheader,nounits",
                      version="610.60")  # fmt: skip
    assert set(cells.splitlines()) == {"700.00, 700.00"}


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ("-i 9", 6),
        ("-q -x -i 9", 6),
        ("nvlink -s -i 9", 6),
        ("--query-gpu=nonsense --format=csv", 2),
        ("--query-compute-apps=nonsense --format=csv", 2),
        ("--query-gpu=index", 2),
        ("topo --nonsense", 2),
        ("nvlink", 2),
        ("--nonsense", 2),
    ],
)
def test_what_it_does_not_answer_has_the_exit_status_of_the_manual(
    make_node: MakeNode, arguments: str, code: int
) -> None:
    """nvidia-smi(1), Return value: 2, an argument is invalid; 6, an object was not found. It says why on standard
    output."""
    status, output, complaints = make_node("p4d.24xlarge").run("nvidia-smi", *arguments.split())
    assert (status, complaints) == (code, "")
    assert output


def test_list_of_gpus(make_node: MakeNode) -> None:
    lines = make_node("workstation-rtx4090").says("nvidia-smi", "-L").splitlines()
    assert len(lines) == 1
    assert re.fullmatch(r"GPU 0: NVIDIA GeForce RTX 4090 \(UUID: GPU-[0-9a-f-]{36}\)", lines[0])


def test_modes_are_switched(make_node: MakeNode) -> None:
    node = make_node("p4d.24xlarge")
    assert "Disabled persistence mode for GPU" in node.says("nvidia-smi", "-pm", "0", "-i", "1")
    persistence = node.says("nvidia-smi", "--query-gpu=persistence_mode", "--format=csv,noheader").split()
    assert persistence == ["Enabled", "Disabled", *["Enabled"] * 6]
    assert "Reboot required." in node.says("nvidia-smi", "-e", "0")
    ecc = node.says("nvidia-smi", "--query-gpu=ecc.mode.current,ecc.mode.pending", "--format=csv,noheader").splitlines()
    assert ecc[0] == "Enabled, Disabled"
    assert "MIG mode is not supported" in make_node("workstation-rtx4090").says("nvidia-smi", "-mig", "1")


def test_without_packages_and_without_the_module(make_node: MakeNode) -> None:
    node = make_node("p4d.24xlarge", None)
    assert node.run("nvidia-smi")[0] == 12
    node = make_node("p4d.24xlarge", loaded=False)
    code, output, _ = node.run("nvidia-smi", "-q", "-x")
    assert code == 9
    assert output.startswith("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.")


def test_a_library_that_moved_says_so_in_the_real_words(make_node: MakeNode) -> None:
    node = make_node("p4d.24xlarge", "580.65.06")
    node.install("libnvidia-ml1", "580.159.03-1")
    code, output, _ = node.run("nvidia-smi", "-q", "-x")
    assert code == 18
    assert output == capture("mismatch.txt")


def test_the_open_module_does_not_drive_a_v100(make_node: MakeNode) -> None:
    node = make_node("GN10Xp.20XLARGE320", None)
    node.install("nvidia-kernel-open-dkms", "580.173.02-1")
    node.install("libnvidia-ml1", "580.173.02-1")
    node.says("modprobe", "nvidia")
    assert node.run("nvidia-smi")[:2] == (6, "No devices were found\n")
    assert "does not include the required GPU System Processor" in node.says("dmesg")
