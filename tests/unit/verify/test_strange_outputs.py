"""Outputs of tools as other people's machines print them, cut to the lines that decide; each says where it was seen."""

from __future__ import annotations

import json

import pytest

from provisioner.verify.parsers import (
    Unreadable,
    dmesg,
    lsblk,
    lspci,
    mdstat,
    nccl_tests,
    rocm_smi,
    systemd,
)
from provisioner.verify.parsers.host_hardware import read_disks

# lspci 3.7 without -nn, 8 x H100 SXM: a class that its database does not know has a number all the same
LSPCI_NAMES = """\
00:00.4 Generic system peripheral [0807]: Intel Corporation Device 0b23
03:00.0 VGA compatible controller: Matrox Electronics Systems Ltd. Integrated Matrox G200eW3 (rev 04)
18:00.0 Non-Volatile memory controller: Micron Technology Inc Device 51c3 (rev 01) (prog-if 02 [NVM Express])
\tSubsystem: Micron Technology Inc Device 5100
19:00.0 3D controller: NVIDIA Corporation Device 2330 (rev a1)
\tSubsystem: NVIDIA Corporation Device 16c1
1a:00.0 Ethernet controller: Mellanox Technologies MT2910 Family [ConnectX-7]
3b:00.0 3D controller: NVIDIA Corporation GH100 [H100 SXM5 80GB] (rev ff)
83:00.0 Bridge: NVIDIA Corporation Device 22a3 (rev a1)
c1:00.0 Processing accelerators: Advanced Micro Devices, Inc. [AMD/ATI] Aqua Vanjaram [Instinct MI300X]
d1:00.0 Ethernet controller: Amazon.com, Inc. Elastic Fabric Adapter (EFA)
d2:00.0 Ethernet controller: Amazon.com, Inc. Device efa2
d3:00.0 Ethernet controller: Amazon.com, Inc. Elastic Network Adapter (ENA)
"""


def test_lspci_with_names_only() -> None:
    devices = lspci.parse(LSPCI_NAMES)
    assert devices.gpus == ("0000:19:00", "0000:3b:00", "0000:c1:00")
    assert (devices.nvswitches, devices.efa, devices.mellanox, devices.nvme) == (1, 2, 1, 1)
    assert devices.dead == ("0000:3b:00",)


@pytest.mark.parametrize("revision", ["(rev ff) (prog-if ff)", "(rev ff)", "(rev a1) (prog-if 00 [VGA controller])"])
def test_lspci_in_many_words_of_a_gpu_that_does_not_answer(revision: str) -> None:
    # pciutils before and after github.com/pciutils/pciutils/pull/91
    silent = (
        f"3b:00.0 3D controller: NVIDIA Corporation GH100 [H100 SXM5 80GB] {revision}\n\t!!! Unknown header type 7f\n"
    )
    devices = lspci.parse(
        f"19:00.0 3D controller: NVIDIA Corporation Device 2330 (rev a1)\n\tFlags: bus master\n{silent}"
    )
    assert (devices.gpus, devices.dead) == (("0000:19:00", "0000:3b:00"), ("0000:3b:00",))


# lspci 3.9.0 -Dnnx, of which the first is whole and the header of the second is that of ellyq/coreboot#4
LSPCI_HEX = """\
0000:00:00.0 Host bridge [0600]: Intel Corporation Device [8086:0d57]
00: 86 80 57 0d 00 00 00 00 00 00 00 06 00 00 00 00
10: 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00
20: 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00
30: 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00

0000:02:00.0 3D controller [0302]: NVIDIA Corporation GA100 [A100 SXM4 40GB] [10de:20b0] (rev a1)
00: ff ff ff ff ff ff ff ff ff ff ff ff ff ff ff ff
10: ff ff ff ff ff ff ff ff ff ff ff ff ff ff ff ff
20: ff ff ff ff ff ff ff ff ff ff ff ff ff ff ff ff
30: ff ff ff ff ff ff ff ff ff ff ff ff ff ff ff ff

0000:03:00.0 3D controller [0302]: NVIDIA Corporation GA100 [A100 SXM4 40GB] [10de:20b0] (rev a1)
00: ff ff ff ff 06 04 10 00 a1 00 02 03 00 00 00 00
10: 00 00 00 00 ff ff ff ff ff ff ff ff ff ff ff ff
"""


def test_lspci_with_the_registers_of_a_gpu_that_does_not_answer() -> None:
    """The third is a virtual function: it shows no vendor and no device of its own (PCIe, 9.3.4.1)."""
    devices = lspci.parse(LSPCI_HEX)
    assert (devices.gpus, devices.dead) == (("0000:02:00", "0000:03:00"), ("0000:02:00",))
    assert not devices.excerpt


def test_lspci_with_numbers_only() -> None:
    devices = lspci.parse(
        "17:00.0 0302: 10de:20b2 (rev a1)\nc3:00.0 0680: 10de:1af1 (rev a1)\nca:00.0 0207: 15b3:101b\n"
    )
    assert (devices.gpus, devices.nvswitches, devices.mellanox) == (("0000:17:00",), 1, 1)


@pytest.mark.parametrize(
    ("printed", "size"),
    [(3840755982336, 3840755982336), ("894.3G", 960247313203), ("7T", 7696581394432), ("1,8T", 1979120929996),
     ("0B", 0), ("512", 512), (None, None), ("3.84 TB", None)],
)  # fmt: skip
def test_lsblk_without_bytes(printed: object, size: int | None) -> None:
    # lsblk of util-linux 2.37 without --bytes, 2 machines with 8 NVMe disks; the comma is German
    (disk,) = lsblk.parse(json.dumps({"blockdevices": [{"name": "nvme0n1", "type": "disk", "size": printed}]}))
    assert disk.size == size


def test_lsblk_that_does_not_say_what_is_a_disk() -> None:
    with pytest.raises(Unreadable, match="TYPE"):
        lsblk.parse('{"blockdevices": [{"name": "nvme0n1", "size": 1}]}')


# systemd 237 and 252, `systemctl` and `systemctl --failed` without --no-legend
UNITS = """\
  UNIT                         LOAD      ACTIVE   SUB       DESCRIPTION
  cron.service                 loaded    active   running   Regular background program processing daemon
● nvidia-fabricmanager.service loaded    failed   failed    NVIDIA fabric manager service
× dcgm-expor…                  loaded    failed   failed    DCGM exporter
● ureadahead.service           not-found inactive dead      ureadahead.service

LOAD   = Reflects whether the unit definition was properly loaded.
ACTIVE = The high-level unit activation state, i.e. generalization of SUB.
SUB    = The low-level unit activation state, values depend on unit type.

4 loaded units listed.
To show all installed unit files use 'systemctl list-unit-files'.
"""


def test_a_list_of_all_units_with_its_legend() -> None:
    assert systemd.parse_failed(UNITS) == ("nvidia-fabricmanager.service", "dcgm-expor…")
    assert systemd.parse_failed("0 loaded units listed.\n") == ()


HALVES = "223.39    N/A    32669  262.94  230.07    N/A"
NCCL = {
    "all-gather of nccl-tests 2.0": ("type     time", f"float    33646  255.31  {HALVES}"),
    "all-to-all of nccl-tests 2.0": ("type   redop     time", f"float            33646  255.31  {HALVES}"),
    "broadcast of nccl-tests 2.0": ("type    root     time", f"float       0    33646  255.31  {HALVES}"),
    "reduce of nccl-tests 2.0": ("type   redop    root     time", f"float     sum       0    33646  255.31  {HALVES}"),
}


@pytest.mark.parametrize("name", NCCL)
def test_collectives_that_reduce_nothing(name: str) -> None:
    titles, row = NCCL[name]
    titles += "   algbw   busbw  error     time   algbw   busbw  error"
    text = f"#  size  count  {titles}\n  8589934592  268435456  {row}\n"
    assert nccl_tests.parse(text).max_busbw_gbps == 230.07
    # a row that was cut before its second half
    cut = text[: text.index("223.39") + len("223.39    N/A    32669  2")]
    assert nccl_tests.parse(cut).max_busbw_gbps == 223.39


def test_rocm_smi_that_knows_no_names() -> None:
    # rocm-smi of ROCm 4.3 prints the vendor's number as series and model
    (gpu,) = rocm_smi.parse('{"card0": {"Card series": "0x1002", "PCI Bus": "0000:07:00.0"}, "system": {}}').gpus
    assert gpu.model is None


@pytest.mark.parametrize(
    "driver",
    [{"NAME": "amdgpu", "VERSION": "6.12.12"}, {"version": "N/A", "driver_version": "6.12.12"}, {"version": "6.12.12"}],
)
def test_amd_smi_names_its_driver_in_three_ways(driver: dict[str, str]) -> None:
    # ROCm 7, ROCm 5.7 and ROCm 6
    entry = {
        "gpu": 0,
        "asic": {"market_name": "AMD Instinct MI350X"},
        "bus": {"bdf": "0000:05:00.0"},
        "ifwi": {"part_number": "113-M350-01-1K0-920A"},
        "vram": {"vram_size_mb": 294896},
        "driver": driver,
    }
    parsed = rocm_smi.parse(json.dumps({"gpu_data": [entry]}))
    assert (parsed.driver_version, parsed.gpus[0].model) == ("6.12.12", "AMD Instinct MI350X")
    assert (parsed.gpus[0].vbios, parsed.gpus[0].memory_mib) == ("113-M350-01-1K0-920A", 294896)


def test_the_address_of_a_gpu_that_fell_off_ends_before_the_colon() -> None:
    log = dmesg.parse("[6781741.548783] NVRM: GPU 0000:91:00.0: GPU has fallen off the bus.\n")
    assert log.fallen_off == ("0000:91:00.0",)


@pytest.mark.parametrize(
    "prefix",
    [
        "[1,0]<stdout>:",
        "   [1,0]<stdout>:",
        "[prterun-node-1-2811@1,0]<stdout>: ",
        "0: ",
        "gpu-001: ",
        "[pod/nccl-0/main] ",
    ],
)
def test_nccl_tests_under_launchers(prefix: str) -> None:
    # Open MPI 4 and 5 with --tag-output, srun -l, pdsh, kubectl logs --prefix
    rows = (
        "# nThread 1 nGpus 1 minBytes 8 maxBytes 17179869184 step: 2(factor) warmup iters: 5 iters: 20",
        "#   Rank  0 Group  0 Pid   1 on  gpu-001 device  0 [0x53] NVIDIA H100 80GB HBM3",
        "#   Rank  1 Group  0 Pid   2 on  gpu-001 device  1 [0x64] NVIDIA H100 80GB HBM3",
        "#  size     count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong",
        "  536870912  134217728    float   sum   -1   2165.3  247.94  433.90      0   2166.4  247.81  433.67      1",
        "# Out of bounds values : 0 OK",
        "# Avg bus bandwidth    : 125.4 ",
    )
    parsed = nccl_tests.parse("".join(f"{prefix}{row}\n" for row in rows))
    assert (parsed.ranks, parsed.max_busbw_gbps, parsed.avg_busbw_gbps) == (2, 433.9, 125.4)
    assert (parsed.wrong, parsed.out_of_bounds_ok) == (1, True)


def test_a_journal_in_which_the_service_was_started_again() -> None:
    failed = (
        "Jan 05 nvidia-fabricmanager-start.sh[4756]: request to query NVSwitch device information from NVSwitch driver "
        "failed with error:WARNING Nothing to do [NV_WARN_NOTHING_TO_DO]\n"
        "Jan 05 systemd[1]: nvidia-fabricmanager.service: Control process exited, code=exited, status=1/FAILURE\n"
    )
    assert systemd.parse(failed).state == "failed"
    with pytest.raises(Unreadable):
        systemd.parse(
            failed + "Jan 05 systemd[1]: Started nvidia-fabricmanager.service - NVIDIA fabric manager service.\n"
        )


@pytest.mark.parametrize(
    ("lines", "fatal"),
    [
        (["145, RLW_RXPIPE Nonfatal XC0 i0 Link 13 (0x1)"] * 2, False),
        (["149, NETIR Fatal XC0 i0 Link -1 (0x1)", "149, NETIR_BER_EVENT Nonfatal XC0 i0 Link 3 (0x1)"], True),
        (["149, NETIR_BER_EVENT Nonfatal XC0 i0 Link 3 (0x1)", "149, pid=1, name=nccl"], None),
        (["74, pid='<unknown>', name=<unknown>, NVLink: fatal error detected on link 14(0x0)"], None),
    ],
)
def test_the_weight_of_an_nvlink_5_xid(lines: list[str], fatal: bool | None) -> None:
    # GB200, drivers 570 and 580; an Xid 74 of an H100 has no such word
    (xid,) = dmesg.parse("".join(f"[1.5] NVRM: Xid (PCI:0008:06:00): {line}\n" for line in lines)).xids
    assert xid.fatal is fatal


@pytest.mark.parametrize(
    ("warning", "percent", "wear"),
    [(4, 2, 0.02), ("4", "2", 0.02), (4.0, 2.0, 0.02), ({"value": 4, "reliability_degraded": 1}, 30, 0.3)],
)
def test_what_nvme_calls_a_warning(warning: object, percent: object, wear: float) -> None:
    # nvme-cli 2.3 in three builds (numbers, texts, floats) and 2.11, which spells the bits out
    smart = json.dumps({"critical_warning": warning, "percent_used": percent, "avail_spare": 100, "media_errors": 0})
    (disk,) = read_disks({"nvme0": {"state": "live"}}, {"nvme0": smart})
    assert (disk.warning, disk.wear, disk.spare, disk.media_errors) == (4, wear, 100, 0)


def test_a_container_of_firmware_raid_is_no_array() -> None:
    # /proc/mdstat of a machine with Intel's firmware RAID; md219 holds md126, and is never active itself
    text = (
        "Personalities : [raid0] [raid1]\n"
        "md126 : active raid0 sdb[1] sdc[0]\n      1855870976 blocks super external:/md219/0 128k chunks\n\n"
        "md219 : inactive sdb[2](S) sdc[1](S)\n        7932 blocks super external:imsm\n\n"
        "md4 : inactive raid1 sda3[0](F) sdb3[1](S)\n      4883648 blocks [2/2] [UU]\n"
    )
    assert [(array.name, array.active) for array in mdstat.parse(text)] == [("md126", True), ("md4", False)]


@pytest.mark.parametrize(
    ("line", "kind", "location"),
    [
        # amdgpu of MI200 and MI300 with RAS
        ("amdgpu 0000:08:00.0: amdgpu: Saved bad pages 176 reaches threshold value 128", "amd_ras", "0000:08:00.0"),
        ("amdgpu 0000:68:00.0: {15}Poison is created", "amd_ras", "0000:68:00.0"),
        (
            "amdgpu 0000:68:00.0: {14}poison is consumed by client 12, kick off gpu reset flow",
            "amd_ras",
            "0000:68:00.0",
        ),
        ("amdgpu 0000:c1:00.0: amdgpu: GPU reset(2) failed", "amd_ring_timeout", "0000:c1:00.0"),
        ("amdgpu: qcm fence wait loop timeout expired", "amd_ring_timeout", ""),
        ("[drm:amdgpu_device_init [amdgpu]] *ERROR* hw_init of IP block <psp> failed -22", "amd_init", ""),
        # EPYC 9004
        ("[Hardware Error]: System Fatal error.", "machine_check_fatal", ""),
        ("[Hardware Error]: Uncorrected, software containable error.", "machine_check_fatal", ""),
        ("[Hardware Error]: CPU:2 (19:11:1) MC15_STATUS[Over|UE|MiscV|AddrV|-]: 0xdc20", "machine_check_fatal", ""),
        ("[Hardware Error]: Deferred error, no action required.", "machine_check_corrected", ""),
    ],
)
def test_what_the_kernel_says_of_broken_hardware(line: str, kind: str, location: str) -> None:
    (event,) = dmesg.parse(f"kern  :err   : 2024-11-24T17:53:23,028841-06:00 {line}\n").events
    assert (event.kind, event.where) == (kind, location)


@pytest.mark.parametrize(
    "line",
    [
        "amdgpu 0000:c1:00.0: amdgpu: socket: 4, die: 0 1 correctable hardware errors detected in total in gfx block, "
        "no user action is needed.",
        "amdgpu 0000:c1:00.0: amdgpu: GPU reset(2) succeeded!",
        "amdgpu 0000:04:00.0: [drm] device wedged, but recovered through reset",  # ROCm/legacy-rocm-build#5999
        "amdgpu 0000:03:00.0: amdgpu: ring gfx_0.0.0 uses VM inv eng 0 on hub 0",
        "NVRM: API mismatch: the client has the version 580.95.05, but this kernel module has the version 580.105.08.",
    ],
)
def test_what_the_kernel_says_of_hardware_that_works(line: str) -> None:
    assert dmesg.parse(f"[12.5] {line}\n").events == ()


def test_an_xid_that_only_another_one_names() -> None:
    # 8 x B200, driver 590: the lines of Xid 149 and 145 had left the buffer
    text = (
        "kernel: NVRM: Xid (PCI:0000:dc:00): 45, pid=1818990, name=python3, Ch 00000001 caused by previous Xid 149\n"
        "kernel: NVRM: Xid (PCI:0000:ed:00): 45, pid=1818992, name=python3, Ch 0000000c caused by previous Xid 145\n"
        "kernel: NVRM: Xid (PCI:0000:ed:00): 145, RLW_RXPIPE Nonfatal XC0 i0 Link 13 (0x1)\n"
    )
    fatal_by_xid = {(x.code, x.pci): x.fatal for x in dmesg.parse(text).xids}
    assert fatal_by_xid == {
        (45, "0000:dc:00"): None,
        (45, "0000:ed:00"): None,
        (145, "0000:ed:00"): False,
        (149, "0000:dc:00"): None,
    }


def test_a_kernel_log_with_stamps_of_the_time_between() -> None:
    # dmesg --reltime of a workstation whose GPU was lost
    text = (
        "[Jan21 04:41] nvidia 0000:03:00.0: AER: can't recover (no error_detected callback)\n"
        "[  +0.000008] pcieport 0000:00:03.0: AER: device recovery failed\n"
    )
    log = dmesg.parse(text)
    assert [(event.kind, event.where) for event in log.events] == [
        ("pcie_fatal", "0000:03:00.0"),
        ("pcie_fatal", "0000:00:03.0"),
    ]
    assert log.events[1].text == "pcieport 0000:00:03.0: AER: device recovery failed"
    assert dmesg.parse(text.splitlines()[1]).events
