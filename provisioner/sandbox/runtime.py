"""Finding podman and an OCI runtime that really starts containers on this machine.

crun is podman's default and fails where the kernel refuses to raise resource limits (no CAP_SYS_RESOURCE); runc then
works. Which one works is tried once, with the limits that nodes get, and remembered.
"""

from __future__ import annotations

import json
import os
import platform
import resource
import shlex
import shutil
import struct
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from provisioner.common import ownership
from provisioner.common.errors import GpuprovError, ProviderError
from provisioner.common.paths import private_dir, write_whole

ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
"""Machines that the sandbox runs on, and Debian's names for them."""
RUNTIMES = ("crun", "runc")
NODE_LIMIT = 20_000
"""Open files and processes of a node; below the limit of an ordinary root shell, so that no runtime has to raise it."""


@dataclass(frozen=True, slots=True)
class Podman:
    """podman's path and the OCI runtime to use with it."""

    path: str
    runtime: str

    @property
    def command(self) -> list[str]:
        return [self.path, "--runtime", self.runtime]

    def run(self, *args: str, stdin: str | bytes | None = None, deadline: float = 60, check: bool = True) -> str:
        """Run one podman command and give its standard output. `deadline` in seconds; raises `ProviderError`."""
        payload = stdin.encode() if isinstance(stdin, str) else stdin
        try:
            done = subprocess.run(
                [*self.command, *args], input=payload, capture_output=True, timeout=deadline, check=False
            )
        except subprocess.TimeoutExpired as error:
            raise ProviderError(
                f"podman {args[0]} did not finish in {deadline:.0f} s", hint="`gpuprov doctor` looks at podman"
            ) from error
        if check and done.returncode != 0:
            raise ProviderError(f"podman {args[0]} failed: {_last_line(done.stderr)}", where="podman")
        return done.stdout.decode(errors="replace")


def _last_line(text: bytes) -> str:
    lines = [line for line in text.decode(errors="replace").splitlines() if line.strip()]
    return lines[-1].removeprefix("Error: ") if lines else "it said nothing"


def ulimit_options() -> tuple[str, ...]:
    """The --ulimit arguments of a node, never above what this process itself may have."""
    options = []
    for name, number in (("nofile", resource.RLIMIT_NOFILE), ("nproc", resource.RLIMIT_NPROC)):
        hard = resource.getrlimit(number)[1]
        value = NODE_LIMIT if hard == resource.RLIM_INFINITY else min(NODE_LIMIT, hard)
        options += ["--ulimit", f"{name}={value}:{value}"]
    return tuple(options)


def with_sudo() -> str:
    """This command with sudo, to be typed as it is."""
    return shlex.join(["sudo", ownership.program(), *sys.argv[1:]])


def require_root() -> None:
    """Raises GpuprovError for a user who can't make or remove nodes. Reaching them (ssh, exec, verify, status) needs no
    root."""
    if os.geteuid() != 0:
        raise GpuprovError(
            "the sandbox needs root: its nodes run systemd and docker and have fixed addresses",
            hint=f"run it as root: {with_sudo()}",
        )


def find_podman() -> Podman:
    """podman with a runtime that works here, from GPUPROV_PODMAN or PATH. Raises `GpuprovError` with the apt
    command."""
    program = os.environ.get("GPUPROV_PODMAN") or "podman"
    path = shutil.which(program)
    if path is None:
        raise GpuprovError(f"{program} is not installed", hint="sudo apt-get install -y podman runc")
    require_root()
    if platform.machine() not in ARCHITECTURES:
        raise GpuprovError(f"the sandbox runs on {' and '.join(ARCHITECTURES)}, not on {platform.machine()}")
    return Podman(path, _remembered_runtime(path))


def _state_file() -> Path:
    # /run is emptied at boot, which is when a kernel's limits may change.
    base = Path("/run") if os.access("/run", os.W_OK) else Path("/tmp")  # noqa: S108
    return private_dir(base / "gpuprov") / "runtime.json"


def _remembered_runtime(path: str) -> str:
    state = _state_file()
    key = f"{path} {Path(path).stat().st_mtime_ns}"
    try:
        known = json.loads(state.read_text(encoding="utf-8"))
        if known["podman"] == key and shutil.which(known["runtime"]):
            return str(known["runtime"])
    except (OSError, ValueError, KeyError, TypeError):
        pass
    runtime = _try_runtimes(path)
    write_whole(state, json.dumps({"podman": key, "runtime": runtime}))
    return runtime


def _try_runtimes(path: str) -> str:
    """Start one real container with each runtime and the limits of a node; it holds one program that ends at once."""
    forced = os.environ.get("GPUPROV_OCI_RUNTIME")
    reasons = []
    with tempfile.TemporaryDirectory(prefix="gpuprov-runtime-") as scratch:
        root = Path(scratch) / "root"
        root.mkdir()
        (root / "true").write_bytes(_program_that_ends())
        (root / "true").chmod(0o755)
        for runtime in (forced,) if forced else RUNTIMES:
            if shutil.which(runtime) is None:
                reasons.append(f"{runtime} is not installed")
                continue
            command = [
                path,
                "--runtime",
                runtime,
                "run",
                "--rm",
                "--privileged",
                "--network",
                "none",
                *ulimit_options(),
            ]
            try:
                done = subprocess.run(
                    [*command, "--rootfs", str(root), "/true"], capture_output=True, timeout=60, check=False
                )
            except subprocess.TimeoutExpired:
                reasons.append(f"{runtime}: no answer in 60 s")
                continue
            if done.returncode == 0:
                return runtime
            reasons.append(f"{runtime}: {_last_line(done.stderr)}")
    raise GpuprovError(
        "no OCI runtime starts containers on this machine: " + "; ".join(reasons),
        hint="sudo apt-get install -y podman runc",
    )


def _program_that_ends() -> bytes:
    """The smallest ELF program that exits with 0: there is no image yet when the runtime is tried."""
    machine, code = {
        "x86_64": (62, bytes.fromhex("31ff b83c000000 0f05")),  # xor edi,edi; mov eax,60 (exit); syscall
        "aarch64": (183, bytes.fromhex("000080d2 a80b80d2 010000d4")),  # mov x0,#0; mov x8,#93 (exit); svc #0
    }[platform.machine()]
    base, head = 0x400000, 64 + 56
    elf = struct.pack(
        "<16sHHIQQQIHHHHHH", b"\x7fELF\x02\x01\x01", 2, machine, 1, base + head, 64, 0, 0, 64, 56, 1, 0, 0, 0
    )
    size = head + len(code)
    return elf + struct.pack("<IIQQQQQQ", 1, 5, 0, base, base, size, size, 0x1000) + code
