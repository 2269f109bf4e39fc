"""Checks of the host: green on every machine of the catalogue, each red on its fault, and then it alone."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from provisioner.catalog import load
from provisioner.spec.groups import Group, Storage
from provisioner.verify.bundle import Bundle, Output
from provisioner.verify.expectations import TUNED, Expected
from provisioner.verify.pytest_runner import Case, Judged
from tests.support.healthy_bundle import DRIVER, KERNEL, bundle, expected, healthy, nth, stack
from tests.support.healthy_host import HOST_CHECKS, KEY, NOW, dimms, host_document, host_files
from tests.support.judging import judge

P4D, DGX, RTX, NDV4, GB200 = (
    "p4d.24xlarge",
    "dgx-h100",
    "workstation-rtx4090",
    "Standard_ND96asr_v4",
    "p6e-gb200.36xlarge",
)
Document = dict[str, Any]
Texts = dict[str, str | Output]
ROLES = Path(__file__).parents[3] / "ansible" / "roles"


@dataclass(frozen=True)
class Fault:
    """`breaks` changes host.json; `texts` replaces other files. Exactly `fails` fail, `unknown` is unknown at least."""

    fails: set[str]
    breaks: Callable[[Document], object] = lambda d: None
    texts: Callable[[Texts], object] = lambda t: None
    unknown: set[str] = field(default_factory=set)
    machine: str = P4D
    says: str = ""
    received: float = NOW


def put(path: str, value: Any) -> Callable[[Document], object]:
    """`a|b` set to a value; None takes it away."""

    def change(document: Document) -> None:
        *parents, last = path.split("|")
        inner = document
        for key in parents:
            inner = inner[key]
        assert last in inner, path
        if value is None:
            del inner[last]
        else:
            inner[last] = value

    return change


def sub(path: str, old: str, new: str) -> Callable[[Document], object]:
    def change(document: Document) -> None:
        *parents, last = path.split("|")
        inner = document
        for key in parents:
            inner = inner[key]
        assert old in inner[last], path
        inner[last] = inner[last].replace(old, new)

    return change


def memory(share: float) -> Callable[[Document], object]:
    return put("files|proc/meminfo", f"MemTotal: {int(1152 * 2**20 * share)} kB\nMemAvailable: {9 * 2**26} kB")


def df(mount_point: str, size: int, used: int, inodes: str = "26214400 901223") -> Callable[[Document], object]:
    """A row of df in place of the one for that directory, or beside the others."""

    def change(document: Document) -> None:
        rows = [row for row in document["df"]["text"].splitlines() if not row.startswith(f"{mount_point} ")]
        kind = "tmpfs tmpfs" if mount_point in ("/tmp", "/dev/shm") else "dev ext4"
        document["df"]["text"] = "\n".join([*rows, f"{mount_point} {kind} {size} {used} {size - used} {inodes}"])

    return change


def text(name: str, old: str, new: str) -> Callable[[Texts], object]:
    def change(texts: Texts) -> None:
        assert old in str(texts[name]), name
        texts[name] = str(texts[name]).replace(old, new)

    return change


def append(name: str, row: str) -> Callable[[Texts], object]:
    return lambda t: t.update({name: str(t[name]) + row})


def unit(name: str, old: str, new: str) -> Callable[[Texts], object]:
    """One property of one unit."""

    def change(texts: Texts) -> None:
        head, _, after = str(texts["units.txt"]).partition(f"Id={name}")
        assert old in after, name
        texts["units.txt"] = f"{head}Id={name}{after.replace(old, new, 1)}"

    return change


GB = 10**9
CLOCK = "files|sys/devices/system/clocksource/clocksource0/current_clocksource"
PASSWORDS = sub("sshd|text", "passwordauthentication no", "passwordauthentication yes")


def modules(missing: int, other: tuple[str, str] = ("", "")) -> Callable[[Texts], object]:
    text = dimms(load().machine(DGX), missing).replace(*other, 1)
    return lambda t: t.update({"dmidecode.txt": text})


FAULTS: dict[str, Fault] = {
    "memory": Fault({"host.memory"}, memory(0.9), says="1036.8 GiB of memory, 1152 are expected"),
    "one module of 32": Fault(
        {"host.dimms"}, texts=modules(1), machine=DGX, says="modules of 1984 GiB in 31 of 32 slots, empty: A1; 2048 GiB"
    ),
    "a module of unknown size": Fault(
        set(), texts=modules(0, ("\tSize: 65536 MB", "\tSize: Unknown")), machine=DGX, unknown={"host.dimms"}
    ),
    "no dmidecode": Fault(
        set(),
        texts=lambda t: t.update({"dmidecode.txt": Output("", missing=True)}),
        machine=DGX,
        unknown={"host.dimms"},
    ),
    "another machine": Fault(
        {"host.machine"}, put("instance", "p4de.24xlarge"), says="the cloud calls it p4de.24xlarge"
    ),
    "fragmented": Fault({"host.fragmentation"}, sub("files|proc/buddyinfo", "31     22  40113", "0      1      3")),
    "cloud-init runs on": Fault(
        {"host.cloud_init"},
        sub("files|run/cloud-init/status.json", '"stage": null', '"stage": "modules-final"'),
        says="it is in modules-final",
    ),
    "cloud-init got over an error": Fault(
        {"host.cloud_init"}, sub("files|run/cloud-init/status.json", '"WARNING"', '"ERROR"'), says="no keys"
    ),
    "clock off": Fault({"host.time_offset"}, sub("tracking|text", "-0.000012345", "0.081200000"), says="+0.081 s"),
    "somebody works on it": Fault({"host.users"}, put("processes|users", {"1000": 4, "1017": 12}), says="user 1017"),
    "ACS": Fault({"pcie.acs"}, put("pcie|acs", {"0000:10:00.0": 0x1D}), machine=DGX, says="on 0000:10:00.0"),
    "IOMMU": Fault({"pcie.iommu"}, put("pcie|devices|0000:10:1c.0|iommu", "DMA-FQ"), machine=DGX, says="(DMA-FQ)"),
    "held back by the cloud": Fault(
        {"net.allowance"}, put("allowances|ens5|conntrack_allowance_exceeded", "711"), says="conntrack"
    ),
    "no libcuda": Fault({"driver.libraries"}, sub("libraries|text", "libcuda.so.1 (", "libcuda.so.0 (")),
    "a module of another kernel": Fault(
        {"driver.vermagic"}, sub("driver_on_disk|text", KERNEL, "6.8.0-1009-aws"), says="built for 6.8.0-1009-aws"
    ),
    "unsigned": Fault({"driver.signature"}, sub("driver_on_disk|text", "signer:", "retpoline:")),
    "a signer whom nobody enrolled": Fault(
        {"driver.signature"}, sub("driver_on_disk|text", "gpuprov test key", "DKMS module signing key"),
        says="signed by DKMS module signing key, a key that the kernel does not know",
    ),
    "a signer whose name ends so": Fault({"driver.signature"}, sub("driver_on_disk|text", "gpuprov test key", "key")),
    "told to take signed modules": Fault({"driver.signature"}, lambda d: (
        put("secure_boot", None)(d), put("files|sys/module/module/parameters/sig_enforce", "Y")(d),
        put("files|sys/kernel/security/lockdown", None)(d), put("kernel_keys", [])(d))),
    "no lockdown to be read": Fault({"driver.signature"}, lambda d: (
        put("files|sys/kernel/security/lockdown", None)(d), put("kernel_keys", [])(d))),
    "not mounted": Fault(
        {"storage.fstab"}, lambda d: d["fstab"].append("/data xfs defaults,noatime"), says="not mounted: /data"
    ),
    "fuse": Fault({"storage.fuse"}, put("fuse|58|waiting", "12"), says="12 requests wait, 12 may"),
    "few processes": Fault({"limits.nproc"}, put("limits|session|Max processes", ["1024", "1024"])),
    "root without a password": Fault({"security.root_password"}, put("root_password", "none"), says="empty"),
    "root with a password": Fault({"security.root_password"}, put("root_password", "set"), says="has a password"),
    "a debugger for all": Fault(
        {"host.environment"}, put("environment", ["NSIGHT_CUDA_DEBUGGER=1"]), says="prepared for a debugger"
    ),
    "a port on the internet": Fault(
        {"security.open_ports"},
        lambda d: (d["addresses"].append("8.8.4.4"), put("listening", ["tcp 0.0.0.0 22", "tcp 8.8.4.4 8888"])(d)),
        says="TCP ports 8888 on 8.8.4.4",
    ),
    "memory in use": Fault(
        {"host.memory_free"}, sub("files|proc/meminfo", "MemAvailable: 10", "MemAvailable: 1"), says="in use"
    ),
    "killed": Fault({"host.oom_kills"}, put("oom_kills", "oom_kill 7")),
    "held down": Fault(
        {"host.clock"}, lambda d: (put("cpu|mhz", [400.0, 800.0])(d), put("cpu|socket_mhz", {})(d)), machine=DGX,
        says="all: no processor above 800 MHz",
    ),
    "one socket held down": Fault(
        {"host.clock"}, put("cpu|socket_mhz", {"0": 3600.0, "1": 400.0}), machine=DGX,
        says="socket 1: no processor above 400 MHz (base 3000)",
    ),
    "below their base clock": Fault(
        {"host.clock"}, put("cpu|socket_mhz", {"0": 1200.0, "1": 1190.0}), machine=DGX,
        says="socket 1: no processor above 1190 MHz (base 3000) (unverified: cpu.clock_share",
    ),
    "the kernel's own limit of files": Fault(
        {"limits.nofile"}, put("limits|session|Max open files", ["1024", "4096"]), says="at most 4096"
    ),
    "a small stack": Fault({"limits.stack"}, put("limits|session|Max stack size", ["65536", "65536"])),
    "cpus": Fault({"host.cpus"}, put("cpu|processors", 72)),
    "cpus without threads in a cloud": Fault({"host.cpus"}, put("cpu|processors", 48)),
    "numa": Fault({"host.numa"}, put("files|sys/devices/system/node/has_cpu", "0")),
    "edac": Fault({"host.edac"}, put("edac|mc0|ue_count", "2"), machine=DGX),
    "edac corrected": Fault({"host.memory_corrected"}, put("edac|mc0|ce_count", "48211"), machine=DGX),
    "clock ahead": Fault({"host.clock_skew"}, received=NOW - 43_200, says="720 minutes ahead"),
    "clock behind": Fault({"host.clock_skew"}, received=NOW + 43_200, says="720 minutes behind"),
    "clock unkept": Fault({"host.time_sync"}, put("sync|text", "NTP=no\nNTPSynchronized=no\n"), says="no time service"),
    "clock lost": Fault({"host.time_sync"}, put("sync|text", "NTP=yes\nNTPSynchronized=no\n")),
    "clocksource": Fault(
        {"host.clocksource"},
        put(CLOCK, "hpet"),
    ),
    "went down": Fault({"host.uptime"}, lambda d: d["boots"].append(["boot", int(NOW) - 3600]), says="1.0 hours ago"),
    "crash": Fault({"host.crash"}, lambda d: d["crashes"].append(["/sys/fs/pstore/dmesg-efi-1", NOW - 100])),
    "cloud-init": Fault(
        {"host.cloud_init"}, sub("files|run/cloud-init/result.json", '"errors": []', '"errors": ["mounts failed"]')
    ),
    "load": Fault({"host.load"}, put("files|proc/loadavg", "300.1 301.2 299.9 2/2210 90211")),
    "zombies": Fault({"host.zombies"}, put("processes|zombie_count", 2100)),
    "stuck": Fault({"host.dstate"}, put("processes|stuck", ["python3", "umount"]), says="python3, umount"),
    "pids": Fault({"host.pids"}, put("files|proc/sys/kernel/pid_max", "2500")),
    "files": Fault({"host.file_handles"}, put("files|proc/sys/fs/file-nr", "90000\t0\t100000")),
    "swap": Fault({"host.swap"}, sub("files|proc/swaps", "Priority", "Priority\n/swap.img file 8388604 0 -2")),
    "governor": Fault({"host.governor"}, put("governors", {"performance": 95, "powersave": 1})),
    "thp": Fault({"host.thp"}, put("files|sys/kernel/mm/transparent_hugepage/enabled", "[always] madvise never")),
    "numa balancing": Fault({"host.numa_balancing"}, put("files|proc/sys/kernel/numa_balancing", "1")),
    "EFA without huge pages": Fault({"host.hugepages"}, put("files|proc/sys/vm/nr_hugepages", "0")),
    "hugepages": Fault({"host.hugepages"}, put("files|proc/sys/vm/nr_hugepages", "1024"), machine="dgx-h100"),
    "maps": Fault({"host.map_count"}, put("files|proc/sys/vm/max_map_count", "65530")),
    "shm small": Fault({"host.shm"}, df("/dev/shm", 65_536_000, 0), says="0.1 GiB"),
    "memlock": Fault({"limits.memlock"}, put("limits|session|Max locked memory", ["8388608", "8388608"])),
    "memlock soft": Fault({"limits.memlock"}, put("limits|session|Max locked memory", ["65536", "unlimited"])),
    "memlock of slurm": Fault(
        {"limits.memlock"},
        lambda d: d["limits"].update(slurmd={"Max locked memory": ["8388608", "8388608"]}),
        says="slurmd",
    ),
    "nofile": Fault({"limits.nofile"}, put("limits|session|Max open files", ["1024", "1024"])),
    "environment": Fault({"host.environment"}, put("environment", ["NCCL_P2P_DISABLE=1"]), says="NVLink"),
    "gpus hidden": Fault({"host.environment"}, put("environment", ['CUDA_VISIBLE_DEVICES="0,1"'])),
    "scratch unmounted": Fault({"storage.scratch"}, lambda d: d["mounts"].pop()),
    "scratch read-only": Fault({"storage.scratch"}, lambda d: d["mounts"].append("/dev/md127 /scratch xfs ro,noatime")),
    "scratch small": Fault({"storage.scratch"}, df("/scratch", 6_860 * GB, 0)),
    "raid": Fault(
        {"storage.raid"},
        texts=lambda t: t.update({"mdstat.txt": "md0 : active raid1 nvme2n1[2](F) nvme1n1[0]\n  9 blocks [2/1] [U_]"}),
    ),
    "raid inactive": Fault(
        {"storage.raid"}, texts=lambda t: t.update({"mdstat.txt": "md127 : inactive nvme2n1[1](S)\n"})
    ),
    "full": Fault({"storage.full"}, df("/", 200 * GB, 199 * GB), unknown={"storage.root_space", "container.disk"}),
    "filling": Fault({"storage.root_space"}, df("/", 900 * GB, 830 * GB)),
    "docker's cgroups": Fault(
        {"container.cgroup"}, sub("docker|text", '"cgroup": "systemd"', '"cgroup": "cgroupfs"')
    ),
    "docker's disk": Fault({"container.disk"}, df("/var/lib/docker", 60 * GB, 40 * GB)),
    "inodes": Fault({"storage.inodes"}, df("/", 200 * GB, 40 * GB, "1000000 990000")),
    "tmp": Fault({"storage.tmp"}, df("/tmp", 65536, 65536)),
    "read-only": Fault({"storage.readonly"}, lambda d: d["mounts"].append("/dev/sdb /home ext4 ro,relatime")),
    "nvme lost": Fault({"storage.nvme_count"}, texts=text("lsblk.json", '"name": "nvme8n1"', '"name": "sdq"')),
    "nvme lost beside the system's": Fault(
        {"storage.nvme_count"},
        machine=DGX,
        texts=lambda t: (
            text("lsblk.json", '"name": "nvme8n1"', '"name": "sdq"')(t),
            text("lsblk.json", "Amazon Elastic Block Store", "Samsung PM9A3")(t),
        ),
        says="7 local NVMe disks, 8 are expected",
    ),
    "nvme dead": Fault({"storage.nvme_state"}, put("nvme|nvme1|state", "dead")),
    "nvme warns": Fault({"storage.nvme_state"}, sub("smart|nvme1", '"critical_warning": 0', '"critical_warning": 4')),
    "nvme worn": Fault({"storage.nvme_wear"}, sub("smart|nvme1", '"percent_used": 3', '"percent_used": 104')),
    "nvme spare": Fault({"storage.nvme_wear"}, sub("smart|nvme1", '"avail_spare": 100', '"avail_spare": 4')),
    "nvme small": Fault(
        {"storage.nvme_size"},
        texts=text("lsblk.json", '"name": "nvme1n1", "type": "disk", "size": 1000000000000', '"name": "nvme1n1", '
                   '"type": "disk", "size": 500000000000'),
        says="nvme1n1 has 500 GB; 1000 are expected",
    ),
    "/boot filling": Fault({"storage.root_space"}, df("/boot", GB, 950_000_000), says="/boot"),
    "another kernel": Fault(
        {"host.kernel"},
        lambda d: d["kernels"].update({"6.8.0-1023-aws": ["nvidia"]}),
        texts=lambda t: t.update({
            "kernel.txt": "6.8.0-1023-aws\n",
            "packages.txt": str(t["packages.txt"]).replace(f"linux-image-{KERNEL}", "linux-image-6.8.0-1023-aws")
            .replace(f"linux-headers-{KERNEL}", "linux-headers-6.8.0-1023-aws"),
            "holds.txt": str(t["holds.txt"]).replace(KERNEL, "6.8.0-1023-aws"),
        }),
        says=f"kernel 6.8.0-1023-aws is running, locked {KERNEL}",
    ),
    "headers of the kernel": Fault(
        set(), texts=append("packages.txt", "nvidia-kernel-open-dkms\t580.173.02-1\tii \n")
    ),
    "no headers": Fault(
        {"driver.headers"},
        texts=lambda t: t.update({"packages.txt": str(t["packages.txt"]).replace("linux-headers-", "linux-nothing-")
                                  + "nvidia-kernel-open-dkms\t580.173.02-1\tii \n"}),
        says=f"linux-headers-{KERNEL} is not installed, nvidia-kernel-open-dkms needs it",
    ),
    "an older kernel without the driver": Fault(
        {"driver.kernels"},
        lambda d: d["kernels"].update({"6.8.0-1001-aws": ["efa"]}),
        texts=append("packages.txt", "linux-image-6.8.0-1001-aws\t6.8.0-1001.1\tii \n"),
        says="6.8.0-1001-aws",
    ),
    "unit stopped": Fault(
        {"services.expected"}, texts=unit("nvidia-dcgm.service", "ActiveState=active", "ActiveState=inactive")
    ),
    "imex": Fault(
        {"services.imex"},
        machine=GB200,
        texts=unit("nvidia-imex.service", "ActiveState=active", "ActiveState=failed"),
    ),
    "unit not at boot": Fault(
        {"services.expected"}, texts=unit("docker.service", "UnitFileState=enabled", "UnitFileState=disabled")
    ),
    "unit masked": Fault({"services.expected"}, texts=unit("apt-daily.timer", "LoadState=loaded", "LoadState=masked")),
    "unit failed": Fault(
        {"services.failed"}, texts=append("services.txt", "slurmd.service loaded failed failed Slurm node daemon\n")
    ),
    "dpkg": Fault({"packages.unfinished"}, texts=append("packages.txt", "grub-efi-amd64-bin\t2.12-1ubuntu7\tiF \n")),
    "unattended": Fault(
        {"packages.unattended"},
        texts=text("unattended.txt", '"^libnccl"', '"^nothing"'),
        says="it may move libnccl2",
    ),
    "sources": Fault(
        {"packages.sources"},
        put("sources", ["https://developer.download.nvidia.com/compute/machine-learning/repos/ubuntu1804/x86_64/"]),
    ),
    "reboot": Fault({"host.reboot_required"}, texts=append("reboot.txt", "*** System restart required ***\nlibc6\n")),
    "kernel waits": Fault(
        {"host.kernel_next"},
        texts=append("packages.txt", "linux-image-6.8.0-1025-aws\t6.8.0-1025.27\tii \n"),
    ),
    "kernel waits without module": Fault(
        {"host.kernel_next"},
        lambda d: d["kernels"].update({"6.8.0-1025-aws": ["mlx5_core"]}),
        texts=append("packages.txt", "linux-image-6.8.0-1025-aws\t6.8.0-1025.27\tii \n"),
        says="it lacks the modules nvidia, efa",
    ),
    "kernel waits, an older probe": Fault(
        {"host.kernel_next"},
        put("kernels", {"6.8.0-1025-aws": False}),
        texts=append("packages.txt", "linux-image-6.8.0-1025-aws\t6.8.0-1025.27\tii \n"),
        says="it lacks the modules nvidia",
    ),
    "name": Fault({"host.hostname"}, put("hostname", "localhost")),
    "another key": Fault(
        {"packages.keys"}, put("repo_keys|gpuprov-cuda.asc", "9A" * 20), says=f"gpuprov-cuda.asc: {'9A' * 20}"
    ),
    "no key": Fault({"packages.keys"}, put("repo_keys|gpuprov-cuda.asc", None), says="gpuprov-cuda.asc: no key"),
    "name leads elsewhere": Fault(
        {"host.hostname"}, put("resolves|addresses", ["10.0.9.9"]), says="leads to 10.0.9.9, none of which"
    ),
    "slurmd": Fault({"services.jobs"}, texts=unit("slurmd.service", "ActiveState=active", "ActiveState=failed")),
    "NFS away": Fault(
        {"storage.network"},
        lambda d: d["remote"]["/data"].update(rc=None, timed_out=True, seconds=10.0),
        says="/data (nfs4): no answer within 10 s",
    ),
    "NFS stale": Fault(
        {"storage.network"},
        lambda d: d["remote"]["/data"].update(rc=1, error="stat: cannot read file system '/data': Stale file handle"),
        says="Stale file handle",
    ),
    "name leads nowhere": Fault(
        {"host.hostname"}, put("resolves", {"seconds": 5.1, "addresses": [], "error": "-2"}), unknown={"host.dns"}
    ),
    "dns": Fault({"host.dns"}, put("files|etc/resolv.conf", "options edns0")),
    "dns slow": Fault({"host.dns"}, put("resolves|seconds", 5.004)),
    "docker open": Fault({"security.docker_tcp"}, lambda d: d["listening"].append("tcp 0.0.0.0 2375")),
    "docker open, v6": Fault({"security.docker_tcp"}, lambda d: d["listening"].append("tcp :: 2375")),
    "hostengine open": Fault(
        {"security.hostengine_exposed"}, lambda d: d["listening"].append("tcp ::ffff:10.0.3.17 5555")
    ),
    "exporter public": Fault({"security.exporter_exposed"}, lambda d: d["addresses"].append("8.8.4.4")),
    "passwords": Fault({"security.ssh_password"}, PASSWORDS),
    "root": Fault({"security.ssh_root"}, sub("sshd|text", "without-password", "yes")),
    "docker dead": Fault(
        {"container.runtime"},
        put("docker", {"rc": 1, "text": "", "error": "Cannot connect to the Docker daemon"}),
        unknown={"container.storage", "container.live_restore", "container.disk"},
    ),
    "docker hangs": Fault(
        {"container.runtime"},
        put("docker", {"rc": None, "text": "", "timed_out": True}),
        says="it hangs",
    ),
    "docker missing": Fault({"container.runtime"}, put("docker", {"rc": None, "text": "", "missing": True})),
    "cdi": Fault({"container.cdi"}, put("cdi", {})),
    "cdi of another driver": Fault(
        {"container.cdi"},
        lambda d: d["cdi"]["/run/cdi/nvidia.yaml"].__setitem__(3, "hostPath: /usr/lib/libcuda.so.570.1.2"),
        says="is for driver 570.1.2",
    ),
    "dev char": Fault({"container.survives_reload"}, put("gpu_links", ["195:0", "195:1"])),
    "live restore": Fault({"container.live_restore"}, sub("docker|text", 'restore": true', 'restore": false')),
    "vfs": Fault({"container.storage"}, sub("docker|text", "overlay2", "vfs")),
    "no route": Fault({"net.default_route"}, put("default_routes", [])),
    "errors": Fault({"net.errors"}, put("interfaces|ens5|counts|rx_errors", "4011")),
    "flaps": Fault({"net.flaps"}, put("interfaces|ens5|carrier_down_count", "19")),
    "bond": Fault({"net.bond"}, sub("bonds|bond0", "ens1f1\nMII Status: up", "ens1f1\nMII Status: down")),
    "conntrack": Fault({"net.conntrack"}, put("files|proc/sys/net/netfilter/nf_conntrack_count", "250000")),
}  # fmt: skip


def want(machine: str) -> Expected:
    base = expected(machine, "stress", Group(machine=machine, storage=Storage(scratch="/scratch")))
    more = ("gpuprov-cdi.service", "nvidia-dcgm.service") if base.vendor == "nvidia" else ()
    return replace(base, units=(*(base.units or ()), *more), kernel=KERNEL, repo_keys={"gpuprov-cuda.asc": KEY})


def files(machine: str) -> Texts:
    """The files that say something of the host, of a healthy node: those of the GPUs take long to make and to read."""
    names = [p.name for p in stack(machine).packages] + [f"linux-image-{KERNEL}", f"linux-headers-{KERNEL}"]
    versions = {p.name: p.version for p in stack(machine).packages}
    return {
        **host_files(load().machine(machine), DRIVER),
        "packages.txt": "".join(f"{name}\t{versions.get(name, '6.8.0-1024.26')}\tii \n" for name in names),
        "holds.txt": "".join(f"{name}\n" for name in names),
        "kernel.txt": f"{KERNEL}\n",
        "services.txt": "",
    }


def case(fault: Fault) -> Case:
    texts = files(fault.machine)
    document = host_document(load().machine(fault.machine), DRIVER)
    fault.breaks(document)
    texts["host.json"] = json.dumps(document)
    fault.texts(texts)
    return Case(replace(bundle(texts), received=fault.received), want(fault.machine))


LEGITIMATE: dict[str, tuple[str, Callable[[Document], object]]] = {
    "hyper-threading off": (DGX, lambda d: d["cpu"].update(processors=112, cores=112)),
    "swap on a workstation": (RTX, sub("files|proc/swaps", "Priority", "Priority\n/swap.img file 8388604 0 -2")),
    "passwords on a workstation": (RTX, PASSWORDS),
    "no governor": (P4D, put("governors", {})),
    "no wtmp": (P4D, put("boots", None)),
    "no chrony": (P4D, put("sync", {"rc": None, "missing": True})),
    "hyper-v": (NDV4, put(CLOCK, "hyperv_clocksource_tsc_page")),
    "a reboot on purpose": (P4D, lambda d: d["boots"].extend([["shutdown", int(NOW) - 99], ["boot", int(NOW) - 60]])),
    "docker's cgroups of version 1": (
        P4D,
        lambda d: (put("cgroup2", False)(d), sub("docker|text", '"cgroup": "systemd"', '"cgroup": "cgroupfs"')(d)),
    ),
    "a program's core": (P4D, put("crashes", [])),
    "no DMI, no EDAC": (DGX, put("edac", {})),
    "btrfs": (P4D, df("/", 200 * GB, 40 * GB, "0 0")),
    "busybox df": (P4D, df("/boot", 1 * GB, GB // 10, "- -")),
    "enough locked memory": (P4D, put("limits|session|Max locked memory", [str(2**40), "unlimited"])),
    "names of one's own in a file": (P4D, put("resolves|addresses", ["127.0.1.1"])),
    "the exporter beside a public address, on loopback": (
        P4D, lambda d: (d["addresses"].append("8.8.4.4"), put("listening", ["tcp 127.0.0.1 9400"])(d))),
    "NVIDIA's legacy runtime": (P4D, put("cdi", {"/run/cdi/nvidia.yaml": ["kind: nvidia.com/gpu", '- name: "all"']})),
    "IPv6 in a cloud": (P4D, lambda d: d["addresses"].append("2600:1f18::5")),
    "no name server on bare metal": (DGX, put("files|etc/resolv.conf", "options edns0")),
    "drops": (P4D, put("interfaces|ens5|counts|rx_dropped", "80000")),
    "a /tmp of its own": (P4D, df("/tmp", 100 * GB, GB)),
    "no bonds": (P4D, put("bonds", {})),
    "a password of root's on a machine of one's own": (DGX, put("root_password", "set")),
    "unsigned, without Secure Boot": (P4D, lambda d: (
        put("secure_boot", False)(d), put("files|sys/kernel/security/lockdown", None)(d),
        sub("driver_on_disk|text", "signer:", "retpoline:")(d))),
    "unsigned, validation switched off": (P4D, lambda d: (
        put("files|sys/kernel/security/lockdown", "[none] integrity confidentiality")(d),
        sub("driver_on_disk|text", "signer:", "retpoline:")(d))),
    "a probe that asked for no keys": (P4D, put("kernel_keys", None)),
    "an older probe": (P4D, lambda d: (
        put("driver_on_disk", {"rc": 0, "text": f"{DRIVER}\n"})(d), put("processes|users", {})(d))),
    "no metadata of the cloud's": (P4D, put("instance", None)),
    "no FUSE, no chrony": (P4D, lambda d: (put("fuse", {})(d), put("tracking", {"rc": None, "missing": True})(d))),
    "ACS of the hypervisor's": (P4D, put("pcie|acs", {"0000:10:00.0": 0x1D})),
}  # fmt: skip


@pytest.fixture(scope="module")
def judged() -> dict[str, Judged]:
    cases = {name: case(fault) for name, fault in FAULTS.items()}
    cases |= {f"right: {name}": case(Fault(set(), breaks, machine=m)) for name, (m, breaks) in LEGITIMATE.items()}
    cases |= {f"healthy {name}": case(Fault(set(), machine=name)) for name in load().names()}
    other_files = {name: content for name, content in files(P4D).items() if name != "host.json"}
    cases["by hand"] = Case(replace(bundle(other_files), collected=None, received=None), want(P4D))
    cases["not asked"] = Case(bundle(other_files), want(P4D))
    cases["hung"] = Case(bundle(other_files | {"host.json": Output("", timed_out=True, seconds=15.0)}), want(P4D))
    cases["bare"] = Case(bundle(other_files | {"host.json": json.dumps({"time": NOW})}), want(P4D))
    return judge(cases)


def ids(result: Judged, status: str) -> set[str]:
    return {check.id for check in result.checks if check.status == status}


@pytest.mark.parametrize("name", FAULTS)
def test_one_fault_fails_the_check_that_names_it_and_no_other(judged: dict[str, Judged], name: str) -> None:
    fault, result = FAULTS[name], judged[name]
    wrong = {c.id: c.message for c in result.checks if c.status == "fail"}
    assert set(wrong) == fault.fails, wrong
    assert fault.unknown <= ids(result, "unknown")
    assert all(fault.says in message for message in wrong.values()), wrong


@pytest.mark.parametrize("name", LEGITIMATE)
def test_what_is_right_somewhere_is_no_alarm(judged: dict[str, Judged], name: str) -> None:
    result = judged[f"right: {name}"]
    wrong = {c.id: c.message for c in result.checks if c.status in ("fail", "unknown") and c.id in HOST_CHECKS}
    assert wrong == {}


def test_every_machine_of_the_catalogue_is_healthy(judged: dict[str, Judged]) -> None:
    wrong = {
        f"{name} {c.id}": c.message
        for name in load().names()
        for c in judged[f"healthy {name}"].checks
        if c.status in ("fail", "unknown") and c.id in HOST_CHECKS
    }
    assert wrong == {}


def test_every_check_of_this_area_is_red_once_and_green_once(judged: dict[str, Judged]) -> None:
    node_checks = {id for id in HOST_CHECKS if not id.startswith("fleet.")}
    red = set().union(*(fault.fails for fault in FAULTS.values()))
    assert node_checks - red == set()
    green = set().union(*(ids(judged[f"healthy {name}"], "pass") for name in load().names()))
    green |= ids(judged["right: a /tmp of its own"], "pass") | ids(judged["headers of the kernel"], "pass")
    assert node_checks - green == set()


@pytest.mark.parametrize("name", ["not asked", "hung", "bare"])
def test_nothing_passes_on_what_was_not_read(judged: dict[str, Judged], name: str) -> None:
    other_checks = {"host.clock_skew", "host.kernel_next", "host.reboot_required", "packages.unattended"}
    other_checks |= {
        "packages.unfinished",
        "services.imex",
        "services.expected",
        "services.failed",
        "storage.nvme_count",
    }
    other_checks |= {"storage.raid", "storage.nvme_size", "host.kernel", "services.jobs"}
    # No variable that slows jobs down, no public address: that they are not there is all that can be said of them.
    assert ids(judged[name], "pass") & HOST_CHECKS - other_checks <= {"host.environment"}


def test_a_bundle_put_together_by_hand_has_no_host_to_judge(judged: dict[str, Judged]) -> None:
    assert ids(judged["by hand"], "unknown") & HOST_CHECKS == set()
    assert {"host.memory", "storage.full", "host.clock_skew"} <= ids(judged["by hand"], "skip")


def test_a_node_that_did_not_answer_has_an_unknown_clock() -> None:
    verdict = judge({"silent": Case(Bundle(error="no answer within 20 s"), want(P4D))})["silent"]
    assert "host.clock_skew" in ids(verdict, "unknown")
    assert "host.memory" in ids(verdict, "unknown")


def test_what_a_sandbox_cannot_show_is_skipped_for_its_nodes() -> None:
    simulated = replace(want(P4D), simulated=True)
    verdict = judge({"node": Case(case(FAULTS["memlock"]).bundle, simulated)})["node"]
    assert {"limits.memlock", "host.clocksource"} <= ids(verdict, "skip")
    assert ids(verdict, "fail") == set()


FLEET: dict[str, Callable[[Document], object]] = {
    "fleet.memory": memory(0.94),
    "fleet.cpu_model": put("cpu|models", {"AMD EPYC 7R13": 96}),
    "fleet.cmdline": sub("files|proc/cmdline", "panic=-1", "iommu=off"),
    "fleet.bios": put("files|sys/class/dmi/id/bios_version", "0.9"),
    "fleet.mtu": put("interfaces|ens5|mtu", "1500"),
    "fleet.link_speed": put("interfaces|ens5|speed", "10000"),
    "fleet.links": lambda d: d["interfaces"]["ens5"].update(operstate="down"),
}


def fleet(check: str, breaks: Callable[[Document], object], skew: float = 0.0) -> dict[str, Case]:
    cases = {}
    for number in range(5):
        texts: Texts = {"host.json": nth(P4D, number)["host.json"]}
        document = json.loads(str(texts["host.json"]))
        document["interfaces"]["ens5"]["speed"] = "25000"
        document["files"]["proc/cmdline"] = document["files"]["proc/cmdline"].replace("1a2b", str(number))
        if number == 2:
            breaks(document)
        texts["host.json"] = json.dumps(document)
        node_bundle = replace(bundle(texts), received=NOW + 0.3 * number - (skew if number == 2 else 0.0))
        cases[f"{check}/n{number}"] = Case(node_bundle, expected(P4D, "stress"), group=check)
    return cases


def twin(key: str) -> Callable[[Document], object]:
    """The third node has a value of the first's."""
    first = json.loads(str(nth(P4D, 0)["host.json"]))
    if key == "hostname":
        return lambda d: d.update(hostname=first["hostname"])
    return lambda d: d["files"].update({key: first["files"][key]})


TWINS = {
    "fleet.machine_id": "etc/machine-id",
    "fleet.host_keys": "etc/ssh/ssh_host_ed25519_key.pub",
    "fleet.hostname": "hostname",
}


@pytest.fixture(scope="module")
def fleets() -> dict[str, Judged]:
    cases = fleet("healthy", lambda _: None) | fleet("fleet.clock", lambda _: None, 20.0)
    for check, breaks in FLEET.items():
        cases |= fleet(check, breaks)
    for check, key in TWINS.items():
        cases |= fleet(check, twin(key))
    return judge(cases)


def failing(verdicts: dict[str, Judged], group: str) -> dict[str, set[str]]:
    wrong = {name.partition("/")[2]: ids(j, "fail") for name, j in verdicts.items() if name.startswith(f"{group}/")}
    return {name: checks for name, checks in wrong.items() if checks}


@pytest.mark.parametrize("check", [*FLEET, "fleet.clock"])
def test_the_odd_one_out_is_named_and_no_other(fleets: dict[str, Judged], check: str) -> None:
    assert failing(fleets, check) == {"n2": {check}}


@pytest.mark.parametrize("check", TWINS)
def test_twins_are_both_named(fleets: dict[str, Judged], check: str) -> None:
    assert failing(fleets, check) == {"n0": {check}, "n2": {check}}


def test_alike_nodes_are_fine_and_every_fleet_check_of_this_area_is_proven(fleets: dict[str, Judged]) -> None:
    assert failing(fleets, "healthy") == {}
    fleet_checks = {id for id in HOST_CHECKS if id.startswith("fleet.")} - {"fleet.dgx_os"}  # test_fleet_checks.py's
    assert fleet_checks == {*FLEET, *TWINS, "fleet.clock"}
    assert fleet_checks <= ids(fleets["healthy/n1"], "pass")


@pytest.mark.parametrize(
    ("size", "pages", "status"),
    [("2048", 5281, "pass"), ("2048", 5280, "fail"), ("524288", 0, "skip"), (None, 0, "skip")],
)
def test_efa_has_its_huge_pages(size: str | None, pages: int, status: str) -> None:
    """110 MiB for each of a p4d's 96 processors; arm64 with pages of 512 MiB has none reserved."""
    texts = healthy(P4D)
    document = json.loads(str(texts["host.json"]))
    meminfo = document["files"]["proc/meminfo"].partition("Hugepagesize")[0]
    document["files"]["proc/meminfo"] = meminfo + (f"Hugepagesize: {size} kB" if size else "")
    document["files"]["proc/sys/vm/nr_hugepages"] = str(pages)
    texts["host.json"] = json.dumps(document)
    judged = judge({"it": Case(bundle(texts), expected(P4D))})["it"]
    assert next(check for check in judged.checks if check.id == "host.hugepages").status == status


def test_what_the_roles_set_is_what_is_expected() -> None:
    base = yaml.safe_load((ROLES / "base" / "defaults" / "main.yml").read_text())
    sysctl = {name.replace(".", "/"): str(value) for name, value in base["base_sysctl"].items()}
    files = {Path(row["path"]).name: row["value"] for row in base["base_sysfs"]}
    pages = next(row["value"] for row in base["base_sysfs"] if row["path"].endswith("hugepage/enabled"))
    roles = sysctl | {"vm/nr_hugepages": str(base["base_hugepages"]), "transparent_hugepage": pages}
    roles |= {"governor": files["scaling_governor"]}
    assert dict(TUNED) == {name: roles[name] for name in TUNED}
    scratch = yaml.safe_load((ROLES / "scratch" / "defaults" / "main.yml").read_text())
    from provisioner.verify.parsers.lsblk import NETWORK_DISKS

    assert set(scratch["scratch_network_models"]) == set(NETWORK_DISKS)
