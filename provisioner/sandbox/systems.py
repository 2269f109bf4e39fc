"""The distribution that a node says it is: files that tell programs, Ansible and people what runs there.

Nodes are Debian 12 whatever they say; no archive of Ubuntu is needed to use a lock for it in the sandbox. So these
files are what is Ubuntu's of such a node, with the names of packages that the lock has for that distribution.
"""

from __future__ import annotations

from typing import Any

from provisioner.catalog import distributions
from provisioner.common.errors import GpuprovError

ORIGINS = """\
// As Ubuntu ships it: what unattended-upgrades may install.
Unattended-Upgrade::Allowed-Origins {
	"${distro_id}:${distro_codename}";
	"${distro_id}:${distro_codename}-security";
	"${distro_id}ESMApps:${distro_codename}-apps-security";
	"${distro_id}ESM:${distro_codename}-infra-security";
};
Unattended-Upgrade::Package-Blacklist {
};
"""

OWN = "debian-12"
"""What the nodes really are, whatever they say."""


def system(os: str) -> dict[str, Any]:
    """{"name": as cluster.yaml writes it, "files": path → text} of a node. Raises `GpuprovError` for a distribution
    that the sandbox cannot show."""
    if os == OWN:
        return {"name": os, "files": {}}
    sandbox_row = distributions.row(os)["sandbox"] if os in distributions.names() else None
    if sandbox_row is None:
        known = [row["version"] for row in distributions.rows() if row["sandbox"] or row["version"] == OWN]
        raise GpuprovError(f"the sandbox cannot show {os}", hint=f"sandbox nodes can be {', '.join(known)}")
    version, version_name, debian = os.partition("-")[2], sandbox_row["words"], sandbox_row["debian_version"]
    codename = version_name.split()[0].lower()
    # Small letters for debian: Ansible takes a system for Debian where the capital word stands anywhere in this file.
    pretty = f"Ubuntu {version} LTS (sandbox on debian 12)"
    release = {
        "PRETTY_NAME": f'"{pretty}"',
        "NAME": '"Ubuntu"',
        "VERSION_ID": f'"{version}"',
        "VERSION": f'"{version} LTS ({version_name})"',
        "VERSION_CODENAME": codename,
        "ID": "ubuntu",
        "ID_LIKE": "debian",
        "HOME_URL": '"https://www.ubuntu.com/"',
        "UBUNTU_CODENAME": codename,
    }
    lsb = {
        "DISTRIB_ID": "Ubuntu",
        "DISTRIB_RELEASE": version,
        "DISTRIB_CODENAME": codename,
        "DISTRIB_DESCRIPTION": f'"{pretty}"',
    }
    return {
        "name": os,
        "files": {
            "usr/lib/os-release": _lines(release),
            "etc/lsb-release": _lines(lsb),
            "etc/debian_version": f"{debian}\n",
            "etc/apt/apt.conf.d/50unattended-upgrades": ORIGINS,
            "etc/issue": f"{pretty} \\n \\l\n\n",
        },
    }


def _lines(values: dict[str, str]) -> str:
    return "".join(f"{key}={value}\n" for key, value in values.items())
