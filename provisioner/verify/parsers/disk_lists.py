"""Disks as people keep them beside `lsblk --json`: `lsblk -P`, lsblk's table, `nvme list` as a table and as JSON.

Traps: the columns of `nvme list` are as wide as the dashes below their names, and a model has blanks; its sizes are of
1000, lsblk's of 1024; JSON of nvme-cli 2.11 and newer puts namespaces below subsystems and controllers; a namespace is
no drive of its own; neither says what is mounted.
"""

from __future__ import annotations

import json
import re
from typing import Any

from provisioner.verify.parsers import lines

_PAIR = re.compile(r'([A-Z:-]{2,20})="([^"]*)"')
_TABLE = re.compile(r"^NAME +MAJ:MIN +RM +SIZE +RO +TYPE")
_ROW = re.compile(r"^([^A-Za-z0-9/]*)(\S+) +[0-9]+:[0-9]+ +[01] +(\S+) +[01] +(\S+)(?: +(.*?))?\s*$")
_DRIVE = re.compile(r"(?:/dev/)?(nvme[0-9]{1,4})n[0-9]{1,4}")
_USED = re.compile(r"/ *([0-9]+(?:\.[0-9]+)?) *([kMGTP]?)B")


def read(text: str) -> list[dict[str, Any]] | None:
    """Rows in the words of lsblk's JSON; None for a text that is no such list. `told` is False where a row does not
    say what is mounted on a disk, or of which model it is."""
    if re.search(r'^(?:[A-Z:-]+="[^"]*" )*NAME="[^"]*" +[A-Z:-]+="', text, re.M):
        return _pairs(text)
    if re.search(r"^Node +(?:Generic +)?SN +Model +Namespace", text, re.M):
        return _nvme_table(text)
    if any(_TABLE.match(line) for line in text.splitlines()[:20]):
        return _table(text)
    return _nvme_json(text) if '"DevicePath"' in text or '"Subsystems"' in text else None


def _pairs(text: str) -> list[dict[str, Any]]:
    """`lsblk -P`: a line for each device, what is on a disk below it."""
    devices: list[dict[str, Any]] = []
    for line in lines(text):
        row = {key.lower(): value for key, value in _PAIR.findall(line)}
        if "name" not in row:
            continue
        mountpoints = row.get("mountpoint") or row.get("mountpoints")
        is_complete = "model" in row and ("mountpoint" in row or "mountpoints" in row)
        kind = row.get("type") or ("disk" if row.get("pkname") == "" else "")
        _add(devices, row["name"], kind, row.get("size"), row.get("model"), mountpoints, is_complete=is_complete)
    return devices


def _table(text: str) -> list[dict[str, Any]]:
    """lsblk's table: names are drawn as a tree."""
    devices: list[dict[str, Any]] = []
    for line in lines(text):
        if match := _ROW.match(line):
            _add(devices, match[2], match[4], match[3], None, match[5], is_complete=False)
        elif devices and line.startswith(" ") and line.strip().startswith("/"):
            _add(devices, "", "part", None, None, line.strip(), is_complete=False)  # a second place of the same device
    return devices


def _add(devices: list[dict[str, Any]], name: str, kind: str, size: str | None, model: str | None, mount: str | None, *,
         is_complete: bool) -> None:  # fmt: skip
    if kind == "disk":
        devices.append({"name": name, "type": kind, "size": size, "model": model, "mountpoint": mount or None,
                      "children": [], "told": is_complete})  # fmt: skip
    elif devices and mount:
        devices[-1]["children"].append({"mountpoint": mount})


def _nvme_table(text: str) -> list[dict[str, Any]]:
    heads: list[str] = []
    edges: list[tuple[int, int]] = []
    previous_line, drives = "", dict[str, dict[str, Any]]()
    for line in lines(text):
        if re.match(r"^-{4,} -{4,}", line):
            edges = [match.span() for match in re.finditer(r"-+", line)]
            heads = [previous_line[start:end].strip() for start, end in edges]
        elif edges and (drive := _DRIVE.match(line)):
            cells = dict(zip(heads, (line[start:end].strip() for start, end in edges), strict=True))
            used = _USED.search(line)
            size = float(used[1]) * 1000 ** " kMGTP".index(used[2] or " ") if used else None
            drives.setdefault(drive[1], _drive(drive[0], cells.get("Model"), size))
        previous_line = line
    return list(drives.values())


def _nvme_json(text: str) -> list[dict[str, Any]] | None:
    try:
        devices = json.loads(text)["Devices"]
        rows = [row for device in devices for row in _below(device, {}, 4)]
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError):
        return None
    drives: dict[str, dict[str, Any]] = {}
    for row in rows:
        name = str(row.get("DevicePath") or row.get("NameSpace") or "")
        if drive := _DRIVE.fullmatch(name):
            size = row.get("PhysicalSize")
            drives.setdefault(drive[1], _drive(name, row.get("ModelNumber"), size if isinstance(size, int) else None))
    return list(drives.values())


def _below(row: dict[str, Any], above: dict[str, Any], depth: int) -> list[dict[str, Any]]:
    """The namespaces of a device, each with what stands above it."""
    values = {**above, **{key: value for key, value in row.items() if not isinstance(value, list)}}
    inner = [child for key in ("Subsystems", "Controllers", "Namespaces") for child in row.get(key) or () if depth]
    return [namespace for child in inner for namespace in _below(child, values, depth - 1)] if inner else [values]


def _drive(name: str, model: Any, size: float | None) -> dict[str, Any]:
    return {"name": name, "type": "disk", "size": None if size is None else int(size), "model": model, "told": False}
