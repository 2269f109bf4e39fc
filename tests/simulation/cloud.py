"""A cloud: machines by account and region, what they cost as long as they run, and nodes that answer or do not."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass
class Machine:
    """One machine, or (`kind` "network") what a site's machines stand in. `installed`: the driver on it; `sick`: its
    checks fail; `deaf`: it answers no ssh."""

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

    def recover(self) -> None:
        self.sick = self.deaf = False

    in_use: bool = False
    """Whether jobs may run on it: it is recorded as proven."""
    drifted: bool = False
    """Whether an older record was restored, which does not know what is installed; until the next roles."""


@dataclass
class Cloud:
    """`short`: zones without machines to sell."""

    machines: dict[str, Machine] = field(default_factory=dict)
    short: set[str] = field(default_factory=set)
    _numbers: itertools.count[int] = field(default_factory=itertools.count)

    def make(self, kind: str, node: str, **properties: str) -> Machine:
        number = next(self._numbers)
        made = Machine(
            id=f"{'i' if kind == 'machine' else 'vpc'}-{number}", kind=kind, node=node,
            address=f"203.0.113.{number % 250 + 1}", key=f"ssh-ed25519 AAAA{number:08d}", **properties,
        )  # fmt: skip
        self.machines[made.id] = made
        return made

    def mover(self, machine: Machine) -> Callable[[], None]:
        """What gives a machine another address."""

        def move() -> None:
            machine.address = f"198.51.100.{next(self._numbers) % 250 + 1}"

        return move

    def running(self, kind: str = "machine") -> list[Machine]:
        return [one for one in self.machines.values() if one.running and one.kind == kind]

    def there(self, number: str, account: str, region: str) -> Machine | None:
        """What a call in that region finds under an id."""
        found = self.machines.get(number)
        return found if found and found.running and (found.account, found.region) == (account, region) else None

    def at(self, address: str) -> Machine | None:
        """Who answers at an address now."""
        return next((one for one in self.running() if one.address == address), None)
