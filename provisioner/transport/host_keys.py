"""The host keys that machines show, asked over the network as ssh does at first contact."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import subprocess
import tempfile
from pathlib import Path

from provisioner.common import bounded
from provisioner.transport import ssh_failure

SCAN_S = 40
"""For a connection that a program carries: it asks its cloud first."""


def scan_through(command: str, address: str) -> str:
    """As `scan`, through the command that carries the connection. Nobody logs in."""
    return _through(command, address)[0]


def explain_through(command: str, address: str) -> str:
    """Why `scan_through` gives no key, by trying it once more; empty where that can't be told."""
    key, output = _through(command, address)
    return "" if key else ssh_failure.explain_carried(command, output)


def _through(command: str, address: str) -> tuple[str, str]:
    """The host key, or "", and what ssh printed."""
    output = ""
    with tempfile.TemporaryDirectory() as folder:
        known = Path(folder) / "known_hosts"
        options = {
            "ProxyCommand": command.replace("%", "%%"), "UserKnownHostsFile": str(known), "HostKeyAlias": "node",
            "GlobalKnownHostsFile": "/dev/null", "StrictHostKeyChecking": "accept-new", "HashKnownHosts": "no",
            "HostKeyAlgorithms": "ssh-ed25519", "PreferredAuthentications": "none", "BatchMode": "yes",
            "ConnectTimeout": "15",
        }  # fmt: skip
        arguments = [argument for key, value in options.items() for argument in ("-o", f"{key}={value}")]
        with contextlib.suppress(subprocess.TimeoutExpired, bounded.UnboundedOutputError):
            argv = ["ssh", "-F", "/dev/null", *arguments, f"nobody@{address}", "true"]
            output = bounded.run(argv, deadline_s=SCAN_S).stderr
        try:
            return known.read_text(encoding="utf-8").split(None, 1)[1].strip(), output
        except (FileNotFoundError, IndexError):
            return "", output


def scan(address: str, port: int = 22) -> str:
    """The ed25519 host key that `address` shows now ("ssh-ed25519 AAAA…"), or "" where it shows none."""
    try:
        done = bounded.run(["ssh-keyscan", "-T", "5", "-p", str(port), "-t", "ed25519", address], deadline_s=15)
    except (subprocess.TimeoutExpired, bounded.UnboundedOutputError):
        return ""
    lines = [line.split(None, 1)[1] for line in done.stdout.splitlines() if line and not line.startswith("#")]
    return lines[0].strip() if lines else ""


def fingerprint(key: str) -> str:
    """A host key's SHA256 fingerprint, as ssh prints it."""
    digest = hashlib.sha256(base64.b64decode(key.split()[1])).digest()
    return "SHA256:" + base64.b64encode(digest).decode().rstrip("=")
