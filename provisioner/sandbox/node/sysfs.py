"""What a node shows below /sys and /proc/sys, put over this computer's own: kernel settings, modules, network cards.

A setting is a plain file bound over the kernel's, so that real tools (sysctl, systemd-tmpfiles) set the node's and not
this computer's. /sys/module and /sys/class are overlays: modules come and go there as the simulated kernel loads them.
Real paths and formats: Documentation/ABI/stable/sysfs-class-infiniband and sysfs-module of the Linux kernel.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

from . import devices, host, state

TYPE_CHECKING = False  # typing would be a tenth of what a tool takes to start
if TYPE_CHECKING:
    from typing import Any

SETTINGS = {
    "proc/sys/kernel/numa_balancing": "1",
    "proc/sys/vm/max_map_count": "65530",
    "proc/sys/vm/nr_hugepages": "0",
    "proc/sys/net/core/rmem_max": "212992",
    "proc/sys/net/core/wmem_max": "212992",
    "sys/kernel/mm/transparent_hugepage/enabled": "always",
    "sys/kernel/mm/transparent_hugepage/defrag": "defer",
}
"""Every setting that a role may make outside of a node's own network, with what a kernel starts with."""

PATTERNS = {"sys/devices/system/cpu/cpu*/cpufreq/scaling_governor": "schedutil"}
"""The same for files that one computer has and another has not."""

PLACE = "run/gpuprov-sandbox/sys"
STATES = {"Active": "4: ACTIVE", "Down": "1: DOWN", "Initializing": "2: INIT", "Armed": "3: ARMED"}
PHYSICAL = {"LinkUp": "5: LinkUp", "Disabled": "3: Disabled", "Polling": "2: Polling"}


def sysfs(_arguments: list[str], _version: str) -> int:
    """Runs first of all at boot; fails where a setting of this computer stays within reach."""
    folder = state.path(PLACE)
    done = folder / "done"
    if folder.exists():
        if not done.exists():
            print("an earlier start was interrupted: recreate this node", file=sys.stderr)
        return int(not done.exists())
    (folder / "settings").mkdir(parents=True)
    settings = {**SETTINGS, **{str(p)[1:]: v for k, v in PATTERNS.items() for p in Path("/").glob(k)}}
    for number, (path, value) in enumerate(settings.items()):
        target = Path("/") / path
        if target.exists():
            setting_file = folder / "settings" / str(number)
            setting_file.write_text(value + "\n", encoding="utf-8")
            _mount("--bind", str(setting_file), str(target))
    for name in ("class", "module"):
        for part in ("upper", "work"):
            (folder / name / part).mkdir(parents=True)
        layers = f"lowerdir=/sys/{name},upperdir={folder}/{name}/upper,workdir={folder}/{name}/work"
        _mount("-t", "overlay", "overlay", "-o", layers, f"/sys/{name}")
    devices.create_proc_files()
    # A kernel without loadable modules has no /proc/modules; lsmod answers there.
    for name in ("modules", "driver"):
        if Path("/proc", name).exists():
            _mount("--bind", str(folder / "devices" / name), f"/proc/{name}")
    network_cards()
    host.mount_files()
    done.touch()
    return 0


def _mount(*arguments: str) -> None:
    subprocess.run(["/usr/bin/mount", *arguments], check=True, timeout=60)


def _is_own() -> bool:
    """Whether /sys is the node's own (a container), not this computer's or a test's."""
    return state.exists(PLACE)


def show_module(name: str, module: dict[str, Any] | None) -> None:
    """/sys/module/<name> of a module that was loaded, or None for one that was taken out."""
    if not _is_own():
        return
    folder = state.path(f"sys/module/{name}")
    if module is None:
        shutil.rmtree(folder, ignore_errors=True)
        return
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "refcnt").write_text("0\n", encoding="utf-8")
    if module.get("version"):
        (folder / "version").write_text(f"{module['version']}\n", encoding="utf-8")
    (folder / "srcversion").write_text(f"{source_version(module)}\n", encoding="utf-8")


def source_version(module: dict[str, Any]) -> str:
    """What modinfo calls srcversion: another one for each version and flavour."""
    return hashlib.sha256(f"{module['version']}/{module.get('flavour')}".encode()).hexdigest()[:23].upper()


EFA_COUNTERS = ("tx_bytes", "rx_bytes", "rx_drops", "retrans_timeout_events", "impaired_remote_conn_events",
                "unresponsive_remote_events")  # fmt: skip
COUNTERS = ("symbol_error", "link_error_recovery", "link_downed", "port_rcv_errors", "local_link_integrity_errors",
            "excessive_buffer_overrun_errors", "port_xmit_discards")  # fmt: skip
"""Errors that every port of InfiniBand and RoCE counts; a fault gives a card others in `counters`."""


def network_cards() -> None:
    """/sys/class/infiniband as the node's cards are now, faults included."""
    if not _is_own():
        return
    machine = state.hardware()
    root = state.path("sys/class/infiniband")
    shutil.rmtree(root, ignore_errors=True)
    shutil.rmtree(state.path("sys/class/infiniband_verbs"), ignore_errors=True)
    shutil.rmtree(state.path("dev/infiniband"), ignore_errors=True)
    if machine.get("vendor") == "amd":
        state.path("sys/class/kfd/kfd/proc").mkdir(parents=True, exist_ok=True)  # a folder for each process at work
    for nic in machine.get("nics", []):
        _card(root / nic["name"], nic)
    driver = state.modules().get("efa")
    # The kernel's own driver has no file p2p.
    driver_files: dict[str, Any] = {} if driver and driver.get("version") else {"p2p": None}
    for card in machine.get("efa", []) if driver else ():
        _card(root / card["name"], {"state": "Active", "physical_state": "LinkUp", "rate_gbps": 100.0,
                                    "link_layer": "Unspecified", "guid": "0" * 16, **card, **driver_files})  # fmt: skip


def _card(folder: Path, nic: dict[str, Any]) -> None:
    port = folder / "ports/1"
    slot = folder / nic.get("slot", "device")  # where the kernel's link `device` leads is named after the PCI address
    slot.mkdir(parents=True)
    if slot.name != "device":
        (folder / "device").symlink_to(slot.name)
    infiniband = nic["link_layer"] == "InfiniBand"
    adapter = nic.get("adapter", {})
    files = {
        folder / "device/numa_node": str(nic.get("numa", 0)),
        folder / "fw_ver": nic.get("firmware") or adapter.get("firmware", "0.0.0"),
        folder / "hca_type": adapter.get("type", "efa"),
        folder / "board_id": nic.get("board", "MT_0000000223" if adapter else ""),
        port / "state": STATES.get(nic["state"], "0: NOP"),
        port / "phys_state": PHYSICAL.get(nic["physical_state"], "2: Polling"),
        port / "rate": f"{nic['rate_gbps']:g} Gb/sec (4X)",
        port / "link_layer": nic["link_layer"],
        port / "lid": f"{nic.get('lid', 0):#x}",
        port / "sm_lid": f"{nic.get('sm_lid', int(infiniband)):#x}",
        port / "gids/0": "fe80:0000:0000:0000:" + ":".join(nic["guid"][i : i + 4] for i in range(0, 16, 4)),
    }
    counted = nic.get("counters", {})
    if adapter:
        files |= {port / f"counters/{name}": str(counted.get(name, 0)) for name in COUNTERS}
    else:
        files |= {port / f"hw_counters/{name}": str(counted.get(name, 0)) for name in EFA_COUNTERS}
        if nic.get("p2p") is not None:
            files[folder / "device/p2p"] = nic["p2p"]
    if "pcie" in nic:  # virtual functions, as most cards of a cloud are, show no link
        names = ("current_link_speed", "current_link_width", "max_link_width")
        files |= {folder / f"device/{name}": text for name, text in zip(names, nic["pcie"], strict=True)}
    if not nic.get("no_uverbs"):
        _uverbs(folder.name)
    if infiniband:
        files[folder / f"device/net/ib-{nic['name']}/operstate"] = "up" if nic["state"] == "Active" else "down"
        files |= {port / f"pkeys/{i}": key for i, key in enumerate(nic.get("pkeys", ["0xffff"]))}
    elif nic["link_layer"] == "Ethernet":
        netdev = nic.get("netdev", f"net-{nic['name']}")
        files[folder / f"device/net/{netdev}/type"] = "1"
        files[folder / f"device/net/{netdev}/operstate"] = "up" if nic["state"] == "Active" else "down"
        address = f"0000:0000:0000:0000:0000:ffff:0a0a:{nic['guid'][-4:]}"
        rows = [("IB/RoCE v1", files[port / "gids/0"]), ("RoCE v2", files[port / "gids/0"]),
                ("IB/RoCE v1", address), ("RoCE v2", address)]  # fmt: skip
        for index, (kind, gid) in enumerate(rows):
            files[port / f"gids/{index}"] = gid
            files[port / f"gid_attrs/types/{index}"] = kind
            files[port / f"gid_attrs/ndevs/{index}"] = netdev
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n", encoding="utf-8")


def _uverbs(device: str) -> None:
    """The device file by which programs open a card, and what leads from the one to the other."""
    verbs = state.path("sys/class/infiniband_verbs")
    name = f"uverbs{len(list(verbs.glob('uverbs*'))) if verbs.exists() else 0}"
    (verbs / name).mkdir(parents=True)
    (verbs / name / "ibdev").write_text(device + "\n", encoding="utf-8")
    node = state.path(f"dev/infiniband/{name}")
    node.parent.mkdir(parents=True, exist_ok=True)
    os.mknod(node, stat.S_IFCHR | 0o666, os.makedev(1, 3))
