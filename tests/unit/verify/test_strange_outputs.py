"""Outputs of tools as other people's machines print them, cut to the lines that decide; each says where it was seen."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from provisioner.verify.bundle import Bundle
from provisioner.verify.parsers import (
    Unreadable,
    dcgm_exporter,
    dcgmi_diag,
    dmesg,
    fi_info,
    ibstat,
    lsblk,
    lspci,
    nccl_tests,
    nvidia_smi,
    nvlink,
    nvlink_errors,
    packages,
    rocm_smi,
    systemd,
    topo,
)
from provisioner.verify.parsers.host_hardware import read_arrays, read_disks

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
    found = lspci.parse(LSPCI_NAMES)
    assert found.gpus == ("0000:19:00", "0000:3b:00", "0000:c1:00")
    assert (found.nvswitches, found.efa, found.mellanox, found.nvme) == (1, 2, 1, 1)
    assert found.dead == ("0000:3b:00",)


def test_lspci_with_numbers_only() -> None:
    found = lspci.parse("17:00.0 0302: 10de:20b2 (rev a1)\nc3:00.0 0680: 10de:1af1 (rev a1)\nca:00.0 0207: 15b3:101b\n")
    assert (found.gpus, found.nvswitches, found.mellanox) == (("0000:17:00",), 1, 1)


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
    found = rocm_smi.parse(json.dumps({"gpu_data": [entry]}))
    assert (found.driver_version, found.gpus[0].model) == ("6.12.12", "AMD Instinct MI350X")
    assert (found.gpus[0].vbios, found.gpus[0].memory_mib) == ("113-M350-01-1K0-920A", 294896)


def test_the_address_of_a_gpu_that_fell_off_ends_before_the_colon() -> None:
    found = dmesg.parse("[6781741.548783] NVRM: GPU 0000:91:00.0: GPU has fallen off the bus.\n")
    assert found.fallen_off == ("0000:91:00.0",)


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
    found = nccl_tests.parse("".join(f"{prefix}{row}\n" for row in rows))
    assert (found.ranks, found.max_busbw_gbps, found.avg_busbw_gbps) == (2, 433.9, 125.4)
    assert (found.wrong, found.out_of_bounds_ok) == (1, True)


def test_a_matrix_whose_header_was_wrapped() -> None:
    text = "\tGPU0\nGPU1\tCPU Affinity\nGPU0\t X \tNV18\t0-55\nGPU1\tNV18\t X \t0-55\n"
    with pytest.raises(Unreadable, match="GPU1"):
        topo.parse(text)


# nvidia-smi of branches 470, 535, 550 and 580, where a GPU has been lost
@pytest.mark.parametrize(
    "line",
    [
        "Unable to determine the device handle for GPU 0000:44:00.0: GPU is lost.  Reboot the system",
        "Unable to determine the device handle for GPU1: 0000:44:00.0: Unknown Error",
        "Unable to determine the device handle for GPU0000:44:00.0: Not Found",
        "Unable to determine the device handle for gpu 00000000:44:00.0: Unknown Error",
    ],
)
def test_a_gpu_that_cannot_be_opened_leaves_a_gap(line: str) -> None:
    gpus = "".join(
        f'<gpu id="00000000:{bus}:00.0"><product_name>A4000</product_name></gpu>' for bus in ("19", "5F", "9B")
    )
    found = nvidia_smi.parse(f"{line}\n<nvidia_smi_log><attached_gpus>4</attached_gpus>{gpus}</nvidia_smi_log>\n")
    assert found.unreachable == ("0000:44:00",)
    assert [gpu.index for gpu in found.gpus] == [0, 2, 3]
    assert found.warnings == ()
    assert nvidia_smi.parse(line).unreachable == ("0000:44:00",)


def test_a_gpu_that_cannot_be_opened_and_has_no_address() -> None:
    with pytest.raises(Unreadable, match="GPU2: Unknown Error"):
        nvidia_smi.parse("Unable to determine the device handle for GPU2: Unknown Error\n")


def test_a_link_with_an_error_in_its_states_place() -> None:
    text = "GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-0)\n\t Link 0: 26.562 GB/s\n\t Link 1: {}\n"
    for down in ("<inactive>", "Inactive", "inActive", "Down", "0 GB/s"):
        found = nvlink.parse(text.format(down))[0]
        assert (found.active, found.inactive) == (1, 1)
    for strange in ("[Unknown Error]", "N/A", "ERR!"):
        found = nvlink.parse(text.format(strange))[0]
        assert (found.active, found.inactive) == (None, None)
        assert strange in found.note


def diagnosis(**body: object) -> str:
    return json.dumps({"DCGM Diagnostic": body, "metadata": {"version": "4.4.2"}})


def test_dcgmi_whose_diagnosis_did_not_begin() -> None:
    # DCGM 4: keys of a run that hostengine refused
    with pytest.raises(Unreadable, match="Unable to connect"):
        dcgmi_diag.parse(diagnosis(version="4.4.2", runtime_error="Error: Unable to connect to the host engine"))


def test_dcgmi_sums_a_test_up_apart_from_its_entities() -> None:
    # DCGM 4.1 to 4.5
    tests = [
        {"name": "memory", "results": [], "test_summary": {"status": "Skip"}},
        {"name": "software", "results": [{"entity_id": 0, "status": "Pass"}], "test_summary": {"status": "Fail"}},
        {"name": "pcie", "results": [{"entity_id": 0, "status": "Pass"}], "test_summary": {"status": "Pass"}},
    ]
    found = dcgmi_diag.parse(diagnosis(test_categories=[{"category": "Hardware", "tests": tests}]))
    assert (found.passed, found.failed, found.skipped) == (("pcie",), ("software",), ("memory",))


def test_dcgmi_of_several_iterations() -> None:
    runs = [
        {"DCGM GPU Diagnostic": {"test_categories": [{"tests": [{"name": "Inforom", "results": [{"status": s}]}]}]}}
        for s in ("PASS", "FAIL")
    ]
    found = dcgmi_diag.parse(json.dumps({"iterations": runs, "Overall Result": "Fail"}))
    assert (found.passed, found.failed) == (("Inforom",), ("Inforom",))


def test_dcgmi_of_old_releases_warns_in_one_text() -> None:
    # DCGM 2
    row = {"status": "Warn", "warnings": "Persistence mode for GPU 0 is disabled."}
    tests = [{"name": "Persistence Mode", "results": [row]}]
    found = dcgmi_diag.parse(json.dumps({"DCGM GPU Diagnostic": {"test_categories": [{"tests": tests}]}}))
    assert found.messages == ("Persistence mode for GPU 0 is disabled.",)


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


# nvidia-smi nvlink -e of a B300, driver 595.91, healthy at boot
B300 = """\
GPU 0: NVIDIA B300 SXM6 AC (UUID: GPU-0)
\t Link 0: Malformed packet Errors: 0
\t Link 0: Buffer overrun Errors: 0
\t Link 0: Rx Errors: 0
\t Link 0: Rx remote Errors: 0
\t Link 0: Rx General Errors: 0
\t Link 0: Local link integrity Errors: 0
\t Link 0: Tx discards: 0
\t Link 0: Link recovery successful events: 0
\t Link 0: Link recovery failed events: 0
\t Link 0: Total link recovery events: 0
\t Link 0: Effective Errors: 0
\t Link 0: Effective BER: 15e-255
\t Link 0: Symbol Errors: 0
\t Link 0: Symbol BER: 15e-255
\t Link 0: FEC Errors - 0: 36140749276
\t Link 0: FEC Errors - 1: 12
\t Link 0: Raw BER Lane 0: 2061
\t Link 0: Raw Errors Lane 0: 82
"""


def test_counters_of_nvlink_5() -> None:
    counters = nvlink_errors.parse(B300)[0][0]
    assert {name: count for name, count in counters.items() if count} == {
        "fec - 0": 36140749276,
        "fec - 1": 12,
        "raw ber lane 0": 2061,
        "raw lane 0": 82,
    }
    assert {"rx", "rx remote", "rx general", "local link integrity", "symbol", "effective"} <= set(counters)
    assert "effective ber" not in counters


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


# nvidia-smi topo -m of 8 x B200, two rows of it, as it came through a terminal; names of Linux's own scheme for cards
@pytest.mark.parametrize("names", ["NIC10\tNIC11NIC12", "NIC10NIC11NIC12", "ibp26s0\trocep68s0\trdmap79s0"])
def test_columns_of_a_matrix(names: str) -> None:
    text = (
        f"\tGPU0\tGPU1\t{names}\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\n"
        "GPU0\t X \tNV18\tSYS\tPIX\tNODE\t0-15\t0\t\tN/A\nGPU1\tNV18\t X \tPIX\tSYS\tNODE\t0-15\t0\t\tN/A\n"
    )
    found = topo.parse(text)
    assert found.cells == {"GPU0": {"GPU1": "NV18"}, "GPU1": {"GPU0": "NV18"}}
    assert [list(row.values()) for row in found.near.values()] == [["SYS", "PIX", "NODE"], ["PIX", "SYS", "NODE"]]
    assert found.numa == {"GPU0": "0", "GPU1": "0"}


# What is left when a tool's output is cut: the disk was full, a terminal scrolled, somebody copied too little.
def test_nvlink_cut_in_the_last_gpu() -> None:
    gpus = [f"GPU {i}: NVIDIA H200\n" + "".join(f"\t Link {n}: 26.562 GB/s\n" for n in range(18)) for i in range(2)]
    whole = "".join(gpus)
    assert [links.active for links in nvlink.parse(whole).values()] == [18, 18]
    for end in ("\t Link 11: 26.562 GB/s\n", "\t Link 11: 26.5", "\t Link 11", "\t Lin"):
        cut = nvlink.parse(gpus[0] + gpus[1].split("\t Link 11")[0] + end)
        assert (cut[0].active, cut[1].active) == (18, None)
    # a GPU that has lost links prints them all the same
    short = nvlink.parse(whole[::-1].replace("26.562 GB/s"[::-1], "<inactive>"[::-1], 3)[::-1])
    assert (short[1].active, short[1].inactive) == (15, 3)


def test_nvlink_counters_cut() -> None:
    rows = [f"\t Link {n}: {what} Errors: 0\n" for n in range(2) for what in ("Replay", "Recovery", "CRC")]
    with pytest.raises(Unreadable, match="cut"):
        nvlink_errors.parse("GPU 0: NVIDIA H200\n" + "".join(rows[:5]))


def test_a_kernel_log_cut_in_an_xid() -> None:
    (xid,) = dmesg.parse("[1.5] NVRM: Xid (PCI:0000:9b:00): 11").xids
    assert xid.code == 0
    assert [x.code for x in dmesg.parse("[1.5] NVRM: Xid (PCI:0000:9b:00): 11\n[2.5] eth0: up").xids] == [11]


CARD = """\
CA '{0}'
\tCA type: MT4129
\tNumber of ports: 1
\tPort 1:
\t\tState: Active
\t\tPhysical state: LinkUp
\t\tRate: 400
\t\tLink layer: InfiniBand
"""


@pytest.mark.parametrize("end", ["Number of ports: 1\n", "Port 1:", "State: Act", "State: Active"])
def test_ibstat_cut(end: str) -> None:
    one, two = CARD.format("mlx5_0"), CARD.format("mlx5_0") + CARD.format("mlx5_1")
    assert [len(ibstat.parse(text).ports) for text in (one, two)] == [1, 2]
    for text in (one, two) if end != "State: Active" else (two,):
        with pytest.raises(Unreadable, match="midst"):
            ibstat.parse(text[: text.rindex(end) + len(end)])
    # a tool that broke off says so itself
    assert ibstat.parse(two[: two.rindex("State: Act")] + "\nibpanic: [1] main: stat of IB device failed\n").panic


def test_lspci_cut() -> None:
    with pytest.raises(Unreadable, match="cut"):
        lspci.parse(LSPCI_NAMES + "e1:00.0 3D contro")


def test_fi_info_cut() -> None:
    entry = (
        "provider: efa\n    fabric: efa\n    domain: rdmap{0}s0-rdm\n    type: FI_EP_RDM\n    protocol: FI_PROTO_EFA\n"
    )
    assert len(fi_info.parse(entry.format(79) + entry.format(80)).devices) == 2
    with pytest.raises(Unreadable, match="cut"):
        fi_info.parse(entry.format(79) + entry.format(80).partition("    type")[0])


def test_samples_cut() -> None:
    text = 'DCGM_FI_DEV_GPU_TEMP{gpu="0",UUID="GPU-0"} 31\nDCGM_FI_DEV_GPU_TEMP{gpu="1",UU'
    with pytest.raises(Unreadable, match="cut"):
        dcgm_exporter.parse(text)


def test_packages_cut() -> None:
    with pytest.raises(Unreadable, match="cut"):
        packages.parse("libc6:amd64\t2.36-9\tii \nlibnccl2\t2.2")


@pytest.mark.parametrize("text", ["Active: activ", "     Active: inact"])
def test_a_state_cut(text: str) -> None:
    with pytest.raises(Unreadable):
        systemd.parse(text)


def test_units_cut() -> None:
    with pytest.raises(Unreadable, match="act"):
        systemd.parse_units("Id=docker.service\nLoadState=loaded\nActiveState=act")


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_files_saved_on_windows(tmp_path: Path, encoding: str) -> None:
    (tmp_path / "lsblk.json").write_bytes('{"blockdevices": []}'.encode(encoding))
    assert Bundle.read(tmp_path).files["lsblk.json"].text == '{"blockdevices": []}'


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
    assert [(array.name, array.active) for array in read_arrays(text)] == [("md126", True), ("md4", False)]


@pytest.mark.parametrize(
    ("line", "kind", "where"),
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
def test_what_the_kernel_says_of_broken_hardware(line: str, kind: str, where: str) -> None:
    (event,) = dmesg.parse(f"kern  :err   : 2024-11-24T17:53:23,028841-06:00 {line}\n").events
    assert (event.kind, event.where) == (kind, where)


@pytest.mark.parametrize(
    "line",
    [
        "amdgpu 0000:c1:00.0: amdgpu: socket: 4, die: 0 1 correctable hardware errors detected in total in gfx block, "
        "no user action is needed.",
        "amdgpu 0000:c1:00.0: amdgpu: GPU reset(2) succeeded!",
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
    found = {(x.code, x.pci): x.fatal for x in dmesg.parse(text).xids}
    assert found == {
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
    found = dmesg.parse(text)
    assert [(event.kind, event.where) for event in found.events] == [
        ("pcie_fatal", "0000:03:00.0"),
        ("pcie_fatal", "0000:00:03.0"),
    ]
    assert found.events[1].text == "pcieport 0000:00:03.0: AER: device recovery failed"
    assert dmesg.parse(text.splitlines()[1]).events
