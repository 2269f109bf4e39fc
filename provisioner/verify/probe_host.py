"""The second half of the probe: what a node shows of itself outside of its GPUs, as one document (host.json).

Files of /proc, /sys, /etc and /var are read in one walk, and five programs are asked side by side, each with its own
deadline. A value that is not there is left out; nothing that can hang is touched in the walk (no network filesystem, no
command line of a process). Only what checks judge travels: no passwords, no environment beyond CUDA's and NCCL's.

Standard library only, Python 3.8 or newer, as probe.py, behind which collect.py appends this text.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import resource
import socket
import struct
import threading
import time
from collections.abc import Callable
from typing import Any

from provisioner.verify.probe import WALKS, listed, result, run, texts

HOST_FILES = (
    "proc/meminfo", "proc/cmdline", "proc/uptime", "proc/loadavg", "proc/swaps", "proc/mdstat", "proc/sys/fs/file-nr",
    "proc/sys/kernel/random/boot_id", "proc/sys/kernel/pid_max", "proc/sys/kernel/numa_balancing",
    "proc/sys/vm/max_map_count", "proc/sys/vm/nr_hugepages", "proc/sys/net/netfilter/nf_conntrack_count",
    "proc/sys/net/netfilter/nf_conntrack_max", "sys/kernel/mm/transparent_hugepage/enabled",
    "sys/devices/system/clocksource/clocksource0/current_clocksource", "sys/devices/system/node/has_cpu",
    "sys/devices/system/cpu/smt/active", "sys/class/dmi/id/sys_vendor", "sys/class/dmi/id/product_name",
    "sys/class/dmi/id/bios_version", "etc/machine-id", "etc/hostname", "etc/resolv.conf",
    "etc/ssh/ssh_host_ed25519_key.pub", "run/cloud-init/result.json",
)  # fmt: skip
INTERFACE_FILES = ("mtu", "speed", "operstate", "carrier_down_count", "type", "address")
COUNTS = ("rx_packets", "tx_packets", "rx_errors", "tx_errors", "rx_dropped", "tx_dropped")
SEVERAL = re.compile(r"^(veth|br-|docker|cni|flannel|cali|lxc|tap|virbr)")
"""Interfaces that belong to containers."""

FOREIGN = ("/docker/", "/containerd/", "/containers/", "/kubelet/")
"""Parts of the places where containers' filesystems are mounted."""
DF = ["df", "--local", "--block-size=1", "--output=target,source,fstype,size,used,avail,itotal,iused"]
ASK = 20.0
"""Seconds for each program: on a node at full load a start alone takes some."""
SYNC = ["timedatectl", "show", "--property=NTPSynchronized", "--property=NTP"]
DOCKER = (
    '{"version":{{json .ServerVersion}},"driver":{{json .Driver}},"root":{{json .DockerRootDir}},'
    '"cgroup":{{json .CgroupDriver}},"live_restore":{{json .LiveRestoreEnabled}},"runtimes":{{json .Runtimes}},'
    '"default_runtime":{{json .DefaultRuntime}},"errors":{{json .ServerErrors}}}'
)
SSHD = ("passwordauthentication", "permitrootlogin", "kbdinteractiveauthentication", "port", "listenaddress")
VARIABLES = ("CUDA_", "NCCL_", "TORCH_", "PYTORCH_", "NVIDIA_", "FI_")
"""Beginnings of variables of /etc/environment that travel."""


def host(deadline: float, _request: dict[str, Any]) -> dict[str, Any]:
    """Everything, each part by itself: one that fails is left out and named in "failed"."""
    started = time.monotonic()
    found: dict[str, Any] = {"time": time.time(), "failed": {}}
    asked: list[tuple[str, Callable[[], Any]]] = [
        ("df", space),
        ("sync", lambda: run(SYNC, ASK)),
        ("sshd", sshd),
        ("docker", lambda: run(["docker", "info", "--format", DOCKER], ASK)),
        ("smart", smart),
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
        ("gpu_links", gpu_links),
        ("hostname", socket.gethostname),
    ]  # fmt: skip

    def part(name: str, ask: Callable[[], Any]) -> None:
        try:
            found[name] = ask()
        except FileNotFoundError:
            pass
        except Exception as error:  # one part must not cost the others
            found["failed"][name] = repr(error)[:200]

    threads = [threading.Thread(target=part, args=item, daemon=True) for item in asked]
    for thread in threads:
        thread.start()
    for item in walked:
        part(*item)
    for thread in threads:
        thread.join(max(0.0, started + deadline - 0.5 - time.monotonic()))
    return result(json.dumps(dict(found)), 0, time.monotonic() - started)


def lines_of(path: str, limit: int = 1 << 20) -> list[str]:
    with open(path, "rb") as stream:  # noqa: PTH123
        return stream.read(limit).decode("utf-8", "replace").splitlines()


def one_line(path: str, start: str) -> str | None:
    """The first line that begins so."""
    return next((line.strip() for line in lines_of(path) if line.startswith(start)), None)


def processors() -> dict[str, Any]:
    """/proc/cpuinfo in a few numbers: of 192 processors it is a quarter of a MiB."""
    models: dict[str, int] = {}
    places, cores, count, clock = set(), set(), 0, []
    package = "0"
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
        elif key == "core id":
            cores.add((package, value))
        elif key == "cpu MHz":
            with contextlib.suppress(ValueError):
                clock.append(float(value))
    return {
        "processors": count, "models": models, "sockets": len(places) or None, "cores": len(cores) or None,
        "mhz": [min(clock), max(clock)] if clock else None,
    }  # fmt: skip


def governors() -> dict[str, int]:
    found: dict[str, int] = {}
    base = "/sys/devices/system/cpu"
    for name in listed(base):
        if re.fullmatch("cpu[0-9]+", name):
            for value in texts(base + "/" + name + "/cpufreq", ["scaling_governor"]).values():
                found[value] = found.get(value, 0) + 1
    return found


def edac() -> dict[str, dict[str, str]]:
    base = "/sys/devices/system/edac/mc"
    return {m: texts(base + "/" + m, ["ue_count", "ce_count"]) for m in listed(base) if re.fullmatch("mc[0-9]+", m)}


def mounts() -> list[str]:
    """Mounts without those of the kernel's own filesystems and of containers."""
    kept = []
    for line in lines_of("/proc/self/mounts"):
        words = line.split(" ")
        own = len(words) >= 4 and not any(part in words[1] for part in FOREIGN)
        if own and not re.match(r"^(cgroup|proc$|sysfs|nsfs|mqueue|devpts|bpf|tracefs|debugfs)", words[2]):
            kept.append(" ".join([*words[:3], words[3][:200]]))
    return kept[:500]


def space() -> dict[str, Any]:
    """df of local filesystems: a server that does not answer must not hold it up."""
    said = run(DF, ASK)
    said["text"] = "\n".join(
        " ".join(row.split()) for row in said["text"].splitlines() if not any(p in row for p in FOREIGN)
    )
    return said


def interfaces() -> dict[str, dict[str, Any]]:
    base = "/sys/class/net"
    found: dict[str, dict[str, Any]] = {}
    for name in listed(base):
        if not SEVERAL.match(name) and len(found) < 128:
            row: dict[str, Any] = texts(base + "/" + name, INTERFACE_FILES)
            row["counts"] = texts(base + "/" + name + "/statistics", COUNTS)
            row["device"] = os.path.exists(base + "/" + name + "/device")  # noqa: PTH110
            found[name] = row
    return found


def bonds() -> dict[str, str]:
    return texts("/proc/net/bonding", listed("/proc/net/bonding"))


def addresses() -> list[str]:
    """The node's own addresses, from the kernel's routing tables."""
    found, last = set(), ""
    with contextlib.suppress(OSError):
        for line in lines_of("/proc/net/fib_trie"):
            if "|-- " in line:
                last = line.split("|-- ")[1].strip()
            elif "/32 host LOCAL" in line:
                found.add(last)
    with contextlib.suppress(OSError):
        for line in lines_of("/proc/net/if_inet6"):
            found.add(socket.inet_ntop(socket.AF_INET6, bytes.fromhex(line.split()[0])))
    return sorted(found)[:256]


def default_routes() -> list[str]:
    """Interfaces that lead to everywhere, IPv4 and IPv6."""
    found: set[str] = set()
    with contextlib.suppress(OSError):
        rows = [line.split() for line in lines_of("/proc/net/route")]
        found.update(row[0] for row in rows if len(row) > 7 and row[1] == row[7] == "00000000")
    with contextlib.suppress(OSError):
        rows = [line.split() for line in lines_of("/proc/net/ipv6_route")]
        found.update(
            row[9] for row in rows if len(row) > 9 and row[0] == "0" * 32 and row[1] == "00" and row[9] != "lo"
        )
    return sorted(found)


def listening() -> list[str]:
    """Sockets that wait for connections, as "tcp 0.0.0.0 22". The kernel lists those before all others."""
    found = set()
    for kind, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        with contextlib.suppress(OSError):
            for line in lines_of("/proc/net/" + kind, 4 << 20)[1:]:
                words = line.split()
                if len(words) > 3 and words[3] == "0A":
                    place, _, port = words[1].partition(":")
                    # Four bytes at a time, each in the order of the machine.
                    raw = bytes.fromhex(place)
                    swapped = b"".join(
                        struct.pack("=I", *struct.unpack(">I", raw[i : i + 4])) for i in range(0, len(raw), 4)
                    )
                    found.add(f"tcp {socket.inet_ntop(family, swapped)} {int(port, 16)}")
    return sorted(found)[:1000]


def processes() -> dict[str, Any]:
    """How many there are, zombies, and those that stay blocked in the kernel for a second without a single switch."""
    count, zombies, blocked = 0, [], {}
    for pid in listed("/proc"):
        if pid.isdigit():
            state = process(pid)
            if state is None:
                continue
            count += 1
            if state[1] == "Z":
                zombies.append([state[0], state[3]])
            elif state[1] == "D" and state[2] != "2":
                blocked[pid] = (state, switches(pid))
    if blocked:
        time.sleep(1.0)
    stuck = [state[0] for pid, (state, before) in blocked.items() if stays(pid, before)]
    return {"count": count, "zombies": zombies[:200], "zombie_count": len(zombies), "stuck": stuck[:50]}


def process(pid: str) -> tuple[str, str, str, float] | None:
    """Name, state, parent and age in seconds."""
    said = texts("/proc/" + pid, ["stat"]).get("stat", "")
    name, _, rest = said.partition("(")[2].rpartition(")")
    words = rest.split()
    if len(words) < 20:
        return None
    age = float(texts("/proc", ["uptime"]).get("uptime", "0").split()[0]) - int(words[19]) / os.sysconf("SC_CLK_TCK")
    return name[:40], words[0], words[1], round(max(0.0, age), 1)


def switches(pid: str) -> list[str]:
    said = texts("/proc/" + pid, ["status"]).get("status", "")
    return [line for line in said.splitlines() if "ctxt_switches" in line]


def stays(pid: str, before: list[str]) -> bool:
    now = process(pid)
    return now is not None and now[1] == "D" and switches(pid) == before


def limits() -> dict[str, Any]:
    """Of this session: the nearest process above the probe that is not root's, else the probe; of services that start
    jobs: theirs."""
    found: dict[str, Any] = {}
    own = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    shown = ["unlimited" if value == resource.RLIM_INFINITY else str(value) for value in own]
    found["session"] = {"user": "root", "Max locked memory": shown}
    found["session"]["Max open files"] = [str(value) for value in resource.getrlimit(resource.RLIMIT_NOFILE)]
    pid = str(os.getppid())
    for _ in range(12):
        said = texts("/proc/" + pid, ["status"]).get("status", "")
        fields = dict(line.split(":", 1) for line in said.splitlines() if ":" in line)
        user = fields.get("Uid", "0").split()[0]
        if user != "0":
            found["session"] = {"user": user, **limits_of(pid)}
            break
        pid = fields.get("PPid", "0").strip()
        if pid in ("0", "1"):
            break
    for other in listed("/proc"):
        if other.isdigit():
            name = texts("/proc/" + other, ["comm"]).get("comm")
            if name in ("dockerd", "containerd", "slurmd", "kubelet", "k3s", "sshd") and name not in found:
                found[name] = limits_of(other)
    return found


def limits_of(pid: str) -> dict[str, list[str]]:
    found = {}
    for line in texts("/proc/" + pid, ["limits"]).get("limits", "").splitlines():
        for name in ("Max locked memory", "Max open files", "Max processes"):
            if line.startswith(name):
                found[name] = line[len(name) :].split()[:2]
    return found


def crashes() -> list[list[Any]]:
    """What crashed kernels left: [path, time]. Of /var/crash only dumps of kernels, not of programs."""
    found: list[list[Any]] = []
    for folder, pattern in (
        ("/sys/fs/pstore", "dmesg|console"),
        ("/var/lib/systemd/pstore", "."),
        ("/var/crash", r"[0-9]{8,}|.*vmcore|linux-image|127\.0\.0\.1-"),
    ):
        for name in listed(folder):
            if re.match(pattern, name):
                with contextlib.suppress(OSError):
                    found.append([folder + "/" + name, os.stat(folder + "/" + name).st_mtime])  # noqa: PTH116
    return found[:50]


TIMES = "qqq16s20s4x" if os.uname().machine == "aarch64" else "iii16s20s"
RECORD = struct.Struct("=hxxi32s4s32s256shh" + TIMES)
"""A record of wtmp (utmp(5)): type, process, line, id, user, host, exit status, session, seconds, microseconds, …; the
times are of 64 bits on arm64 (unverified)."""


def boots() -> list[list[Any]]:
    """Starts and orderly shutdowns that wtmp remembers, oldest first."""
    with open("/var/log/wtmp", "rb") as stream:  # noqa: PTH123
        size = stream.seek(0, 2)
        stream.seek(max(0, size - 2000 * RECORD.size) // RECORD.size * RECORD.size)
        raw = stream.read(2000 * RECORD.size)
    found: list[list[Any]] = []
    for record in RECORD.iter_unpack(raw[: len(raw) // RECORD.size * RECORD.size]):
        user = record[4].rstrip(b"\0")
        if record[0] == 2:
            found.append(["boot", record[9]])
        elif record[0] == 1 and user == b"shutdown":
            found.append(["shutdown", record[9]])
    return found[-40:]


def cdi() -> dict[str, list[str]]:
    """Descriptions of GPUs for containers: their kinds, the names of devices, the driver's library that they mount."""
    found = {}
    for folder in ("/etc/cdi", "/run/cdi"):
        for name in listed(folder):
            if name.endswith((".yaml", ".yml", ".json")):
                rows = [line.strip() for line in lines_of(folder + "/" + name)]
                kept = [row for row in rows if re.match(r"-? ?\"?(name|kind)\"?:", row) or "libcuda.so." in row]
                found[folder + "/" + name] = [row[:300] for row in kept[:400]]
    return found


def gpu_links() -> list[str]:
    """Links to NVIDIA's devices; systemd knows by them which devices a container may use."""
    return [name for name in listed("/dev/char") if name.startswith("195:")][:64]


def sources() -> list[str]:
    """Addresses of apt's repositories that are switched on, without anybody's password."""
    files = ["/etc/apt/sources.list"]
    files += [
        "/etc/apt/sources.list.d/" + n for n in listed("/etc/apt/sources.list.d") if n.endswith((".list", ".sources"))
    ]
    found: set[str] = set()
    for file in files:
        with contextlib.suppress(OSError):
            text = "\n".join(line for line in lines_of(file) if not line.lstrip().startswith("#"))
            for block in re.split(r"\n\s*\n", text):
                if not re.search(r"(?im)^enabled:\s*no\b", block):
                    found.update(re.sub(r"//[^/@\s]*@", "//", one) for one in re.findall(r"[a-z]+:/[^\s\]]+", block))
    return sorted(found)[:200]


def kernels() -> dict[str, bool]:
    """Kernels that have modules here, and whether the NVIDIA driver's is among them."""
    found = {}
    for release in listed("/lib/modules"):
        base = "/lib/modules/" + release
        if os.path.exists(base + "/modules.dep"):  # noqa: PTH110
            with contextlib.suppress(OSError):
                found[release] = any(
                    re.search(r"/nvidia\.ko", line) for line in lines_of(base + "/modules.dep", 8 << 20)
                )
    return found


def nvme() -> dict[str, dict[str, str]]:
    base = "/sys/class/nvme"
    return {name: texts(base + "/" + name, ["model", "serial", "state", "transport"]) for name in listed(base)}


def smart() -> dict[str, Any]:
    """`nvme smart-log` of every NVMe disk, where the tool is installed."""
    found: dict[str, Any] = {}
    names = [name for name in listed("/sys/class/nvme") if re.fullmatch("nvme[0-9]+", name)][:32]

    def ask(name: str) -> None:
        found[name] = run(["nvme", "smart-log", "/dev/" + name, "--output-format=json"], ASK)

    threads = [threading.Thread(target=ask, args=(name,), daemon=True) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(ASK + 1)
    return {name: one["text"] for name, one in dict(found).items() if one["rc"] == 0}


def environment() -> list[str]:
    return [line.strip()[:200] for line in lines_of("/etc/environment") if line.strip().startswith(VARIABLES)]


def sshd() -> dict[str, Any]:
    """The settings that sshd would start with; of its keys, paths and users nothing travels."""
    said = run(["sshd", "-T"], ASK)
    said["text"] = "\n".join(line for line in said["text"].splitlines() if line.split(" ")[0].lower() in SSHD)
    return said


def resolves() -> dict[str, Any]:
    """How long the node takes to find its own name, and what it finds; once more where it took long, because the probe
    itself is a load for a moment."""
    seconds, error, found = 0.0, "", set()
    for _ in range(2):
        started = time.monotonic()
        try:
            found = {str(one[4][0]) for one in socket.getaddrinfo(socket.gethostname(), None)}
        except OSError as failure:
            error = str(failure)[:200]
        took = time.monotonic() - started
        seconds = min(seconds, took) if seconds else took
        if took < 0.5:
            break
    return {"seconds": round(seconds, 3), "addresses": sorted(found), "error": error}


WALKS["host.json"] = host
