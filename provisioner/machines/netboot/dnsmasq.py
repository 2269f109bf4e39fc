"""dnsmasq as a DHCP and TFTP server for the machines of one site, on one interface, and for nobody else.

Its options: https://thekelleys.org.uk/dnsmasq/docs/dnsmasq-man.html"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Interface
from pathlib import Path

from provisioner.common.errors import GpuprovError
from provisioner.transport import keeper, process

BINARIES = Path("/usr/lib/ipxe")
"""Where Debian's and Ubuntu's package ipxe has its programs; all that TFTP gives."""
BIOS, UEFI = "undionly.kpxe", "snponly.efi"
"""They use the network card through its firmware, whatever card that is: https://ipxe.org/appnote/buildtargets"""
_UNTIL_WE_END = """trap '' INT TERM
exec 3<&0
"$@" 3<&- & child=$!
{ read -r line <&3; kill "$child"; } & reader=$!
wait "$child"
status=$?
kill -9 "$reader" 2>/dev/null
exit "$status"
"""
"""Runs a program until it ends, or until this process does, however it does: then the pipe at the shell's standard
input is at its end."""
SETTLE_S = 1.0
"""Seconds after which a dnsmasq that can't have its port or interface has ended."""


@dataclass(frozen=True, slots=True)
class Machine:
    """One that is answered. `address`: the one that it is given, "" where another server gives it."""

    mac: str
    address: str


def config(
    interface: str, host_interface: IPv4Interface, machines: Sequence[Machine], script: str, *, proxy: bool,
    gateway: str = "", dns: Sequence[str] = (), binaries: Path = BINARIES,
) -> str:  # fmt: skip
    """dnsmasq.conf. `host_interface`: this computer's address on the interface; `script`: URL that iPXE goes on with;
    `proxy`: the network has a DHCP server, and only what to start from is added to its answers."""
    network = host_interface.network
    kind = "proxy" if proxy else "static"
    lines = [
        "# Written by gpuprov: only machines that cluster.yaml names are answered, on one interface.",
        "port=0", "no-resolv", "no-hosts", "leasefile-ro", "log-facility=-", "log-dhcp",
        f"interface={interface}", "except-interface=lo", "bind-dynamic",
        "dhcp-ignore=tag:!known",
        f"dhcp-range={network.network_address},{kind},{network.netmask}" + ("" if proxy else ",1h"),
        *(f"dhcp-host={machine.mac}" + ("" if proxy else f",{machine.address}") for machine in machines),
        f"enable-tftp={interface}", f"tftp-root={binaries}",
        # iPXE says so by option 175 (https://ipxe.org/howto/dhcpd); client architectures: RFC 4578, 2.1
        "dhcp-match=set:ipxe,175", "dhcp-match=set:bios,option:client-arch,0",
        "dhcp-match=set:uefi,option:client-arch,7", "dhcp-match=set:uefi,option:client-arch,9",
        f"dhcp-boot=tag:ipxe,{script}",
    ]  # fmt: skip
    if proxy:
        services = (("x86PC", BIOS), ("BC_EFI", UEFI), ("x86-64_EFI", UEFI))
        lines += [f'pxe-service=tag:!ipxe,{system},"gpuprov",{program}' for system, program in services]
        # iPXE on a BIOS asks once more, at port 4011, where dhcp-boot is not looked at
        lines += [f'pxe-service=tag:ipxe,x86PC,"gpuprov",{script}']
    else:
        # without a value dnsmasq would name itself as the router and name server
        lines += ["dhcp-option=option:router" + (f",{gateway}" if gateway else "")]
        lines += [",".join(["dhcp-option=option:dns-server", *dns])]
        lines += [f"dhcp-boot=tag:bios,tag:!ipxe,{BIOS}", f"dhcp-boot=tag:uefi,tag:!ipxe,{UEFI}"]
    return "\n".join(lines) + "\n"


def missing() -> list[str]:
    """Debian packages that this computer lacks for it."""
    lacks = [] if shutil.which("dnsmasq") else ["dnsmasq-base"]
    return lacks + ([] if all((BINARIES / program).exists() for program in (BIOS, UEFI)) else ["ipxe"])


@contextlib.contextmanager
def running(file: Path, handle_line: Callable[[str], object]) -> Iterator[subprocess.Popen[str]]:
    """dnsmasq with a configuration, until the block ends; `handle_line` is given each line of its log. Raises
    GpuprovError where it does not start."""
    argv = ["dnsmasq", "--keep-in-foreground", f"--conf-file={file}", "--pid-file="]
    # neither the kernel (prctl(2), PR_SET_PDEATHSIG) nor the keeper follows a program that becomes another user
    env = {key: value for key, value in os.environ.items() if key != keeper.NAME}
    daemon = process.start(["sh", "-c", _UNTIL_WE_END, "sh", *argv], cwd=file.parent, env=env, stdin=subprocess.PIPE)
    lines: list[str] = []

    def follow() -> None:
        for line in daemon.stderr or ():
            lines[:] = [*lines[-5:], line.strip()]
            handle_line(line.strip())

    reader = threading.Thread(target=follow, daemon=True, name="dnsmasq")
    reader.start()
    try:
        with contextlib.suppress(subprocess.TimeoutExpired):
            daemon.wait(timeout=SETTLE_S)
            reader.join(timeout=SETTLE_S)
            error_text = lines[-1].partition(": ")[2] if lines else f"it ended with {daemon.returncode}"
            raise GpuprovError(
                f"dnsmasq did not start: {error_text}", where=str(file),
                hint="another DHCP or TFTP server on this computer? `ss -lunp 'sport = :67'` names it",
            )  # fmt: skip
        yield daemon
    finally:
        if daemon.stdin is not None:
            daemon.stdin.close()
        try:
            daemon.wait(timeout=10)
        except subprocess.TimeoutExpired:
            os.killpg(daemon.pid, signal.SIGKILL)
            daemon.wait()
