"""What a healthy node says of its host: host.json of a machine's catalogue row, its disks, units and apt settings."""

from __future__ import annotations

import json
from typing import Any

from provisioner.catalog.models import Machine
from provisioner.verify.checks import (
    container_runtime,
    driver_files,
    ethernet,
    fleet_host,
    host,
    host_modules,
    host_state,
    kernel_state,
    platform,
    security,
    services,
    storage,
    storage_mounts,
    tuning,
)

AREA = (
    container_runtime, driver_files, ethernet, fleet_host, host, host_modules, host_state, kernel_state,
    platform, security, services, storage, storage_mounts, tuning,
)  # fmt: skip
KERNEL_KEYS = [
    # a public note on Secure Boot with Debian's shim (/proc/keys); the last two with other names
    "15c78670 I------     1 perm 1f010000     0     0 asymmetri Canonical Ltd. Master Certificate Authority: "
    "ad91990bc22ab1f517048c23b6655a268e345a63: X509.rsa 8e345a63 []",
    "3eee887b I------     1 perm 1f010000     0     0 asymmetri Debian Secure Boot CA: "
    "6ccece7e4c6c0d1f6149f3dd27dfcc5cbb419ea1: X509.rsa bb419ea1 []",
    "2f1f0a3c I------     1 perm 1f010000     0     0 asymmetri Example: gpuprov test key: "
    "0ccece7e4c6c0d1f6149f3dd27dfcc5cbb419ea0: X509.rsa bb419ea0 []",
]
HOST_CHECKS = {c.id for m in AREA for f in vars(m).values() if (c := getattr(f, "__check__", None)) is not None}
"""Ids of the checks that test_host_checks.py proves."""
NOW = 1_700_000_000.0
KERNEL = "6.8.0-1024-aws"
KEY = "5283A85CF652CE55831D9E1E9A9F2578D2297885"
"""Fingerprint of a key that was made for the tests."""
UNITS = (
    "gpuprov-tuning.service", "apt-daily.timer", "apt-daily-upgrade.timer", "docker.service", "gpuprov-cdi.service",
    "openibd.service", "gpuprov-scratch.service", "nvidia-dcgm.service", "nvidia-dcgm-exporter.service",
    "nvidia-persistenced.service", "nvidia-fabricmanager.service", "nvidia-imex.service", "gpuprov-gpudirect.service",
    "gpuprov-mig.service", "slurmd.service",
)  # fmt: skip
UNATTENDED = """\
APT::Periodic::Unattended-Upgrade "1";
Unattended-Upgrade::Package-Blacklist:: "^nvidia-";
Unattended-Upgrade::Package-Blacklist:: "^nvlsm";
Unattended-Upgrade::Package-Blacklist:: "^libnccl";
Unattended-Upgrade::Package-Blacklist:: "^cuda-";
Unattended-Upgrade::Package-Blacklist:: "^nvlsm";
"""


def host_files(row: Machine, driver: str) -> dict[str, str]:
    """Name → text of the files of a bundle that say something of the host."""
    unit = "Id={}\nLoadState=loaded\nActiveState=active\nSubState=running\nUnitFileState=enabled\nResult=success\n"
    return {
        "host.json": json.dumps(host_document(row, driver)),
        "mdstat.txt": "Personalities : [raid0]\nmd127 : active raid0 nvme2n1[1] nvme1n1[0]\n"
        "      1953258496 blocks super 1.2 512k chunks\n\nunused devices: <none>\n",
        "lsblk.json": json.dumps({"blockdevices": disks(row)}),
        "units.txt": "\n".join(unit.format(name) for name in UNITS),
        "unattended.txt": UNATTENDED,
        "reboot.txt": "",
        "dmidecode.txt": dimms(row, 0),
    }


def dimms(row: Machine, missing: int) -> str:
    """`dmidecode -t 17` of a machine of 32 modules, as many of which as `missing` the firmware has not found."""
    slot = "Handle 0x11{0:02X}, DMI type 17, 92 bytes\nMemory Device\n\tSize: {1}\n\tLocator: {2}\n\tType: DDR5\n"
    sizes = ["No Module Installed"] * missing + [f"{int(row.memory_gib * 1024 / 32)} MB"] * (32 - missing)
    blocks = [slot.format(i, size, f"{'AB'[i // 16]}{i % 16 + 1}") for i, size in enumerate(sizes)]
    return "# dmidecode 3.5\nGetting SMBIOS data from sysfs.\nSMBIOS 3.5.0 present.\n\n" + "\n".join(blocks) + "\n"


def disks(row: Machine) -> list[dict[str, Any]]:
    root = {"name": "nvme0n1", "type": "disk", "size": 214748364800, "model": "Amazon Elastic Block Store",
            "mountpoint": None, "children": [{"name": "nvme0n1p1", "type": "part", "mountpoint": "/"}]}  # fmt: skip
    size = int(row.local_nvme.size_gb * 10**9)
    local_disk = {"type": "disk", "size": size, "model": "NVMe SSD", "mountpoint": None}
    return [root, *({"name": f"nvme{i + 1}n1", **local_disk} for i in range(row.local_nvme.count))]


def host_document(row: Machine, driver: str) -> dict[str, Any]:
    """What probe/host.py writes; the memory is what kernels leave of the catalogue's GiB."""
    memory = int(row.memory_gib * 2**20 * 0.975)
    nodes = row.numa_nodes or 1
    # efa-config: 110 MiB for each of two endpoints a processor, in pages of 2 MiB (bottlerocket-core-kit#141)
    pages = 110 * 2 * row.vcpus // 2 + 1 if row.network.kind == "efa" else 0
    sizes = {"/": 207_929_917_440, "/dev/shm": memory * 512}
    rows = [
        f"{mount_point} dev ext4 {size} {size // 5} {size - size // 5} 26214400 901223"
        for mount_point, size in sizes.items()
    ]
    rows[1] = rows[1].replace("dev ext4", "tmpfs tmpfs")
    rows.append("/boot/efi /dev/nvme0n1p15 vfat 109422592 6295552 103127040 0 0")
    # of a machine whose disks nobody has counted: some
    scratch = int(row.local_nvme.count * row.local_nvme.size_gb * 10**9 * 0.98) or 10**12 * row.local_disks
    rows += [f"/scratch /dev/md127 xfs {scratch} 7000000 {scratch - 7000000} 3906250 3"] if scratch else []
    count = {"rx_packets": "90000", "rx_errors": "0", "rx_dropped": "411", "tx_packets": "80000", "tx_errors": "0"}
    return {
        "time": NOW,
        "failed": {},
        "hostname": "ip-10-0-3-17",
        "configured": NOW - 86_400,
        "boots": [["boot", int(NOW) - 90_000], ["shutdown", int(NOW) - 40_000], ["boot", int(NOW) - 39_900]],
        "files": {
            "proc/meminfo": f"MemTotal: {memory} kB\nMemAvailable: {memory * 9 // 10} kB\nSwapTotal: 0 kB\n"
            f"SwapFree: 0 kB\nHugePages_Total: {pages}\nHugepagesize: 2048 kB",
            "proc/cmdline": "BOOT_IMAGE=/boot/vmlinuz root=PARTUUID=1a2b ro console=tty1 console=ttyS0 panic=-1",
            "proc/uptime": "39900.11 1000000.00",
            "proc/loadavg": "0.80 0.62 0.55 2/2210 90211",
            "proc/swaps": "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority",
            "proc/sys/fs/file-nr": "2912\t0\t9223372036854775807",
            "proc/sys/kernel/random/boot_id": "42740596-e318-47e3-9ea6-a1e87037b350",
            "proc/sys/kernel/pid_max": "4194304",
            "proc/sys/kernel/numa_balancing": "0",
            "proc/sys/kernel/tainted": "12288",  # a module from outside of the kernel's tree, without its signature
            "proc/sys/vm/max_map_count": "1048576",
            "proc/sys/vm/nr_hugepages": str(pages),
            "proc/sys/net/netfilter/nf_conntrack_count": "210",
            "proc/sys/net/netfilter/nf_conntrack_max": "262144",
            "sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never",
            "sys/devices/system/clocksource/clocksource0/current_clocksource": "tsc",
            "sys/kernel/security/lockdown": "none [integrity] confidentiality",
            "sys/module/module/parameters/sig_enforce": "N",
            "sys/devices/system/node/has_cpu": f"0-{nodes - 1}" if nodes > 1 else "0",
            "sys/class/dmi/id/sys_vendor": "Amazon EC2",
            "sys/class/dmi/id/product_name": row.name,
            "sys/class/dmi/id/bios_version": "1.0",
            "etc/machine-id": "3d1219c7c4c5404aaa1f6d2a48adfda4",
            "etc/resolv.conf": "nameserver 127.0.0.53\noptions edns0",
            "etc/ssh/ssh_host_ed25519_key.pub": "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5 root@ip-10-0-3-17",
            "run/cloud-init/status.json": '{"v1": {"datasource": null, "init": {"errors": [], "finished": 16999102.2, '
            '"recoverable_errors": {"WARNING": ["no keys"]}}, "modules-final": {"errors": []}, "stage": null}}',
            # Ubuntu 24.04 on a machine of two NUMA nodes
            "proc/buddyinfo": "Node 0, zone      DMA      0      0      0      0      0      0      0      0      1    "
            "  1      2 \nNode 0, zone   Normal    913   1262    702    481    322    188     97     54     31     "
            "22  40113 ",
            "run/cloud-init/result.json": '{"v1": {"datasource": "DataSourceEc2Local", "errors": []}}',
        },
        "cpu": {"processors": row.vcpus, "models": {"Intel(R) Xeon(R) Platinum 8275CL CPU @ 3.00GHz": row.vcpus},
                "sockets": 2, "cores": row.vcpus // 2, "mhz": [2400.0, 3600.0],
                "socket_mhz": {"0": 3600.0, "1": 3590.0}, "base_mhz": 3000.0},
        "governors": {"performance": row.vcpus},
        "edac": {"mc0": {"ue_count": "0", "ce_count": "3"}},
        "mounts": ["/dev/root / ext4 rw,relatime,discard", "tmpfs /dev/shm tmpfs rw,nosuid,nodev",
                   "/dev/nvme0n1p15 /boot/efi vfat rw,relatime",
                   *(["/dev/md127 /scratch xfs rw,noatime"] if scratch else [])],
        "df": {"rc": 0, "text": "Mounted on Filesystem Type 1B-blocks Used Avail Inodes IUsed\n" + "\n".join(rows)},
        "sync": {"rc": 0, "text": "NTP=yes\nNTPSynchronized=yes\n"},
        "sshd": {"rc": 0, "text": "port 22\npermitrootlogin without-password\npasswordauthentication no"},
        "docker": {"rc": 0, "text": json.dumps({
            "version": "28.2.2", "driver": "overlay2", "root": "/var/lib/docker", "cgroup": "systemd",
            "live_restore": True, "runtimes": {"runc": {}, "io.containerd.runc.v2": {}}, "errors": None})},
        "interfaces": {
            "ens5": {"mtu": "9001", "operstate": "up", "carrier_down_count": "1", "speed": "-1", "device": True,
                     "counts": count},
            "lo": {"mtu": "65536", "operstate": "unknown", "counts": {}, "device": False},
        },
        "bonds": {"bond0": "Slave Interface: ens1f0\nMII Status: up\nSlave Interface: ens1f1\nMII Status: up\n"},
        "addresses": ["10.0.3.17", "127.0.0.1", "172.17.0.1", "::1", "fe80::1"],
        "default_routes": ["ens5"],
        "listening": ["tcp 0.0.0.0 22", "tcp 0.0.0.0 9400", "tcp 127.0.0.1 5555", "tcp :: 22"],
        "resolves": {"seconds": 0.001, "addresses": ["10.0.3.17"]},
        "processes": {"count": 2210, "zombies": [["sh", 12.5]], "zombie_count": 1, "stuck": [],
                      "users": {"1000": 4}, "running": ["nvlsm"]},
        "limits": {
            "session": {"user": "1000", "Max locked memory": ["unlimited", "unlimited"],
                        "Max open files": ["1024", "1048576"], "Max processes": ["1542001", "1542001"],
                        "Max stack size": ["8388608", "unlimited"]},
            "dockerd": {"Max locked memory": ["8388608", "8388608"], "Max open files": ["1048576", "1048576"]},
        },
        "crashes": [["/var/crash/202301010101", NOW - 10_000_000]],
        "cdi": {"/run/cdi/nvidia.yaml": ["kind: nvidia.com/gpu", '- name: "0"', "- name: all",
                                         f"hostPath: /usr/lib/x86_64-linux-gnu/libcuda.so.{driver}"]},
        "gpu_links": [*(f"195:{i}" for i in range(row.gpu_count)), "195:255", "195:254"],
        "sources": ["http://archive.ubuntu.com/ubuntu"],
        "kernels": {KERNEL: ["nvidia", "efa", "mlx5_core", "nouveau"]},
        "denied": ["nouveau", "pcspkr"],
        "repo_keys": {"gpuprov-cuda.asc": KEY},
        "amd_pages": {"card1": []},
        "driver_on_disk": {"rc": 0, "text": f"version:        {driver}\nvermagic:       {KERNEL} SMP mod_unload \n"
                           "signer:         gpuprov test key\n"},
        "libraries": {"rc": 0, "text": "\tlibnvidia-ml.so.1 (libc6,x86-64) => /lib/x86_64-linux-gnu/libnvidia-ml.so.1\n"
                      "\tlibcuda.so.1 (libc6,x86-64) => /lib/x86_64-linux-gnu/libcuda.so.1\n"},
        # chrony-project.org, chronyc(1), -c
        "tracking": {"rc": 0, "text": "A9FEA97B,169.254.169.123,4,1699999990.1,-0.000012345,0.000003211,0.000010999,"
                     "-13.5,0.001,0.02,0.000345,0.000211,16.2,Normal\n"},
        "allowances": {"ens5": {"bw_in_allowance_exceeded": "0", "pps_allowance_exceeded": "0",
                                "conntrack_allowance_exceeded": "0"}},
        "pcie": {"devices": {"0000:10:1c.0": {"iommu": "identity", "bridges": ["0000:10:00.0"]}},
                 "acs": {"0000:10:00.0": 0x1, "0000:00:01.0": 0x1D}},
        "instance": row.name,
        "fstab": ["/ ext4 defaults,discard", "/boot/efi vfat umask", "none swap sw", "/mnt/data ext4 defaults,nofail"],
        "fuse": {"58": {"waiting": "0", "max_background": "12", "congestion_threshold": "9"}},
        "remote": {"/data": {"kind": "nfs4", "rc": 0, "timed_out": False, "seconds": 0.002, "error": ""}},
        "root_password": "locked",
        "secure_boot": True,
        "kernel_keys": KERNEL_KEYS,
        "cgroup2": True,
        "nvme": {"nvme0": {"model": "Amazon Elastic Block Store", "state": "live", "transport": "pcie"},
                 "nvme1": {"model": "NVMe SSD", "state": "live", "transport": "pcie"}},
        "smart": {"nvme1": '{"critical_warning": 0, "avail_spare": 100, "spare_thresh": 10, "percent_used": 3, '
                           '"media_errors": 0}'},
        "environment": ["NCCL_DEBUG=WARN"],
        "oom_kills": "oom_kill 0",
    }  # fmt: skip
