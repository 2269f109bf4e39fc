"""The nodes' image with what a disk of its own needs to boot: a kernel, an initramfs, a bootloader, cloud-init.

Debian's packages lie between the base and the simulator, because they change at another time: a minute and a half once,
a second for the simulator. `AS_A_MACHINE` takes from a node's files what keeps this computer's kernel and devices out
of it: a machine that boots the disk has its own.
"""

from __future__ import annotations

import hashlib
import json
import os

from provisioner.sandbox import image
from provisioner.sandbox.node_layer import TOOLS
from provisioner.sandbox.runtime import Podman, ulimit_options

NAME = "localhost/gpuprov-sandbox-disk"
PACKAGES = (
    "linux-image-amd64", "initramfs-tools", "zstd", "systemd-boot", "cloud-init", "cloud-guest-utils", "netplan.io",
    "udev", "kmod", "e2fsprogs", "dosfstools",
)  # fmt: skip
"""systemd-boot, because its packages' hooks keep the boot entries, and nothing of it asks for a real disk when it is
installed; it is not signed for Secure Boot."""
INSTALL = """\
set -eu
export PATH=/usr/sbin:/usr/bin:/sbin:/bin DEBIAN_FRONTEND=noninteractive LC_ALL=C INITRD=No
mkdir -p /boot/efi /etc/initramfs-tools/conf.d
apt-get -q -o Acquire::Languages=none -o Acquire::Retries=3 update
apt-get -q -o Dpkg::Options::=--force-unsafe-io install -y --no-install-recommends "$@"
apt-get clean
rm -rf /var/lib/apt/lists/*
find /boot/efi -mindepth 1 -delete
rm -f /run/reboot-required /run/reboot-required.pkgs
"""
DEADLINE_S = 900.0
AS_A_MACHINE = """\
set -eu
systemctl --quiet unmask MASKED
systemctl --quiet disable gpuprov-sandbox-sys.service gpuprov-sandbox-boot.service
systemctl --quiet enable systemd-networkd.service
for tool in TOOLS; do rm -f "/usr/local/sbin/$tool" "/usr/local/bin/$tool"; done
rm -rf /etc/gpuprov-sandbox/seed /etc/sudoers.d/90-gpuprov-sandbox
rm -f /etc/systemd/system/gpuprov-tuning.service.d/gpuprov-sandbox.conf
rm -f /etc/systemd/journald.conf.d/gpuprov-sandbox.conf
rm -f /boot/initrd.img*
""".replace("MASKED", " ".join(image.MASKED)).replace("TOOLS", " ".join(TOOLS))


def _base() -> str:
    content = json.dumps([image.base_reference(), PACKAGES, INSTALL])
    return f"{NAME}-base:{hashlib.sha256(content.encode()).hexdigest()[:16]}"


def reference() -> str:
    """The image that nodes start from of which a disk is made."""
    digest = hashlib.sha256(f"{_base()} {image.node_reference()}".encode()).hexdigest()
    return f"{NAME}:{digest[:16]}"


def prepare(podman: Podman) -> str:
    """Make it where it is missing. Raises ProviderError where that fails; the caller holds the cache's lock."""
    name_of_image = reference()
    if image.exists(podman, name_of_image):
        return name_of_image
    if not image.exists(podman, _base()):
        name = f"gpuprov.image.{os.getpid()}.disk"  # image.sweep removes what a killed build leaves
        try:
            podman.run(
                "run", "--interactive", "--name", name, *ulimit_options(), image.base_reference(), "sh", "-s",
                *PACKAGES,
                stdin=INSTALL, deadline=DEADLINE_S,
            )  # fmt: skip
            podman.run("commit", "--quiet", name, _base(), deadline=300)
        finally:
            podman.run("rm", "--force", "--ignore", name, check=False)
    image.build_node(podman, _base(), name_of_image)
    return name_of_image
