"""The kernel's side: modules that are loaded or not, the kernel log, PCI devices."""

from __future__ import annotations

import itertools
import json
import os
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from . import devices, dkms, state, sysfs

RELEASE = "6.1.0-gpuprov-sandbox"
BUILTIN = {
    "infiniband": ("mlx5_core", "mlx5_ib", "ib_core", "ib_uverbs", "ib_umad", "ib_ipoib"),
    "efa": ("ib_core", "ib_uverbs", "efa"),
}
BUILTIN["roce"] = BUILTIN["infiniband"]
DEPENDS = {
    "nvidia_uvm": "nvidia",
    "nvidia_modeset": "nvidia",
    "nvidia_drm": "nvidia_modeset",
    "nvidia_peermem": "nvidia",
    "gdrdrv": "nvidia",
}
INBOX = ("nouveau", "ib_umad", "ib_uverbs", "ib_core", "rdma_ucm", "rdma_cm")
"""Modules that every distribution kernel brings."""


def load_builtin() -> None:
    """Modules of the node's RDMA cards: in a real kernel they are there before anybody installs a thing."""
    kinds = {nic["kind"] for nic in state.hardware().get("nics", [])} | (
        {"efa"} if state.hardware().get("efa") else set()
    )
    names = {name for kind in kinds for name in BUILTIN.get(kind, ())}
    for name in sorted(names - set(state.modules())):
        _add(name, {"version": "", "size": 167936})


def _add(name: str, module: dict[str, Any]) -> None:
    state.change(state.MODULES, lambda m: {**m, name: module}, {})
    sysfs.show_module(name, module)
    devices.show()


def load(name: str) -> str | None:
    """Load a simulated module with those it needs; an error text when it is not installed."""
    wanted = name.replace("-", "_")
    loaded = state.modules()
    if wanted in loaded:
        return None
    if wanted in INBOX:
        _add(wanted, {"version": "", "size": 167936})
        return None
    found = state.installed(f"module-{wanted}")
    if found is None or dkms.broken(wanted):
        return f"Module {name} not found in directory /lib/modules/{RELEASE}"
    if wanted == "nvidia" and "nouveau" in loaded:
        state.kernel_log("NVRM: The NVIDIA GPUs are already bound to nouveau (simulated by gpuprov)", "err")
        return f"could not insert '{name}': No such device"
    below = DEPENDS.get(wanted)
    if below and (problem := load(below)):
        return problem
    _add(wanted, {"version": found["version"], "size": found["size"], "flavour": found["flavour"]})
    if wanted == "nvidia":
        _log_driver(found)
    return None


def _log_driver(module: dict[str, Any]) -> None:
    machine = state.hardware()
    open_ = module["flavour"] == "open"
    kind = (
        f"NVIDIA UNIX Open Kernel Module for x86_64  {module['version']}"
        if open_
        else f"NVIDIA UNIX x86_64 Kernel Module  {module['version']}"
    )
    state.kernel_log("nvidia: loading out-of-tree module taints kernel.", "warn")
    state.kernel_log(f"NVRM: loading {kind}  Release Build  (simulated by gpuprov)", "notice")
    for gpu in machine.get("gpus", []):
        if not usable(gpu, module["flavour"]):
            needs = (
                "does not include the required GPU System Processor"
                if open_
                else "requires use of the NVIDIA open kernel modules"
            )
            state.kernel_log(
                f"NVRM: The NVIDIA GPU {gpu['pci'].lower()} (PCI ID: 10de:{gpu['pci_device_id'][:4].lower()}) {needs}.",
                "err",
            )


def usable(gpu: dict[str, Any], flavour: str | None) -> bool:
    """Volta has no GSP, so the open module can't drive it; Blackwell is driven by the open module only
    (compat.yaml)."""
    if flavour == "open":
        return bool(gpu["kernel_modules"] != "impossible")
    return bool(gpu["kernel_modules"] != "required")


def unload(name: str) -> str | None:
    wanted = name.replace("-", "_")
    loaded = state.modules()
    if wanted not in loaded:
        return f"Module {wanted} is not currently loaded"
    users = sorted(n for n in loaded if DEPENDS.get(n) == wanted)
    if users:
        return f"Module {wanted} is in use by: {' '.join(users)}"
    if wanted == "nvidia" and (daemons := _daemons()):
        return f"Module {wanted} is in use: {', '.join(daemons)}"
    if wanted in state.hardware().get("modules_stuck", []):
        return f"Module {wanted} is in use"
    state.change(state.MODULES, lambda m: {n: v for n, v in m.items() if n != wanted}, {})
    sysfs.show_module(wanted, None)
    devices.show()
    return None


def _daemons() -> list[str]:
    """Programs of the driver that run: each of them has the GPUs open."""
    found = set()
    for folder in (p for p in state.path("proc").glob("*") if p.name.isdigit()):
        try:
            name = Path((folder / "cmdline").read_bytes().split(b"\0")[0].decode(errors="replace")).name
        except OSError:
            continue
        if name in ("nvidia-persistenced", "nv-fabricmanager", "nv-hostengine", "nvidia-imex"):
            found.add(name)
    return sorted(found)


def modprobe(arguments: list[str], _version: str) -> int:
    """modprobe NAME…, -r, -a, -q, -n; options of a module are taken and ignored."""
    flags = [a for a in arguments if a.startswith("-")]
    names = [a for a in arguments if not a.startswith("-") and "=" not in a]
    removing = "-r" in flags or "--remove" in flags
    if not removing and not any(f in flags for f in ("-a", "--all")):
        names = names[:1]
    code = 0
    for name in names:
        problem = unload(name) if removing else load(name)
        if problem:
            code = 1
            if not any(f in flags for f in ("-q", "--quiet")):
                print(f"modprobe: FATAL: {problem}.", file=sys.stderr)
    return code


def rmmod(arguments: list[str], _version: str) -> int:
    problems = [p for name in arguments if not name.startswith("-") if (p := unload(name))]
    for problem in problems:
        print(f"rmmod: ERROR: {problem}", file=sys.stderr)
    return 1 if problems else 0


def nvidia_modprobe(_arguments: list[str], _version: str) -> int:
    return 1 if load("nvidia") else 0


def lsmod(_arguments: list[str], _version: str) -> int:
    """The table of /proc/modules as lsmod prints it."""
    print("Module                  Size  Used by")
    loaded = state.modules()
    for name in sorted(loaded, reverse=True):
        users = sorted(n for n in loaded if DEPENDS.get(n) == name)
        print(f"{name:<19} {loaded[name]['size']:>8}  {len(users)}{' ' + ','.join(users) if users else ''}")
    return 0


def modinfo(arguments: list[str], _version: str) -> int:
    """modinfo [-F FIELD] [-k RELEASE] NAME of a simulated module that is installed."""
    given = {a: b for a, b in itertools.pairwise(arguments) if a in ("-F", "-k")}
    field, release = given.get("-F"), given.get("-k", RELEASE)
    names = [a for a in arguments if not a.startswith("-") and a not in given.values()]
    name = names[0] if names else ""
    wanted = name.replace("-", "_")
    found = state.installed(f"module-{wanted}")
    # What is built is for the kernel that runs.
    if found is None or dkms.broken(wanted) or release not in (RELEASE, os.uname().release):
        print(f"modinfo: ERROR: Module {name} not found.", file=sys.stderr)
        return 1
    facts = {
        "filename": f"/lib/modules/{release}/updates/dkms/{name}.ko",
        "version": found["version"],
        "license": "Dual MIT/GPL" if found["flavour"] == "open" else "NVIDIA",
        "description": "simulated by gpuprov",
        "srcversion": sysfs.source_version(found),
        "vermagic": f"{release} SMP mod_unload",
    }
    for key, value in facts.items():
        if field is None:
            print(f"{key + ':':<16}{value}")
        elif key == field:
            print(value)
    return 0


LEVELS = ("emerg", "alert", "crit", "err", "warn", "notice", "info", "debug")


def dmesg(arguments: list[str], _version: str) -> int:
    """The simulated kernel log, never this computer's own: plain, -T, --time-format iso|ctime, -x, -k, -l LEVELS,
    -J."""
    options = _options(arguments, {"-l": "--level", "-f": "--facility"})
    levels = set(options["--level"].split(",")) if "--level" in options else None
    form = options.get("--time-format") or ("ctime" if any(o in options for o in ("-T", "--ctime")) else "")
    booted = state.boot_time()
    lines = sorted(
        [*state.hardware().get("kernel_log", []), *state.read(state.KERNEL_LOG, [])], key=lambda line: line["at"]
    )
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
            stamp = datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%S,%f+00:00 ")
        elif form == "ctime":
            stamp = f"[{time.strftime('%a %b %e %H:%M:%S %Y', time.localtime(at))}] "
        elif any(o in options for o in ("-t", "--notime")):
            stamp = ""
        else:
            stamp = f"[{line['at']:12.6f}] "
        print(f"{head}{stamp}{line['text']}")
    return 0


def _admits(wanted: str, level: str) -> bool:
    if wanted.endswith("+"):
        return LEVELS.index(level) <= LEVELS.index(wanted[:-1])
    if wanted.startswith("+"):
        return LEVELS.index(level) >= LEVELS.index(wanted[1:])
    return wanted == level


def _options(arguments: list[str], with_value: dict[str, str]) -> dict[str, str]:
    """--name=value, --name value and bundled short flags as a dictionary; a flag has an empty value."""
    valued = {*with_value, *with_value.values(), "--time-format"}
    found: dict[str, str] = {}
    rest = list(arguments)
    while rest:
        item = rest.pop(0)
        name, equals, value = item.partition("=")
        if equals and name.startswith("--"):
            found[with_value.get(name, name)] = value
        elif item in valued and rest:
            found[with_value.get(item, item)] = rest.pop(0)
        elif item.startswith("-") and not item.startswith("--") and len(item) > 2:
            found.update({f"-{letter}": "" for letter in item[1:]})
        else:
            found[item] = ""
    return found


def lspci(arguments: list[str], _version: str) -> int:
    """The node's PCI devices: plain, -n, -nn, -D, -d VENDOR:DEVICE, -s SLOT."""
    options = _options(arguments, {"-d": "-d", "-s": "-s"})
    vendor, _, device = options.get("-d", "").lower().partition(":")
    numbers = sum(a.count("n") for a in arguments if a.startswith("-") and not a.startswith("--"))
    for item in sorted(state.hardware().get("pci", []), key=lambda d: d["slot"]):
        ids = f"{item['vendor']}:{item['device']}"
        if (vendor and item["vendor"] != vendor) or (device and item["device"] != device):
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
    return 0
