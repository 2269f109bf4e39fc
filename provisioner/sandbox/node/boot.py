"""What a cloud's first-boot agent does, before sshd starts: host keys, the access user with its key, user data,
modules."""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import shutil
import stat
import subprocess
from pathlib import Path

from . import dkms, kernel, smi_mig, state, storage

SEED = "etc/gpuprov-sandbox/seed"


def _host_key(file: Path) -> None:
    """The one that gpuprov pins. The RSA key that `ssh-keygen -A` makes beside it would take half of a boot."""
    if not file.exists():
        subprocess.run(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(file)], check=True, capture_output=True
        )


def boot(_arguments: list[str], _version: str) -> int:
    """Runs at each boot as gpuprov-sandbox-boot.service; each part does nothing when it is done already."""
    state.path("run/gpuprov-sandbox").mkdir(parents=True, exist_ok=True)
    distribution()
    _host_key(state.path("etc/ssh/ssh_host_ed25519_key"))
    seed = state.path(SEED)
    user = _seed(seed, "user", "ubuntu")
    _access(user, _seed(seed, "ssh_public_key", ""))
    storage.assemble_all()
    _amd()
    _user_data(_seed(seed, "user_data", ""))
    return 0


def distribution() -> None:
    """The files by which programs and people know a distribution, as the description of the node has them."""
    for name, text in (state.hardware().get("os") or {}).get("files", {}).items():
        file = state.path(name)
        if not file.is_file() or file.read_text(encoding="utf-8") != text:
            file.write_text(text, encoding="utf-8")


def _seed(directory: Path, name: str, default: str) -> str:
    with contextlib.suppress(FileNotFoundError):
        return (directory / name).read_text(encoding="utf-8").strip("\n") or default
    return default


def _access(user: str, key: str) -> None:
    """The user with passwordless sudo and exactly that key."""
    try:
        entry = pwd.getpwnam(user)
    except KeyError:
        subprocess.run(["useradd", "--create-home", "--shell", "/bin/bash", user], check=True, capture_output=True)
        # An account without a password is locked for keys too; `*` is no password that anybody can type.
        subprocess.run(["usermod", "--password", "*", user], check=True, capture_output=True)
        entry = pwd.getpwnam(user)
    sudoers = Path("/etc/sudoers.d/90-gpuprov-sandbox")
    sudoers.write_text(f"{user} ALL=(ALL:ALL) NOPASSWD:ALL\n", encoding="utf-8")
    sudoers.chmod(0o440)
    folder = Path(entry.pw_dir) / ".ssh"
    folder.mkdir(mode=0o700, exist_ok=True)
    authorised = folder / "authorized_keys"
    authorised.write_text(key + "\n", encoding="utf-8")
    authorised.chmod(0o600)
    for item in (folder, authorised):
        shutil.chown(item, entry.pw_uid, entry.pw_gid)


def modules(_arguments: list[str], _version: str) -> int:
    """Simulated modules of /etc/modules-load.d, and those of the node's network cards, which every kernel has.

    Runs at each boot before any service starts, as udev and systemd-modules-load do.
    """
    state.path("run/gpuprov-sandbox").mkdir(parents=True, exist_ok=True)
    kernel.load_builtin()
    if not dkms.has_image():
        dkms.update_initramfs(["-c"], "")
    if dkms.nouveau_at_boot():
        kernel.load("nouveau")
    smi_mig.at_boot(state.hardware())
    names: list[str] = []
    for folder in ("etc/modules-load.d", "usr/lib/modules-load.d"):
        directory = state.path(folder)
        if directory.is_dir():
            for file in sorted(f for f in directory.glob("*.conf") if f.is_file()):
                names += [
                    line.strip()
                    for line in file.read_text(encoding="utf-8").splitlines()
                    if line.strip() and line[0] not in "#;"
                ]
    for name in names:
        kernel.load(name)
    if state.installed("module-nvidia"):
        # The real module is loaded by udev when the kernel finds the PCI devices that it drives.
        kernel.load("nvidia")
    return 0


def _amd() -> None:
    """AMD's driver is part of the kernel, and its tool is what a machine image for these nodes brings along."""
    target = Path("/opt/rocm/bin/rocm-smi")
    if state.hardware().get("vendor") == "amd" and not target.exists():
        target.parent.mkdir(parents=True)
        target.symlink_to("/usr/lib/gpuprov-sandbox/rocm-smi")
    if state.hardware().get("vendor") == "amd":
        _amd_devices(len(state.hardware()["gpus"]))


def _amd_devices(count: int) -> None:
    """Device files as amdgpu makes them, so that they can be handed to containers; behind them is /dev/null."""
    folder = Path("/dev/dri")
    folder.mkdir(exist_ok=True)
    for device in (Path("/dev/kfd"), *(folder / f"renderD{128 + number}" for number in range(count))):
        if not device.exists():
            os.mknod(device, stat.S_IFCHR | 0o666, os.makedev(1, 3))


def _user_data(text: str) -> None:
    """Once: a script runs; of a cloud-config the files are written (write_files), and nothing else is done. Kept where
    cloud-init would keep it."""
    done = state.path("var/lib/gpuprov-sandbox/user-data.done")
    if not text or done.exists():
        return
    script = state.path("var/lib/cloud/instance/user-data.txt")
    script.parent.mkdir(parents=True, exist_ok=True)
    script.write_text(text, encoding="utf-8")
    script.chmod(0o700)
    done.parent.mkdir(parents=True, exist_ok=True)
    done.write_text("", encoding="utf-8")
    if text.startswith("#cloud-config\n"):
        for item in json.loads(text.partition("\n")[2]).get("write_files", []):
            file = state.path(item["path"].lstrip("/"))
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(item["content"], encoding="utf-8")
            file.chmod(int(item["permissions"], 8))
    if text.startswith("#!"):
        subprocess.run([str(script)], check=False, timeout=600)
