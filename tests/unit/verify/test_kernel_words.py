"""The kernel's and the driver's own words for a fault, in every wording that was seen or that their source has."""

from __future__ import annotations

import pytest

from provisioner.verify import check_runner
from provisioner.verify.bundle import Bundle, Output
from provisioner.verify.check_runner import NodeUnderTest
from provisioner.verify.facts import read
from provisioner.verify.parsers import Unreadable, dmesg
from provisioner.verify.parsers.stamps import stamp
from provisioner.verify.peers import Peers
from provisioner.verify.registry import plain_checks
from tests.support.healthy_bundle import capture, expected

P4D = "p4d.24xlarge"
CHECKS = {declared.id: (function, declared) for function, declared in plain_checks()}


def outcome(check: str, **files: str) -> check_runner.Outcome:
    """How a check ends on a bundle of these files alone."""
    outputs = {name.replace("__", ".").replace("_", "-"): Output(text) for name, text in files.items()}
    facts = read(Bundle(outputs))
    function, declared = CHECKS[check]
    return check_runner.run(function, declared, NodeUnderTest("a", facts, expected(P4D), None), Peers({"a": facts}))


OFF = {
    # The words of gpud's and AzNHC's tests for a driver without Xids
    "GPU at 0000:01:00.0 has fallen off the bus.": "0000:01:00.0",
    "[ 12.5] NVRM: GPU at 0000:01:00.0 has fallen off the bus.": "0000:01:00.0",
    "[ 12.5] NVRM: GPU at PCI:0000:91:00: GPU has fallen off the bus.": "0000:91:00",
    # dmesg of an 8-GPU node, driver 535
    "[6781741.548783] NVRM: GPU 0000:91:00.0: GPU has fallen off the bus.": "0000:91:00.0",
    # a laptop, driver 580
    "NVRM: GPU 0000:01:00.0 has fallen off the bus and is not responding; probe failed error -1": "0000:01:00.0",
    # passthrough, in one line and in two (drivers 535 to 580)
    "NVRM: The NVIDIA GPU 0000:0e:00.0 (PCI ID: 10de:1b06) installed in this system has fallen off the bus and is not "
    "responding to commands.": "0000:0e:00.0",
    "NVRM: The NVIDIA GPU 0000:02:00.0\nhas fallen off the bus and is not responding to commands.": "0000:02:00.0",
    "[1843.3] NVRM: The NVIDIA GPU 0000:9a:00.0 (PCI ID: 10de:28a0) installed in this system\n"
    "[1843.3]        has fallen off the bus and is not responding to commands.": "0000:9a:00.0",
    # driver 610
    "[ 12.5] NVRM: GPU0 rpcSendMessage: GPU lost from the bus [NV_ERR_GPU_IS_LOST] (0x0000000F)": "",
}


@pytest.mark.parametrize("text", OFF)
def test_a_gpu_that_fell_off_the_bus_in_any_wording(text: str) -> None:
    assert dmesg.parse(text).fallen_off == (OFF[text],)
    result = outcome("gpu.xid", dmesg__txt=text)
    assert (result.status, result.action) == ("fail", "reboot")
    assert "fallen off the bus" in result.message


@pytest.mark.parametrize("name", ["gpu-fallen-off-three-lines", "gpu-fallen-off-bus-single-line-docs"])
def test_captures_of_gpus_that_fell_off(name: str) -> None:
    assert outcome("gpu.xid", dmesg__txt=capture(f"dmesg/{name}.txt")).status == "fail"


def test_who_only_speaks_of_it_is_no_driver() -> None:
    text = "Jan  5 12:00:00 node-1 monitor[7]: looks for a GPU fallen off the bus\nJan  5 12:00:01 node-1 kernel: x"
    assert dmesg.parse(text).fallen_off == ()


RECOVERY = "[171168.6] NVRM: Xid (PCI:0008:01:00): 154, GPU recovery action changed from {} to {}\n"
NONE = "0x0 (None)"


@pytest.mark.parametrize(
    ("to", "action"),
    [
        # captures/dmesg/gb200-xid149-154-nvlink5 and public kernel logs of drivers 570 to 595
        ("0x1 (GPU Reset Required)", "reset"),
        ("0x2 (Node Reboot Required)", "reboot"),
        ("0x3 (Drain P2P)", "reset"),
        ("0x4 (Drain and Reset)", "reset"),
        # driver 610
        ("0x1 (PF FLR)", "reset"),
        ("0x2 (OS Reboot)", "reboot"),
        ("0x9 (Something Else)", "reboot"),
    ],
)
def test_the_driver_says_what_it_wants_done(to: str, action: str) -> None:
    result = outcome("gpu.xid", dmesg__txt=RECOVERY.format(NONE, to))
    assert (result.status, result.action) == ("fail", action)
    assert to in result.message


def test_the_last_word_of_the_driver_counts() -> None:
    done = RECOVERY.format(NONE, "0x2 (Node Reboot Required)") + RECOVERY.format("0x2 (Node Reboot Required)", NONE)
    assert outcome("gpu.xid", dmesg__txt=done).status == "pass"


@pytest.mark.parametrize(("code", "action"), [(168, "reboot"), (171, "reset"), (172, "reset"), (48, "reset")])
def test_errors_of_memory_have_an_action(code: int, action: str) -> None:
    result = outcome("gpu.xid", dmesg__txt=f"[1.5] NVRM: Xid (PCI:0000:18:00): {code}, pid=1, x\n")
    assert (result.status, result.action) == ("fail", action)


FATAL = "pcieport 0000:80:01.1: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer, (Receiver ID)\n"


@pytest.mark.parametrize("text", [FATAL, f"[ 12.5] {FATAL}", f"{FATAL}pcieport 0000:80:01.1: AER: device recovery\n"])
def test_a_fatal_pcie_error_without_a_stamp(text: str) -> None:
    result = outcome("log.pcie_aer", dmesg__txt=text)
    assert result.status == "fail"
    assert "0000:80:01.1" in result.message


def test_a_text_of_anything_is_still_no_kernel_log() -> None:
    with pytest.raises(Unreadable):
        dmesg.parse("Dear all,\nthe node is fine.\n")


@pytest.mark.parametrize(
    "line",
    [
        # dev_watchdog, Linux 5.15 to 6.7 and since 6.8 (net/sched/sch_generic.c)
        "[9.5] NETDEV WATCHDOG: ens5 (mlx5_core): transmit queue 3 timed out",
        "[9.5] NETDEV WATCHDOG: ens5 (ice): transmit queue 3 timed out 5120 ms",
        "[9.5] mlx5_core 0000:18:00.0 ens5: NETDEV WATCHDOG: CPU: 12: transmit queue 3 timed out 5120 ms",
        "NETDEV WATCHDOG: CPU: 12: transmit queue 3 timed out",
    ],
)
def test_a_queue_that_stood_still(line: str) -> None:
    assert outcome("log.nic_warning", dmesg__txt=line).status == "fail"


PORT = "[{}] mlx5_core 0000:18:00.0: Port module event: module {}, Cable {}\n"
"""port_module_event in drivers/net/ethernet/mellanox/mlx5/core/events.c"""


@pytest.mark.parametrize(
    ("events", "status"),
    [
        ([(4.7, 0, "plugged")], "pass"),
        ([(4.7, 0, "plugged"), (4.8, 1, "unplugged")], "pass"),  # a cage that is empty
        ([(4.7, 0, "plugged"), (90000.1, 0, "unplugged")], "fail"),
        ([(4.7, 0, "plugged"), (90000.1, 0, "unplugged"), (90060.1, 0, "plugged")], "fail"),
        ([(90000.1, 0, "unplugged")], "fail"),  # the boot has left the buffer
        ([(4.7, 0, "plugged"), (6.7, 0, "unplugged")], "fail"),
    ],
)
def test_a_cable_that_went(events: list[tuple[float, int, str]], status: str) -> None:
    text = "[0.5] x\n" + "".join(PORT.format(*event) for event in events)
    assert outcome("log.nic_warning", dmesg__txt=text).status == status


BOOT = "[    0.000000] Linux version 6.8.0-1024-aws\n"


def flaps(*times: float, form: str = "[{:.6f}] ens5: Link down\n") -> str:
    return BOOT + "".join(form.format(time) for time in times)


@pytest.mark.parametrize(
    ("text", "count"),
    [
        (flaps(1000, 2000, 3000, 4000, 5000), 5),
        (flaps(1, 2, 3, 4, 5, 6, 1000), 1),  # links come and go while a node boots
        (flaps(*(1000 + day * 90_000 for day in range(9))), 1),  # one a day
        (flaps(1000, *(500_000 + n for n in range(5))), 5),
        ("".join(f"ens5: Link down {n}\n" for n in range(6)) + "kernel: x", 6),  # without stamps
        ("".join(f"Jan {day:2} 12:00:00 a kernel: ens5: Link down\n" for day in range(1, 9)), 2),
        ("".join(f"[Mon Jan  5 12:00:0{n} 2026] ens5: Link down\n" for n in range(6)), 6),
        ("".join(f"2026-01-05T12:00:0{n},000000+00:00 ens5: Link down\n" for n in range(6)), 6),
        ("".join(f"6,{n},{(1000 + n) * 1000000},-;ens5: Link down\n" for n in range(6)), 6),
    ],
)
def test_losses_of_a_carrier_are_counted_in_a_day(text: str, count: int) -> None:
    assert dict(dmesg.parse(text).flaps) == {"ens5": count}


def test_a_link_that_comes_up_and_one_that_flaps() -> None:
    assert outcome("log.link_flap", dmesg__txt=flaps(1, 2, 3, 4, 5, 6)).status == "pass"
    assert outcome("log.link_flap", dmesg__txt=flaps(*range(1000, 1006))).status == "fail"


@pytest.mark.parametrize(
    "row", ["", "x", "[x] y", "[99999999999999.1] x", "Foo 99 99:99:99 x", "2026-13-45T99:99:99 x", "6,1,x,-;y"]
)
def test_a_stamp_that_is_none(row: str) -> None:
    assert stamp(row) is None


def xid(code: int, address: str = "0000:18:00") -> str:
    return f"[    1.500000] NVRM: Xid (PCI:{address}): {code}, pid='<unknown>', name=<unknown>, x\n"


CLEAN = "[    0.000000] Linux version 6.8.0-1024-aws\n"


@pytest.mark.parametrize(
    ("before", "now", "again_status", "before_status"),
    [
        (CLEAN + xid(79), CLEAN, "pass", "fail"),
        (CLEAN + xid(48), CLEAN, "pass", "fail"),
        (CLEAN + xid(79), CLEAN + xid(79), "fail", "fail"),
        ("NVRM: GPU 0000:18:00.0: GPU has fallen off the bus.\n", CLEAN + xid(79), "fail", "fail"),
        (CLEAN + xid(79), CLEAN + xid(79, "0000:2a:00"), "pass", "fail"),
        (CLEAN + xid(48), CLEAN + xid(79), "pass", "fail"),
        (CLEAN + xid(31), CLEAN + xid(31), "pass", "pass"),
        (CLEAN, CLEAN + xid(79), "pass", "pass"),
        ("-- No entries --\n", CLEAN + xid(79), "skip", "skip"),
    ],
)
def test_a_reboot_does_not_make_a_fault_forgotten(before: str, now: str, again_status: str, before_status: str) -> None:
    files = {"dmesg__txt": now, "dmesg_before__txt": before}
    assert outcome("gpu.xid_again", **files).status == again_status
    assert outcome("gpu.xid_before", **files).status == before_status


def test_a_journal_that_is_not_kept_condemns_nobody() -> None:
    assert outcome("gpu.xid_again", dmesg__txt=CLEAN).status == "pass"
    assert outcome("gpu.xid_again", dmesg__txt=CLEAN + xid(79)).status == "skip"
    assert outcome("gpu.xid_before", dmesg__txt=CLEAN).status == "skip"


REAL = {
    # Ubuntu forums and public repositories, drivers 173 to 580
    "[11.9] NVRM: The NVIDIA probe routine failed for 1 device(s).": "rm_init",
    "[11.9] NVRM: None of the NVIDIA graphics adapters were initialized!": "rm_init",
    "[14387.2] nvidia: probe of 0000:5d:00.0 failed with error -1": "rm_init",
    "[4.2] nvidia 0000:01:00.0: probe with driver nvidia failed with error -1": "rm_init",
    "2024-05-14T12:05:40.454049+01:00 g kernel: NVRM: BAR1 is 0M @ 0x0 (PCI:0000:01:00.0)": "rm_init",
    "[12.3] NVRM: GPU7 RmInitAdapter: Cannot initialize GSP firmware RM": "rm_init",
    "[5.6] NVRM: GPU 0000:02:00.0: rm_init_adapter failed, device minor number 0": "rm_init",
    "NVRM: installed in this system requires use of the NVIDIA open kernel modules.": "rm_init",
    "NVRM: nvidia.ko because it does not include the required GPU System Processor (GSP).": "rm_init",
    # lore.kernel.org
    "[370.0] pcieport 0000:00:1c.0: DPC: containment event, status:0x1f05 source:0x0200": "pcie_fatal",
    "pcieport 0000:30:03.0: AER: Uncorrectable (Non-Fatal) error message received": "pcie_uncorrected",
    "Memory failure: 0x827ca68: already hardware poisoned": "machine_check_fatal",
    "[106.9] mce: [Hardware Error]: CPU 18: Machine Check Exception: 5 Bank 7: be00000001010091": "machine_check_fatal",
    "h kernel: [Hardware Error]: CPU 0: Machine Check Exception: 5 Bank 4: b200000000070f0f": "machine_check_fatal",
    "mce: [Hardware Error]: CPU 10: Machine Check Exception: 5 Bank 6: fb80000000000e0b": "machine_check_fatal",
    "[100.1] Kernel panic - not syncing: Fatal Machine check": "machine_check_fatal",
    "[5.8] watchdog: Watchdog detected hard LOCKUP on cpu 2": "hard_lockup",
    "[75.2] NMI watchdog: Watchdog detected hard LOCKUP on cpu 0": "hard_lockup",
    "[9.1] WARNING: nvidia/nv.c:5461 at nvidia_dev_put_uuid+0x1a2/0x1c0 [nvidia], CPU#41: python3/19": "driver_warning",
    "BUG: unable to handle page fault for address: ffffc9000de59000": "kernel_bug",
    "Oops: 0002 [#1] SMP PTI": "kernel_bug",
    "general protection fault, probably for non-canonical address 0xdead000000000100: 0000 [#1] SMP": "kernel_bug",
    "[5.9] Kernel panic - not syncing: Hard LOCKUP": "kernel_bug",
    "blk_update_request: critical medium error, dev nvme0n1, sector 951741928 op 0x0:(READ) flags 0x0": "io_error",
    "[215.4] Buffer I/O error on dev nvme0n1, logical block 0, async page read": "io_error",
    "[1158185.7] md/raid:md1: Disk failure on nvme2n1p4, disabling device.": "io_error",
    "[3.1] BTRFS error (device nvme0n1p2): parent transid verify failed on 1 wanted 2 found 3": "io_error",
    "kernel: Aborting journal on device sdc1-8.": "fs_readonly",
    "[9.0] BTRFS info (device nvme0n1p2): forced readonly": "fs_readonly",
    "[204.7] mlx5_core 0000:41:00.0: health_care:350:(pid 920): handling bad device here": "nic",
    "mlx5_core 0000:41:00.0: print_health_info:424:(pid 0): synd 0x8: unrecoverable hardware error": "nic",
    "mlx5_core 0000:41:00.0: print_health_info:424:(pid 0): synd 0x1: firmware internal error": "nic",
    "mlx4_core 0000:03:00.0: Internal error detected:": "nic",
    "ena 0000:00:05.0 eth0: Keep alive watchdog timeout.": "nic",
    "[72.6] AMD-Vi: Completion-Wait loop timed out": "iommu_fault",
    "arm-smmu-v3 arm-smmu-v3.0.auto: event 0x10 received:": "iommu_fault",
    "amdgpu 0000:0b:00.0: amdgpu: device lost from bus!": "amd_ring_timeout",
    "amdgpu 0000:c1:00.0: amdgpu: socket: 4, die: 0, 2 new deferred hardware errors detected in umc block": "amd_ras",
}
"""Lines of public logs, and of the kernel's format strings where only those are public (mlx5 hsynd_str, mlx4 catas.c,
ena_netdev.c, arm-smmu-v3.c, amdgpu_ras.c)."""


@pytest.mark.parametrize("line", REAL, ids=lambda line: line[:50])
def test_a_real_line_is_of_its_kind(line: str) -> None:
    events = dmesg.parse(f"[0.1] Linux version 6.8.0\n{line}\n").events
    assert [event.kind for event in events] == [REAL[line]]


@pytest.mark.parametrize(
    ("name", "check"),
    [
        ("gfw-boot-failed-550", "log.rm_init"),
        ("driver-finds-no-gpu-nouveau", "log.rm_init"),
        ("gsp-cannot-boot-520-no-colon", "log.rm_init"),
        ("fsp-timed-out-h100", "log.rm_init"),
        ("reset-required-without-xid", "log.gsp_timeout"),
    ],
)
def test_captures_of_gpus_that_the_driver_cannot_use(name: str, check: str) -> None:
    assert outcome(check, dmesg__txt=capture(f"dmesg/{name}.txt")).status == "fail"


def test_a_message_behind_the_name_of_its_function() -> None:
    row = "[  603.0297] [drm:amdgpu_device_ip_init [amdgpu]] *ERROR* hw_init of IP block <psp> failed -22"
    (event,) = dmesg.parse(row).events
    assert event.text == "*ERROR* hw_init of IP block <psp> failed -22"


@pytest.mark.parametrize("address", ["PCI:...", "PCI:xxxx:xx:00", "PCI:XXXX:XX:XX", "PCI:****:**:00.0"])
def test_an_xid_whose_address_was_taken_out(address: str) -> None:
    result = outcome("gpu.xid", dmesg__txt=f"kernel: NVRM: Xid ({address}): 79, GPU has fallen off the bus.\n")
    assert result.status == "fail" and "Xid 79" in result.message
