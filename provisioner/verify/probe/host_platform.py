"""A host's way from its processors to GPUs and network cards, what the cloud says that it is, and what its disks are
meant to hold, for host.json.

Standard library only, Python 3.8 or newer.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from typing import Any

from provisioner.verify.probe.runner import ASK, DRIVER, lines_of, listed, run, texts

CLASSES = ("0x0300", "0x0302", "0x0380", "0x1200", "0x0207")
"""PCI classes of GPUs and of InfiniBand cards."""
ACS = 0x000D
"""Access Control Services among PCI Express's extended capabilities; its control register is 6 bytes behind."""
TYPE_KEYS = ("instance-type", "instance_type", "vmSize")
"""What metadata services call the kind of a machine."""


def pcie() -> dict[str, Any]:
    """{"devices": address → {"iommu": type of its IOMMU group, "bridges": those above it}, "acs": bridge → its ACS
    control register, where it has one}."""
    base = "/sys/bus/pci/devices"
    devices: dict[str, Any] = {}
    control: dict[str, int | None] = {}
    for address in listed(base):
        kind = texts(base + "/" + address, ["class"]).get("class", "")
        if kind[:6] in CLASSES and len(devices) < 64:
            path_parts = os.path.realpath(base + "/" + address).split("/")
            above = [
                part for part in path_parts if re.fullmatch(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", part)
            ][:-1]
            group = texts(base + "/" + address + "/iommu_group", ["type"]).get("type")
            devices[address] = {"iommu": group, "bridges": above}
            for bridge in above:
                if bridge not in control:
                    control[bridge] = acs(base + "/" + bridge + "/config")
    return {"devices": devices, "acs": {name: value for name, value in control.items() if value is not None}}


def acs(path: str) -> int | None:
    """The ACS control register of a bridge; None where it has none, or its configuration space is cut."""
    try:
        with open(path, "rb") as stream:  # noqa: PTH123 (a plain script)
            raw = stream.read(4096)
    except OSError:
        return None
    offset, count = 0x100, 0
    while 0x100 <= offset <= len(raw) - 8 and count < 64:
        head = int.from_bytes(raw[offset : offset + 4], "little")
        if head & 0xFFFF == ACS:
            return int.from_bytes(raw[offset + 6 : offset + 8], "little")
        offset, count = head >> 20, count + 1
    return None


def instance() -> str | None:
    """The kind of machine, as the cloud's metadata service told it to cloud-init at boot."""
    data = json.loads("\n".join(lines_of("/run/cloud-init/instance-data.json", 1 << 21)))
    return kind_in(data.get("ds", {}).get("meta_data"), 0)


def kind_in(data: Any, depth: int) -> str | None:
    if not isinstance(data, dict) or depth > 4:
        return None
    for key in TYPE_KEYS:
        if isinstance(data.get(key), str):
            return str(data[key])[:100]
    return next((kind for value in data.values() if (kind := kind_in(value, depth + 1)) is not None), None)


def fstab() -> list[str]:
    """Rows of /etc/fstab as "place type options"; no server's and no user's name."""
    rows = [line.split() for line in lines_of("/etc/fstab") if not line.lstrip().startswith("#")]
    # An option may be a password (cifs).
    return [
        " ".join([row[1], row[2], ",".join(o for o in row[3].split(",") if "=" not in o)])
        for row in rows
        if len(row) >= 4
    ][:200]


def fuse() -> dict[str, dict[str, str]]:
    """Connections of filesystems in user space: requests that wait, and how many may."""
    base = "/sys/fs/fuse/connections"
    names = ("waiting", "max_background", "congestion_threshold")
    return {connection: texts(base + "/" + connection, names) for connection in listed(base)[:200]}


def libraries() -> dict[str, Any]:
    """Libraries of NVIDIA's driver that programs find."""
    answer = run(["ldconfig", "-p"], ASK)
    mounted = [f"\t{name} (LD_LIBRARY_PATH) => {DRIVER}/lib64/{name}" for name in listed(DRIVER + "/lib64")]
    rows = [*answer["text"].splitlines(), *mounted]
    answer["text"] = "\n".join(row for row in rows if re.search(r"\blib(?:cuda|nvidia-)", row))
    return answer


def root_password() -> str | None:
    """none, locked or set: of the password itself nothing travels."""
    for line in lines_of("/etc/shadow"):
        name, _, remaining = line.partition(":")
        if name == "root":
            password_field = remaining.partition(":")[0]
            return "none" if not password_field else "locked" if password_field[0] in "!*" else "set"
    return None


def allowances(interfaces: list[str]) -> dict[str, dict[str, str]]:
    """Counters of what the hypervisor dropped or delayed because the machine was over its share of the network."""
    counters = {}
    for name in interfaces[:8]:
        answer = run(["ethtool", "-S", name], ASK)
        rows = [line.strip().partition(": ") for line in answer["text"].splitlines() if "allowance_exceeded" in line]
        if rows:
            counters[name] = {key: value for key, _, value in rows}
    return counters


def amd_pages() -> dict[str, list[str]]:
    """Bad pages of AMD's GPUs, each by its flag alone: R set aside, P waiting for that, F could not be
    (docs.kernel.org/gpu/amdgpu/ras.html, gpu_vram_bad_pages)."""
    flags = {}
    for name in listed("/sys/class/drm"):
        if re.fullmatch("card[0-9]+", name):
            with contextlib.suppress(OSError):
                rows = lines_of("/sys/class/drm/" + name + "/device/ras/gpu_vram_bad_pages")
                flags[name] = [row.split(":")[2].strip()[:1] for row in rows if row.count(":") == 2][:4096]
    return flags


def secure_boot() -> bool | None:
    """Whether the firmware loads signed kernels only (the last byte of the variable)."""
    for name in listed("/sys/firmware/efi/efivars"):
        if name.startswith("SecureBoot-"):
            with contextlib.suppress(OSError), open("/sys/firmware/efi/efivars/" + name, "rb") as stream:  # noqa: PTH123
                return stream.read(16)[-1:] == b"\x01"
    return None


def kernel_keys() -> list[str]:
    """The public keys that the kernel knows, as /proc/keys names them (proc_keys(5)): those it takes signed modules by
    are among them."""
    with open("/proc/keys", encoding="utf-8", errors="replace") as stream:  # noqa: PTH123 (a plain script)
        return [line.strip()[:300] for line in stream if " asymmetri " in line][:256]
