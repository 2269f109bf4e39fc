"""The machine around the GPUs on a simulated node: what programs and the probe read is the catalogue's machine."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from provisioner.catalog import load
from provisioner.machines.providers import first_boot
from provisioner.sandbox import fault_list_host
from provisioner.sandbox.faults import Active, with_faults
from provisioner.sandbox.node import boot, clock, host, state, storage
from provisioner.verify.parsers.host_hardware import read_memory, read_ranges, read_space, read_swaps
from provisioner.verify.probe import host as probe_host
from provisioner.verify.probe import host_cpu, host_disks
from tests.support.sandbox_node import MakeNode, healthy

P4D = "p4d.24xlarge"


@pytest.mark.parametrize("machine", load().names())
def test_every_machine_shows_its_own_memory_and_processors(machine: str) -> None:
    row, files = load().machine(machine), host.files(healthy(machine))
    memory = read_memory(files["meminfo"])
    assert memory is not None
    assert 0.95 < memory.total / 2**20 / row.memory_gib < 0.99
    assert files["cpuinfo"].count("processor\t:") == row.vcpus
    assert read_ranges(files["has_cpu"]) == (row.numa_nodes or 1)
    assert read_swaps(files["swaps"]) == ()


def test_processors_lie_on_all_sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    text = host.files(healthy("dgx-h100"))["cpuinfo"]
    monkeypatch.setattr(host_cpu, "lines_of", lambda *_: text.splitlines())
    counts = host_cpu.processors()
    assert (counts["processors"], counts["sockets"], counts["cores"]) == (224, 2, 112)


def changed(fault: str) -> dict[str, str]:
    return host.files(with_faults(healthy(P4D), [Active(fault, 0)]))


def test_faults_of_the_host_are_seen() -> None:
    well = host.files(healthy(P4D))
    assert changed("memory-short")["meminfo"] != well["meminfo"]
    assert changed("cpus-missing")["cpuinfo"].count("processor") == 72
    assert read_swaps(changed("swap-on")["swaps"]) == ("/swap.img",)


def test_two_faults_of_one_disk_leave_the_worse() -> None:
    for pair in (("root-full", "root-filling"), ("root-filling", "root-full")):
        assert with_faults(healthy(P4D), [Active(name, 0) for name in pair])["root_used"] == 0.995


def test_space_on_the_machines_disks(make_node: MakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    node = make_node(P4D)
    heading = "Mounted on Filesystem Type 1B-blocks Used Avail Inodes IUsed"
    real = f"{heading}\n/ overlay overlay 9 8 1 7 6\n/tmp t tmpfs 5 0 5 4 1\n"
    monkeypatch.setattr(host.subprocess, "run", lambda *a, **k: subprocess.CompletedProcess(a, 0, real, ""))
    serial = healthy(P4D)["disks"][0]["serial"]
    state.write(storage.CONTENT, {serial: {"fstype": "xfs", "label": None, "uuid": "u-1"}})
    state.write(storage.MOUNTS, {"u-1": "/scratch"})
    file_systems = {fs.place: fs for fs in read_space(node.says("df", *host_disks.DF[1:])) or ()}
    assert set(file_systems) == {"/", "/scratch", "/tmp"}
    assert file_systems["/"].size == int(200 * 2**30 * 0.98)
    assert file_systems["/scratch"].size == int(10**12 // 512 * 512 * 0.98)
    assert file_systems["/tmp"].size == 5
    node.become(with_faults(healthy(P4D), [Active("root-full", 0)]))
    full = {fs.place: fs for fs in read_space(node.says("df", *host_disks.DF[1:])) or ()}
    assert full["/"].used_share > 0.99
    assert node.says("df", "-h") == real


def test_whether_the_clock_is_kept(make_node: MakeNode) -> None:
    node = make_node(P4D)
    assert node.says("timedatectl", *probe_host.SYNC[1:]) == "NTP=yes\nNTPSynchronized=yes\n"
    node.become(with_faults(healthy(P4D), [Active("clock-unkept", 0)]))
    assert "NTPSynchronized=no" in node.says("timedatectl", *probe_host.SYNC[1:])


def test_a_wrong_clock_is_wrong_for_pythons_programs(tmp_path: Path) -> None:
    program = Path(clock.__file__).read_text().replace(clock.CLOCK, str(tmp_path / "clock"))
    program = program.partition("from __future__ import annotations")[2]
    ask = f"import time; before = time.time()\n{program}\nprint(time.time() - before)"
    completed = subprocess.run(
        [sys.executable, "-I", "-c", ask], capture_output=True, text=True, check=True, timeout=60
    )
    assert float(completed.stdout) < 60
    (tmp_path / "clock").write_text("43200\n")
    completed = subprocess.run(
        [sys.executable, "-I", "-c", ask], capture_output=True, text=True, check=True, timeout=60
    )
    assert 43_000 < float(completed.stdout) < 43_400


def test_machines_without_a_source_have_no_fault_of_what_has_none() -> None:
    names = {f.name for f in fault_list_host.FAULTS if f.applies(healthy("workstation-rtx4090"))}
    assert not names & {"memory-short", "cpus-missing", "nvme-lost", "swap-on", "ssh-password"}
    assert {"clock-off", "root-full"} <= names


def test_first_boot_writes_the_files_of_a_cloud_config_once(make_node: MakeNode) -> None:
    node = make_node("p4d.24xlarge")
    text = first_boot.cloud_config("ubuntu", "ssh-ed25519 AAAA")
    boot._user_data(text)
    file = node.root / first_boot.APT_FILE.lstrip("/")
    assert file.read_text() == first_boot.APT_TEXT
    file.unlink()
    boot._user_data(text)
    assert not file.exists()
