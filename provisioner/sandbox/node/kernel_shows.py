"""What the kernel shows of itself: loaded modules (lsmod), its log (dmesg), PCI devices (lspci).

Apart from the modules' own side, because the probe asks for these at every look and each import costs a node time.
"""

from __future__ import annotations

import json
import time
from typing import Any

from . import loading, state

DEPENDS = {
    "nvidia_uvm": "nvidia",
    "nvidia_modeset": "nvidia",
    "nvidia_drm": "nvidia_modeset",
    "nvidia_peermem": "nvidia",
    "gdrdrv": "nvidia",
}


def lsmod(_arguments: list[str], _version: str) -> int:
    """The table of /proc/modules as lsmod prints it."""
    print("Module                  Size  Used by")
    loaded = state.modules()
    for name in sorted(loaded, reverse=True):
        users = sorted(n for n in loaded if DEPENDS.get(n) == name)
        print(f"{name:<19} {loaded[name]['size']:>8}  {len(users)}{' ' + ','.join(users) if users else ''}")
    return 0


LEVELS = ("emerg", "alert", "crit", "err", "warn", "notice", "info", "debug")


def dmesg(arguments: list[str], _version: str) -> int:
    """The simulated kernel log, never this computer's own: plain, -T, --time-format iso|ctime, -x, -k, -l LEVELS,
    -J."""
    options = _options(arguments, {"-l": "--level", "-f": "--facility"})
    levels = set(options["--level"].split(",")) if "--level" in options else None
    form = options.get("--time-format") or ("ctime" if any(o in options for o in ("-T", "--ctime")) else "")
    booted = state.boot_time()
    lines = sorted([*_log(state.hardware()), *state.read(state.KERNEL_LOG, [])], key=lambda line: line["at"])
    if "-J" in options or "--json" in options:
        print(
            json.dumps(
                {
                    "dmesg": [
                        {"pri": LEVELS.index(x["level"]), "time": round(x["at"], 6), "msg": x["text"]} for x in lines
                    ]
                },
                indent=3,
            )
        )
        return 0
    for line in lines:
        if levels and not any(_admits(level, line["level"]) for level in levels):
            continue
        head = f"kern  :{line['level']:<6}: " if any(o in options for o in ("-x", "--decode")) else ""
        at = booted + line["at"]
        if form == "iso":
            stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(at)) + f",{int(at % 1 * 1e6):06d}+00:00 "
        elif form == "ctime":
            stamp = f"[{time.strftime('%a %b %e %H:%M:%S %Y', time.localtime(at))}] "
        elif any(o in options for o in ("-t", "--notime")):
            stamp = ""
        else:
            stamp = f"[{line['at']:12.6f}] "
        print(f"{head}{stamp}{line['text']}")
    return 0


def _log(machine: state.Json) -> list[state.Json]:
    """The node's own lines, and those that a load has left."""
    lines: list[state.Json] = list(machine.get("kernel_log", []))
    if "load" in machine and state.exists(loading.LOADED):
        at = max([line["at"] for line in lines], default=0.0) + 100.0
        lines += [{"at": at, "level": "err", "text": text} for text in machine["load"].get("kernel_log", [])]
    return lines


def _admits(selector: str, level: str) -> bool:
    if selector.endswith("+"):
        return LEVELS.index(level) <= LEVELS.index(selector[:-1])
    if selector.startswith("+"):
        return LEVELS.index(level) >= LEVELS.index(selector[1:])
    return selector == level


def _options(arguments: list[str], with_value: dict[str, str]) -> dict[str, str]:
    """--name=value, --name value and bundled short flags as a dictionary; a flag has an empty value."""
    valued = {*with_value, *with_value.values(), "--time-format"}
    options: dict[str, str] = {}
    remaining = list(arguments)
    while remaining:
        item = remaining.pop(0)
        name, equals, value = item.partition("=")
        if equals and name.startswith("--"):
            options[with_value.get(name, name)] = value
        elif item in valued and remaining:
            options[with_value.get(item, item)] = remaining.pop(0)
        elif item.startswith("-") and not item.startswith("--") and len(item) > 2:
            options.update({f"-{letter}": "" for letter in item[1:]})
        else:
            options[item] = ""
    return options


def lspci(arguments: list[str], _version: str) -> int:
    """The node's PCI devices, as pciutils 3.9: plain, -n, -nn, -D, -x, -d VENDOR:DEVICE:CLASS, -s SLOT."""
    options = _options(arguments, {"-d": "-d", "-s": "-s"})
    vendor, device, code = (*options.get("-d", "").lower().split(":"), "", "", "")[:3]
    numbers = sum(a.count("n") for a in arguments if a.startswith("-") and not a.startswith("--"))
    for item in sorted(state.hardware().get("pci", []), key=lambda d: d["slot"]):
        ids = f"{item['vendor']}:{item['device']}"
        filters = {"vendor": vendor, "device": device, "class": code}
        if any(value and value != item[key] for key, value in filters.items()):
            continue
        if "-s" in options and options["-s"] not in item["slot"]:
            continue
        domains = "-D" in options or any(not d["slot"].startswith("0000:") for d in state.hardware()["pci"])
        slot = item["slot"] if domains else item["slot"].removeprefix("0000:")
        revision = f" (rev {item['revision']})" if item.get("revision") else ""
        if numbers == 2:
            print(f"{slot} {item['class_name']} [{item['class']}]: {item['name']} [{ids}]{revision}")
        elif numbers == 1:
            print(f"{slot} {item['class']}: {ids}{revision}")
        else:
            print(f"{slot} {item['class_name']}: {item['name']}{revision}")
        if "-x" in options:
            print(_header(item))
    return 0


def _header(item: dict[str, Any]) -> str:
    """The first 64 bytes of a device's configuration space, of which what names it is simulated; ff of one that does
    not answer."""
    ids = bytes.fromhex(item["vendor"])[::-1] + bytes.fromhex(item["device"])[::-1]
    kind = bytes.fromhex(item.get("revision") or "00") + b"\x00" + bytes.fromhex(item["class"])[::-1]
    row = b"\xff" * 64 if item.get("silent") else (ids + b"\x06\x04\x10\x00" + kind).ljust(64, b"\x00")
    return "".join(f"{at:02x}: {row[at : at + 16].hex(' ')}\n" for at in range(0, 64, 16))
