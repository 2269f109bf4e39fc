"""lsblk and blkid: the simulated disks with what is on them."""

from __future__ import annotations

import json

from . import state, storage

TYPE_CHECKING = False  # typing would be a tenth of what a tool takes to start
if TYPE_CHECKING:
    from typing import Any

    Json = dict[str, Any]


def lsblk(arguments: list[str], _version: str) -> int:
    """--json with the columns that are asked for, or a plain table; -b, -p, -d and devices as the real one takes
    them."""
    letters = "".join(a[1:] for a in arguments if a.startswith("-") and not a.startswith("--"))
    columns = _columns(arguments)
    in_bytes = "b" in letters or "--bytes" in arguments
    full = "p" in letters or "--paths" in arguments
    flat = "d" in letters or "--nodeps" in arguments
    tree = [_node(disk) for disk in storage.disks()]
    names = [a.removeprefix("/dev/") for a in arguments if a.startswith("/dev/")]
    if names:
        tree = [node for node in [*tree, *_below(tree)] if node["name"] in names]
    if "J" in letters or "--json" in arguments:
        rows = [_row(node, columns, in_bytes, full, flat) for node in tree]
        print(json.dumps({"blockdevices": rows}, indent=3))
        return 0
    if "n" not in letters and "--noheadings" not in arguments:
        print("NAME         SIZE TYPE MOUNTPOINT")
    for node in [*tree, *([] if flat else _below(tree))]:
        size = node["size"] if in_bytes else f"{node['size'] / 2**30:.1f}G"
        print(f"{node['name']:<12} {size:>8} {node['type']} {node['mountpoint'] or ''}".rstrip())
    return 0


def _columns(arguments: list[str]) -> list[str]:
    for i, item in enumerate(arguments):
        name, _, value = item.partition("=")
        if name in ("-o", "--output"):
            return (value or (arguments[i + 1] if i + 1 < len(arguments) else "")).lower().split(",")
    return ["name", "maj:min", "rm", "size", "ro", "type", "mountpoints"]


def _below(tree: list[Json]) -> list[Json]:
    return [child for node in tree for child in [*node["children"], *_below(node["children"])]]


def _node(disk: Json) -> Json:
    holds = storage.content().get(disk["serial"])
    children = [
        _device(part["name"], "part", part["bytes"], part, [], part.get("mountpoint"))
        for part in disk.get("partitions", [])
    ]
    array = (holds or {}).get("array")
    active = state.read(storage.ACTIVE, {}).get(array)
    if array and active:
        size = sum(member["bytes"] for member in storage.members(array))
        inside = storage.content().get(array)
        children.append(_device(active["device"], "raid0", size, inside, [], storage.mounted(inside)))
    node = _device(disk["name"], "disk", disk["bytes"], holds, children, storage.mounted(holds))
    node.update(
        model=disk.get("model"),
        serial=disk["serial"],
        tran="nvme" if disk["name"].startswith("nvme") else None,
        pttype="gpt" if disk.get("partitions") else None,
    )
    return node


def _device(name: str, kind: str, size: int, holds: Json | None, children: list[Json], mounted: str | None) -> Json:
    holds = holds or {}
    return {
        "name": name, "kname": name, "type": kind, "size": size, "ro": False, "rota": False, "rm": False,
        "maj:min": "259:0", "model": None, "serial": None, "tran": None, "pttype": None,
        "fstype": holds.get("fstype"), "label": holds.get("label"), "uuid": holds.get("uuid"),
        "mountpoint": mounted, "mountpoints": [mounted], "children": children,
    }  # fmt: skip


def _row(node: Json, columns: list[str], in_bytes: bool, full: bool, flat: bool) -> Json:
    row = {column: node.get(column) for column in columns}
    if "path" in row:
        row["path"] = f"/dev/{node['name']}"
    if "size" in row and not in_bytes:
        row["size"] = f"{node['size'] / 2**30:.1f}G"
    if "name" in row and full:
        row["name"] = f"/dev/{node['name']}"
    if node["children"] and not flat:
        row["children"] = [_row(child, columns, in_bytes, full, flat) for child in node["children"]]
    return row


def blkid(arguments: list[str], _version: str) -> int:
    """blkid [-p] [-o value|export] [-s TAG] DEVICE: 2 where nothing is on it."""
    device = next((a for a in reversed(arguments) if a.startswith("/dev/")), "")
    holds = storage.content().get(storage.identity(device) or "")
    disk = next((d for d in storage.disks() if device == f"/dev/{d['name']}"), None)
    fields = {"DEVNAME": device}
    if holds:
        fields |= {"LABEL": holds["label"], "UUID": holds["uuid"], "TYPE": holds["fstype"]}
    elif disk and disk.get("partitions"):
        fields["PTTYPE"] = "gpt"
    else:
        return 2
    tag = arguments[arguments.index("-s") + 1] if "-s" in arguments[:-1] else None
    form = arguments[arguments.index("-o") + 1] if "-o" in arguments[:-1] else "full"
    selected = {k: v for k, v in fields.items() if tag in (None, k)}
    if form == "value":
        print("\n".join(v for k, v in selected.items() if k != "DEVNAME" or tag))
    elif form == "export":
        print("\n".join(f"{k}={v}" for k, v in selected.items()))
    else:
        print(f"{device}: " + " ".join(f'{k}="{v}"' for k, v in selected.items() if k != "DEVNAME"))
    return 0
