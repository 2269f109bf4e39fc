"""Whether a machine that was installed answers by ssh, and by its own mark."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import tempfile
from pathlib import Path

from provisioner.common import bounded
from provisioner.common.paths import ClusterPaths
from provisioner.machines.providers.hosts import Host
from provisioner.transport import ssh_keys


def came_up(paths: ClusterPaths, host: Host, user: str, carried: str | None, token: str, host_key: str = "") -> bool:
    """Whether the machine that this installation made answers: an installer may run an sshd of its own, and an address
    may be another machine's. `carried`: ssh's ProxyCommand; `token`: of the installation, "" for any sshd. `host_key`:
    what its installer reported, and the only one that is taken; "" for any: it is pinned later, by whoever sends the
    machine anything."""
    if not carried and not greets(host.address, host.port):
        return False
    if not token:
        return not carried
    with tempfile.TemporaryDirectory() as folder:
        known = Path(folder) / "known_hosts"
        known.write_text(f"machine {host_key}\n" if host_key else "", encoding="utf-8")
        options = {
            "BatchMode": "yes", "ConnectTimeout": "10", "StrictHostKeyChecking": "yes" if host_key else "accept-new",
            "HostKeyAlias": "machine", "HostKeyAlgorithms": "ssh-ed25519", "UserKnownHostsFile": str(known),
            "GlobalKnownHostsFile": "/dev/null", "LogLevel": "ERROR",
            "IdentitiesOnly": "yes", "ForwardAgent": "no", "IdentityFile": str(ssh_keys.identity(paths)),
        } | ({"ProxyCommand": carried} if carried else {})  # fmt: skip
        option_arguments = [argument for key, value in options.items() for argument in ("-o", f"{key}={value}")]
        destination = ["-p", str(host.port), f"{user}@{host.address}"]
        argv = ["ssh", "-F", "/dev/null", *option_arguments, *destination, "cat /etc/gpuprov-installed"]
        with contextlib.suppress(subprocess.TimeoutExpired, bounded.UnboundedOutputError):
            done = bounded.run(argv, deadline_s=40)
            return done.stdout.strip() == token
    return False


def greets(address: str, port: int, timeout_s: float = 5.0) -> bool:
    """Whether an sshd answers."""
    try:
        with socket.create_connection((address, port), timeout=timeout_s) as connection:
            connection.settimeout(timeout_s)
            return connection.recv(4) == b"SSH-"
    except OSError:
        return False
