"""What a machine that starts from the network is answered, by what is written down of it.

A machine is given its installer once: from the moment in which all of it has been sent, every later start is from its
own disk, whether it was heard of again or not. That needs no BMC, no boot order and no boot override. Scripts:
https://ipxe.org/scripting; settings of a machine: https://ipxe.org/cfg"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

from provisioner.machines.journal import Installation
from provisioner.machines.providers.hosts import Host

NO_SERIAL = frozenset({
    "", "none", "n/a", "0", "0123456789", "123456789", "default string", "not specified", "not available",
    "system serial number", "to be filled by o.e.m.", "chassis serial number",
})  # fmt: skip
"""What boards say that were given no serial number."""
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


@dataclass(frozen=True, slots=True)
class Asked:
    """What a machine says of itself: MAC address of the port that it starts from, SMBIOS serial number and UUID."""

    mac: str
    serial: str = ""
    uuid: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        """By which of them it can be known."""
        serial = self.serial.strip()
        known = [] if serial.casefold() in NO_SERIAL else [serial.replace(" ", "")]
        if _UUID.fullmatch(self.uuid.lower()) and len(set(self.uuid) - {"-"}) > 2:  # neither all 0 nor all f
            known.append(self.uuid.lower())
        return tuple(name for name in known if re.fullmatch(r"[A-Za-z0-9._:/-]{2,64}", name))

    def is_called(self, name: str) -> bool:
        return name.casefold() in (known_name.casefold() for known_name in self.names)


class Answer(NamedTuple):
    """`install`: give it its installer; else it starts from its own disk, and `why`."""

    install: bool
    why: str = ""


def decide(host: Host, previous: Installation | None, request: Asked) -> Answer:
    """What a machine of cluster.yaml is to do. `previous`: what is written down of it, None where nothing is."""
    if not request.names:
        return Answer(False, "it shows no serial number and no UUID, so nobody can tell which machine it is")
    shows = " or ".join(request.names)
    if not host.serial:  # the first to ask would be whoever likes to be this machine
        return Answer(False, f"cluster.yaml has no serial for it: it shows {shows}, compare that with its label")
    if not request.is_called(host.serial):
        return Answer(False, f"it is the machine {shows}, and cluster.yaml says {host.serial}")
    if previous is None or not (previous.is_of(host.serial) or request.is_called(previous.serial)):
        return Answer(True)  # never seen, or another machine in the place of one that was
    if previous.step in ("chosen", "offered"):
        return Answer(True)
    if previous.step == "started":
        return Answer(False, "it was given its installer already")
    if previous.step == "failed":
        return Answer(False, f"its installation failed; add {previous.serial} to install.reinstall to try once more")
    return Answer(False, "it is installed; under another name of its host it can be installed anew")


def first(url: str) -> str:
    """The script that every machine begins with: say who you are. `url`: of this computer."""
    query = "mac=${netX/mac:hexhyp}&serial=${serial:uristring}&uuid=${uuid}"
    return f"#!ipxe\nchain --replace {url}/machine?{query} || exit 1\n"


def from_disk(reason: str) -> str:
    """With status 1 a UEFI firmware goes on to its next boot entry, and a BIOS to its next device."""
    return f"#!ipxe\necho gpuprov: starting from the machine's own disk: {_plain(reason)}\nexit 1\n"


def installer(url: str, host: str, command_line: str) -> str:
    """`url`: under which the machine's installer lies; `command_line`: its kernel's command line."""
    return (
        f"#!ipxe\necho gpuprov: installing {_plain(host)}\n"
        f"kernel {url}/linux initrd=initrd.gz {command_line} || exit 1\n"
        f"initrd --name initrd.gz {url}/initrd.gz || exit 1\nboot || exit 1\n"
    )


def _plain(text: str) -> str:
    """A text in which a script sees nothing but words."""
    return re.sub(r"[^A-Za-z0-9 ,.:/_()-]", "?", text)
