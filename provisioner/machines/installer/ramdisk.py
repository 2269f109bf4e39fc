"""The system that writes a disk image: Debian's kernel with an initramfs by initramfs-tools, made once and kept.

mmdebstrap installs both from Debian's signed packages into a folder of its own, whatever this computer runs; the
packages' own hooks make the initramfs, with every driver that Debian has for disks and networks. What is to be done on
a machine comes beside it (disk_image.py)."""

from __future__ import annotations

import hashlib
import json
import shlex
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from provisioner.common import directories
from provisioner.common.errors import GpuprovError, ProviderError
from provisioner.common.paths import cache, private_dir

SUITE = "bookworm"
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
NEEDS = "mmdebstrap debian-archive-keyring"
MAKE_S = 1800
PACKAGES = (
    "linux-image-amd64", "initramfs-tools", "busybox", "zstd", "curl", "fdisk", "e2fsprogs", "udev", "kmod",
    "efibootmgr",
)  # fmt: skip
LEFT_OUT = ("/usr/share/doc/*", "/usr/share/man/*", "/usr/share/locale/*")
PROGRAMS = (
    "/usr/bin/curl", "/usr/bin/zstd", "/usr/bin/efibootmgr", "/usr/sbin/blkid", "/usr/sbin/blockdev",
    "/usr/sbin/e2fsck", "/usr/sbin/resize2fs", "/usr/sbin/sfdisk",
)  # fmt: skip
"""What disk_image.sh calls and busybox lacks."""
BETTER = ("/usr/bin/dd", "/usr/bin/sha256sum")
"""What busybox has too, and slower: its sha256sum knows no instructions of the processor. They lie in /usr/lib/gpuprov,
because initramfs-tools puts busybox in the place of others."""
HOOK = f"""#!/bin/sh
[ "$1" != prereqs ] || exit 0
. /usr/share/initramfs-tools/hook-functions
for program in {" ".join(PROGRAMS)}; do copy_exec "$program"; done
for program in {" ".join(BETTER)}; do copy_exec "$program" "/usr/lib/gpuprov/${{program##*/}}"; done
manual_add_modules ext4 efivarfs
"""
"""initramfs-tools(7), hook scripts."""


@dataclass(frozen=True, slots=True)
class Ramdisk:
    """`initrd` is compressed by gzip: another archive that is appended is unpacked over it."""

    linux: Path
    initrd: Path


def missing() -> list[str]:
    """Debian packages that this computer lacks to make one; none where one was made already."""
    lacks = [] if shutil.which("mmdebstrap") else ["mmdebstrap"]
    return lacks + ([] if KEYRING.exists() else ["debian-archive-keyring"])


def cache_folder(mirror: str) -> Path:
    """The folder of the one that is made from this mirror, there or not."""
    content = json.dumps([SUITE, mirror, PACKAGES, HOOK, LEFT_OUT])
    return cache() / "installer" / hashlib.sha256(content.encode()).hexdigest()[:16]


def ready(mirror: str) -> Ramdisk | None:
    """The one that was made earlier."""
    folder = cache_folder(mirror)
    ramdisk = Ramdisk(folder / "linux", folder / "initrd.gz")
    return ramdisk if ramdisk.initrd.is_file() and ramdisk.linux.is_file() else None


def make(mirror: str) -> Ramdisk:
    """Give the one that is there, or make it: minutes. `mirror`: of Debian. Raises GpuprovError where something is
    missing, ProviderError where it fails."""
    if existing := ready(mirror):
        return existing
    if lacks := missing():
        raise GpuprovError(
            f"{', '.join(lacks)} is missing, which makes the system that writes a disk image",
            hint=f"sudo apt-get install -y {NEEDS}",
        )
    target = cache_folder(mirror)
    with tempfile.TemporaryDirectory(dir=private_dir(target.parent), prefix=".making-") as folder:
        work = Path(folder)
        hook, settings = work / "hook", work / "settings"
        hook.write_text(HOOK, encoding="utf-8")
        hook.chmod(0o755)
        settings.write_text("MODULES=most\nBUSYBOX=y\nCOMPRESS=gzip\n", encoding="utf-8")
        _run(_command(mirror, work, hook, settings))
        for name in ("hook", "settings"):
            (work / name).unlink()
        target_folder = private_dir(target)
        for name in ("linux", "initrd.gz"):
            directories.move(work / name, target_folder / name)
    return Ramdisk(target / "linux", target / "initrd.gz")


def _command(mirror: str, work: Path, hook: Path, settings: Path) -> list[str]:
    """mmdebstrap(1). The hook is there before the kernel's package makes the initramfs."""

    def put(file: Path, path: str) -> str:
        return f"--essential-hook=upload {shlex.quote(str(file))} {path}"

    def get(path: str, name: str) -> str:
        return f"--customize-hook=download {path} {shlex.quote(str(work / name))}"

    folder = "etc/initramfs-tools"
    return [
        "mmdebstrap", "--variant=apt", "--format=null", "--quiet", f"--include={','.join(PACKAGES)}",
        f"--keyring={KEYRING}", "--dpkgopt=force-unsafe-io", "--aptopt=Acquire::Retries 3",
        "--aptopt=Acquire::Languages none", *(f"--dpkgopt=path-exclude={pattern}" for pattern in LEFT_OUT),
        f'--essential-hook=mkdir -p "$1"/{folder}/hooks "$1"/{folder}/conf.d',
        put(hook, f"/{folder}/hooks/gpuprov"), put(settings, f"/{folder}/conf.d/gpuprov"),
        f'--essential-hook=chmod 755 "$1"/{folder}/hooks/gpuprov',
        '--customize-hook=mv "$1"/boot/vmlinuz-* "$1"/linux && mv "$1"/boot/initrd.img-* "$1"/initrd.gz',
        get("/linux", "linux"), get("/initrd.gz", "initrd.gz"),
        SUITE, "-", f"deb {mirror} {SUITE} main",
    ]  # fmt: skip


def _run(command: list[str]) -> None:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, encoding="utf-8", errors="replace", timeout=MAKE_S, check=False,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise ProviderError(f"mmdebstrap did not finish in {MAKE_S} s", hint="is install.mirror reached?") from None
    if done.returncode:
        error_lines = [line for line in done.stderr.splitlines() if line.startswith("E: ")] or done.stderr.splitlines()[
            -3:
        ]
        raise ProviderError(
            f"the system that writes a disk image could not be made: {'; '.join(error_lines[:3])[:400]}",
            where="mmdebstrap", hint="install.mirror: a mirror of Debian that this computer reaches",
        )  # fmt: skip
