"""Pinned host keys (pins.json): each machine's, by its id, so that neither a reused address nor a replaced machine is
taken for the old one."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from provisioner.common import stored
from provisioner.common.errors import GpuprovError
from provisioner.common.paths import ClusterPaths, private_dir, write_whole

Pins = dict[str, tuple[str, str]]
"""Node name → (machine id, host key as "ssh-ed25519 AAAA…")."""


def load_pins(paths: ClusterPaths) -> Pins:
    """What was pinned by earlier runs."""
    try:
        return parse_pins(stored.load(paths.ssh / "pins.json"))
    except FileNotFoundError:
        return {}
    except (ValueError, TypeError, AttributeError, LookupError) as error:
        raise GpuprovError(
            "the pinned host keys are damaged",
            where=str(paths.ssh / "pins.json"),
            hint="compare the machines' host keys by hand, then remove the file and run `gpuprov up` to pin them again",
        ) from error


def parse_pins(loaded: Any) -> Pins:
    """The pins of pins.json. Raises ValueError, TypeError, AttributeError or LookupError for what is none."""
    if not all(isinstance(text, str) for pin in loaded.values() for text in (pin[0], pin[1])):
        raise TypeError("a pin is not a text")
    return {name: (pin[0], pin[1]) for name, pin in loaded.items()}


def repin(paths: ClusterPaths, keys: Pins) -> bool:
    """Pin these host keys, which a person has written down, in place of others; whether any differs."""
    pins = load_pins(paths)
    if not keys.items() - pins.items():
        return False
    write_whole(private_dir(paths.ssh) / "pins.json", json.dumps(pins | keys, indent=1) + "\n")
    return True


def unpin(paths: ClusterPaths, machine: str) -> None:
    """Forget the host key of a machine, by its id: it was installed anew, and has made itself another one."""
    pins = load_pins(paths)
    remaining = {name: pin for name, pin in pins.items() if pin[0] != machine}
    if remaining != pins:
        write_whole(paths.ssh / "pins.json", json.dumps(remaining, indent=1) + "\n")


def pin(paths: ClusterPaths, machine: str, key: str) -> None:
    """Pin the host key of a machine, by its id, before anybody asks it: it was reported by its installation."""
    unpin(paths, machine)
    name = "installed-" + hashlib.sha256(machine.encode()).hexdigest()[:12]  # it has no node's name yet (fleet.py)
    pins = load_pins(paths) | {name: (machine, key)}
    private_dir(paths.ssh)
    write_whole(paths.ssh / "pins.json", json.dumps(pins, indent=1) + "\n")
