"""Users of a node choose names that the kernel repeats, and write into its journal: none of it is the kernel's word."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from provisioner.verify.facts import Facts, read
from provisioner.verify.parsers import dmesg
from provisioner.verify.support_bundle import read as read_bundle

XID = "NVRM: Xid (PCI:0000:1b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
LOADING = "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  580.95.05"
REAL = f"[ 5000.000000] {XID}\n"
SEGFAULT = (
    "[ 9051.086908] x[740]: segfault at 0 ip 000000000040161e sp 00007ffec2616fc0 error 6 in {}[161e,401000+78000] "
    "likely on CPU 1 (core 1, socket 0)\n"
)
"""As Linux 6.1 wrote it for a program of that file name, started by an account without rights."""
QUOTES = (
    SEGFAULT,
    "[ 9.000000] traps: x[7] trap int3 ip:55a sp:7ff error:0 in {}[55a+1000]\n",
    "[ 9.000000] process '/tmp/{}' started with executable stack\n",
    "[ 9.000000] oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,oom_memcg=/u/{}\n",
    "[ 9.000000] overlayfs: failed to resolve '/tmp/{}': -2\n",
    "[ 9.000000] tmpfs: Unknown parameter '{}'\n",
    'Jan  1 00:00:09 n1 kernel: [ 9.000000] audit: type=1400 audit(1.2:3): apparmor="DENIED" name="{}"\n',
)
START = "[    0.000000] Linux version 5.15.0-100-generic (b@x)\n[    1.000000] pci 0000:00:00.0: [8086:1]\n"


@pytest.mark.parametrize("quote", QUOTES)
def test_a_name_that_the_kernel_repeats_is_no_word_of_the_driver(quote: str) -> None:
    forged = dmesg.parse(START + quote.format(XID))
    assert (forged.xids, forged.fallen_off) == ((), ())
    hidden = dmesg.parse(START + REAL + quote.format(LOADING))
    assert [xid.code for xid in hidden.xids] == [79]
    assert dmesg.parse(START + quote.format("Kernel panic - not syncing")).of("kernel_bug") == ()


def test_a_message_glued_to_another_counts() -> None:
    assert [
        x.code for x in dmesg.parse(START + "[ 7.000000] pci 0000:00:01.0: x[    8.000000] " + XID + "\n").xids
    ] == [79]


def facts_of(text: str, folder: Path) -> Facts:
    (folder / "pasted").write_text(text)
    return read(read_bundle(folder / "pasted").bundle)


def xids(text: str, folder: Path) -> list[int]:
    log = facts_of(text, folder).log
    return [] if log is None else [xid.code for xid in log.xids]


def entry(message: str, **more: str) -> str:
    fields = {"__CURSOR": "s=1", "_BOOT_ID": "a" * 32, "_HOSTNAME": "n1", "MESSAGE": message}
    return json.dumps(fields | {"_TRANSPORT": "kernel", "SYSLOG_IDENTIFIER": "kernel"} | more) + "\n"


KERNEL = entry("Linux version 5.15.0-100-generic (b@x)") + entry("pci 0000:00:00.0: x") * 30
USER = {"_TRANSPORT": "syslog", "_UID": "1001", "_PID": "7"}


@pytest.mark.parametrize(
    "forged",
    [
        entry(XID, **USER),  # logger -t kernel
        entry(XID, **USER | {"SYSLOG_IDENTIFIER": "job"}),
        entry(f"kernel: {XID}", **USER | {"SYSLOG_IDENTIFIER": "job", "_TRANSPORT": "stdout"}),
        entry(f"x\n[    9.000000] {XID}", **USER | {"SYSLOG_IDENTIFIER": "job"}),
    ],
)
def test_a_journals_transport_says_what_the_kernel_wrote(forged: str, tmp_path: Path) -> None:
    assert xids(KERNEL + forged, tmp_path) == []
    assert xids(KERNEL + entry(XID), tmp_path) == [79]


@pytest.mark.parametrize(
    "masking",
    [
        entry(LOADING, **USER),
        entry("x\n-- Reboot --\nkernel: Linux version 5.15.0", **USER | {"SYSLOG_IDENTIFIER": "bob"}),
    ],
)
def test_a_program_ends_no_boot_and_loads_no_driver(masking: str, tmp_path: Path) -> None:
    assert xids(KERNEL + entry(XID) + masking, tmp_path) == [79]


SYSLOG = (
    "Jan  1 00:00:01 n1 kernel: [    0.000000] Linux version 5.15.0 (x)\n" + "Jan  1 00:00:02 n1 kernel: pci\n" * 30
)


@pytest.mark.parametrize("program", ["bob[7]", "bob", "systemd-x[1]"])
def test_a_syslog_line_is_its_programs(program: str, tmp_path: Path) -> None:
    other_lines = "Jan  1 00:00:02 n1 systemd[1]: x\n" + "Jan  1 00:00:02 n1 cron[1]: x\n" * 100
    assert xids(f"{SYSLOG}{other_lines}Jan  1 00:00:03 n1 {program}: {XID}\n", tmp_path) == []
    assert xids(f"{SYSLOG}{other_lines}Jan  1 00:00:03 n1 {program}: kernel: {XID}\n", tmp_path) == []
    real = f"{SYSLOG}{other_lines}Jan  1 00:00:03 n1 kernel: {XID}\n"
    assert xids(f"{real}Jan  1 00:00:04 n1 {program}: kernel: Linux version 5.15.0\n", tmp_path) == [79]
    assert xids(f"{real}Jan  1 00:00:04 n1 {program}: kernel: {LOADING}\n", tmp_path) == [79]


@pytest.mark.parametrize(
    "systemd", ["[   12.000000] systemd[1]: Started Session 1.\n", "[   12.000000] systemd[1]: x\n" * 9]
)
def test_systemds_lines_in_a_dmesg_hide_nothing(systemd: str, tmp_path: Path) -> None:
    assert xids(START + REAL + systemd, tmp_path) == [79]
    nvme = "[   13.000000] nvme nvme1: Device not ready; aborting reset, CSTS=0x1\n"
    log = facts_of(START + systemd + nvme, tmp_path).log
    assert log is not None and log.of("io_error")
    iso = "2026-01-01T00:00:0{},000001+00:00 {}\n"
    assert xids(iso.format(1, "systemd[1]: x") + iso.format(2, XID), tmp_path) == [79]


def boot(host: str, second: int) -> str:
    head = f"Jan  1 00:00:0{second} {host} kernel: [    0.000000] Linux version 5.15.0-100-generic (b@x)\n"
    return head + "".join(
        f"Jan  1 00:00:0{second} {host} kernel: [    1.{i:06}] pci 0000:00:{i:02x}.0: x\n" for i in range(30)
    )


@pytest.mark.parametrize("after", [boot("n2", 4), f"Jan  1 00:00:04 n2 kernel: [    9.000000] {LOADING}\n"])
def test_another_hosts_boot_makes_no_fault_an_earlier_one(after: str, tmp_path: Path) -> None:
    fault = f"Jan  1 00:00:03 n1 kernel: [  900.000000] {XID}\n"
    assert xids(boot("n1", 1) + fault + after, tmp_path) == [79]
    (tmp_path / "both").write_text(boot("n1", 1) + fault + after)
    unplaced = read_bundle(tmp_path / "both").unplaced
    assert unplaced == (("both", "lines of 2 hosts (n1, n2) are judged together: pass those of one"),)


def test_hosts_that_pdsh_names(tmp_path: Path) -> None:
    text = f"node12: {REAL}node13: [    0.000000] Linux version 5.15.0 (x)\n" + "node13: [    1.000000] pci\n" * 30
    assert xids(text, tmp_path) == [79]
