"""Block devices: what is on them; mdadm, mkfs and mount for disks that are a description in hardware.json.

What is on a disk belongs to its serial number, so that a new disk comes empty. A mount of a simulated filesystem is a
real one: a folder of the node is bound to the place, so that what is written there stays over a reboot.
"""

from __future__ import annotations

import os
import sys

from . import state

TYPE_CHECKING = False  # typing would be a tenth of what a tool takes to start
if TYPE_CHECKING:
    from typing import Any

    Json = dict[str, Any]

CONTENT = "var/lib/gpuprov-sandbox/storage.json"
"""Serial number or array uuid → what is on it: {"fstype", "label", "uuid"} and for a member of an array {"array"}."""
ACTIVE = "run/gpuprov-sandbox/arrays.json"
"""Uuid of each array that runs → name of its device (md127)."""
MOUNTS = "run/gpuprov-sandbox/mounts.json"
"""Uuid of each mounted filesystem → where."""
VOLUMES = "var/lib/gpuprov-sandbox/volumes"


def content() -> Json:
    filesystems: Json = state.read(CONTENT, {})
    return filesystems


def disks() -> list[Json]:
    """All disks of the machine, the one that it boots from among them."""
    machine = state.hardware()
    root = machine.get("root_disk")
    return [*([root] if root else []), *machine.get("disks", [])]


def identity(device: str) -> str | None:
    """Key of a device in CONTENT: a disk's serial number, a running array's uuid."""
    name = device.removeprefix("/dev/")
    for disk in disks():
        if disk["name"] == name:
            return str(disk["serial"])
    for array, active in state.read(ACTIVE, {}).items():
        if name in (active["device"], f"md/{active['name']}"):
            return str(array)
    return None


def members(array: str) -> list[Json]:
    known = content()
    return [disk for disk in disks() if known.get(disk["serial"], {}).get("array") == array]


def mounted(filesystem: Json | None) -> str | None:
    mountpoint = state.read(MOUNTS, {}).get((filesystem or {}).get("uuid"))
    return str(mountpoint) if mountpoint else None


def assemble_all() -> None:
    """What udev does at boot: arrays whose members are all there run again."""
    known = content()
    for array in sorted({c["array"] for c in known.values() if "array" in c}):
        present = members(array)
        if present and len(present) == known[present[0]["serial"]]["members"]:
            _start(array, known[present[0]["serial"]]["label"].partition(":")[2])


def _start(array: str, name: str) -> str:
    taken = {a["device"] for a in state.read(ACTIVE, {}).values()}
    device = next(f"md{n}" for n in range(127, 0, -1) if f"md{n}" not in taken)
    state.change(ACTIVE, lambda all_: {**all_, array: {"device": device, "name": name}}, {})
    return device


def _mkfs(kind: str, arguments: list[str]) -> int:
    device = arguments[-1]
    key = identity(device)
    if key is None:
        print(f"mkfs.{kind}: cannot open {device}: No such file or directory", file=sys.stderr)
        return 1
    holds = content().get(key)
    if holds:
        print(
            f"mkfs.{kind}: {device} appears to contain an existing filesystem ({holds['fstype']}).\n"
            f"mkfs.{kind}: Use the -f option to force overwrite.",
            file=sys.stderr,
        )
        return 1
    label = arguments[arguments.index("-L") + 1] if "-L" in arguments[:-1] else None
    import uuid  # here and below: not for those who only look

    filesystem = {"fstype": kind, "label": label, "uuid": str(uuid.uuid4())}
    state.change(CONTENT, lambda all_: {**all_, key: filesystem}, {})
    return 0


def mkfs_xfs(arguments: list[str], _version: str) -> int:
    return _mkfs("xfs", arguments)


def mkfs_ext4(arguments: list[str], _version: str) -> int:
    return _mkfs("ext4", arguments)


def mdadm(arguments: list[str], _version: str) -> int:
    """--create and --assemble of a RAID0 by name, --stop, --examine --export of a member."""
    options = dict(a[2:].partition("=")[::2] for a in arguments if a.startswith("--"))
    names = [a for a in arguments if a.startswith("/dev/")]
    if names and {"examine", "export"} <= options.keys():
        return _examine(names[0])
    if not names or not options.keys() & {"create", "assemble", "stop"}:
        print("mdadm: this form is not simulated by gpuprov", file=sys.stderr)
        return 2
    device, names = names[0], names[1:]
    if "stop" in options:
        return _stop(device)
    unknown = [name for name in names if identity(name) is None]
    if unknown:
        print(f"mdadm: cannot open {unknown[0]}: No such file or directory", file=sys.stderr)
        return 1
    if "create" in options:
        return _create(device, names, options)
    arrays = {content().get(identity(name) or "", {}).get("array") for name in names}
    array = arrays.pop() if len(arrays) == 1 else None
    known = content().get(identity(names[0]) or "", {}) if names else {}
    if array is None:
        print(f"mdadm: no correct container type: {device} has no array to assemble", file=sys.stderr)
        return 1
    if len(names) != known["members"]:
        print(f"mdadm: {device} assembled from {len(names)} drives - not enough to start the array.", file=sys.stderr)
        return 1
    _start(array, device.rpartition("/")[2])
    print(f"mdadm: {device} has been started with {len(names)} drives.", file=sys.stderr)
    return 0


def _examine(device: str) -> int:
    """A member's superblock as variables: super1.c of mdadm, export_examine_super1."""
    holds = content().get(identity(device) or "", {})
    if "array" not in holds:
        print(f"mdadm: No md superblock detected on {device}.", file=sys.stderr)
        return 1
    array = holds["array"].replace("-", "")
    uuid = ":".join(array[at : at + 8] for at in range(0, 32, 8))
    print(f"MD_LEVEL=raid0\nMD_DEVICES={holds['members']}\nMD_NAME={holds['label']}\nMD_UUID={uuid}")
    return 0


def _create(device: str, names: list[str], options: dict[str, str]) -> int:
    count = int(options.get("raid-devices", "0"))
    if len(names) != count:
        comparison = "more devices" if len(names) > count else "too few devices"
        print(f"mdadm: You have listed {comparison} ({len(names)}) than are in the array({count})!", file=sys.stderr)
        return 2
    busy = [name for name in names if identity(name) in content()]
    if busy:
        print(f"mdadm: cannot open {busy[0]}: Device or resource busy", file=sys.stderr)
        return 1
    import uuid

    array = str(uuid.uuid4())
    name = options.get("name", device.rpartition("/")[2])
    sign = {
        "fstype": "linux_raid_member", "label": f"{options.get('homehost', 'any')}:{name}",
        "uuid": array, "array": array, "members": count,
    }  # fmt: skip
    state.change(CONTENT, lambda all_: {**all_, **{str(identity(m)): sign for m in names}}, {})
    _start(array, name)
    print(f"mdadm: Defaulting to version 1.2 metadata\nmdadm: array {device} started.", file=sys.stderr)
    return 0


def _stop(device: str) -> int:
    array = identity(device)
    if array is None or mounted(content().get(array)):
        print(f"mdadm: Cannot get exclusive access to {device}", file=sys.stderr)
        return 1
    state.change(ACTIVE, lambda all_: {k: v for k, v in all_.items() if k != array}, {})
    print(f"mdadm: stopped {device}", file=sys.stderr)
    return 0


def mount(arguments: list[str], _version: str) -> int:
    """A simulated filesystem by device or UUID= is bound from a folder; everything else is for the real mount."""
    operands = [
        a for i, a in enumerate(arguments) if not a.startswith("-") and arguments[i - 1 : i] not in (["-o"], ["-t"])
    ]
    source, mountpoint = operands if len(operands) == 2 else ("", "")
    known = content()
    if source.startswith("UUID="):
        filesystem = next((c for c in known.values() if c["uuid"] == source[5:] and "array" not in c), None)
    else:
        filesystem = known.get(identity(source) or "") if source.startswith("/dev/") else None
    if filesystem is None:
        return _real("mount", arguments)
    folder = state.path(VOLUMES) / str(filesystem["uuid"])
    folder.mkdir(parents=True, exist_ok=True)
    if state.ROOT == "/":
        import subprocess

        done = subprocess.run(["/usr/bin/mount", "--bind", str(folder), mountpoint], check=False, timeout=60)
        if done.returncode:
            return done.returncode
    state.change(MOUNTS, lambda all_: {**all_, filesystem["uuid"]: mountpoint}, {})
    return 0


def umount(arguments: list[str], _version: str) -> int:
    """As the real one; a simulated filesystem is then known to be unmounted."""
    places = {a.rstrip("/") or "/" for a in arguments if not a.startswith("-")}
    mounts = state.read(MOUNTS, {})
    if not places & set(mounts.values()):
        return _real("umount", arguments)
    if state.ROOT == "/":
        import subprocess

        done = subprocess.run(["/usr/bin/umount", *arguments], check=False, timeout=60)
        if done.returncode:
            return done.returncode
    state.change(MOUNTS, lambda all_: {k: v for k, v in all_.items() if v not in places}, {})
    return 0


def _real(tool: str, arguments: list[str]) -> int:
    os.execv(f"/usr/bin/{tool}", [tool, *arguments])  # noqa: S606 - this process becomes the real one
