"""A disk image that is written to a machine as it is: what is served of it, and what its installer is told.

The installer is a kernel with an initramfs (ramdisk.py) in which disk_image.sh runs. It has a public key, a serial
number and a SHA-256, and no secret: the machine makes its host key itself and reports the public half."""

from __future__ import annotations

import hashlib
import json
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from provisioner.common import directories
from provisioner.common.errors import GpuprovError
from provisioner.common.paths import private_dir
from provisioner.machines.installer import seed, source
from provisioner.machines.installer.seed import Target

NAME = "disk.zst"
"""Of what is served, below the URL of an installation."""
COMPRESS_S = 3600
WORDS = "boot=gpuprov ip=dhcp panic=60"
"""initramfs-tools(7)."""
_SCRIPT = Path(__file__).parent / "disk_image.sh"
_BOOT = "mountroot() {\n    sh /gpuprov-install\n    poweroff -f\n}\n"
"""What initramfs-tools calls with boot=gpuprov."""


@dataclass(frozen=True, slots=True)
class DiskImage:
    """`file`: what is served, compressed by zstd; `sha256`, `size`: of the disk's bytes that it holds."""

    file: Path
    sha256: str
    size: int


def prepare(image: Path, sha256: str, folder: Path) -> DiskImage:
    """Compress a raw image into the folder, once for each SHA-256, comparing that on the way. Raises GpuprovError."""
    source.refuse_unfit_disk(image)
    compressed = private_dir(folder) / f"{sha256}.zst"
    size = image.stat().st_size
    if not compressed.exists():
        with tempfile.TemporaryDirectory(dir=folder, prefix=".zstd-") as inside:
            partial = Path(inside) / NAME
            digest = _compressed(image, partial)
            source.refuse_another(
                image, digest, sha256, "install.sha256: of the raw image, as the .json beside it says"
            )
            for old in folder.glob("*.zst"):
                old.unlink()
            directories.move(partial, compressed)
    return DiskImage(compressed, sha256, size)


def _compressed(image: Path, out: Path) -> str:
    """The SHA-256 of what was compressed."""
    digest, command = hashlib.sha256(), ["zstd", "-q", "-3", "-T0", "-o", str(out)]
    try:
        with image.open("rb") as stream, subprocess.Popen(
            command, stdin=subprocess.PIPE, stderr=subprocess.PIPE
        ) as zstd:  # fmt: skip
            assert zstd.stdin is not None and zstd.stderr is not None
            while piece := stream.read(1 << 20):
                digest.update(piece)
                zstd.stdin.write(piece)
            zstd.stdin.close()
            error_text = zstd.stderr.read(2000).decode(errors="replace").strip()
    except FileNotFoundError:
        raise GpuprovError("zstd is missing, which compresses the disk image", hint="apt install zstd") from None
    except BrokenPipeError:
        error_text = "it ended early"
    if zstd.returncode:
        raise GpuprovError(f"zstd failed: {error_text or zstd.returncode}", where=str(image), hint="is the disk full?")
    return digest.hexdigest()


def files(target: Target, image: DiskImage, certificate: str, config: str) -> dict[str, bytes]:
    """What is put beside the ramdisk, for one machine. `certificate`: of the server, PEM; "" for plain HTTP; `config`:
    the cloud-config that every machine has at first boot."""
    variables = {
        "chosen": target.disk, "image_sha256": image.sha256, "image_bytes": str(image.size), "token": target.token,
    }  # fmt: skip
    texts = {
        "scripts/gpuprov": _BOOT,
        "gpuprov-install": _SCRIPT.read_text(encoding="utf-8"),
        "gpuprov-guard": seed.guard(target),
        "gpuprov-target": "".join(f"{name}='{value}'\n" for name, value in variables.items()),
        "gpuprov-user-data": _user_data(target, config),
        "gpuprov-meta-data": json.dumps({"instance-id": target.token, "local-hostname": target.name}) + "\n",
    }
    if target.fixed:
        texts["gpuprov-network-config"] = json.dumps(seed.network(target)) + "\n"
    if certificate:
        texts["gpuprov-ca.pem"] = certificate
    return {name: text.encode() for name, text in texts.items()}


def _user_data(target: Target, config: str) -> str:
    """With the machine's name; its host key is there already, and stays."""
    document = json.loads(config.partition("\n")[2])
    short = target.name.partition(".")[0]
    document |= {"hostname": short, "fqdn": target.name, "manage_etc_hosts": "localhost", "ssh_deletekeys": False}
    return "#cloud-config\n" + json.dumps(document) + "\n"


def kernel_command_line(target: Target) -> str:
    """The kernel's command line."""
    return f"{WORDS} BOOTIF=01-{target.mac.replace(':', '-')}" if target.mac else WORDS
