"""The kernel's modules: which are installed, loaded and taken out again."""

from __future__ import annotations

import itertools
import os
import sys
from pathlib import Path

from . import devices, dkms, state, sysfs
from .kernel_shows import DEPENDS

TYPE_CHECKING = False  # typing would be a tenth of what a tool takes to start
if TYPE_CHECKING:
    from typing import Any

RELEASE = "6.1.0-gpuprov-sandbox"
BUILTIN = {
    "infiniband": ("mlx5_core", "mlx5_ib", "ib_core", "ib_uverbs", "ib_umad", "ib_ipoib"),
    "efa": ("ib_core", "ib_uverbs", "efa"),
}
BUILTIN["roce"] = BUILTIN["infiniband"]
OTHER_DRIVERS = ("nouveau", "nova_drm", "nova", "nova_core")
INBOX = (*OTHER_DRIVERS, "ib_umad", "ib_uverbs", "ib_core", "rdma_ucm", "rdma_cm")
"""Modules that every distribution kernel brings."""


def load_builtin() -> None:
    """Modules of the node's RDMA cards: in a real kernel they are there before anybody installs a thing."""
    kinds = {nic["kind"] for nic in state.hardware().get("nics", [])} | (
        {"efa"} if state.hardware().get("efa") else set()
    )
    names = {name for kind in kinds for name in BUILTIN.get(kind, ())}
    for name in sorted(names - set(state.modules())):
        _add(name, _on_disk(name) or IN_TREE)


IN_TREE: dict[str, Any] = {"version": "", "size": 167936}
"""A module that comes with the kernel."""


def _on_disk(name: str) -> dict[str, Any] | None:
    """The module that DKMS has built, which depmod prefers to the kernel's own; None where there is none."""
    module = state.installed(f"module-{name}")
    return None if module is None or dkms.broken(name) else module


def _add(name: str, module: dict[str, Any]) -> None:
    state.change(state.MODULES, lambda m: {**m, name: module}, {})
    sysfs.show_module(name, module)
    devices.show()
    if name == "efa":
        sysfs.network_cards()


def load(name: str) -> str | None:
    """Load a simulated module with those it needs; an error text when it is not installed."""
    module_name = name.replace("-", "_")
    loaded = state.modules()
    if module_name in loaded:
        return None
    module = _on_disk(module_name)
    if module is None and (module_name in INBOX or module_name == "efa"):
        _add(module_name, IN_TREE)
        return None
    if module is None:
        return f"Module {name} not found in directory /lib/modules/{RELEASE}"
    if module_name == "nvidia" and (other := next((n for n in OTHER_DRIVERS if n in loaded), None)):
        state.kernel_log(f"NVRM: The NVIDIA GPUs are already bound to {other} (simulated by gpuprov)", "err")
        return f"could not insert '{name}': No such device"
    below = DEPENDS.get(module_name)
    if below and (problem := load(below)):
        return problem
    _add(module_name, {"version": module["version"], "size": module["size"], "flavour": module["flavour"]})
    if module_name == "nvidia":
        _log_driver(module)
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
        if not state.drives(module["flavour"], gpu):
            needs = (
                "does not include the required GPU System Processor"
                if open_
                else "requires use of the NVIDIA open kernel modules"
            )
            state.kernel_log(
                f"NVRM: The NVIDIA GPU {gpu['pci'].lower()} (PCI ID: 10de:{gpu['pci_device_id'][:4].lower()}) {needs}.",
                "err",
            )


def unload(name: str) -> str | None:
    module_name = name.replace("-", "_")
    loaded = state.modules()
    if module_name not in loaded:
        return f"Module {module_name} is not currently loaded"
    users = sorted(n for n in loaded if DEPENDS.get(n) == module_name)
    if users:
        return f"Module {module_name} is in use by: {' '.join(users)}"
    if module_name == "nvidia" and (open_by := daemons()):
        return f"Module {module_name} is in use: {', '.join(open_by)}"
    if module_name in state.hardware().get("modules_stuck", []):
        return f"Module {module_name} is in use"
    state.change(state.MODULES, lambda m: {n: v for n, v in m.items() if n != module_name}, {})
    sysfs.show_module(module_name, None)
    devices.show()
    if module_name == "efa":
        sysfs.network_cards()
    return None


def daemons() -> list[str]:
    """Programs of the driver that run: each of them has the GPUs open."""
    names = set()
    for folder in (p for p in state.path("proc").glob("*") if p.name.isdigit()):
        try:
            name = Path((folder / "cmdline").read_bytes().split(b"\0")[0].decode(errors="replace")).name
        except OSError:
            continue
        if name in ("nvidia-persistenced", "nv-fabricmanager", "nv-hostengine", "nvidia-imex"):
            names.add(name)
    return sorted(names)


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


def modinfo(arguments: list[str], _version: str) -> int:
    """modinfo [-F FIELD] [-k RELEASE] NAME of a simulated module that is installed."""
    options = {a: b for a, b in itertools.pairwise(arguments) if a in ("-F", "-k")}
    field, release = options.get("-F"), options.get("-k", RELEASE)
    names = [a for a in arguments if not a.startswith("-") and a not in options.values()]
    name = names[0] if names else ""
    module_name = name.replace("-", "_")
    in_tree = module_name == "efa" or (module_name in INBOX and module_name not in OTHER_DRIVERS)
    module = _on_disk(module_name) or (IN_TREE if in_tree else None)
    # What is built is for the kernel that runs.
    if module is None or release not in (RELEASE, os.uname().release):
        print(f"modinfo: ERROR: Module {name} not found.", file=sys.stderr)
        return 1
    subfolder = (
        f"kernel/drivers/infiniband/{'hw' if module_name == 'efa' else 'core'}" if module is IN_TREE else "updates/dkms"
    )
    facts = {
        "filename": f"/lib/modules/{release}/{subfolder}/{name}.ko",
        **({"version": module["version"]} if module["version"] else {}),
        "license": "NVIDIA" if module.get("flavour") == "proprietary" else "Dual MIT/GPL",
        "description": "simulated by gpuprov",
        "srcversion": sysfs.source_version(module),
        "vermagic": f"{release} SMP mod_unload",
    }
    for key, value in facts.items():
        if field is None:
            print(f"{key + ':':<16}{value}")
        elif key == field:
            print(value)
    return 0
