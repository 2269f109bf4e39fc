"""One node that is verified."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from provisioner.verify.baseline import Baseline
from provisioner.verify.bundle import Bundle
from provisioner.verify.expectations import Expected


@dataclass(frozen=True, slots=True)
class Subject:
    """One node to verify, with where its outputs come from.

    `source` is an argv prefix that runs one shell command on the node (see collect.collect), or a bundle that is there
    already; beside a bundle `reach` may be that argv, for what the level starts on the node. `host_spec` is
    pytest-testinfra's connection (ssh://node?ssh_config=FILE, whose config pins the key, or local://); None leaves
    checks that use `host` unknown.
    """

    name: str
    group: str
    site: str
    machine: str
    source: Sequence[str] | Bundle
    expected: Expected
    simulated: bool = False
    host_spec: str | None = None
    reach: Sequence[str] | None = None
    baseline: Baseline | None = None
    """What the fleet's own record says of this node."""
    address: str = ""
    """In the network between the nodes of its group; "" where nobody knows it."""

    @property
    def transport(self) -> Sequence[str] | None:
        """The argv that reaches the node, for what its level starts there; None where only its bundle is here."""
        return self.reach if isinstance(self.source, Bundle) else self.source
