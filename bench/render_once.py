"""One cluster.yaml to Terraform's text, in a process of its own: `python -m bench.render_once FILE`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from provisioner import catalog, spec, stack
from provisioner.machines.providers.aws.provider import Aws
from provisioner.machines.providers.base import Place
from provisioner.machines.terraform.render import main_tf
from provisioner.plan.models import Plan, PlannedGroup
from provisioner.stack.models import BaseImage


def main(file: str) -> None:
    cluster_spec, known = spec.load(file), catalog.load()
    groups = []
    for name, solved in stack.solve(cluster_spec).items():
        group = cluster_spec.groups[name]
        machine = known.machine(group.machine_type())
        groups.append(
            PlannedGroup(name, cluster_spec.site_of(name), group, machine, known.gpu(machine.gpu_model), solved)
        )
    site = next(iter(cluster_spec.sites))
    images = {group.stack.os: BaseImage(id="ami-0123456789abcdef0", why="bench") for group in groups}
    plan = Plan(spec=cluster_spec, groups=tuple(groups), simulated=False, bases={site: images})
    module = Aws(Place(cluster_spec.name, site, cluster_spec.sites[site], Path())).module
    names = len(plan.nodes())
    text = main_tf(plan, site, module, ssh_public_key="ssh-ed25519 AAAA", identity="0123456789ab")
    print(json.dumps({"nodes": names, "characters": len(text)}))


if __name__ == "__main__":
    main(sys.argv[1])
