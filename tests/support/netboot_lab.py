"""A network of its own on which machines start: two namespaces on one bridge, real firmware and iPXE in QEMU."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from provisioner.machines.journal import Journal

UEFI = Path("/usr/share/OVMF")
TOOLS = ("qemu-system-x86_64", "ip", "dnsmasq")
INSTALLER = "/usr/lib/debian-installer/images/12/amd64/text"
CLUSTER = """name: rack
sites:
  lab:
    provider: baremetal
    method: pxe
    pxe: {{ interface: br0, dhcp: {dhcp} }}
    install: {{ {install} }}
    hosts:
      "n[1-2].lab":
        {{ mac: ["52:54:00:00:00:01", "52-54-00-00-00-02"], serial: [GPU-0001, GPU-0002], address: "10.77.0.[11-12]" }}
groups: {{ train: {{ machine: dgx-h100, count: 2 }} }}
timeouts: {{ machine_s: 2400 }}
"""


DEBIAN = f'os: debian-12, iso: {INSTALLER}, mirror: "http://10.77.0.1:9000/debian"'
"""What is installed, as cluster.yaml says it."""


@dataclass
class Lab:
    """Two namespaces on one bridge: ours, with the machines' ports, and one for a DHCP server of somebody else."""

    folder: Path
    ours: str
    other: str

    def started(self, argv: list[str], log: str, namespace: str = "") -> subprocess.Popen[bytes]:
        with (self.folder / log).open("wb") as out:
            command = ["ip", "netns", "exec", namespace or self.ours, *argv]
            return subprocess.Popen(command, stdout=out, stderr=out, cwd=self.folder, start_new_session=True)

    def log(self, name: str = "run.log") -> str:
        return (self.folder / name).read_text(errors="replace")

    def everything(self) -> str:
        """All of dnsmasq's log, of which a person is shown a part."""
        return "".join(file.read_text() for file in self.folder.glob(".gpuprov/rack/runs/*/events.jsonl"))

    def write(self, dhcp: str = "static", install: str = DEBIAN) -> None:
        (self.folder / "cluster.yaml").write_text(CLUSTER.format(dhcp=dhcp, install=install))

    @contextmanager
    def answering(self, dhcp: str = "static", install: str = DEBIAN, within_s: float = 30) -> Iterator[None]:
        """`gpuprov netboot --run` until the block ends."""
        self.write(dhcp, install)
        gpuprov = str(Path(sys.executable).with_name("gpuprov"))
        with ended(self.started([gpuprov, "netboot", "cluster.yaml", "--run", "--yes"], "run.log")):
            self.until(lambda: "switch them on" in self.log(), within_s)
            yield

    @contextmanager
    def machine(self, mac: str, serial: str, *, uefi: bool = False, disk: Path | None = None) -> Iterator[str]:
        """A machine whose firmware starts from the network; gives the name of its console's file."""
        console = f"console-{mac[-1]}-{serial}-{time.monotonic_ns()}"
        argv = [
            "qemu-system-x86_64", "-machine", "q35,accel=tcg", "-cpu", "max", "-m", "1024", "-display", "none",
            "-monitor", "none", "-serial", f"file:{self.folder / console}", "-smbios", f"type=1,serial={serial}",
            "-netdev", "tap,id=n,ifname=tap0,script=no,downscript=no", "-boot", "n",
            "-device", f"virtio-net-pci,netdev=n,mac={mac}" + (",romfile=" if uefi else ""),
            "-object", "rng-random,id=r,filename=/dev/urandom", "-device", "virtio-rng-pci,rng=r",
        ]  # fmt: skip
        if disk is not None:
            argv += ["-m", "2048", "-smp", "2", "-drive", f"file={disk},if=virtio,format=qcow2,cache=unsafe"]
        if uefi:
            variables = self.folder / "variables.fd"
            shutil.copyfile(UEFI / "OVMF_VARS.fd", variables)
            firmware = (UEFI / "OVMF_CODE.fd", "on"), (variables, "off")
            argv += [argument for file, only in firmware
                     for argument in ("-drive", f"if=pflash,format=raw,file={file},readonly={only}")]  # fmt: skip
        with ended(self.started(argv, "qemu.log")):
            yield console

    def until(self, true: Callable[[], bool], seconds: float) -> None:
        end = time.monotonic() + seconds
        while not true():
            assert time.monotonic() < end, self.log()[-3000:]
            time.sleep(0.5)

    def step(self, host: str) -> str:
        entry = Journal(self.folder / ".gpuprov/rack/sites/lab/netboot.json").load().get(host)
        return entry.step if entry else ""


@contextmanager
def ended(process: subprocess.Popen[bytes]) -> Iterator[None]:
    try:
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def comm(pid: str) -> str:
    """The program of a process, "" where it has just ended."""
    try:
        return (Path("/proc") / pid / "comm").read_text().strip()
    except OSError:
        return ""


@contextmanager
def laid_out(folder: Path) -> Iterator[Lab]:
    lab = Lab(folder, f"gpr{os.getpid()}a", f"gpr{os.getpid()}b")
    lines = f"""netns add {lab.ours}
netns add {lab.other}
-n {lab.ours} link set lo up
-n {lab.ours} link add br0 type bridge
-n {lab.ours} address add 10.77.0.1/24 dev br0
-n {lab.ours} link set br0 up
-n {lab.ours} tuntap add tap0 mode tap
-n {lab.ours} link set tap0 master br0 up
-n {lab.ours} link add there type veth peer name here netns {lab.other}
-n {lab.ours} link set there master br0 up
-n {lab.other} address add 10.77.0.2/24 dev here
-n {lab.other} link set here up"""
    try:
        for line in lines.splitlines():
            subprocess.run(["ip", *line.split()], check=True, timeout=20)
        yield lab
    finally:
        for name in (lab.ours, lab.other):
            subprocess.run(["ip", "netns", "delete", name], check=False, timeout=20)
