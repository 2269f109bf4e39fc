"""A machine's console as EC2 hands it out: the one place where a host key can be read that no network is in between."""

from __future__ import annotations

import time

from provisioner.machines.providers.aws.client import Region
from provisioner.machines.providers.console import PAUSE_S, WAIT_S
from provisioner.machines.providers.first_boot import host_key_of as read
from provisioner.machines.providers.trouble import Trouble


def host_key(region: Region, machine: str, *, wait_s: float = WAIT_S) -> str | None:
    """The ed25519 key of the last boot that wrote keys; None where the console has none within `wait_s` seconds, or may
    not be read."""
    until = time.monotonic() + wait_s
    while True:
        try:
            answer = region.ask("ec2", "get_console_output", InstanceId=machine, Latest=True)
        except Trouble as error:
            if error.code == "UnsupportedOperation":  # Latest is for Nitro machines alone (P3 is none)
                return _latest(region, machine)
            return None
        if key := read(answer.get("Output", "")):
            return key
        if time.monotonic() > until:
            return None
        time.sleep(PAUSE_S)


def text(region: Region, machine: str) -> str | None:
    """What the console shows now, or showed some minutes ago on machines before Nitro; None where it shows nothing, or
    may not be read."""
    for latest in ({"Latest": True}, {}):
        try:
            return str(region.ask("ec2", "get_console_output", InstanceId=machine, **latest).get("Output", "")) or None
        except Trouble as error:
            if error.code != "UnsupportedOperation":
                return None
    return None


def _latest(region: Region, machine: str) -> str | None:
    """What the console of an older machine had some minutes ago."""
    try:
        return read(region.ask("ec2", "get_console_output", InstanceId=machine).get("Output", ""))
    except Trouble:
        return None
