"""Injecting hardware faults into sandbox nodes and clearing them, from outside, through podman.

The node keeps what a healthy one has (healthy.json) beside what it has now (hardware.json, with the names of its
faults in
it). A change is worked out here from the healthy state and all active faults and written as one file, so clearing
restores exactly what was there.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache as cached
from pathlib import Path
from typing import Any

from filelock import FileLock

from provisioner.catalog import Catalog
from provisioner.common.errors import GpuprovError
from provisioner.common.paths import cache, private_dir
from provisioner.common.suggest import did_you_mean
from provisioner.common.text import few
from provisioner.sandbox import (
    containers,
    fault_list,
    fault_list_cloud,
    fault_list_fabric,
    fault_list_gpu,
    fault_list_host,
    fault_list_load,
    site_faults,
    state_faults,
)
from provisioner.sandbox.fault_list import Fault
from provisioner.sandbox.runtime import Podman, find_podman

Json = dict[str, Any]
FAULTS = (
    *fault_list.FAULTS,
    *fault_list_gpu.FAULTS,
    *fault_list_host.FAULTS,
    *fault_list_load.FAULTS,
    *fault_list_fabric.FAULTS,
    *fault_list_cloud.FAULTS,
)
TOOL = "/usr/lib/gpuprov-sandbox/fault"

OTHER_VERSIONS = (
    "470.256.02",
    "470.239.06",
    "535.183.01",
    "535.161.08",
    "550.127.05",
    "550.90.07",
    "570.172.08",
    "570.148.08",
    "575.57.08",
    "575.51.03",
    "580.126.16",
    "580.105.08",
    "580.65.06",
    "590.48.01",
    "590.44.01",
    "595.91.07",
    "595.58.03",
)
"""Driver versions that exist (release notes and captures), for a fault that loads another one of the same branch."""


OF_THE_DRIVER = ("wrong-driver", "driver-mismatch", "bad-driver")
"""Faults of a driver that is installed."""


@dataclass(frozen=True, slots=True)
class Active:
    """A fault that a node has now; `gpu` is the GPU that it was injected on."""

    name: str
    gpu: int


def list_faults(machine: str | None = None, catalog: Catalog | None = None) -> tuple[Fault, ...]:
    """Every fault, or those that this machine type can have. Raises `GpuprovError` for an unknown machine."""
    if machine is None:
        return FAULTS
    return tuple(fault for fault in FAULTS if fault.applies(_healthy(machine, catalog)))


def find_fault(name: str) -> Fault:
    """The fault of that name; "bad-driver:595.91.07" is bad-driver for that version. Raises `GpuprovError` with the
    nearest one."""
    plain, colon, version = name.partition(":")
    match = next((fault for fault in FAULTS if fault.name == plain), None)
    if match is not None and colon:
        if match.with_version is None or not re.fullmatch(r"\d{3}(\.\d{1,4}){1,2}", version):
            hint = f"a driver's version, such as {plain}:595.91.07" if match.with_version else f"just {plain}"
            raise GpuprovError(f"no fault {name!r}", hint=hint)
        return replace(match, name=name, change=match.with_version(version))
    if match is None:
        of_sites = [fault.name for fault in (*site_faults.FAULTS, *state_faults.FAULTS)]
        suggestion = did_you_mean(plain, [*(fault.name for fault in FAULTS), *of_sites])
        raise GpuprovError(f"no fault {name!r}", hint=f"{suggestion} `gpuprov sandbox faults` lists them".strip())
    return match


def with_faults(healthy: Json, faults: Iterable[Active], driver: str | None = None) -> Json:
    """The healthy node with these faults, in order. `driver` is the version that is installed on it."""
    machine: Json = {**healthy, "faults": []}
    if driver is not None:
        machine = {**machine, "driver": {**machine["driver"], "other": other_version(driver), "installed": driver}}
    for active in faults:
        machine = find_fault(active.name).apply(machine, active.gpu)
        machine["faults"] = [*machine["faults"], {"name": active.name, "gpu": active.gpu}]
    return machine


def other_version(driver: str) -> str:
    """Another version of the same branch: a real one where one is known, else the one before."""
    branch = driver.split(".", maxsplit=1)[0]
    known = next((v for v in OTHER_VERSIONS if v.startswith(branch + ".") and v != driver), None)
    if known:
        return known
    parts = driver.split(".")
    parts[1] = str(max(0, int(parts[1]) - 1)) if int(parts[1]) else "1"
    return ".".join(parts)


def active(container: str, *, podman: Podman | None = None) -> tuple[Active, ...]:
    """Faults of that node, oldest first."""
    return _active(_show(podman or find_podman(), container)["current"])


def inject(container: str, name: str, *, gpu: int | None = None, podman: Podman | None = None) -> Active:
    """Break it. `gpu` is an index, by default the fourth GPU or the last. Injecting what is there already changes
    nothing.

    Raises `GpuprovError` (exit 2) for an unknown fault, one that this machine can't have, or a GPU that it has not.
    """
    with _turn(container):
        engine = podman or find_podman()
        hardware = _show(engine, container)
        injected = _resolve(container, hardware, name, gpu)
        current = _active(hardware["current"])
        _settle(engine, container, hardware, current if injected in current else (*current, injected))
        return injected


def clear(container: str, name: str | None = None, *, podman: Podman | None = None) -> tuple[Active, ...]:
    """Mend one fault or all; gives those that were mended. Clearing what is not there is fine."""
    if name is not None:
        find_fault(name)
    with _turn(container):
        engine = podman or find_podman()
        hardware = _show(engine, container)
        current = _active(hardware["current"])
        cleared = tuple(fault for fault in current if name in (None, fault.name, fault.name.partition(":")[0]))
        _settle(engine, container, hardware, tuple(fault for fault in current if fault not in cleared))
        return cleared


def leave_only(container: str, desired: Iterable[tuple[str, int | None]], *, podman: Podman | None = None) -> None:
    """Have exactly these faults (name, GPU), as after `clear` and `inject` of each. Raises as `inject`."""
    with _turn(container):
        engine = podman or find_podman()
        hardware = _show(engine, container)
        _settle(engine, container, hardware, tuple(_resolve(container, hardware, name, gpu) for name, gpu in desired))


def _resolve(container: str, hardware: Json, name: str, gpu: int | None) -> Active:
    """A fault as that node can have it."""
    fault, healthy = find_fault(name), hardware["healthy"]
    _refuse(fault, healthy)
    count = len(healthy["gpus"])
    if not count:
        if gpu is not None:
            raise GpuprovError(f"{healthy['machine']} has no GPU {gpu}", where=container, hint="remove --gpu")
        return Active(name, 0)
    index = min(3, count - 1) if gpu is None else gpu
    if not 0 <= index < count:
        raise GpuprovError(f"{healthy['machine']} has GPUs 0 to {count - 1}, not {index}", where=container)
    if fault.name in OF_THE_DRIVER and not hardware["driver"]:
        raise GpuprovError(
            "no driver is installed on this node yet", where=container, hint="gpuprov up FILE --sandbox installs it"
        )
    return Active(name, index)


def _settle(engine: Podman, container: str, hardware: Json, desired: tuple[Active, ...]) -> None:
    """Write the node's hardware with these faults; then mend what is gone and break what is new."""
    healthy, current = hardware["healthy"], _active(hardware["current"])
    if desired == current:
        return
    _write(engine, container, with_faults(healthy, desired, hardware["driver"]) if desired else healthy)
    for fault in current:
        if fault not in desired:
            _commands(engine, container, find_fault(fault.name).mend)
    for fault in desired:
        if fault not in current:
            _commands(engine, container, find_fault(fault.name).break_)


def _refuse(fault: Fault, healthy: Json) -> None:
    if fault.applies(healthy):
        return
    other_machines = [machine for machine in _machines_with(fault) if machine != healthy["machine"]]
    machines_text = few(other_machines, 6, ",")
    raise GpuprovError(
        f"{fault.name} needs {fault.needs}, which {healthy['machine']} does not have",
        # What no machine has by itself (spot) is cluster.yaml's to ask for.
        hint=f"machines that have it: {machines_text}"
        if machines_text
        else "cluster.yaml says how machines are bought",
    )


def _healthy(name: str, catalog: Catalog | None = None) -> Json:
    from provisioner.catalog import load
    from provisioner.sandbox.hardware import hardware

    known = catalog or load()
    machine = known.machine(name)
    return hardware(machine, known.gpu(machine.gpu_model), "node", known)


@cached
def _listed(name: str) -> Json:
    """Of a machine type of the catalogue, to be read only."""
    return _healthy(name)


def _machines_with(fault: Fault) -> Iterator[str]:
    from provisioner.catalog import load

    return (name for name in load().names() if fault.applies(_listed(name)))


def _active(machine: Json) -> tuple[Active, ...]:
    return tuple(Active(entry["name"], entry["gpu"]) for entry in machine.get("faults", []))


def _show(podman: Podman, container: str) -> Json:
    answer = containers.execute(container, TOOL, "show", podman=podman)
    try:
        hardware: Json = json.loads(answer)
    except ValueError as error:
        raise GpuprovError("this container is not a sandbox node", where=container) from error
    return hardware


def _write(podman: Podman, container: str, machine: Json) -> None:
    containers.execute(container, TOOL, "write", stdin=json.dumps(machine), podman=podman)


def _commands(podman: Podman, container: str, commands: Iterable[tuple[str, ...]]) -> None:
    for command in commands:
        containers.execute(container, *command, deadline=90, podman=podman)


@contextmanager
def _turn(container: str) -> Iterator[None]:
    """One change of a node at a time; the second waits."""
    folder: Path = private_dir(private_dir(cache() / "sandbox") / "turns")
    with FileLock(folder / (re.sub(r"[^A-Za-z0-9_.-]", "_", container) + ".lock"), timeout=120):
        yield
