"""What the node layer adds to Debian: the simulator, its programs, the configuration of a small and quick node."""

from __future__ import annotations

from pathlib import Path

from provisioner.sandbox.deb import File
from provisioner.sandbox.distribution import TOOLS as COMPILER
from provisioner.sandbox.distribution import archive
from provisioner.sandbox.package_files import program
from provisioner.sandbox.sources import unit_file

TOOLS = (
    "lspci",
    "df",
    "timedatectl",
    "lsblk",
    "blkid",
    "mdadm",
    "mkfs.xfs",
    "mkfs.ext4",
    "fio",
    "nvme",
    "mount",
    "umount",
    "dmesg",
    "lsmod",
    "modprobe",
    "modinfo",
    "rmmod",
    "update-initramfs",
    "lsinitramfs",
    "ibstat",
    "ibstatus",
    "ibv_devinfo",
    "ibdev2netdev",
)
"""Programs that would otherwise show this computer's own kernel and devices; they come before the real ones in PATH."""


def node_files(*, prepared: bool = True) -> dict[str, File]:
    """What the node layer adds to Debian; not `prepared`: to a base that has none of what the roles install."""
    files = {
        "etc/gpuprov-sandbox/release": File(b"gpuprov sandbox node: its GPUs, drivers and networks are simulated\n"),
        "etc/docker/daemon.json": File(b'{"default-cgroupns-mode": "private"}\n'),
        "etc/ssh/sshd_config.d/gpuprov-sandbox.conf": File(
            b"PasswordAuthentication no\nUseDNS no\nMaxStartups 100:30:200\nMaxSessions 100\n"
        ),
        "etc/apt/apt.conf.d/90gpuprov-sandbox": File(b'APT::Periodic::Enable "0";\n'),
        "etc/systemd/journald.conf.d/gpuprov-sandbox.conf": File(
            b"[Journal]\nStorage=volatile\nRuntimeMaxUse=16M\nReadKMsg=no\n"
        ),
        "etc/motd": File(b"gpuprov sandbox node: GPUs, drivers and networks are simulated.\n"),
        "etc/systemd/system/gpuprov-sandbox-boot.service": File(unit_file("gpuprov-sandbox-boot.service").encode()),
        "etc/dpkg/dpkg.cfg.d/gpuprov-sandbox": File(b"force-unsafe-io\n"),
        "etc/systemd/system/gpuprov-sandbox-sys.service": File(unit_file("gpuprov-sandbox-sys.service").encode()),
        # A role's settings of the kernel must never be this computer's.
        "etc/systemd/system/gpuprov-tuning.service.d/gpuprov-sandbox.conf": File(
            b"[Unit]\nRequires=gpuprov-sandbox-sys.service\nAfter=gpuprov-sandbox-sys.service\n"
        ),
        "usr/lib/python3/dist-packages/gpuprov-sandbox.pth": File(
            b"import gpuprov_sandbox_clock\nimport gpuprov_sandbox_compiled\n"
        ),
        "usr/lib/python3/dist-packages/gpuprov_sandbox_compiled.py": File(
            link="../../gpuprov-sandbox/gpuprov_node/compiled.py"
        ),
        "var/cache/gpuprov-compiled/README": File(b"Ansible's modules as Python has compiled them: safe to remove.\n"),
        "usr/lib/python3/dist-packages/gpuprov_sandbox_clock.py": File(
            link="../../gpuprov-sandbox/gpuprov_node/clock.py"
        ),
        "usr/sbin/dkms": program("dkms", "3.0.10"),
        "usr/lib/gpuprov-sandbox/sysfs": program("sysfs", "1"),
        "usr/lib/gpuprov-sandbox/modules": program("modules", "1"),
        "usr/lib/gpuprov-sandbox/boot": program("boot", "1"),
        "usr/lib/gpuprov-sandbox/mirror": program("mirror", "1"),
        "usr/lib/gpuprov-sandbox/jump": program("jump", "1"),
        "usr/lib/gpuprov-sandbox/fault": program("fault", "1"),
        "usr/lib/gpuprov-sandbox/image": program("image", "1"),
        "etc/systemd/system-generators/gpuprov-sandbox": program("daemon-reload", "1"),
        "usr/lib/gpuprov-sandbox/rocm-smi": program("rocm-smi", "6.10.5"),
    }
    for tool in TOOLS:
        files[f"usr/local/sbin/{tool}"] = program(tool, "1")
        files[f"usr/local/bin/{tool}"] = File(link=f"../sbin/{tool}")
    files |= archive(COMPILER if prepared else {})
    source = Path(__file__).parent / "node"
    for path in sorted(source.rglob("*")):
        if path.suffix in (".py", ".shape", ".json") and "__pycache__" not in path.parts:
            files[f"usr/lib/gpuprov-sandbox/gpuprov_node/{path.relative_to(source)}"] = File(path.read_bytes())
    return files
