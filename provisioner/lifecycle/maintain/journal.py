"""How far a maintenance has come: maintenance.json in the run directory. Nodes that it has out of service are in
quarantine.json too, in gpuprov's name: after an interruption the next healthy verdict puts them back."""

from __future__ import annotations

from dataclasses import field
from typing import ClassVar

from pydantic.dataclasses import dataclass

from provisioner.common.paths import ClusterPaths
from provisioner.lifecycle.rollout import Rollout
from provisioner.rundir import records


@dataclass(config=records.STRICT, slots=True)
class Journal(Rollout):
    """One maintenance. `to` is its beginning, UTC; `sets`: group → version of each package that its canary has, which
    the rest of the group gets."""

    FILE: ClassVar[str] = "maintenance.json"
    REPAIR: ClassVar[str] = (
        "remove it: `gpuprov verify` puts nodes that it had out of service back, once they are healthy"
    )

    sets: dict[str, dict[str, str]] = field(default_factory=dict)

    def save(self, paths: ClusterPaths) -> None:
        records.save(paths, self)


def load(paths: ClusterPaths) -> Journal:
    """The last maintenance; one that is done where there never was any. Raises DamagedFileError."""
    return records.load(paths, Journal) or Journal()
