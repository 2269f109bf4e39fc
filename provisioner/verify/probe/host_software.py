"""A host's boots, crashes, kernels, repositories, CDI descriptions and settings, for host.json.

Standard library only, Python 3.8 or newer.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import os
import re
import struct
from typing import Any

from provisioner.verify.probe.runner import ASK, lines_of, listed, run

TIMES = "qqq16s20s4x" if os.uname().machine == "aarch64" else "iii16s20s"
RECORD = struct.Struct("=hxxi32s4s32s256shh" + TIMES)
"""A record of wtmp (utmp(5)): type, process, line, id, user, host, exit status, session, seconds, microseconds, …; the
times are of 64 bits on arm64 (unverified)."""
VARIABLES = (
    "CUDA_", "CUDBG_", "COMPUTE_PROFILE", "OPENCL_PROFILE", "NSIGHT_", "NCCL_", "TORCH_", "PYTORCH_", "NVIDIA_", "FI_",
)  # fmt: skip
"""Beginnings of variables of /etc/environment that travel."""
MODULES = ("nvidia", "efa", "mlx5_core", "mlx5_ib", "gdrdrv", "nvidia-peermem", "lustre", "lnet", "amdgpu", "nouveau")
"""Kernel modules that a GPU node works by, and the one that it does not want."""
MODINFO = ("version:", "vermagic:", "signer:")
SSHD = ("passwordauthentication", "permitrootlogin", "kbdinteractiveauthentication", "port", "listenaddress")


def crashes() -> list[list[Any]]:
    """What crashed kernels left: [path, time]. Of /var/crash only dumps of kernels, not of programs."""
    rows: list[list[Any]] = []
    for folder, pattern in (
        ("/sys/fs/pstore", "dmesg|console"),
        ("/var/lib/systemd/pstore", "."),
        ("/var/crash", r"[0-9]{8,}|.*vmcore|linux-image|127\.0\.0\.1-"),
    ):
        for name in listed(folder):
            if re.match(pattern, name):
                with contextlib.suppress(OSError):
                    rows.append([folder + "/" + name, os.stat(folder + "/" + name).st_mtime])  # noqa: PTH116
    return rows[:50]


def boots() -> list[list[Any]]:
    """Starts and orderly shutdowns that wtmp remembers, oldest first."""
    with open("/var/log/wtmp", "rb") as stream:  # noqa: PTH123
        size = stream.seek(0, 2)
        stream.seek(max(0, size - 2000 * RECORD.size) // RECORD.size * RECORD.size)
        raw = stream.read(2000 * RECORD.size)
    rows: list[list[Any]] = []
    for record in RECORD.iter_unpack(raw[: len(raw) // RECORD.size * RECORD.size]):
        user = record[4].rstrip(b"\0")
        if record[0] == 2:
            rows.append(["boot", record[9]])
        elif record[0] == 1 and user == b"shutdown":
            rows.append(["shutdown", record[9]])
    return rows[-40:]


def cdi() -> dict[str, list[str]]:
    """Descriptions of GPUs for containers: their kinds, the names of devices, the driver's library that they mount."""
    lines_by_file = {}
    for folder in ("/etc/cdi", "/run/cdi"):
        for name in listed(folder):
            if name.endswith((".yaml", ".yml", ".json")):
                rows = [line.strip() for line in lines_of(folder + "/" + name)]
                matching = [row for row in rows if re.match(r"-? ?\"?(name|kind)\"?:", row) or "libcuda.so." in row]
                lines_by_file[folder + "/" + name] = [row[:300] for row in matching[:400]]
    return lines_by_file


def gpu_links() -> list[str]:
    """Links to NVIDIA's devices; systemd knows by them which devices a container may use."""
    return [name for name in listed("/dev/char") if name.startswith("195:")][:64]


def sources() -> list[str]:
    """Addresses of apt's repositories that are switched on, without anybody's password."""
    files = ["/etc/apt/sources.list"]
    files += [
        "/etc/apt/sources.list.d/" + n for n in listed("/etc/apt/sources.list.d") if n.endswith((".list", ".sources"))
    ]
    uris: set[str] = set()
    for file in files:
        with contextlib.suppress(OSError):
            text = "\n".join(line for line in lines_of(file) if not line.lstrip().startswith("#"))
            for block in re.split(r"\n\s*\n", text):
                if not re.search(r"(?im)^enabled:\s*no\b", block):
                    uris.update(re.sub(r"//[^/@\s]*@", "//", uri) for uri in re.findall(r"[a-z]+:/[^\s\]]+", block))
    return sorted(uris)[:200]


def repo_keys() -> dict[str, str]:
    """Files of keys that gpuprov's sources are signed by → fingerprint of the first key in each, "" where it has none.
    gpg is not asked: it would make itself a home."""
    fingerprints = {}
    for name in listed("/etc/apt/keyrings"):
        if name.startswith("gpuprov-"):
            with contextlib.suppress(OSError), open("/etc/apt/keyrings/" + name, "rb") as stream:  # noqa: PTH123
                fingerprints[name] = fingerprint(stream.read(1 << 20))
    return fingerprints


def fingerprint(raw: bytes) -> str:
    """Of a public key of version 4 at the beginning of a file, armored or not (RFC 4880, 4.2, 6.2 and 12.2)."""
    with contextlib.suppress(ValueError, IndexError):
        if raw.lstrip().startswith(b"-----BEGIN"):
            armored = raw.replace(b"\r", b"").partition(b"\n\n")[2].partition(b"\n-----END")[0]
            raw = base64.b64decode(armored.partition(b"\n=")[0])
        if raw[0] & 0x40:  # the newer form of a packet's head
            kind, size, start = raw[0] & 0x3F, raw[1], 2
            if raw[1] == 255:
                size, start = int.from_bytes(raw[2:6], "big"), 6
            elif raw[1] >= 192:
                size, start = ((raw[1] - 192) << 8) + raw[2] + 192, 3
        else:
            kind, wide = raw[0] >> 2 & 0x0F, (1, 2, 4)[raw[0] & 3]
            size, start = int.from_bytes(raw[1 : 1 + wide], "big"), 1 + wide
        key = raw[start : start + size]
        if kind == 6 and len(key) == size and key[0] == 4:
            return hashlib.sha1(b"\x99" + size.to_bytes(2, "big") + key).hexdigest().upper()  # noqa: S324
    return ""


def kernels() -> dict[str, list[str]]:
    """Kernels that have modules here, and which of MODULES are among them."""
    modules_by_kernel = {}
    for release in listed("/lib/modules"):
        base = "/lib/modules/" + release
        if os.path.exists(base + "/modules.dep"):  # noqa: PTH110
            with contextlib.suppress(OSError):
                present = {
                    match[1]
                    for line in lines_of(base + "/modules.dep", 8 << 20)
                    if (match := re.match(r"(?:[^:]*/)?([a-z0-9_-]+)\.ko[^:/]*:", line))
                }
                modules_by_kernel[release] = [name for name in MODULES if name in present]
    return modules_by_kernel


def denied() -> list[str]:
    """Modules that modprobe does not load by itself (modprobe.d(5))."""
    names: set[str] = set()
    for folder in ("/etc/modprobe.d", "/run/modprobe.d", "/usr/lib/modprobe.d", "/lib/modprobe.d"):
        for name in listed(folder):
            if name.endswith(".conf"):
                with contextlib.suppress(OSError):
                    rows = [line.split() for line in lines_of(folder + "/" + name)]
                    names.update(row[1] for row in rows if len(row) > 1 and row[0] in ("blacklist", "install"))
    return sorted(names)[:500]


def driver_on_disk() -> dict[str, Any]:
    """NVIDIA's module that the next load takes: its version, the kernel that it is for, who signed it."""
    answer = run(["modinfo", "nvidia"], ASK)
    answer["text"] = "\n".join(line for line in answer["text"].splitlines() if line.startswith(MODINFO))
    return answer


def vendor_software() -> dict[str, Any]:
    """What a cloud's GPU image brings without a package: {"cuda": versions of the toolkits, "efa": the first line that
    AWS's installer leaves}."""
    versions: dict[str, Any] = {"cuda": []}
    for name in listed("/usr/local"):
        if name.startswith("cuda-"):
            with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
                version_document = json.loads("\n".join(lines_of("/usr/local/" + name + "/version.json")))
                versions["cuda"].append(str(version_document["cuda"]["version"])[:40])
    with contextlib.suppress(OSError):
        versions["efa"] = next(iter(lines_of("/opt/amazon/efa_installed_packages")), "")[:200]
    return versions


def environment() -> list[str]:
    return [line.strip()[:200] for line in lines_of("/etc/environment") if line.strip().startswith(VARIABLES)]


def sshd() -> dict[str, Any]:
    """The settings that sshd would start with; of its keys, paths and users nothing travels."""
    answer = run(["sshd", "-T"], ASK)
    answer["text"] = "\n".join(line for line in answer["text"].splitlines() if line.split(" ")[0].lower() in SSHD)
    return answer
