"""`gpuprov netboot --run` on a network of its own: real dnsmasq, real firmware and iPXE in QEMU (by emulation),
Debian's own installer as far as its question to a mirror. Nothing leaves the namespace that the test makes."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from provisioner.machines.netboot import dnsmasq
from tests.support.netboot_lab import INSTALLER, TOOLS, UEFI, Lab, comm, ended

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        os.geteuid() != 0 or not Path("/dev/net/tun").exists() or not Path(INSTALLER).exists()
        or bool(dnsmasq.missing()) or not all(map(shutil.which, TOOLS)) or not (UEFI / "OVMF_CODE.fd").exists(),
        reason="needs root, /dev/net/tun, debian-installer-12-netboot-amd64 dnsmasq-base ipxe ipxe-qemu ovmf "
        "qemu-system-x86 iproute2",
    ),
]  # fmt: skip


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
    lab.write()
    gpuprov = str(Path(sys.executable).with_name("gpuprov"))
    running = lab.started([gpuprov, "netboot", "cluster.yaml", "--run", "--yes"], "run.log")

    def dnsmasq_pids() -> list[str]:
        argv = ["ip", "netns", "pids", lab.ours]
        pids = subprocess.run(argv, capture_output=True, text=True, timeout=20, check=True).stdout.split()
        return [pid for pid in pids if comm(pid) == "dnsmasq"]

    try:
        lab.until(lambda: "switch them on" in lab.log(), 30)
        assert len(dnsmasq_pids()) == 1
        running.send_signal(sign)
        running.wait(timeout=20)
        lab.until(lambda: not dnsmasq_pids(), 20)
    finally:
        running.kill()
