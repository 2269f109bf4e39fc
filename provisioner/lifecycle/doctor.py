"""What this machine lacks for gpuprov's jobs, each with the command that mends it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from provisioner.common.errors import GpuprovError

OPENSSH_MIN = (8, 0)
"""ssh-keyscan and HostKeyAlias behave as used here from OpenSSH 8.0 on (Ubuntu 20.04 has 8.2)."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """One thing that was looked at. `needed_for` says which job is impossible without it."""

    subject: str
    status: Literal["ok", "missing", "unknown"]
    found: str
    needed_for: str
    mend: str = ""


def examine() -> list[Diagnosis]:
    """Look at everything; never raises."""
    return [_python(), _ssh(), _terraform(), _dpkg(), *_sandbox_tools(), _podman_runs(), _root()]


def _python() -> Diagnosis:
    version = ".".join(map(str, sys.version_info[:3]))
    return Diagnosis("python", "ok" if sys.version_info >= (3, 11) else "missing", version, "everything")


def _ssh() -> Diagnosis:
    mend = "sudo apt-get install -y openssh-client"
    missing = [name for name in ("ssh", "ssh-keygen", "ssh-keyscan") if shutil.which(name) is None]
    if missing:
        return Diagnosis("ssh", "missing", f"no {', '.join(missing)}", "reaching nodes", mend)
    banner = subprocess.run(
        ["ssh", "-V"], capture_output=True, text=True, timeout=10, check=False, encoding="utf-8", errors="replace"
    ).stderr
    version = re.search(r"OpenSSH_(\d+)\.(\d+)", banner)
    if version is None:
        return Diagnosis("ssh", "unknown", banner.strip(), "reaching nodes", mend)
    enough = tuple(map(int, version.groups())) >= OPENSSH_MIN
    return Diagnosis("ssh", "ok" if enough else "missing", version[0], "reaching nodes", "" if enough else mend)


def _terraform() -> Diagnosis:
    from provisioner.machines.terraform.binary import find

    try:
        binary = find()
    except GpuprovError as error:
        return Diagnosis("terraform", "missing", error.message, "making machines", error.hint)
    return Diagnosis("terraform", "ok", f"{binary.origin}: {' '.join(binary.argv)}", "making machines")


def _dpkg() -> Diagnosis:
    job = "`gpuprov lock` where a vendor has archives (EFA, DOCA, GDRCopy, Mountpoint for S3)"
    path = shutil.which("dpkg-deb")
    if path is None:
        return Diagnosis("dpkg-deb", "missing", "not installed", job, "sudo apt-get install -y dpkg")
    return Diagnosis("dpkg-deb", "ok", path, job)


def _sandbox_tools() -> list[Diagnosis]:
    packages = {
        "podman": "podman",
        "mmdebstrap": "mmdebstrap",
        "gpg": "gpg",
        "gpg-agent": "gpg-agent",
        "openssl": "openssl",
    }
    return [
        Diagnosis(tool, "ok", path, "the sandbox")
        if (path := shutil.which(tool))
        else Diagnosis(tool, "missing", "not installed", "the sandbox", f"sudo apt-get install -y {package}")
        for tool, package in packages.items()
    ]


def _podman_runs() -> Diagnosis:
    from provisioner.sandbox.runtime import find_podman

    return _tried("container runtime", lambda: find_podman().runtime, "the sandbox")


def _tried(subject: str, look: Callable[[], str], needed_for: str) -> Diagnosis:
    try:
        return Diagnosis(subject, "ok", look(), needed_for)
    except GpuprovError as error:
        return Diagnosis(subject, "missing", error.message, needed_for, error.hint)


def _root() -> Diagnosis:
    if os.geteuid() == 0:
        return Diagnosis("root", "ok", "this user is root", "the sandbox")
    return Diagnosis(
        "root", "missing", "this user is not root", "the sandbox", "run gpuprov with sudo to use the sandbox"
    )
