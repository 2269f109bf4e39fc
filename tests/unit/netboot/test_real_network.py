"""`gpuprov netboot --run` on a network of its own: real dnsmasq, real firmware and iPXE in QEMU (by emulation),
Debian's own installer as far as its question to a mirror. Nothing leaves the namespace that the test makes."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from provisioner.machines.journal import Journal
from provisioner.netboot import dnsmasq

NETBOOT = Path("/usr/lib/debian-installer/images/12/amd64/text")
UEFI = Path("/usr/share/OVMF")
TOOLS = ("qemu-system-x86_64", "ip", "dnsmasq")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        os.geteuid() != 0 or not Path("/dev/net/tun").exists() or not NETBOOT.exists() or bool(dnsmasq.missing())
        or not all(map(shutil.which, TOOLS)) or not (UEFI / "OVMF_CODE.fd").exists(),
        reason="needs root, /dev/net/tun, debian-installer-12-netboot-amd64 dnsmasq-base ipxe ipxe-qemu ovmf "
        "qemu-system-x86 iproute2",
    ),
]  # fmt: skip
CLUSTER = """name: rack
sites:
  lab:
    provider: baremetal
    method: pxe
    pxe: {{ interface: br0, dhcp: {dhcp} }}
    install: {{ os: debian-12, iso: {netboot}, mirror: "http://10.77.0.1:9000/debian" }}
    hosts:
      "n[1-2].lab":
        {{ mac: ["52:54:00:00:00:01", "52-54-00-00-00-02"], serial: [GPU-0001, GPU-0002], address: "10.77.0.[11-12]" }}
groups: {{ train: {{ machine: dgx-h100, count: 2 }} }}
timeouts: {{ machine_s: 900 }}
"""


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

    @contextmanager
    def answering(self, dhcp: str = "static") -> Iterator[None]:
        """`gpuprov netboot --run` until the block ends."""
        (self.folder / "cluster.yaml").write_text(CLUSTER.format(dhcp=dhcp, netboot=NETBOOT))
        gpuprov = str(Path(sys.executable).with_name("gpuprov"))
        with ended(self.started([gpuprov, "netboot", "cluster.yaml", "--run", "--yes"], "run.log")):
            self.until(lambda: "switch them on" in self.log(), 30)
            yield

    @contextmanager
    def machine(self, mac: str, serial: str, *, uefi: bool = False) -> Iterator[str]:
        """A machine whose firmware starts from the network; gives the name of its console's file."""
        console = f"console-{mac[-1]}-{serial}-{time.monotonic_ns()}"
        argv = [
            "qemu-system-x86_64", "-machine", "q35,accel=tcg", "-cpu", "max", "-m", "1024", "-display", "none",
            "-monitor", "none", "-serial", f"file:{self.folder / console}", "-smbios", f"type=1,serial={serial}",
            "-netdev", "tap,id=n,ifname=tap0,script=no,downscript=no", "-boot", "n",
            "-device", f"virtio-net-pci,netdev=n,mac={mac}" + (",romfile=" if uefi else ""),
            "-object", "rng-random,id=r,filename=/dev/urandom", "-device", "virtio-rng-pci,rng=r",
        ]  # fmt: skip
        if uefi:
            variables = self.folder / "variables.fd"
            shutil.copyfile(UEFI / "OVMF_VARS.fd", variables)
            firmware = (UEFI / "OVMF_CODE.fd", "on"), (variables, "off")
            argv += [word for file, only in firmware
                     for word in ("-drive", f"if=pflash,format=raw,file={file},readonly={only}")]  # fmt: skip
        with ended(self.started(argv, "qemu.log")):
            yield console

    def until(self, true: Callable[[], bool], seconds: float) -> None:
        end = time.monotonic() + seconds
        while not true():
            assert time.monotonic() < end, self.log()[-3000:]
            time.sleep(0.5)

    def step(self, host: str) -> str:
        found = Journal(self.folder / ".gpuprov/rack/sites/lab/netboot.json").load().get(host)
        return found.step if found else ""


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


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    one = Lab(tmp_path, f"gpr{os.getpid()}a", f"gpr{os.getpid()}b")
    lines = f"""netns add {one.ours}
netns add {one.other}
-n {one.ours} link set lo up
-n {one.ours} link add br0 type bridge
-n {one.ours} address add 10.77.0.1/24 dev br0
-n {one.ours} link set br0 up
-n {one.ours} tuntap add tap0 mode tap
-n {one.ours} link set tap0 master br0 up
-n {one.ours} link add there type veth peer name here netns {one.other}
-n {one.ours} link set there master br0 up
-n {one.other} address add 10.77.0.2/24 dev here
-n {one.other} link set here up"""
    try:
        for line in lines.splitlines():
            subprocess.run(["ip", *line.split()], check=True, timeout=20)
        yield one
    finally:
        for name in (one.ours, one.other):
            subprocess.run(["ip", "netns", "delete", name], check=False, timeout=20)


@pytest.mark.parametrize("uefi", [False, True], ids=["bios", "uefi"])
def test_a_machine_installs_once_and_then_starts_from_its_own_disk(lab: Lab, uefi: bool) -> None:
    """BIOS by the card's own iPXE; UEFI by the firmware's PXE, and iPXE by TFTP. Started again before anything was
    heard of it, the machine is told to start from its disk; so are others, and who is not in the file has no answer."""
    with lab.answering():
        with lab.machine("52:54:00:00:00:01", "GPU-0001", uefi=uefi) as console:
            lab.until(lambda: "n1.lab: has its installer" in lab.log(), 200)
            lab.until(lambda: "Run /init" in lab.log(console), 200)
            assert lab.step("n1.lab") == "started"
        with lab.machine("52:54:00:00:00:01", "GPU-0001"):
            lab.until(lambda: "n1.lab: starts from its own disk: it was given its installer already" in lab.log(), 120)
        with lab.machine("52:54:00:00:00:02", "GPU-0009"):
            lab.until(lambda: "n2.lab: starts from its own disk: it is the machine GPU-0009" in lab.log(), 120)
        with lab.machine("52:54:00:00:00:03", "GPU-0001"):
            lab.until(lambda: lab.log().count("52:54:00:00:00:03 ignored") > 1, 120)
        assert re.search(r"DHCPOFFER.*52:54:00:00:00:01", lab.everything())
        assert not re.search(r"DHCPOFFER.*52:54:00:00:00:03", lab.everything())
        assert lab.step("n2.lab") == ""


def test_the_installer_goes_on_by_itself_with_the_address_of_the_file(lab: Lab) -> None:
    """Debian's own: it looks at the serial number, takes the port of that MAC address, gives it the fixed address, and
    asks the mirror, without a question to a person. The mirror has nothing, so it goes no further."""
    mirror = [sys.executable, "-u", "-m", "http.server", "9000", "--bind", "10.77.0.1", "--directory", "empty"]
    (lab.folder / "empty").mkdir()
    with ended(lab.started(mirror, "mirror.log")), lab.answering():
        with lab.machine("52:54:00:00:00:01", "GPU-0001"):
            lab.until(lambda: "10.77.0.11 - - " in lab.log("mirror.log"), 500)
        assert "GET /debian/dists/" in lab.log("mirror.log")


@pytest.mark.parametrize("uefi", [False, True], ids=["bios", "uefi"])
def test_beside_a_dhcp_server_of_the_network(lab: Lab, uefi: bool) -> None:
    """It gives the addresses, and gpuprov what to start from."""
    theirs = ["dnsmasq", "-k", "--port=0", "--conf-file=/dev/null", "--interface=here", "--bind-dynamic", "--pid-file=",
              "--dhcp-range=10.77.0.100,10.77.0.120,1h", "--leasefile-ro", "--log-facility=-"]  # fmt: skip
    with ended(lab.started(theirs, "other.log", lab.other)), lab.answering("proxy"):
        with lab.machine("52:54:00:00:00:01", "GPU-0001", uefi=uefi):
            lab.until(lambda: "n1.lab: has its installer" in lab.log(), 200)
        assert "DHCPACK(here) 10.77.0.1" in lab.log("other.log")
        assert "proxy" in lab.everything()
        assert "DHCPACK" not in lab.everything()


@pytest.mark.parametrize("sign", [signal.SIGTERM, signal.SIGKILL])
def test_nobody_answers_any_more_when_gpuprov_has_ended(lab: Lab, sign: signal.Signals) -> None:
    """However it ended. dnsmasq is another user by then, whom the kernel does not tell of our end."""
    (lab.folder / "cluster.yaml").write_text(CLUSTER.format(dhcp="static", netboot=NETBOOT))
    gpuprov = str(Path(sys.executable).with_name("gpuprov"))
    running = lab.started([gpuprov, "netboot", "cluster.yaml", "--run", "--yes"], "run.log")

    def there() -> list[str]:
        argv = ["ip", "netns", "pids", lab.ours]
        pids = subprocess.run(argv, capture_output=True, text=True, timeout=20, check=True).stdout.split()
        return [pid for pid in pids if comm(pid) == "dnsmasq"]

    try:
        lab.until(lambda: "switch them on" in lab.log(), 30)
        assert len(there()) == 1
        running.send_signal(sign)
        running.wait(timeout=20)
        lab.until(lambda: not there(), 20)
    finally:
        running.kill()
