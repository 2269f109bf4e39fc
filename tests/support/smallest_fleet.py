"""`python -m tests.support.smallest_fleet FILE`: the fleet of FILE's first site, planned, applied, widened and
destroyed by Terraform. Prints what was seen as JSON. Run on a copy of the code with provider.md in it."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

from provisioner import spec
from provisioner.common.events import Events
from provisioner.common.paths import ClusterPaths, private_dir
from provisioner.machines.providers.cluster import Providers
from provisioner.machines.terraform.binary import find
from provisioner.machines.terraform_machines import Root, TerraformMachines
from provisioner.plan.models import Plan
from tests.support import plans


def main(file: str) -> None:
    loaded = spec.load(file)
    paths = ClusterPaths(Path(file), loaded.name, sandbox=False)
    site = next(iter(loaded.sites))
    providers = Providers(loaded, paths)
    provider = providers.at(site)
    private_dir(paths.site(site))
    providers.record(site)
    solved = plans.plan(loaded)
    bases = {site: {group.stack.os: provider.base_image(group.stack.os) for group in solved.groups}}
    plan = Plan(spec=loaded, groups=solved.groups, simulated=False, bases=bases)
    root = Root(key=lambda: "ssh-ed25519 AAAA", identity=lambda: "0123456789ab")

    def machines(*known: str) -> TerraformMachines:
        return TerraformMachines(provider, root, find(), Events(), known=known)

    first = machines()
    planned = first.plan(plan)
    nodes = first.apply(plan, planned)
    names = [node.name for node in nodes]
    unchanged = machines(*names).plan(plan)
    replacing = machines(*names).plan(plan, replace=names[:1])
    replacing.refuse_more(names[:1], names[:1])
    wider = replace(plan, groups=tuple(replace(g, spec=g.spec.model_copy(update={"count": 3})) for g in plan.groups))
    more = machines(*names)
    grown = more.apply(wider, more.plan(wider))
    print(
        json.dumps(
            {
                "preflight": [finding.status for finding in provider.preflight(plan, 0)],
                "planned": [planned.add, planned.change, planned.destroy],
                "nodes": {node.name: node.private_address for node in nodes},
                "again": unchanged.total,
                "anew": [f"{action.what} {action.node}" for action in replacing.actions],
                "kept": [node.id for node in nodes] == [node.id for node in grown][: len(nodes)],
                "grown": len(grown),
                "made_by": {name: provider.name for name, provider in providers.made().items()},
                "destroyed": more.destroy(),
                "left": provider.clean(Events()),
            }
        )
    )


if __name__ == "__main__":
    main(sys.argv[1])
