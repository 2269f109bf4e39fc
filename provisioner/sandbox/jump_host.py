"""The container that stands for a site's jump hosts: one sshd at an address of this machine's loopback, with every
login name and port by which cluster.yaml calls them (node/jump.py)."""

from __future__ import annotations

import socket
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any

from provisioner.common.errors import ProviderError
from provisioner.sandbox import containers
from provisioner.sandbox.network import HOST_PREFIX, JUMP
from provisioner.spec.site import JumpHost

USER = "jump"
"""Login name where cluster.yaml has none: on a real jump host it comes from the caller's own ssh configuration."""
HOST_KEY = "/etc/ssh/ssh_host_ed25519_key.pub"
START_S = 30
"""Seconds until sshd greets; it does within one."""
PAUSE_S = 0.1


def module_input(hosts: Collection[str]) -> dict[str, Any]:
    """The module's `sandbox.jump` (terraform/sandbox/variables.tf) for these jump hosts, [user@]host[:port]."""
    parsed = [JumpHost.parse(text) for text in hosts]
    return {
        "users": sorted({host.user or USER for host in parsed}),
        "ports": sorted({host.port for host in parsed}),
    }


def address_and_key(workspace: Path, hosts: Collection[str]) -> tuple[str, str]:
    """Where the workspace's jump host is called, and its ed25519 host key ("ssh-ed25519 AAAA…"), read by podman and not
    over the network. `hosts`: as cluster.yaml names it. Raises ProviderError where it does not run."""
    names = ", ".join(sorted(hosts))
    container = next((c for c in containers.list_containers(workspace) if c.role == "jump"), None)
    if container is None or container.octet is None:
        raise ProviderError(f"the simulated jump host {names} does not exist", hint="`gpuprov up` makes it")
    if container.state != "running":
        raise ProviderError(
            f"the simulated jump host {names} is {container.state}, not running",
            where=container.name,
            hint=f"podman logs {container.name}; `gpuprov up` makes it again",
        )
    address = f"{HOST_PREFIX}.{container.octet}.{JUMP}"
    port = min(JumpHost.parse(host).port for host in hosts)
    if error := _wait_for_sshd(address, port):
        raise ProviderError(
            f"the simulated jump host {names} does not answer on {address} port {port}: {error}",
            where=container.name,
            hint=f"podman logs {container.name}",
        )
    key = containers.execute(container.name, "cat", HOST_KEY).split()
    return address, " ".join(key[:2])


def _wait_for_sshd(address: str, port: int) -> str:
    """Why nothing greets like ssh there; empty as soon as it does."""
    deadline = time.monotonic() + START_S
    while True:
        try:
            with socket.create_connection((address, port), timeout=5) as connection:
                if connection.makefile("rb").read(4) == b"SSH-":
                    return ""
                error = "it does not greet like ssh"
        except OSError as failure:
            error = failure.strerror or str(failure)
        if time.monotonic() > deadline:
            return error
        time.sleep(PAUSE_S)
