"""The jump host's container: a real sshd that carries connections to the nodes and does nothing else."""

from __future__ import annotations

import json
import os
import pwd
import subprocess
from collections.abc import Sequence

SEED = "/etc/gpuprov-sandbox/jump.json"
"""{"users": [login name, …], "ports": [number, …]}"""
SEED_KEYS = "/etc/gpuprov-sandbox/jump_keys"
KEYS = "/etc/ssh/jump_keys"
CONFIG = "/etc/ssh/jump_config"
HOST_KEY = "/etc/ssh/ssh_host_ed25519_key"


def config(ports: Sequence[int]) -> str:
    """sshd's configuration (sshd_config(5)). No session is opened (MaxSessions 0), and only connections from here to
    others are carried (AllowTcpForwarding local). MaxStartups is that of the nodes."""
    return "".join(f"Port {port:d}\n" for port in ports) + (
        f"HostKey {HOST_KEY}\n"
        f"AuthorizedKeysFile {KEYS}\n"
        "AuthenticationMethods publickey\n"
        "PermitRootLogin prohibit-password\n"
        "UsePAM no\n"
        "UseDNS no\n"
        "MaxSessions 0\n"
        "PermitTTY no\n"
        "AllowTcpForwarding local\n"
        "AllowStreamLocalForwarding no\n"
        "AllowAgentForwarding no\n"
        "X11Forwarding no\n"
        "PermitTunnel no\n"
        "MaxStartups 100:30:200\n"
        "LogLevel VERBOSE\n"
    )


def jump(_arguments: list[str], _version: str) -> int:
    """Become sshd. A container that is started again keeps its accounts and its host key."""
    with open(SEED, encoding="utf-8") as file:
        seed = json.load(file)
    for user in seed["users"]:
        try:
            pwd.getpwnam(user)
        except KeyError:
            # "*": no password fits, and the account is not locked (sshd refuses a locked one: "!")
            argv = ["useradd", "--no-create-home", "--shell", "/usr/sbin/nologin", "--password", "*", user]
            subprocess.run(argv, check=True)
    if not os.path.exists(HOST_KEY):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", HOST_KEY], check=True)
    with open(SEED_KEYS, encoding="utf-8") as file:
        keys = file.read()
    for path, text in ((KEYS, keys), (CONFIG, config(seed["ports"]))):
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(path, 0o644)
    os.makedirs("/run/sshd", mode=0o755, exist_ok=True)
    os.execv("/usr/sbin/sshd", ["/usr/sbin/sshd", "-D", "-e", "-f", CONFIG])  # noqa: S606 - no shell is started
