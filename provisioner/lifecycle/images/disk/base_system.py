"""The system that a virtual machine starts with on which an image is built: a distribution's own signed packages,
installed by mmdebstrap into a folder, made bootable in a chroot. Needs root on this computer, and no loop device."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from provisioner.common import bounded
from provisioner.common.errors import GpuprovError, ProviderError
from provisioner.lifecycle.images.disk import tools
from provisioner.transport import ssh_failure

MAKE_S, BOOTABLE_S = 3600.0, 1800.0
BOOTABLE_LIMIT = 16 << 20
"""Bytes of what bootable.sh prints."""
COMMON = (
    "initramfs-tools", "zstd", "systemd", "systemd-sysv", "systemd-boot", "systemd-resolved", "dbus", "libpam-systemd",
    "cloud-init", "cloud-guest-utils", "fdisk", "netplan.io", "udev", "kmod", "e2fsprogs", "dosfstools",
    "openssh-server", "sudo", "python3", "python3-apt", "python3-debian", "ca-certificates", "curl", "gpg", "gpgv",
    "iproute2", "procps", "apparmor", "systemd-timesyncd", "unattended-upgrades",
)  # fmt: skip
"""A small server that cloud-init configures, starts by UEFI and lets Ansible in."""
SETTINGS = """\
systemctl --quiet enable systemd-networkd.service systemd-resolved.service systemd-timesyncd.service
echo 'locale: C.UTF-8' >/etc/cloud/cloud.cfg.d/90-gpuprov.cfg
"""
"""cloud-init's own locale, en_US.UTF-8, is not there, and its module fails (seen with 22.4.2 of Debian 12)."""
NAMESPACE = ("unshare", "--mount", "--propagation", "private", "--fork", "--kill-child")
"""Mounts (/proc, /dev of this computer) are seen by nobody else, and go with the last process, however that ends: what
is left of one that was killed is a folder that can be removed."""
IN_CHROOT = """\
set -eu
mount -t proc proc "$1/proc"
mount --rbind /dev "$1/dev"
mount -t tmpfs tmpfs "$1/run"
mkdir -p "$1/boot/efi"
mount -t tmpfs -o mode=700 tmpfs "$1/boot/efi"
chroot "$1" sh -s
cp -r "$1/boot/efi/." "$2"
"""
"""A file system of its own at /boot/efi, because kernel-install writes paths that begin there."""


@dataclass(frozen=True, slots=True)
class Archive:
    """A distribution's archive. `kernel`: the package that stands for its newest one; `security`: where its security
    updates are."""

    suite: str
    mirror: str
    keyring: Path
    keyring_package: str
    components: str
    kernel: str
    security: str

    def sources(self, mirror: str | None) -> list[str]:
        """Lines of sources.list(5); `mirror`: a mirror in place of the distribution's, which is asked alone."""
        if mirror is not None:
            return [f"deb {mirror} {self.suite} {self.components}"]
        places = {"": self.mirror, "-updates": self.mirror, "-security": self.security}
        return [f"deb {uri} {self.suite}{pocket} {self.components}" for pocket, uri in places.items()]


ARCHIVES = {
    "debian-12": Archive(
        "bookworm", "http://deb.debian.org/debian", Path("/usr/share/keyrings/debian-archive-keyring.gpg"),
        "debian-archive-keyring", "main", "linux-image-amd64", "http://security.debian.org/debian-security",
    ),
    "ubuntu-24.04": Archive(
        "noble", "http://archive.ubuntu.com/ubuntu", Path("/usr/share/keyrings/ubuntu-archive-keyring.gpg"),
        "ubuntu-keyring", "main restricted universe", "linux-image-generic", "http://archive.ubuntu.com/ubuntu",
    ),
}  # fmt: skip
"""Ubuntu 22.04 has no package systemd-boot."""


def archive_of(system: str) -> Archive:
    """Raises GpuprovError for a distribution that no builder is made of, and for keys that are not installed."""
    archive = ARCHIVES.get(system)
    if archive is None:
        raise GpuprovError(
            f"a virtual machine to build on is made of {' or '.join(ARCHIVES)}, not of {system}",
            hint=f"stack.os: {next(iter(ARCHIVES))}",
        )
    if not archive.keyring.is_file():
        raise GpuprovError(
            f"the signing keys of {system} are not installed here", where=str(archive.keyring),
            hint=f"sudo apt-get install -y {archive.keyring_package}",
        )  # fmt: skip
    return archive


def make(system: str, mirror: str | None, root: Path) -> None:
    """Install a distribution into a folder that is not there. Raises GpuprovError, ProviderError where that fails."""
    archive = archive_of(system)
    include = ",".join((archive.kernel, *COMMON))
    tools.run(
        [*NAMESPACE, "mmdebstrap", "--variant=apt", "--mode=root", "--format=directory", "--quiet",
         f"--include={include}", f"--keyring={archive.keyring}", "--dpkgopt=force-unsafe-io",
         '--aptopt=Acquire::Languages "none"', "--aptopt=Acquire::Retries 3", archive.suite, root,
         *archive.sources(mirror)],
        MAKE_S, environment={"INITRD": "No", "DEBIAN_FRONTEND": "noninteractive"},
    )  # fmt: skip


def bootable(root: Path, esp: Path, script: str, environment: Mapping[str, str]) -> None:
    """Run bootable.sh in it, with an empty folder as its EFI system partition. Raises ProviderError."""
    assignments = [f"{key}={value}" for key, value in environment.items()]
    shell = ["env", *assignments, *NAMESPACE, "sh", "-c", IN_CHROOT, "sh", str(root), str(esp)]
    told_to_be_bootable(shell, SETTINGS + script, str(root))


def told_to_be_bootable(shell: Sequence[str], script: str, location: str) -> None:
    """Give bootable.sh to a shell. Raises ProviderError."""
    try:
        done = bounded.run(shell, stdin=script, deadline_s=BOOTABLE_S, limit=BOOTABLE_LIMIT)
    except subprocess.TimeoutExpired:
        raise ProviderError(f"it was not made bootable within {BOOTABLE_S:.0f} s", where=location) from None
    except bounded.UnboundedOutputError as error:
        raise ProviderError(f"it could not be made bootable: {error}", where=location) from None
    if done.returncode:
        if ssh_failure.is_own(shell, done.returncode):
            reason = ssh_failure.explain(shell[:-1], done.stderr)
        else:
            reason = ssh_failure.error_text(done.stderr or done.stdout) or f"exit status {done.returncode}"
        raise ProviderError(f"it could not be made bootable: {reason}", where=location)
