"""What a healthy node says of its GPUs beside nvidia-smi: PCI bus, driver, device nodes, links, kernel log."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence

from provisioner.catalog import load
from provisioner.catalog.models import Machine
from provisioner.verify.checks import (
    amd,
    driver,
    gpu_identity,
    gpu_idle,
    gpu_memory,
    gpu_power,
    gpu_readings,
    kernel_log,
    kernel_log_host,
    nvlink_health,
    pcie,
)
from provisioner.verify.checks import (
    imex as imex_checks,
)

AREA = (
    amd,
    driver,
    gpu_identity,
    gpu_idle,
    gpu_memory,
    gpu_power,
    gpu_readings,
    imex_checks,
    kernel_log,
    kernel_log_host,
    nvlink_health,
    pcie,
)
GPU_CHECKS = {c.id for m in AREA for f in vars(m).values() if (c := getattr(f, "__check__", None)) is not None}
"""Ids of the checks that test_gpu_checks.py proves."""

MODULES = (
    "nvidia_uvm 4956160 0 - Live 0x0000000000000000 (O)\nnvidia_modeset 1630208 0 - Live 0x0000000000000000 (O)\n"
    "nvidia 14376960 2 nvidia_uvm,nvidia_modeset, Live 0x0000000000000000 (O)\n"
    "ib_umad 40960 0 - Live 0x0000000000000000\nrdma_ucm 36864 0 - Live 0x0000000000000000\n"
    "ib_uverbs 208896 2 rdma_ucm, Live 0x0000000000000000\n"
)
PEERMEM = "nvidia_peermem 16384 0 - Live 0x0000000000000000 (OE)\n"

BOOT = """\
[    0.000000] Linux version 6.8.0-1024-aws (buildd@lcy02) (x86_64-linux-gnu-gcc-13 13.3.0) #26-Ubuntu SMP
[    0.000000] Command line: BOOT_IMAGE=/boot/vmlinuz-6.8.0 root=PARTUUID=1 ro panic=-1 nvme_core.io_timeout=4294967295
[    0.000000] BIOS-provided physical RAM map:
[    0.004512] Kernel command line: BOOT_IMAGE=/boot/vmlinuz-6.8.0 panic=-1
[    0.118121] mce: CPU supports 32 MCE banks
[    0.214412] MCE: In-kernel MCE decoding enabled.
[    0.331020] DMAR: IOMMU enabled
[    0.331022] AMD-Vi: Interrupt remapping enabled
[    0.402211] rcu: Hierarchical SRCU implementation.
[    0.402213] rcu: INFO: rcu_preempt is the flavour in use
[    0.511000] NMI watchdog: Enabled. Permanently consumes one hw-PMU counter.
[    0.611000] EDAC MC: Ver: 3.0.0
[    0.911000] ACPI BIOS Error (bug): Could not resolve symbol [\\_SB.PCI0.XHC], AE_NOT_FOUND (psargs-330)
[    1.200000] pcieport 0000:00:1c.0: AER: enabled with IRQ 24
[    1.201000] pcieport 0000:00:1c.0: DPC: enabled with IRQ 24
[    1.202000] pci 0000:53:00.0: BAR 1: assigned [mem 0x3a000000000-0x3bfffffffff 64bit pref]
[    1.203000] pci 0000:00:05.0: 31.504 Gb/s available PCIe bandwidth, limited by 8.0 GT/s PCIe x4 link at \
0000:00:05.0 (capable of 63.012 Gb/s with 16.0 GT/s PCIe x4 link)
[    1.300000] DMAR: [Firmware Bug]: No firmware reserved region can cover this RMRR
[    2.000000] nvme nvme0: pci function 0000:00:1f.0
[    2.010000] nvme nvme0: 2/0/0 default/read/poll queues
[    2.020000] blk_update_request: I/O error, dev fd0, sector 0 op 0x0:(READ) flags 0x0 phys_seg 1 prio class 0
[    2.021000] Buffer I/O error on dev sr0, logical block 0, async page read
[    2.300000] EXT4-fs (nvme0n1p1): mounted filesystem ro with ordered data mode. Quota mode: none.
[    2.400000] EXT4-fs (nvme0n1p1): re-mounted r/w. Quota mode: none.
[    2.500000] EDAC amd64: F19h detected (node 0).
[    2.600000] EDAC MC0: Giving out device to module i10nm_edac controller Intel_10nm Socket#0 IMC#0
[    3.100000] systemd[1]: Configuration file is marked world-inaccessible. This has no effect.
[    3.200000] XFS (md0): Mounting V5 Filesystem
[    3.300000] XFS (md0): Ending clean mount
[    4.000000] nvidia: loading out-of-tree module taints kernel.
[    4.010000] nvidia: module verification failed: signature and/or required key missing - tainting kernel
[    4.100000] nvidia-nvlink: Nvlink Core is being initialized, major device number 510
[    4.200000] NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  580.173.02  Release Build
[    4.300000] nvidia-modeset: Loading NVIDIA UNIX Open Kernel Mode Setting Driver for x86_64  580.173.02
[    4.400000] [drm] Initialized nvidia-drm 0.0.0 20160202 for 0000:53:00.0 on minor 1
[    4.500000] nvidia-uvm: Loaded the UVM driver, major device number 508.
[    4.600000] nvidia-nvswitch0: using MSI
[    4.700000] mlx5_core 0000:18:00.0: firmware version: 28.39.1002
[    4.701000] mlx5_core 0000:18:00.0: 504.112 Gb/s available PCIe bandwidth (32.0 GT/s PCIe x16 link)
[    4.702000] mlx5_core 0000:18:00.0: Port module event: module 0, Cable plugged
[    4.710000] mlx5_core 0000:18:00.2: 0.000 Gb/s available PCIe bandwidth, limited by Unknown x0 link at 0000:18:00.0 \
(capable of 504.112 Gb/s with 32.0 GT/s PCIe x16 link)
[    4.800000] efa 0000:10:1b.0: Setup irq:0xffff920e0f2d8010 vector:43 name:efa-mgmnt@pci:0000:10:1b.0
[    4.900000] ena 0000:00:06.0 ens6: ENA device reports max queues 8
[    5.000000] IPv6: ADDRCONF(NETDEV_CHANGE): eth0: link becomes ready
[    5.100000] audit: type=1400 audit(1700000000.0:2): apparmor="STATUS" operation="profile_load" error=0
[    5.200000] amdgpu 0000:0c:00.0: amdgpu: RAS: optional ras ta ucode is not available
[    5.201000] amdgpu 0000:0c:00.0: amdgpu: 0 uncorrectable hardware errors detected in umc block
[   90.000000] docker0: port 1(veth0a1b2c3) entered disabled state
[   91.000000] eth0: Link down
[   92.000000] eth0: Link up
[  300.000000] perf: interrupt took too long (2510 > 2500), lowering kernel.perf_event_max_sample_rate to 79500
"""
"""A healthy boot, with lines that look alarming and are not."""


def lspci(row: Machine) -> str:
    """lspci -Dnn: GPUs and NVSwitches of the machine, at the addresses that healthy_bundle.smi_xml gives them."""
    gpu = load().gpu(row.gpu_model)
    lines = ["0000:00:00.0 Host bridge [0600]: Intel Corporation 440FX - 82441FX PMC [8086:1237]"]
    for i in range(row.gpu_count):
        if gpu.vendor == "amd":
            lines.append(f"0000:{i:02x}:00.0 Processing accelerators [1200]: AMD/ATI [Instinct] [1002:74a1]")
        else:
            lines.append(
                f"{i + 1:04x}:00:00.0 3D controller [0302]: NVIDIA Corporation [{row.gpu_model}] [10de:20b0] (rev a1)"
            )
    switches = row.nvlink.nvswitch_count if row.nvlink.generation in (3, 4) and gpu.vendor == "nvidia" else 0
    lines += [
        f"0000:{0xC0 + i:02x}:00.0 Bridge [0680]: NVIDIA Corporation NVSwitch [10de:1af1] (rev a1)"
        for i in range(switches)
    ]
    return "\n".join(lines) + "\n"


ERRORS = (
    "[    0.911000] ACPI BIOS Error (bug): Could not resolve symbol [\\_SB.PCI], AE_NOT_FOUND\n"
    "[    8.200000] NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64\n"
)
"""dmesg-errors.txt: what the kernel calls an error on a machine that is well."""


IMEX_HOSTS = ("10.0.3.17", "10.0.3.18", "10.0.3.19")
"""Addresses of an IMEX domain; the first one is the healthy node's own (healthy_host.py)."""


def imex(
    down: str = "",
    status: str = "UP",
    *,
    state: str = "UNAVAILABLE",
    cut: Collection[tuple[str, str]] = (),
    hosts: Sequence[str] = IMEX_HOSTS,
) -> str:
    """`nvidia-imex-ctl -N -j` of three nodes, as the tests of NVIDIA's isvctl keep it of a live domain; `down` is the
    address of one that is in another `state`, `cut` are pairs without a connection."""

    def between(first: str, second: str) -> str:
        if down in (first, second):
            return "INVALID"
        return "VERSION_MISMATCH" if (first, second) in cut or (second, first) in cut else "CONNECTED"

    nodes = {
        str(n): {
            "status": state if host == down else "READY",
            "host": host,
            "hostName": "N/A",
            "connections": {
                str(m): {"host": second, "status": between(host, second), "changed": True}
                for m, second in enumerate(hosts)
            },
        }
        for n, host in enumerate(hosts)
    }
    return json.dumps({"nodes": nodes, "timestamp": "9/4/2026 00:00:00.000", "status": status})


FLAVOURS = {
    "default": "Open Kernel Module for x86_64",
    "required": "Open Kernel Module for x86_64",
    "impossible": "x86_64 Kernel Module",
}


def driver_files(row: Machine, version: str) -> dict[str, str]:
    """/proc/driver/nvidia and /dev/nvidia* with the modules that the GPU takes, the open ones where it takes both."""
    modules = load().gpu(row.gpu_model).open_kernel_modules
    nodes = [(f"nvidia{i}", 195, i) for i in range(row.gpu_count)]
    nodes += [
        ("nvidia-uvm", 508, 0),
        ("nvidia-uvm-tools", 508, 1),
        ("nvidiactl", 195, 255),
        ("nvidia-modeset", 195, 254),
    ]
    count = row.gpu_count
    matrix = "".join(
        f" GPU{i}\t" + "\t".join("X" if i == j else "OK" for j in range(count)) + "\t\n" for i in range(count)
    )
    return {
        # as github aikitoria/open-gpu-kernel-modules#13 shows it of five GPUs
        "p2p.txt": " \t"
        + "\t".join(f"\x1b[4mGPU{i}" for i in range(count))
        + f"\x1b[0m\n{matrix}\nLegend:\n\n  X    = Self\n",
        **({"imex.json": imex()} if row.imex_required else {}),
        # the kernel's own dma-buf is for the open modules alone
        **({"modules.txt": MODULES + PEERMEM} if modules == "impossible" else {}),
        "nvidia-version.txt": f"NVRM version: NVIDIA UNIX {FLAVOURS[modules]}  {version}  Release Build\n"
        "GCC version:  gcc version 13.3.0 (Ubuntu 13.3.0-6ubuntu2)\n",
        "nvidia-params.txt": 'ModifyDeviceFiles: 1\nCreateImexChannel0: 1\nRegistryDwords: ""\n',
        "nvidia-dev.txt": "".join(
            f"crw-rw-rw- 1 root root {a}, {b} Nov 21 08:54 /dev/{name}\n" for name, a, b in nodes
        ),
    }


def nvlink_errors(row: Machine, wrong: dict[tuple[int, int], dict[str, int]] | None = None) -> str:
    """nvidia-smi nvlink -e; `wrong` is (GPU, link) → counter → count."""
    lines = []
    for gpu, links in enumerate(load().nvlinks_per_gpu(row)):
        lines.append(f"GPU {gpu}: NVIDIA X (UUID: GPU-{gpu:08d}-0000-0000-0000-000000000000)")
        for link in range(links):
            counts = {"Replay": 0, "Recovery": 0, "CRC": 0} | (wrong or {}).get((gpu, link), {})
            lines += [f"\t Link {link}: {name} Errors: {count}" for name, count in counts.items()]
            lines.append("")
    return "\n".join(lines) + "\n"
