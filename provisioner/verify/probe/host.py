"""What a node shows of itself outside of its GPUs, as one document (host.json).

Files of /proc, /sys, /etc and /var are read in one walk, and programs are asked side by side, each with its own
deadline. A value that is not there is left out; nothing that can hang is touched in the walk (no network filesystem, no
command line of a process). Only what checks judge travels: no passwords, no environment beyond CUDA's and NCCL's.
Standard library only, Python 3.8 or newer.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

from provisioner.verify.probe.host_cpu import edac, governors, limits, processes, processors
from provisioner.verify.probe.host_disks import mounts, nvme, remote, smart, space
from provisioner.verify.probe.host_network import addresses, bonds, default_routes, interfaces, listening, resolves
from provisioner.verify.probe.host_platform import (
    allowances,
    amd_pages,
    fstab,
    fuse,
    instance,
    kernel_keys,
    libraries,
    pcie,
    root_password,
    secure_boot,
)
from provisioner.verify.probe.host_software import (
    boots,
    cdi,
    crashes,
    denied,
    driver_on_disk,
    environment,
    gpu_links,
    kernels,
    repo_keys,
    sources,
    sshd,
    vendor_software,
)
from provisioner.verify.probe.runner import ASK, COLLECTORS, lines_of, result, run, texts

HOST_FILES = (
    "proc/meminfo", "proc/cmdline", "proc/uptime", "proc/loadavg", "proc/swaps", "proc/sys/fs/file-nr",
    "proc/sys/kernel/random/boot_id", "proc/sys/kernel/pid_max", "proc/sys/kernel/numa_balancing",
    "proc/sys/kernel/tainted", "proc/sys/vm/max_map_count", "proc/sys/vm/nr_hugepages",
    "proc/sys/net/netfilter/nf_conntrack_count", "proc/sys/net/netfilter/nf_conntrack_max",
    "sys/kernel/mm/transparent_hugepage/enabled",
    "sys/devices/system/clocksource/clocksource0/current_clocksource", "sys/devices/system/node/has_cpu",
    "sys/devices/system/cpu/smt/active", "sys/class/dmi/id/sys_vendor", "sys/class/dmi/id/product_name",
    "sys/class/dmi/id/bios_version", "etc/machine-id", "etc/hostname", "etc/resolv.conf",
    "etc/ssh/ssh_host_ed25519_key.pub", "run/cloud-init/result.json", "run/cloud-init/status.json", "proc/buddyinfo",
    "sys/kernel/security/lockdown", "sys/module/module/parameters/sig_enforce",
)  # fmt: skip
TRACKING = ["chronyc", "-c", "tracking"]
SYNC = ["timedatectl", "show", "--property=NTPSynchronized", "--property=NTP"]
DOCKER = (
    '{"version":{{json .ServerVersion}},"driver":{{json .Driver}},"root":{{json .DockerRootDir}},'
    '"cgroup":{{json .CgroupDriver}},"live_restore":{{json .LiveRestoreEnabled}},"runtimes":{{json .Runtimes}},'
    '"default_runtime":{{json .DefaultRuntime}},"errors":{{json .ServerErrors}}}'
)


def host(deadline: float, _request: dict[str, Any]) -> dict[str, Any]:
    """Everything, each part by itself: one that fails is left out and named in "failed"."""
    started = time.monotonic()
    collected: dict[str, Any] = {"time": time.time(), "failed": {}}
    parts: list[tuple[str, Callable[[], Any]]] = [
        ("df", space),
        ("sync", lambda: run(SYNC, ASK)),
        ("sshd", sshd),
        ("driver_on_disk", driver_on_disk),
        ("docker", lambda: run(["docker", "info", "--format", DOCKER], ASK)),
        ("smart", smart),
        ("remote", remote),
        ("libraries", libraries),
        ("tracking", lambda: run(TRACKING, ASK)),
        ("allowances", lambda: allowances(default_routes())),
        ("resolves", resolves),
    ]
    walked: list[tuple[str, Callable[[], Any]]] = [
        ("files", lambda: texts("", HOST_FILES)),
        ("cpu", processors), ("governors", governors), ("edac", edac), ("mounts", mounts),
        ("interfaces", interfaces), ("bonds", bonds), ("addresses", addresses), ("listening", listening),
        ("processes", processes), ("limits", limits), ("crashes", crashes), ("boots", boots), ("cdi", cdi),
        ("sources", sources), ("kernels", kernels), ("nvme", nvme), ("environment", environment),
        ("oom_kills", lambda: one_line("/proc/vmstat", "oom_kill ")),
        ("default_routes", default_routes),
        ("configured", lambda: os.stat("/etc/gpuprov/node.json").st_mtime),  # noqa: PTH116 (a plain script)
        ("denied", denied), ("repo_keys", repo_keys), ("amd_pages", amd_pages),
        ("gpu_links", gpu_links), ("pcie", pcie), ("instance", instance), ("fstab", fstab), ("fuse", fuse),
        ("root_password", root_password), ("secure_boot", secure_boot),
        ("kernel_keys", kernel_keys),
        ("vendor", vendor_software),
        ("cgroup2", lambda: os.path.exists("/sys/fs/cgroup/cgroup.controllers")),  # noqa: PTH110 (a plain script)
        ("hostname", socket.gethostname),
    ]  # fmt: skip

    def part(name: str, ask: Callable[[], Any]) -> None:
        try:
            collected[name] = ask()
        except FileNotFoundError:
            pass
        except Exception as error:  # one part must not cost the others
            collected["failed"][name] = repr(error)[:200]

    threads = [threading.Thread(target=part, args=item, daemon=True) for item in parts]
    for thread in threads:
        thread.start()
    for item in walked:
        part(*item)
    for thread in threads:
        thread.join(max(0.0, started + deadline - 0.5 - time.monotonic()))
    return result(json.dumps(dict(collected)), 0, time.monotonic() - started)


def one_line(path: str, start: str) -> str | None:
    """The first line that begins so."""
    return next((line.strip() for line in lines_of(path) if line.startswith(start)), None)


COLLECTORS["host.json"] = host
