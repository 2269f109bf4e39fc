"""One cluster.yaml to Terraform's text, in a process of its own: `python -m bench.render_once FILE`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from provisioner import catalog, spec, stack
from provisioner.plan import Plan, PlannedGroup
from provisioner.workspace.render import main_tf


def main(file: str) -> None:
    wanted, known = spec.load(file), catalog.load()
    groups = []
    for name, solved in stack.solve(wanted).items():
        group = wanted.groups[name]
        machine = known.machine(group.machine)
        groups.append(PlannedGroup(name, wanted.site_of(name), group, machine, known.gpu(machine.gpu_model), solved))
    plan = Plan(spec=wanted, groups=tuple(groups), simulated=False)
    names = len(plan.nodes())
    provider: Any = SimpleNamespace(module="aws", module_inputs=lambda *_: {"region": "us-east-1"})
    text = main_tf(
        plan, next(iter(wanted.sites)), provider, Path(), ssh_public_key="ssh-ed25519 AAAA", identity="0123456789ab"
    )
    print(json.dumps({"nodes": names, "characters": len(text)}))


if __name__ == "__main__":
    main(sys.argv[1])
