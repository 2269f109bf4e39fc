"""What a machine with cloud-init does at its first boot: the same for every provider whose machines have it.

Ubuntu's and Debian's images fetch security updates as soon as they have booted: minutes of apt's lock, and a kernel
that nobody has proven. So apt's own timers are off until the roles have run, which take the file away again
(ansible/playbooks/site.yml). No package is upgraded at first boot, whatever the image's vendor data says.
"""

from __future__ import annotations

import json
import re

APT_FILE = "/etc/apt/apt.conf.d/52gpuprov-first-boot"
APT_TEXT = """\
// Written at first boot; gone when gpuprov has configured this node, which turns security updates on.
APT::Periodic::Enable "0";
"""


BEGIN, END = "-----BEGIN SSH HOST KEY KEYS-----", "-----END SSH HOST KEY KEYS-----"
"""What cloud-init writes on the console at first boot (module keys-to-console)."""


def cloud_config(user: str, ssh_public_key: str) -> str:
    """User data: the access user with that key and sudo, nobody else; no package work until the roles have run."""
    account = {
        "name": user, "shell": "/bin/bash", "sudo": "ALL=(ALL) NOPASSWD:ALL", "lock_passwd": True,
        "ssh_authorized_keys": [ssh_public_key.strip()],
    }  # fmt: skip
    # write_files is of cloud-init's first stage, before the network is up and apt's timers start.
    config = {
        "users": [account], "disable_root": True, "ssh_pwauth": False,
        "package_update": False, "package_upgrade": False,
        "write_files": [{"path": APT_FILE, "content": APT_TEXT, "permissions": "0644"}],
    }  # fmt: skip
    return "#cloud-config\n" + json.dumps(config) + "\n"


def host_key_of(console: str) -> str | None:
    """The ed25519 host key that cloud-init wrote there at the last boot that wrote keys; None where it wrote none."""
    preceding, end, _ = console.replace("\r", "").rpartition(END)  # no pattern over both: it takes the text's square
    _, begin, block = preceding.rpartition(BEGIN)
    keys = re.findall(r"ssh-ed25519 [A-Za-z0-9+/=]{40,}", block) if begin and end else []
    return keys[-1] if keys else None
