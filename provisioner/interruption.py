"""What nodes that the cloud may take away are given: who tells them, and what they run then (role interruption)."""

from __future__ import annotations

import base64
import hashlib
from typing import Any

from provisioner import catalog
from provisioner.plan import Plan, PlannedGroup
from provisioner.verify.expectations import INTERRUPTION, units

REHEARSED = "127.0.0.1:1338"
"""In a rehearsal: nobody, until a fault puts one there. The machine that rehearses may be one of a cloud's itself, and
its own notices are none of a rehearsed node's."""
METRICS = "gpuprov-interruption.prom"


def variables(group: PlannedGroup, plan: Plan) -> dict[str, Any] | None:
    """What role interruption is given; None where no machine of the group can be taken away."""
    if not watched(group):
        return None
    text, health = hook(plan), plan.spec.monitoring.health_check
    return {
        "metadata": REHEARSED if plan.simulated else catalog.load().provider(group.machine.provider).spot_notice,
        "textfile": f"{health.textfile.rpartition('/')[0]}/{METRICS}" if health is not None else None,
        # In base64: Ansible would take what stands in braces for a template.
        "hook": base64.b64encode(text.encode()).decode() if text is not None else None,
    }


def watched(group: PlannedGroup) -> bool:
    """Whether the cloud may take machines of the group away, and tells them beforehand."""
    return INTERRUPTION in units(group.machine, group.gpu, group.stack, group.spec)


def hook(plan: Plan) -> str | None:
    """The file that nodes run when they are taken away, /etc/gpuprov/interrupted; None where there is none."""
    command = plan.spec.hooks.interrupted
    return f"# Written by gpuprov: hooks.interrupted of cluster.yaml\n{command}\n" if command is not None else None


def digest(plan: Plan) -> str:
    """sha256 of that file; empty where there is none."""
    text = hook(plan)
    return hashlib.sha256(text.encode()).hexdigest() if text is not None else ""
