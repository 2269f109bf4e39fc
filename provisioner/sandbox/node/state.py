"""What a sandbox node knows of itself: its hardware, what is installed, which modules are loaded, what was switched."""

from __future__ import annotations

import fcntl
import json
import os
import time

TYPE_CHECKING = False  # typing would be a tenth of what a tool takes to start
if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from typing import Any

    Json = dict[str, Any]

ROOT = os.environ.get("GPUPROV_SANDBOX_ROOT", "/")


def path(relative: str) -> Path:
    from pathlib import Path  # not for the tools that a probe calls: it takes as long as most of them

    return Path(ROOT, relative)


def exists(relative: str) -> bool:
    return os.path.exists(os.path.join(ROOT, relative))


def read(relative: str, default: Any) -> Any:
    """JSON of a file, or the default where there is none."""
    try:
        with open(os.path.join(ROOT, relative), encoding="utf-8") as stream:
            return json.load(stream)
    except (FileNotFoundError, NotADirectoryError):
        return default


def write(relative: str, content: Any) -> None:
    """A JSON file, whole or not at all."""
    target = path(relative)
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name}.{os.getpid()}")
    temporary.write_text(json.dumps(content), encoding="utf-8")
    temporary.chmod(0o644)
    temporary.replace(target)


def change(relative: str, edit: Callable[[Any], Any], default: Any) -> None:
    """Read, edit and write a JSON file; two programs at once take turns."""
    lock = path("run/gpuprov-sandbox/lock")
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("w", encoding="utf-8") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        write(relative, edit(read(relative, default)))


HARDWARE = "etc/gpuprov-sandbox/hardware.json"
MODULES = "run/gpuprov-sandbox/modules.json"
KERNEL_LOG = "run/gpuprov-sandbox/kernel.json"
PERSISTENCE = "run/gpuprov-sandbox/persistence.json"
SETTINGS = "var/lib/gpuprov-sandbox/settings.json"
MIG = "run/gpuprov-sandbox/mig.json"
GIVEN = "run/gpuprov-sandbox/given.json"
"""Of each container that was given GPUs the file in it that says how many: what a daemon-reload can take away."""
INSTALLED = "usr/lib/gpuprov-sandbox/installed"


def hardware() -> Json:
    """The machine that this node stands for, with its faults; a driver that is bad for it spoils one GPU."""
    machine: Json = read(HARDWARE, {})
    bad = (machine.get("driver") or {}).get("bad")
    if bad and loaded_driver(machine) == bad["version"]:
        machine["gpus"][bad["gpu"]]["memory_mib"] //= 2
    return machine


def installed(part: str) -> Json | None:
    """What a package says of a part (nvml, cuda, module-nvidia…), None when no installed package has it."""
    record: Json | None = read(f"{INSTALLED}/{part}.json", None)
    return record


def modules() -> dict[str, Json]:
    """Loaded modules by name."""
    loaded: dict[str, Json] = read(MODULES, {})
    return loaded


def loaded_driver(machine: Json) -> str | None:
    """Version of the NVIDIA kernel module that is loaded; a fault may have another one loaded than is installed."""
    module = modules().get("nvidia")
    if module is None:
        return None
    return str((machine.get("driver") or {}).get("loaded") or module["version"])


def library_version(machine: Json) -> str | None:
    """Version of the NVML library that the tools use."""
    nvml = installed("nvml")
    if nvml is None:
        return None
    return str((machine.get("driver") or {}).get("library") or nvml["version"])


def cuda_of(driver: str) -> str:
    """The CUDA version that a driver of that branch reports. Source: nvidia-smi of each branch; 610 and above are
    guessed
    from the branch before."""
    branch = int(driver.split(".", maxsplit=1)[0])
    known = (
        (610, "13.3"),
        (595, "13.2"),
        (590, "13.1"),
        (580, "13.0"),
        (575, "12.9"),
        (570, "12.8"),
        (565, "12.7"),
        (560, "12.6"),
        (555, "12.5"),
        (550, "12.4"),
        (545, "12.3"),
        (535, "12.2"),
        (530, "12.1"),
        (525, "12.0"),
        (520, "11.8"),
        (515, "11.7"),
        (510, "11.6"),
        (470, "11.4"),
        (460, "11.2"),
        (450, "11.0"),
    )
    return next((cuda for first, cuda in known if branch >= first), "10.2")


def drives(flavour: str | None, gpu: Json) -> bool:
    """Whether a module of that flavour drives the GPU: the open one has no Volta, the closed one no Blackwell
    (nvidia.yaml)."""
    if flavour == "open":
        return bool(gpu["kernel_modules"] != "impossible")
    return bool(gpu["kernel_modules"] != "required")


def hostengine_runs() -> bool:
    """Whether DCGM's host engine is up."""
    record = read("run/gpuprov-sandbox/hostengine.json", None)
    return record is not None and exists(f"proc/{record['pid']}")


def kernel_log(text: str, level: str = "info", facility: str = "kern") -> None:
    """Add a line to the node's simulated kernel log."""
    entry = {"at": max(0.0, time.time() - boot_time()), "level": level, "facility": facility, "text": text}
    change(KERNEL_LOG, lambda lines: [*lines, entry], [])


def boot_time() -> float:
    """When the node was started, seconds since 1970. The first process of the container started then."""
    try:
        return os.stat(os.path.join(ROOT, "proc/1")).st_ctime
    except OSError:
        return time.time()
