"""What nvidia-smi and its relatives see: the driver, the GPUs that answer, the modes that were switched."""

from __future__ import annotations

import sys
import time
from collections import namedtuple

from . import loading, state

TYPE_CHECKING = False  # typing would be a tenth of what a tool takes to start
if TYPE_CHECKING:
    from typing import Any

DEPRECATED = "Requested functionality has been deprecated"


class Driver(namedtuple("Driver", ("version", "cuda", "gpus", "machine"))):
    """`version`: of the loaded module; `cuda`: what it reports; `gpus`: those that it drives, lost ones among them."""

    version: str
    cuda: str
    gpus: tuple[dict[str, Any], ...]
    machine: dict[str, Any]

    __slots__ = ()

    @property
    def branch(self) -> int:
        return int(self.version.split(".", maxsplit=1)[0])

    def is_in(self, versions: str) -> bool:
        """Whether one of these ranges has the version: `595+`, `-569`, `540-569`, `580.173-580` (the branch 580 from
        173 on), `-570.147`; a comma separates ranges. An upper end has all releases that begin so."""
        return any(self._is_between(*text.replace("+", "-").partition("-")[::2]) for text in versions.split(","))

    def _is_between(self, first: str, last: str) -> bool:
        version = _numbers(self.version)
        highest = _numbers(last) if last else version
        return version >= _numbers(first or "0") and version[: len(highest)] <= highest


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


class NoAnswer(Exception):
    """nvidia-smi does not answer; `code` is its exit status (nvidia-smi(1), Return value) and the text what it says."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


def driver(*, running: bool = False) -> Driver:
    """The driver as a program sees it through NVML; a `running` one loaded its library long ago, and a newer one on
    disk
    does not disturb it. Raises `NoAnswer` with the real words and exit codes."""
    machine = state.hardware()
    library = state.library_version(machine)
    if library is None:
        raise NoAnswer(
            12,
            "NVIDIA-SMI couldn't find libnvidia-ml.so library in your system. Please make sure that the NVIDIA Display "
            "Driver is properly installed and present in your system.\nPlease also try adding directory that contains "
            "libnvidia-ml.so to your system PATH.",
        )
    loaded = state.loaded_driver(machine)
    if loaded is None:
        raise NoAnswer(
            9,
            "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the latest "
            "NVIDIA driver is installed and running.\n",
        )
    if loaded != library and not running:
        short = ".".join(library.split(".")[:2])
        raise NoAnswer(18, f"Failed to initialize NVML: Driver/library version mismatch\nNVML library version: {short}")
    flavour = state.modules()["nvidia"].get("flavour")
    gpus = tuple(
        gpu for gpu in machine.get("gpus", []) if gpu["present"] and "arch" in gpu and state.drives(flavour, gpu)
    )
    if not gpus:
        raise NoAnswer(6, "No devices were found")
    running, ran = loading.is_loading(), state.exists(loading.LOADED)
    displayed = (loading.gpu_view(gpu, running=running, ran=ran) for gpu in gpus)
    return Driver(loaded, state.cuda_of(loaded), tuple(_switched(gpu) for gpu in displayed), machine)


DAEMON = "run/nvidia-persistenced/nvidia-persistenced.pid"
"""There while the daemon runs: what it keeps on goes with it."""


def _switched(gpu: dict[str, Any]) -> dict[str, Any]:
    """The GPU with persistence, ECC and MIG as they were set on this node; a fault's value stands above them."""
    settings = state.read(state.SETTINGS, {}).get(gpu["uuid"], {})
    persistence = state.read(state.PERSISTENCE, {})
    on = (
        gpu["persistence"]
        if gpu["persistence"] is not None
        else persistence.get(gpu["uuid"], persistence.get("all", False) and state.exists(DAEMON))
    )
    mode = settings.get("ecc_now", gpu["ecc"]["mode"])
    supported = gpu["mig"]["supported"]
    mig = settings.get("mig_now", "Disabled") if supported else "N/A"
    return {
        **gpu,
        "persistence": "Enabled" if on else "Disabled",
        "ecc": {**gpu["ecc"], "mode": mode},
        "ecc_pending": settings.get("ecc", mode),
        "mig_current": mig,
        "mig_pending": settings.get("mig", mig) if supported else "N/A",
        "mig_devices": _mig_devices(gpu) if mig == "Enabled" else [],
    }


def _mig_devices(gpu: dict[str, Any]) -> list[dict[str, Any]]:
    from .smi_mig import attached  # it knows the driver, which is made here

    return attached(gpu)


def hang_if_asked(machine: dict[str, Any]) -> None:
    """A driver that does not answer: the tool waits in the kernel until somebody kills it."""
    while machine.get("nvidia_smi", {}).get("hangs"):
        time.sleep(3600)


def complain(error: NoAnswer) -> int:
    """Say why there is no answer, where the real tool says it (standard output), and give its exit status."""
    sys.stdout.write(f"{error}\n")
    return error.code


def timestamp() -> str:
    return time.strftime("%a %b %e %H:%M:%S %Y")
