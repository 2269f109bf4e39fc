"""The other simulated tools against outputs of real ones."""

from __future__ import annotations

import json
import re
import socket

import pytest

from provisioner.sandbox.node import exporter, kernel, services, smi_facts, state
from provisioner.sandbox.node.smi_facts import driver
from provisioner.verify.parsers import dcgm_exporter, dcgmi_diag, fi_info, ibstat, lspci
from tests.support.sandbox_node import MakeNode, capture


def shape(text: str) -> list[str]:
    """Lines with their values taken out: what is left is the layout."""
    return [re.sub(r":(\s*).+$", r":\1…", re.sub(r"'.*'|\d+$", "…", line)) for line in text.splitlines()]


def test_ibstat_has_the_layout_of_the_real_one(make_node: MakeNode) -> None:
    ours = make_node("dgx-h100").says("ibstat")
    first = ours.split("\nCA ")[0]
    assert shape(first) == shape(capture("ibstat-h100.txt").split("\nCA ")[0])
    read = ibstat.parse(ours)
    assert [(port.state, port.rate_gbps, port.link_layer) for port in read.ports] == [("Active", 400, "InfiniBand")] * 8


def test_ibv_devinfo_has_the_layout_of_the_real_one(make_node: MakeNode) -> None:
    def keys(text: str) -> list[str]:
        return [line.split(":")[0].strip() for line in text.splitlines() if ":" in line]

    real = [key for key in keys(capture("ibv_devinfo.txt").split("hca_id")[1]) if key != "Device ports"]
    # One port a card today; the old card of the capture has two.
    assert keys(make_node("dgx-h100").says("ibv_devinfo").split("hca_id")[1]) == real[: real.index("link_layer") + 1]


def test_rdma_tools_are_not_there_without_their_package(make_node: MakeNode) -> None:
    code, _, stderr = make_node("dgx-h100", None).run("ibstat")
    assert code == 127
    assert "not found" in stderr


def test_fi_info_prints_three_entries_a_device(make_node: MakeNode) -> None:
    ours = make_node("p4d.24xlarge").says("fi_info", "-p", "efa")
    real = capture("fi_info-g6.txt")
    entry = re.sub("rdmap16s27", "rdmap47s0", "\n".join(ours.splitlines()[: len(real.splitlines())]))
    assert entry == real.rstrip("\n")
    assert len(fi_info.parse(ours).devices) == 4


def test_fi_info_without_efa(make_node: MakeNode) -> None:
    assert make_node("dgx-h100").run("fi_info", "-p", "efa")[0] == 61


def test_lspci_lists_what_the_real_one_lists(make_node: MakeNode) -> None:
    def devices(text: str) -> list[str]:
        return sorted({line.split(" ", 1)[1] for line in text.splitlines() if "10de" in line})

    ours = make_node("dgx-h100").says("lspci", "-Dnn")
    assert devices(ours) == devices(capture("lspci-h100.txt"))
    assert len(lspci.parse(ours).gpus) == 8
    assert ours.count("[10de:22a3]") == 4
    assert ours.count("[15b3:1021]") == 8


def test_lspci_shows_the_registers_as_pciutils_do(make_node: MakeNode) -> None:
    """Of the device that `lspci -F` of pciutils 3.9.0 showed as an A100: rows of 16 bytes, then an empty line."""
    lines = make_node("p4d.24xlarge").says("lspci", "-Dnnx", "-d", "10de:20b0").split("\n\n")[0].splitlines()
    assert lines[0].endswith("3D controller [0302]: NVIDIA Corporation GA100 [A100 SXM4 40GB] [10de:20b0] (rev a1)")
    assert lines[1] == "00: de 10 b0 20 06 04 10 00 a1 00 02 03 00 00 00 00"
    assert lines[2:] == [f"{at}: {' '.join(['00'] * 16)}" for at in (10, 20, 30)]


def test_dcgmi_discovery(make_node: MakeNode) -> None:
    def without_values(text: str) -> list[str]:
        text = re.sub(r"(Name: |PCI Bus ID: |Device UUID: )\S.*?( +\|)", r"\1…|", text)
        return text.splitlines()

    node = make_node("Standard_ND96isr_H100_v5")
    state.write("run/gpuprov-sandbox/hostengine.json", {"pid": 1})
    (node.root / "proc/1").mkdir(parents=True)
    ours, real = without_values(node.says("dcgmi", "discovery", "-l")), without_values(capture("dcgmi-discovery.txt"))
    assert ours[: real.index("+-----------+") - 1] == real[: real.index("+-----------+") - 1]


def test_dcgmi_without_its_host_engine(make_node: MakeNode) -> None:
    assert make_node("dgx-h100").run("dcgmi", "discovery", "-l")[0] == 234


def test_dcgmi_diag_as_json(make_node: MakeNode) -> None:
    node = make_node("dgx-h100")
    state.write("run/gpuprov-sandbox/hostengine.json", {"pid": 1})
    (node.root / "proc/1").mkdir(parents=True)
    answer = node.says("dcgmi", "diag", "-r", "1", "-j", version="4.5.3")
    ours, real = json.loads(answer), json.loads(capture("dcgmi-diag.json"))
    assert ours.keys() == real.keys()
    assert ours["DCGM Diagnostic"]["test_categories"][0].keys() == real["DCGM Diagnostic"]["test_categories"][0].keys()
    assert dcgmi_diag.parse(answer).failed == ()
    node.says("nvidia-smi", "-pm", "0", "-i", "0")
    code, failed, _ = node.run("dcgmi", "diag", "-r", "1", "-j", version="4.5.3")
    assert code == 226
    assert "Persistence mode for GPU 0 is disabled" in failed
    assert dcgmi_diag.parse(failed).failed


def test_exporter_has_the_series_and_labels_of_the_real_one(make_node: MakeNode) -> None:
    def series(text: str) -> dict[str, list[str]]:
        lines = [line for line in text.splitlines() if line and not line.startswith("#")]
        return {line.split("{")[0]: re.findall(r"(\w+)=\"", line) for line in reversed(lines)}

    make_node("dgx-h100", "580.105.08")
    text = exporter.metrics(driver(), "gpu-node-1")
    ours, real = series(text), series(capture("exporter-h100.prom"))
    assert real.keys() <= ours.keys()
    pod = {"container", "namespace", "pod", "pod_uid"}
    assert all(ours[name] == [label for label in real[name] if label not in pod] for name in real)
    assert len(dcgm_exporter.parse(text).gpus) == 8


def test_exporter_gives_the_last_xid(make_node: MakeNode) -> None:
    make_node("dgx-h100")
    slot = state.hardware()["gpus"][2]["pci"][4:].rpartition(".")[0].lower()
    state.kernel_log(f"NVRM: Xid (PCI:{slot}): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.", "err")
    lines = [
        x
        for x in exporter.metrics(driver(), socket.gethostname()).splitlines()
        if x.startswith("DCGM_FI_DEV_XID_ERRORS{")
    ]
    assert [line.rpartition(" ")[2] for line in lines] == ["0", "0", "79", "0", "0", "0", "0", "0"]


def test_fabric_manager_refuses_another_driver_in_the_real_words(make_node: MakeNode) -> None:
    node = make_node("dgx-h100", "580.120")
    code, _, stderr = node.run("nv-fabricmanager", version="580.127.05")
    assert code == 1
    real = capture("fabricmanager-mismatch.txt").splitlines()[0].partition("]: ")[2]
    assert (
        stderr.removesuffix("\n").startswith(real.removeprefix("fabric manager ").split(" doesn't")[0][-20:])
        or real in stderr
    )


def test_fabric_manager_has_nothing_to_do_without_nvswitch(make_node: MakeNode) -> None:
    assert make_node("workstation-rtx4090").run("nv-fabricmanager")[0] == 1


def test_persistenced_needs_the_module(make_node: MakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(services, "_daemon", lambda *a, **k: 0)
    node = make_node("p4d.24xlarge", None)
    assert node.run("nvidia-persistenced")[0] == 1
    node.install("nvidia-kernel-open-dkms", "580.173.02-1")
    assert node.run("nvidia-persistenced")[0] == 0
    assert "nvidia" in state.modules()


@pytest.mark.parametrize(
    ("options", "mode"),
    [("", "Enabled"), ("--user nvpd --verbose", "Enabled"), ("--no-persistence-mode --verbose", "Disabled"),
     ("--no-persistence-mode --persistence-mode", "Enabled")],
)  # fmt: skip
def test_persistenced_obeys_its_command_line(
    make_node: MakeNode, monkeypatch: pytest.MonkeyPatch, options: str, mode: str
) -> None:
    monkeypatch.setattr(services, "_daemon", lambda *a, **k: 0)
    node = make_node("p4d.24xlarge")
    node.says("nvidia-persistenced", *options.split())
    query = ("nvidia-smi", "--query-gpu=persistence_mode", "--format=csv,noheader")
    assert set(node.says(*query).split()) == {mode}
    (node.root / smi_facts.DAEMON).unlink()  # the daemon has ended, and what it kept with it
    assert set(node.says(*query).split()) == {"Disabled"}


def test_modules(make_node: MakeNode) -> None:
    node = make_node("dgx-h100", loaded=False)
    kernel.load_builtin()
    assert "mlx5_core" in node.says("lsmod")
    assert node.run("modprobe", "nvidia-nothing")[2] == (
        "modprobe: FATAL: Module nvidia-nothing not found in directory /lib/modules/6.1.0-gpuprov-sandbox.\n"
    )
    node.says("modprobe", "--all", "nvidia", "nvidia-uvm")
    assert re.search(r"^nvidia +\d+  1 nvidia_uvm$", node.says("lsmod"), re.M)
    assert node.run("rmmod", "nvidia")[0] == 1
    assert node.says("modinfo", "-F", "version", "nvidia") == "580.173.02\n"


def test_dmesg_forms(make_node: MakeNode) -> None:
    node = make_node("p4d.24xlarge")
    assert re.match(r"\[    0\.000000\] Linux version", node.says("dmesg"))
    assert re.match(r"\[\w{3} \w{3} [ \d]\d \d\d:\d\d:\d\d \d{4}\] Linux", node.says("dmesg", "-T"))
    assert re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d,\d{6}\+00:00 Linux", node.says("dmesg", "--time-format", "iso"))
    assert node.says("dmesg", "--level=err") == ""
    assert "gpuprov" in node.says("dmesg")


def test_container_toolkit(make_node: MakeNode) -> None:
    node = make_node("p4d.24xlarge")
    node.says("nvidia-ctk", "cdi", "generate", "--output=/var/run/cdi/nvidia.yaml")
    assert node.says("nvidia-ctk", "cdi", "list").splitlines()[0] == "Found 17 CDI devices"
    (node.root / "etc/docker").mkdir(parents=True)
    (node.root / "etc/docker/daemon.json").write_text('{"default-cgroupns-mode": "private"}')
    node.says("nvidia-ctk", "runtime", "configure", "--runtime=docker")
    content = json.loads((node.root / "etc/docker/daemon.json").read_text())
    assert content["default-cgroupns-mode"] == "private"
    assert content["runtimes"]["nvidia"]["path"] == "nvidia-container-runtime"


def test_amd_machines_have_rocm_smi(make_node: MakeNode) -> None:
    from provisioner.verify.parsers import rocm_smi

    node = make_node("amd-mi300x-node", None)
    read = rocm_smi.parse(node.says("rocm-smi", "--showproductname", "--json"))
    assert [gpu.memory_mib for gpu in read.gpus] == [196592] * 8
    assert make_node("dgx-h100").run("rocm-smi", "--json")[0] == 1


def test_a_daemon_reload_takes_gpus_where_there_are_no_links(make_node: MakeNode) -> None:
    node = make_node("dgx-h100")
    gpu_count_file = node.root / "container/etc/gpuprov-sandbox/gpus"
    gpu_count_file.parent.mkdir(parents=True)
    gpu_count_file.write_text("8\n")
    state.write(state.GIVEN, [str(gpu_count_file)])
    node.says("nvidia-ctk", "system", "create-dev-char-symlinks", "--create-all")
    node.says("daemon-reload")
    assert gpu_count_file.exists()
    for link in (node.root / "dev/char").iterdir():
        link.unlink()
    node.says("daemon-reload")
    assert not gpu_count_file.exists()


def test_cdi_lists_mig_devices(make_node: MakeNode) -> None:
    node = make_node("p4d.24xlarge")
    node.says("nvidia-smi", "-i", "2", "-mig", "1")
    node.says("nvidia-smi", "mig", "-i", "2", "-cgi", "3g.20gb,3g.20gb", "-C")
    text = node.says("nvidia-ctk", "cdi", "generate")
    assert [f'"2:{i}"' in text for i in range(3)] == [True, True, False]


def test_the_exporter_exports_what_its_file_asks_for(make_node: MakeNode) -> None:
    make_node("dgx-h100")
    file = state.path("counters.csv")
    file.write_text("# field, type, help\nDCGM_FI_DEV_GPU_TEMP, gauge, x\nDCGM_FI_DEV_UNKNOWN, gauge, y\n")
    text = exporter.metrics(driver(), "host", exporter.counters(file))
    assert set(re.findall(r"^(DCGM\w+)\{", text, re.MULTILINE)) == {"DCGM_FI_DEV_GPU_TEMP"}


def test_lsblk_shows_the_system_disk_and_its_partitions(make_node: MakeNode) -> None:
    node = make_node("p4d.24xlarge")
    read = json.loads(node.says("lsblk", "--json", "--bytes", "--output", "NAME,TYPE,SIZE,MODEL,MOUNTPOINT,FSTYPE"))
    root, *other_disks = read["blockdevices"]
    assert root["children"][0]["mountpoint"] == "/"
    assert len(other_disks) == 8
    assert not any(disk["fstype"] for disk in other_disks)
