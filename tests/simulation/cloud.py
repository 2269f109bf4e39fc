"""A cloud: machines by account and region, what they cost as long as they run, and nodes that answer or do not. Beside
them are hosts of one's own (hosts.py)."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass
class Machine:
    """One machine, a host of one's own (`kind` "host"), or (`kind` "network") what a site's machines stand in.
    `installed`: the driver on it; `sick`: its checks fail; `deaf`: it answers no ssh."""

    id: str
    kind: str
    cluster: str
    site: str
    node: str
    identity: str
    account: str
    region: str
    zone: str
    type: str
    address: str
    key: str
    installed: str = ""
    sick: bool = False
    deaf: bool = False
    running: bool = True
    proven: set[str] = field(default_factory=set)
    """Drivers with which a verdict found it healthy."""

    in_use: bool = False
    """Whether jobs may run on it: it is recorded as proven, as the node that it is, or was until now."""
    removed_by: str = ""
    """Name of the command that has begun to remove it; empty: none has."""
    patched: bool = False
    """Whether `maintain` has installed the update that the archive has."""
    drifted: bool = False
    """Whether an older record was restored, which does not know what is installed; until the next roles."""

    def recover(self) -> None:
        self.sick = self.deaf = False

    @property
    def serves(self) -> bool:
        """Whether it is a node of a cluster now."""
        return self.running and self.kind == "machine"

    def admits(self, key: str) -> bool:
        """Whether its sshd lets the owner of a public key in."""
        del key
        return True

    @property
    def known_as(self) -> str:
        """Its id in nodes.json."""
        return self.id

    def is_called(self, number: str) -> bool:
        """Whether clusters know it by that id."""
        return self.known_as == number


@dataclass
class Cloud:
    """`short`: zones without machines to sell. `used_up`: regions in which the account may have no more machines."""

    machines: dict[str, Machine] = field(default_factory=dict)
    short: set[str] = field(default_factory=set)
    used_up: set[str] = field(default_factory=set)
    _numbers: itertools.count[int] = field(default_factory=itertools.count)

    def make(self, kind: str, node: str, **properties: str) -> Machine:
        number = next(self._numbers)
        machine = Machine(
            id=f"{'i' if kind == 'machine' else 'vpc'}-{number}", kind=kind, node=node,
            address=f"203.0.113.{number % 250 + 1}", key=f"ssh-ed25519 AAAA{number:08d}", **properties,
        )  # fmt: skip
        self.machines[machine.id] = machine
        return machine

    def mover(self, machine: Machine) -> Callable[[], None]:
        """What gives a machine another address."""

        def move() -> None:
            machine.address = f"198.51.100.{next(self._numbers) % 250 + 1}"

        return move

    def running(self, kind: str = "machine") -> list[Machine]:
        return [machine for machine in self.machines.values() if machine.running and machine.kind == kind]

    def there(self, number: str, account: str, region: str) -> Machine | None:
        """What a call in that region finds under an id."""
        machine = self.machines.get(number)
        return (
            machine if machine and machine.running and (machine.account, machine.region) == (account, region) else None
        )

    def at(self, address: str) -> Machine | None:
        """Who answers at an address now."""
        answering = (machine for machine in self.machines.values() if machine.running and machine.kind != "network")
        return next((machine for machine in answering if machine.address == address), None)

    def serving(self) -> list[Machine]:
        """All that are nodes of clusters now."""
        return [machine for machine in self.machines.values() if machine.serves]

    def called(self, number: str) -> Machine | None:
        """The machine that nodes.json means by an id: of a host it is the name that cluster.yaml has for it."""
        machine = self.machines.get(number)
        return machine or next((host for host in self.machines.values() if host.is_called(number)), None)
