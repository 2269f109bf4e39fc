"""A disk booted in QEMU, by UEFI as a server boots it. Its sshd is at 127.0.0.1 of this computer alone."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from provisioner.common.errors import ProviderError
from provisioner.lifecycle.images.disk import tools

MEMORY_MIB, PROCESSORS = 2048, 2
BUILDER_MIB, BUILDER_MOST = 4096, 8
"""Memory of a machine that packages are built on, and its processors at most: software emulation too runs each of them
in a thread of its own (https://www.qemu.org/docs/master/devel/multi-thread-tcg.html)."""
KVM = Path("/dev/kvm")
FIRMWARE_S = 15.0
"""Within which firmware under KVM says something on its serial port: it takes less than one."""
STOP_S = 30.0
TAIL = 400
"""Characters of a console that an error has."""


@dataclass(slots=True)
class VirtualMachine:
    """One that runs. `port`: of 127.0.0.1, where its sshd is; `console`: the file that has what its serial port
    said."""

    process: subprocess.Popen[bytes]
    port: int
    console: Path
    accelerator: str

    def running(self) -> None:
        """Raise ProviderError where it has ended."""
        if (status := self.process.poll()) is not None:
            error_text = tail(self.console.with_suffix(".qemu"))
            raise ProviderError(f"QEMU ended with status {status}: {error_text}", where=str(self.console))

    def wait_for_ssh(self, seconds: float) -> None:
        """Return once its sshd greets. Raises ProviderError with the end of its console after so many seconds."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self.running()
            with (
                contextlib.suppress(OSError),
                socket.create_connection(("127.0.0.1", self.port), timeout=5) as connection,
            ):
                connection.settimeout(5)
                if connection.recv(4) == b"SSH-":
                    return
            time.sleep(1)
        raise ProviderError(
            f"its sshd did not answer within {seconds:.0f} s; its console ends with: {tail(self.console)}",
            where=str(self.console),
        )

    def power_off(self, seconds: float) -> None:
        """Press its power button and return once it is off. Raises ProviderError where it is not after so many
        seconds."""
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):  # it has ended already
            self.process.stdin.write(b'{"execute": "qmp_capabilities"}\n{"execute": "system_powerdown"}\n')
            self.process.stdin.flush()
        try:
            status = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            message = (
                f"it is not off {seconds:.0f} s after its power button; its console ends with: {tail(self.console)}"
            )
            raise ProviderError(message, where=str(self.console)) from None
        if status:
            self.running()


@contextlib.contextmanager
def booted(disk: Path, seed: Path, console: Path, accelerator: str) -> Iterator[VirtualMachine]:
    """Boot a copy-on-write copy of a disk: the disk itself is not written. It reaches no network. QEMU has ended when
    this returns, however that is. Raises ProviderError where QEMU does not start."""
    overlay = console.parent / "overlay.qcow2"
    overlay.unlink(missing_ok=True)
    kind = "qcow2" if disk.suffix == ".qcow2" else "raw"
    tools.run(["qemu-img", "create", "-q", "-f", "qcow2", "-b", disk.absolute(), "-F", kind, overlay], 60)
    size = Size(MEMORY_MIB, PROCESSORS)
    try:
        with _running(f"format=qcow2,cache=unsafe,file={_escaped(overlay)}", "restrict=on,", size, seed, console,
                      accelerator) as machine:  # fmt: skip
            yield machine
    finally:
        overlay.unlink(missing_ok=True)


@contextlib.contextmanager
def builder(disk: Path, seed: Path, console: Path, accelerator: str) -> Iterator[VirtualMachine]:
    """Boot a raw disk that keeps what is written, as in `booted`; it reaches the network as this computer does, by
    QEMU's own (addresses of this computer's loopback at 10.0.2.2)."""
    size = Size(BUILDER_MIB, max(PROCESSORS, min(os.cpu_count() or 1, BUILDER_MOST)))
    drive = f"format=raw,cache=unsafe,discard=unmap,file={_escaped(disk)}"
    with _running(drive, "", size, seed, console, accelerator) as machine:
        yield machine


@dataclass(frozen=True, slots=True)
class Size:
    memory_mib: int
    processors: int


@contextlib.contextmanager
def _running(
    drive: str, network: str, size: Size, seed: Path, console: Path, accelerator: str
) -> Iterator[VirtualMachine]:
    variables = console.parent / "firmware-variables.fd"
    shutil.copyfile(tools.FIRMWARE_VARIABLES, variables)
    port = _free_port()
    command = [
        *_machine(accelerator), "-smp", str(size.processors), "-m", str(size.memory_mib),
        "-drive", f"if=pflash,format=raw,unit=0,readonly=on,file={_escaped(tools.FIRMWARE)}",
        "-drive", f"if=pflash,format=raw,unit=1,file={_escaped(variables)}",
        "-drive", f"if=virtio,{drive}",
        "-drive", f"if=virtio,format=raw,readonly=on,file={_escaped(seed)}",
        "-netdev", f"user,id=net,{network}hostfwd=tcp:127.0.0.1:{port}-:22",
        "-device", "virtio-net-pci,netdev=net", "-device", "virtio-rng-pci",
        "-serial", f"file:{_escaped(console)}", "-qmp", "stdio",
    ]  # fmt: skip
    with console.with_suffix(".qemu").open("wb") as error_file:
        # a session of its own: Ctrl-C is for gpuprov, which ends it
        child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=error_file,
                                 start_new_session=True)  # fmt: skip
    try:
        yield VirtualMachine(child, port, console, accelerator)
    finally:
        _end(child)
        variables.unlink(missing_ok=True)


def accelerator(work: Path) -> str:
    """`kvm` where a virtual machine really runs with it, else `tcg` (software, ten times slower). A /dev/kvm that is
    there is no proof: on some hosts a guest hangs at its first instruction, or QEMU cannot set its registers."""
    if not os.access(KVM, os.R_OK | os.W_OK):
        return "tcg"
    console = work / "kvm-probe.log"
    firmware = f"if=pflash,format=raw,readonly=on,file={_escaped(tools.FIRMWARE)}"
    command = [*_machine("kvm"), "-m", "256", "-drive", firmware, "-serial", f"file:{_escaped(console)}"]
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    until = time.monotonic() + FIRMWARE_S
    try:
        while time.monotonic() < until and child.poll() is None:
            if console.exists() and console.stat().st_size:
                return "kvm"
            time.sleep(0.2)
    finally:
        _end(child)
        console.unlink(missing_ok=True)
    return "tcg"


def tail(file: Path) -> str:
    """The end of what a console has shown, printable, on one line."""
    try:
        text = file.read_bytes()[-4096:].decode("utf-8", "replace")
    except OSError:
        return "nothing"
    lines = ["".join(c for c in line if c.isprintable()).strip() for line in text.splitlines()]
    return " | ".join(line for line in lines if line)[-TAIL:] or "nothing"


def _machine(accelerator: str) -> list[str]:
    return [
        tools.program("qemu-system-x86_64"), "-nodefaults", "-no-user-config", "-display", "none", "-machine", "q35",
        "-accel", accelerator, "-cpu", "host" if accelerator == "kvm" else "max",
    ]  # fmt: skip


def _escaped(path: Path) -> str:
    """A path as a value of a QEMU option: a comma is written twice."""
    return str(path.absolute()).replace(",", ",,")


def _free_port() -> int:
    """A port of 127.0.0.1 that nobody listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def _end(child: subprocess.Popen[bytes]) -> None:
    if child.stdin is not None:
        with contextlib.suppress(OSError):
            child.stdin.close()
    child.terminate()
    try:
        child.wait(STOP_S)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait(STOP_S)
