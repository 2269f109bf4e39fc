"""host.json: what a node shows of itself outside of its GPUs, put together by probe/host.py.

The probe copies files and answers; their formats are the kernel's (proc(5), Documentation/ABI/*/sysfs-*, utmp(5)) and
the programs' (df of GNU coreutils, timedatectl, sshd -T, docker info, nvme smart-log). What is absent or not as known
is None: only a text that is no such document at all is unreadable.
"""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from provisioner.verify.parsers import Unreadable, first_line, whole_number
from provisioner.verify.parsers import host_hardware as hw
from provisioner.verify.parsers import host_platform as pl
from provisioner.verify.parsers import host_software as sw
from provisioner.verify.parsers.untrusted import (
    read_answer,
    read_float,
    read_map,
    read_object,
    read_strings,
    read_text,
    read_whole,
    strict_float,
)
from provisioner.verify.tool import Tool

BLOCK_ORDER = 8
"""2^8 pages, 1 MiB: what huge pages and the rings of network cards are made of (github facebookresearch/gcm)."""


@dataclass(frozen=True, slots=True)
class Host:
    """Times are seconds since 1970 by the node's own clock."""

    time: float
    hostname: str | None = None
    machine_id: str | None = None
    host_key: str | None = None
    boot_id: str | None = None
    uptime: float | None = None
    configured: float | None = None
    """When the roles last wrote down what they did."""
    boots: tuple[tuple[str, int], ...] | None = None
    """("boot" | "shutdown", time), oldest first."""
    system: tuple[str, str, str] | None = None
    """Maker, product and BIOS version."""
    memory: hw.Memory | None = None
    cpu: hw.Cpu | None = None
    load: float | None = None
    """Average of 15 minutes."""
    numa_nodes: int | None = None
    """Those that have processors."""
    cmdline: tuple[str, ...] | None = None
    clocksource: str | None = None
    governors: Mapping[str, int] | None = None
    huge_pages_mode: str | None = None
    settings: Mapping[str, int] = field(default_factory=dict)
    """Kernel settings that are numbers, by their path below /proc/sys."""
    swaps: tuple[str, ...] | None = None
    memory_errors: tuple[int, int] | None = None
    """Corrected and uncorrected errors of all memory controllers; None where no driver counts them."""
    oom_kills: int | None = None
    synchronised: bool | None = None
    time_service: bool | None = None
    mounts: tuple[hw.Mount, ...] | None = None
    space: tuple[hw.Filesystem, ...] | None = None
    disks: tuple[hw.Disk, ...] | None = None
    interfaces: tuple[sw.Interface, ...] | None = None
    bonds: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Bond → its slaves that are down."""
    addresses: tuple[str, ...] | None = None
    default_routes: tuple[str, ...] | None = None
    listening: tuple[sw.Socket, ...] | None = None
    resolves: tuple[str, ...] | None = None
    resolve_seconds: float | None = None
    nameservers: tuple[str, ...] | None = None
    processes: sw.Processes | None = None
    limits: Mapping[str, sw.Limits] = field(default_factory=dict)
    crashes: tuple[tuple[str, float], ...] | None = None
    cdi: tuple[sw.Cdi, ...] | None = None
    gpu_links: tuple[str, ...] | None = None
    """Links to NVIDIA's devices in /dev/char."""
    docker: sw.Docker | None = None
    """None where docker is not installed."""
    sshd: Mapping[str, tuple[str, ...]] | None = None
    sources: tuple[str, ...] | None = None
    kernels: Mapping[str, bool] | None = None
    """Kernels with modules, and whether the NVIDIA driver's is among them."""
    kernel_modules: Mapping[str, tuple[str, ...]] | None = None
    """Kernels with modules, and which of those that GPU nodes work by (probe/host_software.py) are among them."""
    driver_on_disk: pl.OnDisk | None = None
    """None where modinfo finds none."""
    vendor: Mapping[str, tuple[str, ...]] | None = None
    """What a cloud's GPU image brings without a package: cuda, efa → versions; None where an older probe looked."""
    environment: Mapping[str, str] | None = None
    cloud_init: tuple[str, ...] | None = None
    """Errors of the first boot; None where cloud-init is not there or has not finished."""
    cloud_init_stage: tuple[str | None, tuple[str, ...]] | None = None
    """The stage in which it is, None where it has ended, and errors that it got over."""
    machine_type: str | None = None
    """What the cloud's metadata service calls the machine."""
    pcie: pl.Pcie | None = None
    fstab: tuple[pl.Entry, ...] | None = None
    fuse: tuple[pl.Fuse, ...] | None = None
    remote: tuple[pl.Remote, ...] | None = None
    """File systems of the network; None where an older probe looked."""
    libraries: tuple[str, ...] | None = None
    """Of NVIDIA's driver, as the dynamic loader finds them."""
    libraries_asked: bool | None = None
    """Whether the probe looked for them; older ones did not."""
    free_blocks: Mapping[str, int] | None = None
    """NUMA node → contiguous free blocks of BLOCK_ORDER pages and more."""
    clock_offset: float | None = None
    """Seconds by which chrony holds the clock to be off."""
    allowances: Mapping[str, int] = field(default_factory=dict)
    """Counter → packets that the hypervisor held back because the machine was over its share of the network."""
    repo_keys: Mapping[str, str] | None = None
    """File of a key in /etc/apt/keyrings → its fingerprint, "" where it has none; None where an older probe looked."""
    denied: tuple[str, ...] | None = None
    """Modules that modprobe does not load by itself; None where an older probe looked."""
    amd_pages: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """AMD's GPU (card1) → its bad pages: R set aside, P waiting for that, F could not be."""
    root_password: str | None = None
    """none, locked or set."""
    secure_boot: bool | None = None
    signed_only: bool | None = None
    """Whether the kernel takes no module without a signature."""
    kernel_keys: tuple[str, ...] | None = None
    """Names of the certificates that the kernel knows; None where they were not asked for."""
    cgroup2: bool | None = None
    """Whether control groups are of version 2; None where an older probe looked."""

    def at(self, path: str) -> hw.Filesystem | None:
        """The filesystem that a directory is on."""
        inside = [fs for fs in self.space or () if path == fs.place or path.startswith(fs.place.rstrip("/") + "/")]
        return max(inside, key=lambda fs: len(fs.place), default=None)

    @property
    def public(self) -> tuple[str, ...]:
        """Own addresses that the whole internet can route to."""
        return tuple(a for a in self.addresses or () if ipaddress.ip_address(a).is_global)


def parse(text: str) -> Host:
    """The document, or Unreadable."""
    try:
        document = json.loads(text)
        when = strict_float(document["time"])
        if when is None:
            raise TypeError("no time")
        if not isinstance(document.get("files", {}), dict):
            raise TypeError("files is not an object")
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise Unreadable(f"not what the probe writes: {first_line(text)}") from error
    return _host(document, when)


def _host(d: Mapping[str, Any], when: float) -> Host:
    files = {str(k): str(v) for k, v in read_map(d.get("files")).items()}
    uptime = read_float(files.get("proc/uptime", "").split(" ")[0])
    load = files.get("proc/loadavg", "").split()
    resolves = read_map(d.get("resolves"))
    sync = read_answer(d.get("sync"))
    timedatectl = dict(line.split("=", 1) for line in (sync or "").splitlines() if "=" in line)
    secure = boot if isinstance(boot := d.get("secure_boot"), bool) else None
    dmi = [files.get(f"sys/class/dmi/id/{name}", "") for name in ("sys_vendor", "product_name", "bios_version")]
    return Host(
        time=when,
        hostname=read_text(d.get("hostname")),
        machine_id=files.get("etc/machine-id") or None,
        host_key=" ".join(files.get("etc/ssh/ssh_host_ed25519_key.pub", "").split()[:2]) or None,
        boot_id=files.get("proc/sys/kernel/random/boot_id") or None,
        uptime=uptime,
        configured=read_float(d.get("configured")),
        boots=sw.read_boots(d.get("boots")),
        system=(dmi[0], dmi[1], dmi[2]) if any(dmi) else None,
        memory=hw.read_memory(files.get("proc/meminfo")),
        cpu=hw.read_cpu(read_map(d.get("cpu"))),
        load=read_float(load[2]) if len(load) > 2 else None,
        numa_nodes=hw.read_ranges(files.get("sys/devices/system/node/has_cpu")),
        cmdline=hw.read_cmdline(files.get("proc/cmdline")),
        clocksource=files.get("sys/devices/system/clocksource/clocksource0/current_clocksource") or None,
        governors={k: n for k, v in read_map(d.get("governors")).items() if (n := read_whole(v)) is not None} or None,
        huge_pages_mode=hw.read_chosen(files.get("sys/kernel/mm/transparent_hugepage/enabled")),
        settings=hw.read_settings(files),
        swaps=hw.read_swaps(files.get("proc/swaps")),
        memory_errors=hw.read_edac(read_map(d.get("edac"))),
        oom_kills=whole_number(str(d.get("oom_kills") or "").partition(" ")[2]),
        synchronised={"yes": True, "no": False}.get(timedatectl.get("NTPSynchronized", "")),
        time_service={"yes": True, "no": False}.get(timedatectl.get("NTP", "")),
        mounts=hw.read_mounts(d.get("mounts")),
        space=hw.read_space(read_answer(d.get("df"))),
        disks=hw.read_disks(read_map(d.get("nvme")), read_map(d.get("smart")))
        if isinstance(d.get("nvme"), dict)
        else None,
        interfaces=sw.read_interfaces(d.get("interfaces")),
        bonds={name: sw.read_down(str(text)) for name, text in read_map(d.get("bonds")).items()},
        addresses=sw.read_addresses(d.get("addresses")),
        default_routes=read_strings(d.get("default_routes")),
        listening=sw.read_sockets(d.get("listening")),
        resolves=sw.read_addresses(resolves.get("addresses")),
        resolve_seconds=read_float(resolves.get("seconds")),
        nameservers=sw.read_nameservers(files.get("etc/resolv.conf")),
        processes=sw.read_processes(read_map(d.get("processes"))),
        limits={str(k): sw.read_limits(read_map(v)) for k, v in read_map(d.get("limits")).items()},
        gpu_links=read_strings(d.get("gpu_links")),
        crashes=sw.read_crashes(d.get("crashes")),
        cdi=sw.read_cdi(d.get("cdi")),
        docker=sw.read_docker(read_map(d.get("docker"))),
        sshd=sw.read_sshd(read_answer(d.get("sshd"))),
        sources=read_strings(d.get("sources")),
        kernels=_kernels(read_map(d.get("kernels"))),
        kernel_modules={k: m for k, v in read_map(d.get("kernels")).items() if (m := read_strings(v)) is not None}
        or None,
        driver_on_disk=pl.read_module(read_answer(d.get("driver_on_disk"))),
        vendor=sw.read_vendor(d.get("vendor")),
        environment=sw.read_environment(d.get("environment")),
        cloud_init=sw.read_cloud_init(files.get("run/cloud-init/result.json")),
        cloud_init_stage=pl.read_stage(files.get("run/cloud-init/status.json")),
        machine_type=read_text(d.get("instance")),
        pcie=pl.read_pcie(d.get("pcie")),
        fstab=pl.read_fstab(d.get("fstab")),
        fuse=pl.read_fuse(d.get("fuse")),
        remote=pl.read_remote(d.get("remote")),
        libraries=pl.read_libraries(read_answer(d.get("libraries"))),
        libraries_asked="libraries" in d or None,
        free_blocks=pl.read_free_blocks(files.get("proc/buddyinfo"), BLOCK_ORDER),
        clock_offset=pl.read_offset(read_answer(d.get("tracking"))),
        allowances=pl.read_allowances(d.get("allowances")),
        repo_keys={k: v for k, v in keys.items() if isinstance(v, str)}
        if isinstance(keys := d.get("repo_keys"), dict)
        else None,
        denied=read_strings(d.get("denied")),
        amd_pages={name: read_strings(rows) or () for name, rows in read_map(d.get("amd_pages")).items()},
        root_password=read_text(d.get("root_password")),
        cgroup2=second if isinstance(second := d.get("cgroup2"), bool) else None,
        secure_boot=secure,
        signed_only=pl.read_signed_only(files, secure),
        kernel_keys=pl.read_keys(d.get("kernel_keys")),
    )


def _kernels(rows: Mapping[str, Any]) -> dict[str, bool] | None:
    """Older probes said only whether the NVIDIA module is there."""
    has_module = {k: v if isinstance(v, bool) else "nvidia" in v for k, v in rows.items() if isinstance(v, bool | list)}
    return has_module or None


def _interfaces(text: str) -> tuple[sw.Interface, ...]:
    return sw.read_interfaces(read_object(text)) or ()


TOOLS = (
    Tool(
        file="host.json",
        field="host",
        parse=parse,
        seconds=30,
        label="/proc, /sys, /etc, df, sshd -T, docker info",
        by_hand=False,
    ),
    Tool(
        file="interfaces-after.json",
        field="after.interfaces",
        parse=_interfaces,
        asked="after",
        label="/sys/class/net/*/statistics after the load",
        by_hand=False,
        document={},
    ),
)
