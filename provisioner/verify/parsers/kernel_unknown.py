"""`dmesg --level=emerg,alert,crit,err`: what the kernel calls an error and no check of gpuprov's knows.

Lines that are there on healthy machines are left out (USUAL). Numbers are taken out of what is counted together.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from provisioner.verify.parsers import lines
from provisioner.verify.parsers.kernel_events import known, plain_message
from provisioner.verify.tool import Tool, listed

USUAL = re.compile(
    # firmware tables, in words that every server has its own of (ACPICA, drivers/firmware)
    r"^ACPI(?: BIOS)? (?:Error|Warning|Exception)|\bACPI Error\b|^ACPI: |\[Firmware (?:Bug|Warn|Info)\]|^\[Firmware"
    # what the kernel says of its own mitigations (arch/x86/kernel/cpu/bugs.c) and of SGX
    r"|RETBleed|Spectre|MDS CPU bug|MMIO Stale Data|TAA CPU bug|SRBDS|^x86/cpu: |Register File Data Sampling"
    # keys of Secure Boot (certs/blacklist.c, security/integrity)
    r"|^(?:integrity|blacklist|Couldn't get size|MODSIGN)|Problem (?:loading|blacklisting)"
    # what is not there in a virtual machine or a server
    r"|^i8042|^kvm|^mtd |^tpm|^usb |^hid|^ipmi|^platform |^ast |^mgag200|^efifb|^sr \d|^floppy|^lpc_ich|^dmar_fault"
    # the driver's own greetings and taints: NVRM prints at level err
    r"|^NVRM: (?:loading|GPU [0-9a-f:.]+ is already|objClInitPcieChipset|GPU at PCI|PAT)"
    r"|^nvidia(?:-nvlink|-uvm|-modeset|)?: |^nvidia_|^nvidia-nvswitch"
    r"|taint|module verification failed|^systemd|^cloud-init|^audit|^blacklist"
    # containers and firewalls that come and go
    r"|^(?:docker0|br-|veth|cni|overlayfs|IPv6: ADDRCONF|Bluetooth|zswap|sysrq|Initramfs unpacking)",
    re.I,
)
"""Beginnings and words of errors of healthy machines: of the captures (tests/unit/verify/captures/dmesg), and of the
kernel's sources that are named beside them."""
ELSEWHERE = re.compile(
    r"Xid \(|SXid|fallen off the bus|\bAER: |lost from the bus|NVRM: .*[Ss]erial"
    # the lines in which AER goes on (drivers/pci/pcie/aer.c)
    r"|: +device \[[0-9a-f]{4}:[0-9a-f]{4}\]|: +\[ ?\d+\] [A-Z]"
)
"""What dmesg.txt is read for by other patterns, and what goes with it."""


@dataclass(frozen=True, slots=True)
class Strange:
    """All lines that are alike but for numbers: how many, and the first of them."""

    count: int
    text: str


def parse(text: str) -> tuple[Strange, ...]:
    """The most frequent first; no line at all is an answer."""
    first: dict[str, str] = {}
    counts: dict[str, int] = {}
    for row in lines(text)[:5000]:
        message = plain_message(row)
        if not message or ELSEWHERE.search(row) or USUAL.search(message) or known(row):
            continue
        key = re.sub(r"0x[0-9a-f]+|[0-9a-f]*\d[0-9a-f]*", "#", message)
        first.setdefault(key, message)
        counts[key] = counts.get(key, 0) + 1
    ranked = sorted(counts.items(), key=lambda item: -item[1])
    return tuple(Strange(count, first[key]) for key, count in ranked[:50])


TOOLS = (
    Tool(
        file="dmesg-errors.txt",
        field="strange",
        parse=parse,
        command=("dmesg", "--level=emerg,alert,crit,err"),
        seconds=10,
        empty=True,
        document={"kernel_errors_unknown": listed},
    ),
)
