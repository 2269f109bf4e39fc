"""The programs that make a disk and boot it, with the Debian packages that have them.

genimage (https://github.com/pengutronix/genimage) lays out the disk: it calls mke2fs and mtools, needs no loop device
and no mount, and is in Debian 12 and in Ubuntu since 22.04. systemd-repart of those releases needs both.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from provisioner.common.errors import GpuprovError, ProviderError

PROGRAMS = {
    "genimage": "genimage", "mke2fs": "e2fsprogs", "mkdosfs": "dosfstools", "mcopy": "mtools", "qemu-img": "qemu-utils",
    "qemu-system-x86_64": "qemu-system-x86",
}  # fmt: skip
"""Program → the Debian and Ubuntu package that has it."""
OF_A_BUILDER = {"mmdebstrap": "mmdebstrap", "apt-get": "apt"}
"""What a virtual machine to build on is made with beside them."""
FIRMWARE = Path("/usr/share/OVMF/OVMF_CODE_4M.fd")
"""UEFI for virtual machines without Secure Boot, of package ovmf."""
FIRMWARE_VARIABLES = Path("/usr/share/OVMF/OVMF_VARS_4M.fd")
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""mkdosfs and mke2fs lie in sbin, which a user's PATH may lack."""


def program(name: str) -> str:
    """The path of a program. Raises GpuprovError naming the package that has it."""
    path = shutil.which(name, path=f"{os.environ.get('PATH', '')}:{PATH}")
    if path is None:
        raise GpuprovError(f"{name} is not installed", hint=f"sudo apt-get install -y {PROGRAMS.get(name, name)}")
    return path


def require(*, builder: bool = False) -> None:
    """Return where everything is there, also for a virtual machine to build on with `builder`. Raises GpuprovError
    naming all packages that are missing."""
    search, programs = f"{os.environ.get('PATH', '')}:{PATH}", PROGRAMS | (OF_A_BUILDER if builder else {})
    missing = {package: name for name, package in programs.items() if shutil.which(name, path=search) is None}
    if not (FIRMWARE.is_file() and FIRMWARE_VARIABLES.is_file()):
        missing["ovmf"] = str(FIRMWARE)
    if missing:
        raise GpuprovError(
            f"a disk image is made and booted with {', '.join(missing.values())}: not installed here",
            hint=f"sudo apt-get install -y --no-install-recommends {' '.join(sorted(missing))}",
        )


def run(arguments: Sequence[str | Path], deadline: float, *, environment: dict[str, str] | None = None) -> str:
    """Run one of them and give its standard output. `deadline` in seconds. Raises ProviderError."""
    command = [program(str(arguments[0])), *map(str, arguments[1:])]
    process_environment = {
        **os.environ,
        "PATH": f"{os.environ.get('PATH', '')}:{PATH}",
        "LC_ALL": "C",
        **(environment or {}),
    }
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=deadline,
            check=False,
            env=process_environment,
        )
    except subprocess.TimeoutExpired:
        raise ProviderError(f"{arguments[0]} did not finish in {deadline:.0f} s", where=str(arguments[-1])) from None
    if done.returncode:
        lines = (done.stderr + done.stdout).decode(errors="replace").strip().splitlines()
        error_lines = [line for line in lines if "rror" in line] or lines or ["it said nothing"]
        raise ProviderError(f"{arguments[0]} failed: {'; '.join(error_lines[-3:])[:500]}", where=str(arguments[-1]))
    return done.stdout.decode(errors="replace")
