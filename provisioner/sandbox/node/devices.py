"""What the driver shows outside of its tools: /proc/driver/nvidia, /dev/nvidia*, and its place in /proc/modules.

The files lie in /run and are bound over this computer's own (sysfs.py); device nodes have the real numbers, and behind
them is no device. Formats: /proc/modules as fs/proc writes it, /proc/driver/nvidia as NVIDIA's modules write it.
"""

from __future__ import annotations

import re
import stat
from contextlib import suppress
from os import makedev, mknod

from . import state

TYPE_CHECKING = False  # typing would be a tenth of what a tool takes to start
if TYPE_CHECKING:
    from typing import Any

PLACE = "run/gpuprov-sandbox/sys/devices"
CONTROL = {"nvidiactl": (195, 255), "nvidia-modeset": (195, 254)}
UVM = {"nvidia-uvm": (508, 0), "nvidia-uvm-tools": (508, 1)}
OPTION = re.compile(r"^\s*options\s+nvidia\s+(.*)$")


def create_proc_files() -> None:
    """Empty files, to be bound over the kernel's before any module is loaded."""
    folder = state.path(PLACE)
    (folder / "driver").mkdir(parents=True)
    (folder / "modules").write_text("", encoding="utf-8")


def show() -> None:
    """Everything as the modules that are loaded now make it."""
    folder = state.path(PLACE)
    if not folder.exists():
        return
    loaded = state.modules()
    rows = [f"{name} {m['size']} 0 - Live 0x0000000000000000 {_taint(name, m)}".rstrip() for name, m in loaded.items()]
    (folder / "modules").write_text("".join(f"{row}\n" for row in rows), encoding="utf-8")
    _driver(loaded.get("nvidia"))
    _nodes("nvidia" in loaded, "nvidia_uvm" in loaded)


def _taint(name: str, module: dict[str, Any]) -> str:
    if not module.get("version"):
        return ""
    return "(POE)" if name.startswith("nvidia") and module.get("flavour") == "proprietary" else "(OE)"


def _driver(module: dict[str, Any] | None) -> None:
    folder = state.path(PLACE) / "driver" / "nvidia"
    if module is None:
        for name in ("version", "params"):
            (folder / name).unlink(missing_ok=True)
        return
    folder.mkdir(exist_ok=True)
    version = state.loaded_driver(state.hardware())
    flavour_text = "Open Kernel Module for x86_64" if module.get("flavour") == "open" else "x86_64 Kernel Module"
    first = f"NVRM version: NVIDIA UNIX {flavour_text}  {version}  Release Build  (simulated by gpuprov)"
    (folder / "version").write_text(f"{first}\nGCC version:  none, no module was built\n", encoding="utf-8")
    params = {"ModifyDeviceFiles": "1", "CreateImexChannel0": "0", "EnableGpuFirmware": "18"} | _options()
    (folder / "params").write_text("".join(f"{name}: {value}\n" for name, value in params.items()), encoding="utf-8")


def _options() -> dict[str, str]:
    """Parameters that modprobe.d gives the module: NVreg_Name=value is Name in params."""
    options: dict[str, str] = {}
    for path in sorted(state.path("etc/modprobe.d").glob("*.conf")):
        for line in path.read_text(errors="replace", encoding="utf-8").splitlines():
            if match := OPTION.match(line):
                pairs = (option.partition("=") for option in match[1].split())
                options |= {name.removeprefix("NVreg_"): value for name, _, value in pairs if name.startswith("NVreg_")}
    return options


def _nodes(driver: bool, uvm: bool) -> None:
    machine = state.hardware()
    gpus = {f"nvidia{gpu['index']}": (195, gpu["index"]) for gpu in machine.get("gpus", []) if gpu["present"]}
    nodes = (gpus | CONTROL if driver else {}) | (UVM if uvm else {})
    root = state.path("dev")
    for path in root.glob("nvidia*"):
        if path.name not in nodes and path.is_char_device():
            path.unlink(missing_ok=True)
    for name, (major, minor) in nodes.items():
        path = root / name
        if not path.exists():
            with suppress(OSError):
                mknod(path, 0o666 | stat.S_IFCHR, makedev(major, minor))
                path.chmod(0o666)
