"""A host's processors, memory errors, processes and limits, for host.json.

Standard library only, Python 3.8 or newer.
"""

from __future__ import annotations

import contextlib
import os
import re
import resource
import time
from typing import Any

from provisioner.verify.probe.runner import lines_of, listed, texts

PEOPLE = range(1000, 60000)
"""User numbers of people (login.defs(5): UID_MIN, UID_MAX)."""
LIMITS = {
    "Max locked memory": resource.RLIMIT_MEMLOCK, "Max open files": resource.RLIMIT_NOFILE,
    "Max processes": resource.RLIMIT_NPROC, "Max stack size": resource.RLIMIT_STACK,
}  # fmt: skip
"""As /proc/PID/limits calls them."""
NAMED = ("nvlsm",)
"""Programs that no unit of their own tells of."""


def processors() -> dict[str, Any]:
    """/proc/cpuinfo in a few numbers: of 192 processors it is a quarter of a MiB."""
    models: dict[str, int] = {}
    places, cores, count, clock = set(), set(), 0, []
    fastest: dict[str, float] = {}
    package, mhz = "0", 0.0
    for line in lines_of("/proc/cpuinfo", 8 << 20):
        key, _, value = line.partition(":")
        key, value = key.strip(), value.strip()
        if key == "processor":
            count += 1
        elif key in ("model name", "CPU part"):
            models[value] = models.get(value, 0) + 1
        elif key == "physical id":
            package = value
            places.add(value)
            fastest[package] = max(fastest.get(package, 0.0), mhz)
        elif key == "core id":
            cores.add((package, value))
        elif key == "cpu MHz":
            with contextlib.suppress(ValueError):
                mhz = float(value)
                clock.append(mhz)
    return {
        "processors": count, "models": models, "sockets": len(places) or None, "cores": len(cores) or None,
        "mhz": [min(clock), max(clock)] if clock else None,
        "socket_mhz": fastest if clock else {}, "base_mhz": base_mhz(),
    }  # fmt: skip


def base_mhz() -> float | None:
    """The clock below the turbo range: of intel_pstate in kHz, else of ACPI CPPC in MHz (Linux admin-guide,
    pm/intel_pstate and acpi/cppc_sysfs)."""
    first = "/sys/devices/system/cpu/cpu0"
    for folder, name, unit in (("/cpufreq", "base_frequency", 1000.0), ("/acpi_cppc", "nominal_freq", 1.0)):
        value = texts(first + folder, [name]).get(name, "").strip()
        if value.isdigit() and int(value) > 0:
            return int(value) / unit
    return None


def governors() -> dict[str, int]:
    counts: dict[str, int] = {}
    base = "/sys/devices/system/cpu"
    for name in listed(base):
        if re.fullmatch("cpu[0-9]+", name):
            for value in texts(base + "/" + name + "/cpufreq", ["scaling_governor"]).values():
                counts[value] = counts.get(value, 0) + 1
    return counts


def edac() -> dict[str, dict[str, str]]:
    base = "/sys/devices/system/edac/mc"
    return {m: texts(base + "/" + m, ["ue_count", "ce_count"]) for m in listed(base) if re.fullmatch("mc[0-9]+", m)}


def processes() -> dict[str, Any]:
    """How many there are, zombies, and those that stay blocked in the kernel for a second without a single switch."""
    count, zombies, blocked = 0, [], {}
    users: dict[str, int] = {}
    running = set()
    for pid in listed("/proc"):
        if pid.isdigit():
            state = process(pid)
            if state is None:
                continue
            count += 1
            if state[0] in NAMED:
                running.add(state[0])
            with contextlib.suppress(OSError):
                owner = os.stat("/proc/" + pid).st_uid  # noqa: PTH116 (a plain script)
                if owner in PEOPLE:
                    users[str(owner)] = users.get(str(owner), 0) + 1
            if state[1] == "Z":
                zombies.append([state[0], state[3]])
            elif state[1] == "D" and state[2] != "2":
                blocked[pid] = (state, switches(pid))
    if blocked:
        time.sleep(1.0)
    stuck = [state[0] for pid, (state, switches_before) in blocked.items() if stays(pid, switches_before)]
    return {
        "count": count, "zombies": zombies[:200], "zombie_count": len(zombies), "stuck": stuck[:50], "users": users,
        "running": sorted(running),
    }  # fmt: skip


def process(pid: str) -> tuple[str, str, str, float] | None:
    """Name, state, parent and age in seconds."""
    text = texts("/proc/" + pid, ["stat"]).get("stat", "")
    name, _, fields_text = text.partition("(")[2].rpartition(")")
    fields = fields_text.split()
    if len(fields) < 20:
        return None
    age = float(texts("/proc", ["uptime"]).get("uptime", "0").split()[0]) - int(fields[19]) / os.sysconf("SC_CLK_TCK")
    return name[:40], fields[0], fields[1], round(max(0.0, age), 1)


def switches(pid: str) -> list[str]:
    text = texts("/proc/" + pid, ["status"]).get("status", "")
    return [line for line in text.splitlines() if "ctxt_switches" in line]


def stays(pid: str, switches_before: list[str]) -> bool:
    current = process(pid)
    return current is not None and current[1] == "D" and switches(pid) == switches_before


def limits() -> dict[str, Any]:
    """Of this session: the nearest process above the probe that is not root's, else the probe; of services that start
    jobs: theirs."""
    by_process: dict[str, Any] = {}
    by_process["session"] = {"user": "root"}
    for limit, kind in LIMITS.items():
        pair = resource.getrlimit(kind)
        by_process["session"][limit] = [
            "unlimited" if value == resource.RLIM_INFINITY else str(value) for value in pair
        ]
    pid = str(os.getppid())
    for _ in range(12):
        text = texts("/proc/" + pid, ["status"]).get("status", "")
        fields = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
        user = fields.get("Uid", "0").split()[0]
        if user != "0":
            by_process["session"] = {"user": user, **limits_of(pid)}
            break
        pid = fields.get("PPid", "0").strip()
        if pid in ("0", "1"):
            break
    for other in listed("/proc"):
        if other.isdigit():
            name = texts("/proc/" + other, ["comm"]).get("comm")
            if name in ("dockerd", "containerd", "slurmd", "kubelet", "k3s", "sshd") and name not in by_process:
                by_process[name] = limits_of(other)
    return by_process


def limits_of(pid: str) -> dict[str, list[str]]:
    pairs = {}
    for line in texts("/proc/" + pid, ["limits"]).get("limits", "").splitlines():
        for name in LIMITS:
            if line.startswith(name):
                pairs[name] = line[len(name) :].split()[:2]
    return pairs
