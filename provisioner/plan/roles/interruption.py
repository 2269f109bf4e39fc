"""The service of machines that the cloud takes away, spot machines and those of a capacity block: where it hears of
that, and what the node runs then."""

from __future__ import annotations

import base64
import hashlib
from typing import Any

from provisioner import catalog
from provisioner.plan.models import Plan, PlannedGroup
from provisioner.plan.roles import Role, Target

UNIT = "gpuprov-interruption.service"
SANDBOX_ADDRESS = "127.0.0.1:1338"
"""In a sandbox run: nothing listens there until a fault does. The machine of the sandbox may be a cloud's itself, and
its own notices do not concern a sandbox node."""
METRICS = "gpuprov-interruption.prom"


def variables(group: PlannedGroup, plan: Plan) -> dict[str, Any]:
    return {"gpuprov_interruption": given(group, plan)}


def given(group: PlannedGroup, plan: Plan) -> dict[str, Any] | None:
    """Address of the metadata service (None where machines are not spot), file of metrics, hook in base64; None where
    no machine of the group can be taken away."""
    if not watched(group):
        return None
    text, health = hook(plan), plan.spec.health_timer
    return {
        "metadata": _metadata(group, plan) if group.spec.capacity.interruptible else None,
        "service": _service(group, plan),
        "textfile": f"{health.textfile.rpartition('/')[0]}/{METRICS}" if health is not None else None,
        # In base64: Ansible would take what stands in braces for a template.
        "hook": base64.b64encode(text.encode()).decode() if text is not None else None,
    }


def _metadata(group: PlannedGroup, plan: Plan) -> str | None:
    return SANDBOX_ADDRESS if plan.simulated else catalog.load().provider(group.machine.provider).spot_notice


def _service(group: PlannedGroup, plan: Plan) -> str:
    """Whose metadata service that is; the sandbox's speaks as Amazon's."""
    return "aws" if plan.simulated else catalog.load().provider(group.machine.provider).spot_service


def watched(group: PlannedGroup) -> bool:
    """Whether the cloud may take machines of the group away, and announces it on the node."""
    return _announced(Target(group.machine, group.gpu, group.stack, group.spec))


def hook(plan: Plan) -> str | None:
    """The file that nodes run when they are taken away, /etc/gpuprov/interrupted; None where there is none."""
    command = plan.spec.hooks.interrupted
    return f"# Written by gpuprov: hooks.interrupted of cluster.yaml\n{command}\n" if command is not None else None


def digest(plan: Plan) -> str:
    """sha256 of that file; empty where there is none."""
    text = hook(plan)
    return hashlib.sha256(text.encode()).hexdigest() if text is not None else ""


def _announced(target: Target) -> bool:
    """A provider announces on the node that it takes a spot machine; when a block ends is known from the start."""
    announces = catalog.load().provider(target.machine.provider).spot_notice is not None
    return (announces and target.group.capacity.interruptible) or target.group.capacity.kind == "block"


def _without_hook(value: Any) -> Any:
    """The hook is compared with the file on the node (drift.py)."""
    return value if value is None else {**value, "hook": None}


ROLE = Role(units={UNIT: _announced}, variables=variables, depends_on={"gpuprov_interruption": _without_hook})
