"""Machines that exist already, as a site of cluster.yaml names them. Imports nothing: sites are read with it."""

from __future__ import annotations

from dataclasses import dataclass

LOCAL = ("local", "localhost")
"""A host of this name is the machine that gpuprov runs on; it is reached without ssh."""


@dataclass(frozen=True, slots=True)
class Host:
    """One machine that exists. `name`: as cluster.yaml has it, the id of its node; `group`: empty where the file does
    not say; `user`, `jump`: None for those of its site; `bmc`: address of its management controller, empty for none."""

    name: str
    group: str
    address: str
    port: int = 22
    user: str | None = None
    jump: str | None = None
    bmc: str = ""
    serial: str = ""
    """Serial number that its BMC must show before anything is changed through it; empty where the file has none."""
    mac: str = ""
    """MAC address of the port that it starts from the network with, 52:54:00:12:34:56; empty where the file has
    none."""

    @property
    def management(self) -> tuple[str, int]:
        """Host and port of its BMC."""
        host, colon, port = self.bmc.rpartition(":")
        return (host, int(port)) if colon and port.isdigit() and ":" not in host else (self.bmc, 443)

    @property
    def local(self) -> bool:
        return self.name in LOCAL
