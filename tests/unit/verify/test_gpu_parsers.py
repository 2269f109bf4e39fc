"""Words and shapes that no capture shows: other driver branches, other stamps, text among text, files of the driver."""

from __future__ import annotations

import re

import pytest

from provisioner.verify.bundle import Bundle, Output
from provisioner.verify.facts import read
from provisioner.verify.facts_document import facts_document
from provisioner.verify.parsers import (
    Unreadable,
    dmesg,
    lspci,
    nvidia_driver,
    nvidia_smi,
    nvlink_errors,
    rocm_smi,
    topo,
)
from provisioner.verify.parsers.kernel_events import KINDS
from tests.support.healthy_bundle import capture
from tests.support.healthy_gpu import BOOT

A100 = capture("nvidia_smi/a100-sxm-40gb-1gpu-570.xml")
T4 = capture("nvidia_smi/t4-515-v11.xml")
AT = "[1234.567890] "
STAMPS = (
    AT,
    "",
    "<4>[1234.567890] ",
    "[Fri Oct 14 14:56:49 2022] ",
    "[Fr Okt 14 14:56:49 2022] ",
    "[ven. 14 oct. 14:56:49 2022] ",
    "2024-11-15T12:02:03,470068+00:00 ",
    "kern  :err   : [1234.567890] ",
    "kern  :warn  : 2025-01-21T04:41:44,283302+00:00 ",
    "4,3964,206764307,-;",
    "Nov 21 12:00:00 node-7 kernel: ",
    "Nov 21 12:00:00 node-7 kernel: [ 1234.567890] ",
    "21. Nov 12:00:00 node-7 kernel: ",
    "2026-11-21T12:00:00.000000+01:00 node-7 kernel: [ 1234.567890] ",
)
LINES = {
    "xid": "NVRM: Xid (PCI:0000:19:00): 48, pid='<unknown>', name=<unknown>, DBE (double bit error) ECC error",
    "sxid": "nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 20034, Fatal, Link 63 LTSSM Fault Up",
    "rm_init": "NVRM: GPU 0000:c1:00.0: RmInitAdapter failed! (0x26:0x56:1474)",
    "gsp_timeout": "NVRM: _kgspRpcRecvPoll: GSP RM heartbeat timed out",
    "nvlink": "NVRM: knvlinkCoreShutdownDeviceLinks_IMPL: Link training failed on link 4",
    "pcie_fatal": "pcieport 0000:3a:00.0: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer",
    "pcie_uncorrected": "mlx5_core 0000:18:00.0: PCIe Bus Error: severity=Uncorrected (Non-Fatal), type=Data",
    "pcie_corrected": "pcieport 0000:3a:00.0: AER: Multiple Corrected error received: 0000:3b:00.0",
    "machine_check_fatal": "mce: Uncorrected hardware memory error in user-access at 1a2b3c000",
    "machine_check_corrected": "{3}[Hardware Error]: event severity: corrected",
    "oom": "oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0-1,global_oom",
    "oom_cgroup": "Memory cgroup out of memory: Killed process 4711 (python3) total-vm:104857600kB",
    "hung_task": "INFO: task nfsd:4711 blocked for more than 241 seconds.",
    "hard_lockup": "NMI watchdog: Watchdog detected hard LOCKUP on cpu 17",
    "soft_lockup": "watchdog: BUG: soft lockup - CPU#3 stuck for 22s! [python3:4711]",
    "kernel_bug": "kernel BUG at mm/slub.c:321!",
    "driver_warning": "WARNING: CPU: 41 PID: 19 at nvidia/nv.c:5461 nvidia_dev_put_uuid+0x1a2/0x1c0 [nvidia]",
    "io_error": 'XFS (md0): metadata I/O error in "xfs_da_read_buf+0xd9" at daddr 0x10 len 8 error 5',
    "io_timeout": "nvme nvme3: I/O 12 QID 3 timeout, aborting",
    "network_fs": "nfs: server 10.0.0.5 not responding, still trying",
    "fs_readonly": "XFS (md0): Log I/O Error Detected.  Shutting down filesystem",
    "segfault": "traps: python3[4711] general protection fault ip:7f sp:7f error:0 in libcuda.so",
    "nic": "mlx5_core 0000:18:00.0: cmd_work_handler:877: QUERY timeout. Will cause a leak of a command resource",
    "nic_warning": "NETDEV WATCHDOG: ib0 (mlx5_core): transmit queue 3 timed out",
    "nic_register": "mlx5_core 0000:04:00.0: mlx5_cmd_check:795:(pid 9993): ACCESS_REG(0x805) op_mod(0x1) failed, "
    "status bad parameter(0x3), syndrome (0x15c356)",
    "nic_power": "mlx5_core 0000:18:00.0: Detected insufficient power on the PCIe slot (27W).",
    "iommu_fault": "nvidia 0000:c1:00.0: AMD-Vi: Event logged [IO_PAGE_FAULT domain=0x0023 address=0xfee00000]",
    "peermem": "nvidia-peermem nv_get_p2p_free_callback:127 ERROR detected invalid context, skipping",
    "amd_ring_timeout": "amdgpu 0000:0c:00.0: amdgpu: GPU reset begin!",
    "amd_ras": "amdgpu 0000:0c:00.0: amdgpu: 3 new uncorrectable hardware errors detected in umc block",
    "amd_throttle": "amdgpu 0000:29:00.0: WARN: GPU thermal throttling temperature reached, expect less. HBM.",
    "amd_init": "amdgpu: probe of 0000:0c:00.0 failed with error -22",
}


@pytest.mark.parametrize("stamp", STAMPS)
@pytest.mark.parametrize("kind", LINES)
def test_a_line_is_read_whatever_stands_before_it(stamp: str, kind: str) -> None:
    text = f"{stamp}Linux version 6.8.0-1024-aws (buildd@x)\n{stamp}{LINES[kind]}\n"
    for ends in ("\n", "\r\n"):
        log = dmesg.parse("\ufeff" + text.replace("\n", ends))
        kinds = {event.kind for event in log.events} | {"xid" for _ in log.xids} | {"sxid" for _ in log.sxids}
        assert kinds == {kind}
        assert log.from_boot
        assert all(event.count == 1 and LINES[kind].startswith(event.text[:60]) for event in log.events)


def test_an_xid_that_was_cut_before_its_code_is_no_line_like_others() -> None:
    log = dmesg.parse("[    0.000000] Linux version 6.8.0\n[98211.2] NVRM: Xid (PCI:0000:5d:00")
    assert [(xid.code, xid.pci) for xid in log.xids] == [(0, "0000:5d:00")]


def test_every_kind_has_a_line_here() -> None:
    assert {kind.name.removesuffix("_message") for kind in KINDS} == set(LINES) - {"xid", "sxid"}


def test_a_healthy_boot_says_nothing() -> None:
    log = dmesg.parse(BOOT)
    assert (log.xids, log.sxids, log.fallen_off, log.events) == ((), (), (), ())
    assert log.from_boot
    assert dict(log.flaps) == {}  # its link came and went a minute and a half after the boot


def test_two_messages_in_one_line() -> None:
    first, second = (
        "NVRM: Xid (PCI:0000:19:00): 31, pid=7, MMU fault",
        "NVRM: Xid (PCI:0000:1a:00): 79, GPU has fallen off",
    )
    assert [(x.code, x.pci) for x in dmesg.parse(AT + first + AT + second).xids] == [
        (31, "0000:19:00"),
        (79, "0000:1a:00"),
    ]


@pytest.mark.parametrize(
    ("total", "field", "value"),
    [
        ("GPU requires reset", "reset_required", True),
        ("[GPU requires reset]", "reset_required", True),
        ("GPU is lost", "lost", True),
        ("[GPU is lost]", "lost", True),
        ("[Unknown Error]", "lost", False),
        ("[N/A]", "lost", False),
        ("Not Supported", "lost", False),
    ],
)
def test_words_in_place_of_a_value(total: str, field: str, value: bool) -> None:
    text = re.sub(r"<total>40960 MiB</total>", f"<total>{total}</total>", A100, count=1)
    (gpu,) = nvidia_smi.parse(text).gpus
    assert gpu.memory_mib is None
    assert (getattr(gpu, field) or False) is value


@pytest.mark.parametrize(
    ("action", "recovery"),
    [("None", None), ("Reset", "Reset"), ("Reboot", "Reboot"), ("Drain P2P", "Drain P2P"), ("N/A", None)],
)
def test_what_the_driver_wants(action: str, recovery: str | None) -> None:
    text = A100.replace("<gpu_recovery_action>None", f"<gpu_recovery_action>{action}")
    assert nvidia_smi.parse(text).gpus[0].wants == recovery


@pytest.mark.parametrize("family", ["clocks_event_reason", "clocks_throttle_reason"])
@pytest.mark.parametrize("reason", nvidia_smi.THROTTLE)
def test_reasons_under_both_names(family: str, reason: str) -> None:
    element = f"<{family}s><{family}_{reason}>Active</{family}_{reason}></{family}s>"
    text = re.sub(r"<clocks_event_reasons>.*?</clocks_event_reasons>", element, A100, flags=re.DOTALL)
    assert nvidia_smi.parse(text).gpus[0].throttle == (reason,)


def test_power_limits_under_both_names() -> None:
    old, new = nvidia_smi.parse(T4).gpus[0], nvidia_smi.parse(A100).gpus[0]
    assert (old.power_limit_w, old.power_default_w) == (70.0, 70.0)
    assert (new.power_limit_w, new.power_default_w) == (400.0, 400.0)


def test_messages_in_the_midst_of_the_document() -> None:
    lost = "Unable to determine the device handle for GPU0000:0B:00.0: Unknown Error"
    warning = "WARNING: infoROM is corrupted at gpu 0000:0A:00.0"
    smi = nvidia_smi.parse("\ufeff" + A100.replace("</driver_version>", f"</driver_version>\n{lost}\n{warning}\n"))
    assert smi.unreachable == ("0000:0b:00",)
    assert smi.warnings == (warning,)
    assert len(smi.gpus) == 1


@pytest.mark.parametrize(
    "line",
    [
        "Unable to determine the device handle for GPU 0000:65:00.0: GPU is lost.  Reboot the system",
        "Unable to determine the device handle for GPU0000:65:00.0: Unknown Error",
        "Unable to determine the device handle for gpu 0000:65:00.0: Not Found",
    ],
)
def test_a_gpu_without_a_handle_and_no_document(line: str) -> None:
    smi = nvidia_smi.parse(line + "\n")
    assert (smi.gpus, smi.unreachable) == ((), ("0000:65:00",))


def test_a_document_that_was_cut_is_unreadable() -> None:
    for share in (0.2, 0.5, 0.9):
        with pytest.raises(Unreadable):
            nvidia_smi.parse(A100[: int(len(A100) * share)])


def test_the_driver_of_branch_610() -> None:
    text = A100.replace("driver_version>", "kmd_version>").replace("cuda_version>", "cuda_umd_version>")
    assert (nvidia_smi.parse(text).driver_version, nvidia_smi.parse(text).cuda_version) == ("570.148.08", "12.8")


def test_health_of_the_fabric_in_words() -> None:
    elements = (
        "<route_unhealthy>True</route_unhealthy><incorrect_configuration>Incorrect SystemGUID</incorrect_configuration>"
    )
    text = A100.replace("<health>", f"<health>{elements}")
    assert nvidia_smi.parse(text).gpus[0].fabric_faults == (
        "route_unhealthy",
        "incorrect_configuration: Incorrect SystemGUID",
    )


def test_affinity_with_empty_and_fused_cells() -> None:
    head = "\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\n"
    rows = "GPU0\t X \tPHB\t0-47\t0-1\t\tN/A\nGPU1\tPHB\t X \t\t\t\tN/A\n"
    assert topo.parse(head + rows).numa == {"GPU0": "0-1", "GPU1": None}
    assert topo.parse("\ufeff" + head + "GPU0 X PHB 0-47 N/A N/A\nGPU1 PH0-115 X\n").numa == {
        "GPU0": "N/A",
        "GPU1": None,
    }


def test_counters_of_nvlink_five() -> None:
    text = (
        "GPU 0: NVIDIA B200 (UUID: GPU-0)\n\t Link 0: Tx packets: 12\n\t Link 0: Effective BER: 15e-255\n"
        "\t Link 0: Link recovery failed events: 2\n\t Link 0: Symbol Errors: 77\n"
        "GPU 1: NVIDIA B200 (UUID: GPU-1)\nNvlink queries are not supported for Devices in MIG mode\n"
    )
    assert nvlink_errors.parse(text) == {
        0: {0: {"tx packets": 12, "link recovery failed events": 2, "symbol": 77}},
        1: {},
    }
    with pytest.raises(Unreadable):
        nvlink_errors.parse("nvidia-smi: command not found\n")


def test_files_of_the_driver() -> None:
    closed = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.161.08  Sat Feb 17 22:55:48 UTC 2024\n"
    open_ = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.105.08  Release Build\r\nGCC: 13\r\n"
    arm = "NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  595.84  Release Build\n"
    assert nvidia_driver.parse(closed) == nvidia_driver.Module("535.161.08", "proprietary")
    assert nvidia_driver.parse(open_) == nvidia_driver.Module("580.105.08", "open")
    assert nvidia_driver.parse(arm) == nvidia_driver.Module("595.84", "open")
    assert nvidia_driver.parse_params('A: 1\nRegistryDwords: "x;y"\nB:\n')["RegistryDwords"] == "x;y"
    rows = (
        "crw-rw-rw-  1 root root 195,   0 Nov 21 08:54 /dev/nvidia0\n"
        "crw-rw-rw-. 1 0 0 508, 1 2026-11-21 08:54 /dev/nvidia-uvm-tools\n"
        "-rw-r--r-- 1 root root 0 21. Nov 08:54 /dev/nvidiactl\n\n/dev/nvidia-caps:\ntotal 0\n"
        "cr-------- 1 root root 236, 1 Nov 21 08:54 nvidia-cap1\n"
    )
    assert [(n.name, n.kind, n.major, n.minor) for n in nvidia_driver.parse_nodes(rows)] == [
        ("nvidia0", "c", 195, 0),
        ("nvidia-uvm-tools", "c", 508, 1),
        ("nvidiactl", "-", None, None),
    ]
    for parse in (nvidia_driver.parse, nvidia_driver.parse_params, nvidia_driver.parse_nodes):
        with pytest.raises(Unreadable):
            parse("ls: cannot access '/dev/nvidia*'\n\x00")


def test_a_gpu_that_reads_ff() -> None:
    text = "0000:3b:00.0 3D controller [0302]: NVIDIA Corporation GA100 [A100] [10de:20b0] (rev {})\n"
    assert lspci.parse(text.format("a1")).dead == ()
    assert lspci.parse(text.format("ff")).dead == ("0000:3b:00",)


def test_amd_smi_in_both_shapes() -> None:
    entry = (
        '{"gpu": 0, "asic": {"market_name": "AMD Instinct MI300X"}, "bus": {"bdf": "0000:0C:00.0"},'
        ' "driver": {"name": "amdgpu", "version": "6.10.5"}, "vram": {"vendor": "HYNIX", "size": {"value": 196592}}}'
    )
    for text in (f"[{entry}]", f'{{"gpu_data": [{entry}]}}', f"WARNING: low power\n[{entry}]\n"):
        smi = rocm_smi.parse(text)
        assert (smi.driver_version, len(smi.gpus)) == ("6.10.5", 1)
        gpu = smi.gpus[0]
        assert (gpu.model, gpu.memory_mib, gpu.pci, gpu.memory_vendor) == (
            "AMD Instinct MI300X",
            196592,
            "0000:0c:00",
            "HYNIX",
        )
    for text in ("[]", '[{"a": 1}]', '{"gpu_data": []}', "[1, 2"):
        with pytest.raises(Unreadable):
            rocm_smi.parse(text)


def test_the_facts_document_shows_what_was_read() -> None:
    files = {"nvidia-smi.xml": A100, "nvlink-errors.txt": capture("nvlink_errors/h100-elided.txt"), "dmesg.txt": BOOT}
    document = facts_document(read(Bundle({name: Output(text, rc=0) for name, text in files.items()})))
    assert document["gpus"][0]["vbios"] == "92.00.45.00.03"
    assert document["nvlink_errors"]["0"]["17"] == {"replay": 0, "recovery": 0, "crc": 0}
    assert (document["kernel_events"], document["kernel_log_from_boot"]) == ([], True)


@pytest.mark.parametrize(
    "text",
    [
        "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the latest "
        "NVIDIA driver is installed and running.\n",
        "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 580.95\n",
    ],
)
def test_an_nvidia_smi_that_gives_up_is_quoted(text: str) -> None:
    with pytest.raises(Unreadable, match=f"^it lists no GPUs: {text[:40]}"):
        nvidia_smi.parse(text)
