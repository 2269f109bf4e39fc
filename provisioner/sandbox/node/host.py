"""The machine around the GPUs as hardware.json has it: memory, processors, NVMe disks, clock, space on disks.

Files that every program reads (/proc/meminfo, /proc/cpuinfo …) are the node's own, bound over this computer's. df and
timedatectl hand over to the real ones and replace what would be this computer's.
"""

from __future__ import annotations

import os
import subprocess

from . import state, storage

TYPE_CHECKING = False  # typing would be a tenth of what a tool takes to start
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    Json = dict[str, Any]

PLACE = "run/gpuprov-sandbox/host"
SHOWN = ("proc/meminfo", "proc/cpuinfo", "proc/swaps", "proc/mdstat", "proc/sys/kernel/tainted",
         "sys/devices/system/node/has_cpu")  # fmt: skip
"""Files that are bound where this computer has them."""
FIRMWARE = 0.025
"""Share of its memory that a machine's firmware and kernel keep (head of catalog/data/machines.yaml: 1 to 5 %)."""
ROOT_USED = 0.08
"""Share of the root disk that a fresh system with one image fills."""


def mount_files() -> None:
    """Put the node's files over this computer's, once at each boot; /dev/shm as large as Linux makes it."""
    folder = state.path(PLACE)
    folder.mkdir(parents=True, exist_ok=True)
    show()
    for path in SHOWN:
        if os.path.exists(f"/{path}"):
            subprocess.run(
                ["/usr/bin/mount", "--bind", str(folder / os.path.basename(path)), f"/{path}"], check=True, timeout=60
            )
    half = f"remount,size={_memory(state.hardware()) // 2}k"
    subprocess.run(["/usr/bin/mount", "-o", half, "/dev/shm"], check=False, timeout=60)  # noqa: S108


def show() -> None:
    """What the files hold now, faults included; nothing on a machine that is no node."""
    folder, machine = state.path(PLACE), state.hardware()
    if not folder.exists():
        return
    for name, text in files(machine).items():
        (folder / name).write_text(text, encoding="utf-8")
    disks = state.path("sys/class/nvme")
    import shutil  # only at the start of a node

    shutil.rmtree(disks, ignore_errors=True)
    disks.mkdir(parents=True, exist_ok=True)
    for disk in storage.disks():
        if disk["name"].startswith("nvme"):
            controller = disks / disk["name"].partition("n1")[0]
            controller.mkdir()
            rows = {"model": disk.get("model"), "serial": disk["serial"], "state": disk.get("state", "live"),
                    "transport": "pcie"}  # fmt: skip
            for name, value in rows.items():
                (controller / name).write_text(f"{value or ''}\n", encoding="utf-8")


def files(machine: Mapping[str, Any]) -> dict[str, str]:
    """Text of each file, in the kernel's own form (proc(5))."""
    memory, swap = _memory(machine), machine.get("swap", [])
    rows = {
        "MemTotal": memory, "MemFree": memory * 9 // 10, "MemAvailable": memory * 19 // 20, "Buffers": 412_000,
        "Cached": memory // 25, "SwapCached": 0, "SwapTotal": 8_388_604 * len(swap), "SwapFree": 8_388_604 * len(swap),
        "Shmem": 11_000, "Slab": memory // 100, "CommitLimit": memory // 2, "Committed_AS": memory // 50,
    }  # fmt: skip
    meminfo = "".join(f"{name + ':':<16}{value:>10} kB\n" for name, value in rows.items())
    meminfo += "HugePages_Total:       0\nHugePages_Free:        0\nHugepagesize:       2048 kB\n"
    count, nodes = machine.get("vcpus", 1), machine.get("numa_nodes", 1)
    sockets = min(2, nodes)
    cores = max(1, count // 2)
    processors = "".join(
        f"processor\t: {n}\nvendor_id\t: gpuprov\nmodel name\t: simulated by gpuprov ({machine.get('machine')})\n"
        f"cpu MHz\t\t: 2900.000\nphysical id\t: {n % cores * sockets // cores}\ncore id\t\t: {n % cores}\n\n"
        for n in range(count)
    )
    swaps = "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n"
    return {
        "meminfo": meminfo,
        "cpuinfo": processors,
        "swaps": swaps + "".join(f"{name:<40}file\t\t8388604\t\t0\t\t-2\n" for name in swap),
        "mdstat": machine.get("mdstat") or "Personalities : \nunused devices: <none>\n",
        "tainted": f"{machine.get('tainted', 12288)}\n",
        "has_cpu": f"0-{nodes - 1}\n" if nodes > 1 else "0\n",
    }


def _memory(machine: Mapping[str, Any]) -> int:
    """KiB that the kernel has."""
    return int(float(machine.get("memory_gib", 1)) * 2**20 * (1 - FIRMWARE))


def df(arguments: list[str], _version: str) -> int:
    """The real df; in its table of bytes the root disk and what is mounted of the local disks are the node's."""
    done = subprocess.run(
        ["/usr/bin/df", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        encoding="utf-8",
        errors="replace",
    )
    columns = next((a.partition("=")[2].split(",") for a in arguments if a.startswith("--output=")), [])
    if "--block-size=1" not in arguments or columns[:3] != ["target", "source", "fstype"]:
        print(done.stdout, end="")
        return done.returncode
    node_rows = {row["target"]: row for row in _filesystems()}
    heading, *lines = done.stdout.splitlines()
    other_lines = [line for line in lines if line.split(" ", 1)[0] not in node_rows]
    print(
        "\n".join(
            [heading, *(" ".join(str(row.get(c, "-")) for c in columns) for row in node_rows.values()), *other_lines]
        )
    )
    return done.returncode


def _filesystems() -> list[Json]:
    root = state.hardware().get("root_disk") or {"name": "vda", "bytes": 200 * 2**30}
    rows = [_row("/", f"/dev/{root['name']}", "ext4", root["bytes"], state.hardware().get("root_used", ROOT_USED))]
    for key, holds in storage.content().items():
        at = storage.mounted(holds)
        if at and "array" not in holds:
            disk = next((d for d in storage.disks() if d["serial"] == key), None)
            size = disk["bytes"] if disk else sum(member["bytes"] for member in storage.members(key))
            rows.append(_row(at, f"/dev/{disk['name']}" if disk else "/dev/md127", holds["fstype"], size, 0.001))
    return rows


def _row(target: str, source: str, fstype: str, size: int, used: float) -> Json:
    size = int(size * 0.98)  # what a filesystem keeps for itself
    taken = int(size * used)
    return {
        "target": target, "source": source, "fstype": fstype, "size": size, "used": taken, "avail": size - taken,
        "itotal": size // 16384, "iused": size // 16384 // 20,
    }  # fmt: skip


def timedatectl(arguments: list[str], _version: str) -> int:
    """`show` says whether the node's clock is kept; everything else is the real one's."""
    if "show" not in arguments:
        os.execv("/usr/bin/timedatectl", ["timedatectl", *arguments])  # noqa: S606 - this process becomes the real one
    synchronised = "no" if state.hardware().get("clock", {}).get("lost") else "yes"
    print(f"NTP={synchronised}\nNTPSynchronized={synchronised}")
    return 0
