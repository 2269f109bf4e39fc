"""DKMS and the initramfs: which modules are built for the kernel, and what is denied before the root file system is
there.

Without the kernel's headers nothing is built, and efa not without a C library to link with. hardware.json can say
{"dkms": {"broken": ["nvidia"]}}: those do not build, as with a kernel that is too new for them.
"""

from __future__ import annotations

import itertools
import os
import sys
from pathlib import Path

from . import state

IMAGE = "boot/initrd.img-{release}"
LOG = "var/lib/dkms/{name}/{version}/build/make.log"
PARTS = ("nvidia_uvm", "nvidia_modeset", "nvidia_drm", "nvidia_peermem")
"""Modules that are built from the source called nvidia."""


LINKED = ("efa",)
"""Modules whose build begins with CMake's test of a C compiler (amzn-drivers kernel/linux/efa, CMakeLists.txt)."""


LIBC = "usr/include/stdlib.h"
"""Of libc6-dev itself."""


def broken(module: str) -> bool:
    """Whether a module was not built; `module` is its name or that of its source."""
    name = "nvidia" if module in PARTS else module
    if name in (state.hardware().get("dkms") or {}).get("broken", []) or not state.exists(
        f"lib/modules/{os.uname().release}/build"
    ):
        return True
    return name in LINKED and state.installed("tool-libc6-dev") is None and not state.exists(LIBC)


def _sources() -> list[tuple[str, str]]:
    """Name and version of what has its source below /usr/src."""
    names = (file.parent.name.rpartition("-") for file in sorted(state.path("usr/src").glob("*/dkms.conf")))
    return [(name, version) for name, _, version in names]


def _release(arguments: list[str]) -> str:
    return next((b for a, b in itertools.pairwise(arguments) if a == "-k"), os.uname().release)


def dkms(arguments: list[str], _version: str) -> int:
    """dkms status [MODULE[/VERSION]]; dkms install|build|autoinstall [MODULE/VERSION] [-k RELEASE]."""
    release = _release(arguments)
    verb, names = (arguments or ["status"])[0], [a for a in arguments[1:] if not a.startswith("-") and a != release]
    chosen = [(n, v) for n, v in _sources() if not names or names[0] in (n, f"{n}/{v}")]
    if verb == "status":
        for name, version in chosen:
            built = ": added" if broken(name) else f", {release}, {os.uname().machine}: installed"
            print(f"{name}/{version}{built}")
        return 0
    if verb not in ("install", "build", "autoinstall"):
        print(f"dkms {' '.join(arguments)}: not simulated by gpuprov", file=sys.stderr)
        return 1
    for name, version in chosen:
        if broken(name):
            log = state.path(LOG.format(name=name, version=version))
            log.parent.mkdir(parents=True, exist_ok=True)
            log.write_text(
                f"DKMS make.log for {name}-{version} for kernel {release} (simulated by gpuprov)\n"
                f"{name}/mmap.c:341:9: error: implicit declaration of function 'vma_start_write'\n",
                encoding="utf-8",
            )
            print(f"Error! Bad return status for module build on kernel: {release}", file=sys.stderr)
            return 10
    return 0


def denied() -> dict[str, str]:
    """The files of /etc/modprobe.d, by path."""
    folder = state.path("etc/modprobe.d")
    files = sorted(folder.glob("*.conf")) if folder.is_dir() else []
    return {f"etc/modprobe.d/{file.name}": file.read_text(encoding="utf-8") for file in files if file.is_file()}


def update_initramfs(arguments: list[str], _version: str) -> int:
    """update-initramfs -u|-c [-k RELEASE|all]: the image is a description of what a real one holds."""
    release = _release(arguments)
    if release == "all":
        release = os.uname().release
    state.write(IMAGE.format(release=release), {"simulated": "gpuprov", "files": denied()})
    print(f"update-initramfs: Generating /boot/initrd.img-{release} (simulated by gpuprov)")
    return 0


def lsinitramfs(arguments: list[str], _version: str) -> int:
    """Names of the files in an image."""
    for name in (a for a in arguments if not a.startswith("-")):
        if not Path(name).exists():
            print(f"lsinitramfs: {name} does not exist", file=sys.stderr)
            return 1
        for file in state.read(name.lstrip("/"), {})["files"]:
            print(file)
    return 0


def has_image() -> bool:
    return state.path(IMAGE.format(release=os.uname().release)).exists()


def nouveau_at_boot() -> bool:
    """Whether this boot loads nouveau: the machine's system brings it, and the initramfs does not deny it."""
    if not state.hardware().get("nouveau"):
        return False
    image = state.read(IMAGE.format(release=os.uname().release), {"files": {}})
    return not any("blacklist nouveau" in text for text in image["files"].values())
