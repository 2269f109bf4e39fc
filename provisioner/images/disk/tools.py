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

from provisioner.errors import GpuprovError, ProviderError

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
    found = shutil.which(name, path=f"{os.environ.get('PATH', '')}:{PATH}")
    if found is None:
        raise GpuprovError(f"{name} is not installed", hint=f"sudo apt-get install -y {PROGRAMS.get(name, name)}")
    return found


def require(*, builder: bool = False) -> None:
    """Return where everything is there, also for a virtual machine to build on with `builder`. Raises GpuprovError
    naming all packages that are missing."""
    search, wanted = f"{os.environ.get('PATH', '')}:{PATH}", PROGRAMS | (OF_A_BUILDER if builder else {})
    missing = {package: name for name, package in wanted.items() if shutil.which(name, path=search) is None}
    if not (FIRMWARE.is_file() and FIRMWARE_VARIABLES.is_file()):
        missing["ovmf"] = str(FIRMWARE)
    if missing:
        raise GpuprovError(
            f"a disk image is made and booted with {', '.join(missing.values())}: not installed here",
            hint=f"sudo apt-get install -y --no-install-recommends {' '.join(sorted(missing))}",
        )


def run(words: Sequence[str | Path], deadline: float, *, environment: dict[str, str] | None = None) -> str:
    """Run one of them and give its standard output. `deadline` in seconds. Raises ProviderError."""
    command = [program(str(words[0])), *map(str, words[1:])]
    given = {**os.environ, "PATH": f"{os.environ.get('PATH', '')}:{PATH}", "LC_ALL": "C", **(environment or {})}
    try:
        done = subprocess.run(
            command, capture_output=True, stdin=subprocess.DEVNULL, timeout=deadline, check=False, env=given
        )
    except subprocess.TimeoutExpired:
        raise ProviderError(f"{words[0]} did not finish in {deadline:.0f} s", where=str(words[-1])) from None
    if done.returncode:
        lines = (done.stderr + done.stdout).decode(errors="replace").strip().splitlines()
        said = [line for line in lines if "rror" in line] or lines or ["it said nothing"]
        raise ProviderError(f"{words[0]} failed: {'; '.join(said[-3:])[:500]}", where=str(words[-1]))
    return done.stdout.decode(errors="replace")
