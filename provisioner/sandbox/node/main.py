"""Entry of every simulated program: the name of the tool picks the module, so that each start imports one of them."""

from __future__ import annotations

import sys
from importlib import import_module

TOOLS = {
    "nvidia-smi": ("smi", "nvidia_smi"),
    "nvidia-modprobe": ("kernel", "nvidia_modprobe"),
    "nvidia-persistenced": ("services", "persistenced"),
    "nv-fabricmanager": ("services", "fabric_manager"),
    "nvidia-imex": ("services", "imex"),
    "nvidia-imex-ctl": ("services", "imex_ctl"),
    "nv-hostengine": ("services", "hostengine"),
    "dcgm-exporter": ("exporter", "dcgm_exporter"),
    "dcgmi": ("dcgm", "dcgmi"),
    "grafana": ("grafana", "grafana"),
    "nvidia-ctk": ("toolkit", "nvidia_ctk"),
    "nvidia-container-cli": ("toolkit", "container_cli"),
    "nvidia-container-runtime": ("toolkit", "container_runtime"),
    "nvidia-container-runtime-hook": ("toolkit", "runtime_hook"),
    "daemon-reload": ("toolkit", "daemon_reload"),
    "nvcc": ("toolkit", "nvcc"),
    "ibstat": ("rdma", "ibstat"),
    "ibstatus": ("rdma", "ibstatus"),
    "ibv_devinfo": ("rdma", "ibv_devinfo"),
    "ibdev2netdev": ("rdma", "ibdev2netdev"),
    "ofed_info": ("rdma", "ofed_info"),
    "fi_info": ("rdma", "fi_info"),
    "ib_write_bw": ("perftest", "ib_write_bw"),
    "rocm-smi": ("rocm", "rocm_smi"),
    "lspci": ("kernel_shows", "lspci"),
    "df": ("host", "df"),
    "timedatectl": ("host", "timedatectl"),
    "lsblk": ("lsblk", "lsblk"),
    "blkid": ("lsblk", "blkid"),
    "mdadm": ("storage", "mdadm"),
    "mkfs.xfs": ("storage", "mkfs_xfs"),
    "mkfs.ext4": ("storage", "mkfs_ext4"),
    "fio": ("fio", "fio"),
    "nvme": ("nvme", "nvme"),
    "mount": ("storage", "mount"),
    "umount": ("storage", "umount"),
    "dmesg": ("kernel_shows", "dmesg"),
    "lsmod": ("kernel_shows", "lsmod"),
    "modprobe": ("kernel", "modprobe"),
    "modinfo": ("kernel", "modinfo"),
    "rmmod": ("kernel", "rmmod"),
    "dkms": ("dkms", "dkms"),
    "update-initramfs": ("dkms", "update_initramfs"),
    "lsinitramfs": ("dkms", "lsinitramfs"),
    "sysfs": ("sysfs", "sysfs"),
    "modules": ("boot", "modules"),
    "boot": ("boot", "boot"),
    "fault": ("faultctl", "fault"),
    "image": ("faultctl", "image"),
    "mirror": ("mirror", "mirror"),
    "jump": ("jump", "jump"),
    "sku-customizations": ("azure_hpc", "sku_customizations"),
}


def main(tool: str, version: str = "") -> int:
    """Run a tool with the arguments of this process; `version` is that of the package that ships it."""
    module, function = TOOLS[tool]
    entry = getattr(import_module(f".{module}", __package__), function)
    try:
        code: int = entry(sys.argv[1:], version)
        sys.stdout.flush()
    except BrokenPipeError:
        # `nvidia-smi | head` closes early; the real tools die quietly as well.
        sys.stderr.close()
        return 141
    return code
