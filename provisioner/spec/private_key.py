"""Whether `access.ssh_key` is a private key that runs can use without a person."""

from __future__ import annotations

import os
import re
import stat
import subprocess
from pathlib import Path

from provisioner.common import regular_file

LIMIT = 64 * 1024
"""Bytes of a key's file; OpenSSH's own limit for it is 1 MiB."""
DEADLINE_S = 10
_PUBLIC = re.compile(r"^(?:ssh-|ecdsa-|sk-)[a-z0-9@.-]+ [A-Za-z0-9+/]+=*|^-----BEGIN (?:SSH2 )?PUBLIC KEY", re.M)
_PRIVATE = re.compile(r"^-----BEGIN (?:[A-Z0-9]+ )*PRIVATE KEY-----", re.M)


def problem(path: Path) -> tuple[str, str] | None:
    """What is wrong with it, and what would be right; None for one that can be used."""
    make = f"make one with `ssh-keygen -t ed25519 -f {path}`, or leave access.ssh_key out"
    if not path.exists():
        return f"there is no private key {path}", make
    try:
        text = regular_file.read(path, LIMIT).decode("ascii", "replace")
        mode = path.stat().st_mode
    except OSError as error:
        hint = "give the path of the key itself, such as ~/.ssh/fleet" if path.is_dir() else make
        return f"{path} cannot be read: {error.strerror}", hint
    if _PRIVATE.search(text) is None:
        if _PUBLIC.search(text):
            private = path.with_suffix("") if path.suffix == ".pub" else "the other half"
            return f"{path} is a public key", f"the private key is wanted: {private}"
        return f"{path} is no private key of OpenSSH's", make
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        return f"others can read {path}, and ssh refuses such a key", f"`chmod 600 {path}`"
    if _needs_passphrase(path):
        return (
            f"{path} has a passphrase: runs ask nobody, and use no ssh agent",
            "a key of its own without one, or leave access.ssh_key out: gpuprov makes one for this cluster",
        )
    return None


def _needs_passphrase(path: Path) -> bool:
    try:
        done = subprocess.run(
            ["ssh-keygen", "-y", "-P", "", "-f", str(path.absolute())], capture_output=True, text=True,
            encoding="utf-8", errors="replace", timeout=DEADLINE_S, check=False, stdin=subprocess.DEVNULL,
            env={**os.environ, "LC_ALL": "C"},
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):  # ssh says later what it makes of the key
        return False
    return "incorrect passphrase" in done.stderr
