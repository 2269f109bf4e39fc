"""Host keys out of a known_hosts file (sshd(8), SSH_KNOWN_HOSTS FILE FORMAT), hashed names included."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable
from pathlib import Path

from provisioner.common import regular_file
from provisioner.common.errors import GpuprovError
from provisioner.machines.providers.baremetal.site import BareMetalSite
from provisioner.machines.providers.hosts import Host

LIMIT = 16 << 20
"""Bytes of a file of host keys; 10,000 hosts have 1 MiB."""


def key_of(site: BareMetalSite, host: Host) -> str | None:
    """The host's ed25519 key by its site's `host_keys`; None where the site names no file, and for this very machine.
    Raises GpuprovError where the file does not have it."""
    if site.host_keys is None or host.local:
        return None
    return host_key(site.host_keys, (host.name, host.address), host.port)


def host_key(file: str, names: Iterable[str], port: int) -> str:
    """The ed25519 key ("ssh-ed25519 AAAA…") of the first of these names that the file has. Raises GpuprovError where it
    has none of them, and where it revokes what it has: a line `@revoked` for any of the names, whatever the port."""
    try:
        regular_file.read(Path(file), LIMIT)
    except FileNotFoundError:
        raise GpuprovError(
            f"there is no file {file}", where="host_keys", hint="ssh-keyscan -t ed25519 HOST … writes one"
        ) from None
    except OSError as error:
        raise GpuprovError(f"{file} cannot be read: {error.strerror}", where="host_keys", hint="name another") from None
    plain = list(names)
    known = dict.fromkeys(name if port == 22 else f"[{name}]:{port}" for name in plain)
    keys_by_name = {name: _keys_of(file, name) for name in dict.fromkeys([*known, *plain])}
    revoked = {key for _, ones in keys_by_name.values() for key in ones}
    keys = [key for name in known for key in keys_by_name[name][0]]
    for key in keys:
        if key not in revoked:
            return key
    if keys:
        raise GpuprovError(
            f"{file} revokes the ed25519 key of {' or '.join(known)}",
            where="host_keys",
            hint="a key of @revoked is never trusted again: make the machine a new one "
            "(rm /etc/ssh/ssh_host_ed25519_key*; ssh-keygen -A; restart ssh) and add its line",
        )
    raise GpuprovError(
        f"{file} has no ed25519 key of {' or '.join(known)}",
        where="host_keys",
        hint="add its line (`ssh-keyscan -t ed25519`, compared with the machine's own), or leave host_keys out",
    )


def _keys_of(file: str, name: str) -> tuple[list[str], list[str]]:
    """The ed25519 keys of a name, and those that are revoked for it; as ssh itself would find them. A line with another
    marker is an authority's."""
    argv = ["ssh-keygen", "-F", name, "-f", file]
    done = subprocess.run(
        argv, capture_output=True, text=True, encoding="utf-8", errors="replace", timeout=30, check=False
    )
    keys: list[str] = []
    revoked: list[str] = []
    for line in done.stdout.splitlines():
        fields = line.split()
        ours = revoked if fields[:1] == ["@revoked"] else keys
        fields = fields[1:] if ours is revoked else fields
        if len(fields) >= 3 and fields[0][0] not in "#@" and fields[1] == "ssh-ed25519":
            ours.append(f"ssh-ed25519 {fields[2]}")
    return keys, revoked
