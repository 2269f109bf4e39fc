"""What a virtual machine is told when it boots a disk for the first time: cloud-init's data source NoCloud on a small
disk with the label CIDATA (https://cloudinit.readthedocs.io/en/latest/reference/datasources/nocloud.html)."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path

from provisioner.common.errors import ProviderError
from provisioner.common.paths import private_dir, write_whole
from provisioner.lifecycle.images.disk import tools
from provisioner.machines.providers import first_boot

SEED_KIB = 1024
DEADLINE_S = 60.0


@dataclass(frozen=True, slots=True)
class HostKey:
    """A host key that is given to the machine and pinned before it boots. `private` is a secret of that machine."""

    private: str
    public: str


def host_key(folder: Path) -> HostKey:
    """Make an ed25519 key, of which nothing stays in the folder. Raises ProviderError where ssh-keygen fails."""
    file = private_dir(folder) / "host-key"
    file.unlink(missing_ok=True)
    command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", str(file)]
    try:
        subprocess.run(command, check=True, capture_output=True, timeout=DEADLINE_S, stdin=subprocess.DEVNULL)
        public = file.with_suffix(".pub").read_text(encoding="utf-8")
        return HostKey(file.read_text(encoding="utf-8"), " ".join(public.split()[:2]))
    except (OSError, subprocess.SubprocessError) as error:
        raise ProviderError(f"ssh-keygen made no key: {error}", where=str(folder)) from None
    finally:
        file.unlink(missing_ok=True)
        file.with_suffix(".pub").unlink(missing_ok=True)


def user_data(user: str, ssh_public_key: str, key: HostKey) -> str:
    """A cloud-config: what every machine is told at first boot, and this one's host key."""
    config = json.loads(first_boot.cloud_config(user, ssh_public_key).partition("\n")[2])
    config |= {
        "ssh_deletekeys": True,
        "ssh_keys": {"ed25519_private": key.private, "ed25519_public": key.public},
        "manage_etc_hosts": "localhost",  # nobody answers its questions for names
    }
    return "#cloud-config\n" + json.dumps(config) + "\n"


def seed(folder: Path, name: str, text: str) -> Path:
    """Write the small disk, readable by its owner alone; `name` is the machine's. Raises ProviderError."""
    data, file = private_dir(folder / "seed"), folder / "seed.img"
    write_whole(data / "user-data", text)
    write_whole(data / "meta-data", json.dumps({"instance-id": name, "local-hostname": name}) + "\n")
    write_whole(file, bytes(SEED_KIB * 1024))
    tools.run(["mkdosfs", "-n", "CIDATA", file], DEADLINE_S)
    tools.run(["mcopy", "-i", file, data / "user-data", data / "meta-data", "::"], DEADLINE_S)
    for part in data.iterdir():
        part.unlink()
    data.rmdir()
    return file
