"""slurmd on the nodes that jobs run on. It is started once the node is proven (lifecycle/slurm.py), so that no check
and no `up` expects it to run."""

from __future__ import annotations

from typing import Any

from provisioner.plan.roles import Role


def _own_part(value: Any) -> Any:
    """A node depends on where slurmctld is, and not on the other nodes."""
    return [value["head"], value["health"]] if value else None


ROLE = Role(depends_on={"gpuprov_slurm": _own_part})
