"""Plans for tests: real machines of the catalogue, real stacks, image digests made up."""

from __future__ import annotations

from provisioner import catalog, stack
from provisioner.plan.models import Plan, PlannedGroup, build_plan
from provisioner.spec.models import ClusterSpec
from provisioner.stack.models import Lock, Stack

SITES = {
    "aws": {"provider": "aws", "region": "us-east-1", "zones": ("us-east-1a",)},
    "azure": {"provider": "azure", "region": "eastus"},
    "alicloud": {"provider": "alicloud", "region": "cn-beijing", "zones": ("cn-beijing-f",)},
    "tencent": {"provider": "tencent", "region": "ap-guangzhou", "zones": ("ap-guangzhou-3",)},
    "baremetal": {"provider": "baremetal"},
}
"""Sites of the providers whose example of the catalogue is not what these plans need."""


def cluster_spec(machine: str, *, count: int = 1, name: str = "test", **keys: object) -> ClusterSpec:
    """A cluster of one group `train` of that machine, at its provider's site."""
    known = catalog.load()
    row = known.provider(known.machine(machine).provider)
    example_site = {"provider": row.name, "region": row.example_region, "zones": row.example_zones}
    return ClusterSpec.model_validate(
        {
            "name": name,
            "sites": {"here": SITES.get(row.name, example_site)},
            "groups": {"train": {"machine": machine, "count": count}},
            **keys,
        }
    )


def with_digests(solved: Stack) -> Stack:
    """The stack with made-up digests, as a provider's `pin` would give it."""
    images = tuple(
        i.model_copy(update={"digest": f"sha256:{index:064x}", "pull": f"mirror/{index}@sha256:{index:064x}"})
        for index, i in enumerate(solved.images)
    )
    return solved.model_copy(update={"images": images})


def plan(spec: ClusterSpec) -> Plan:
    """The plan of a spec, as a sandbox would have it."""
    groups = {name: with_digests(solved) for name, solved in stack.solve(spec).items()}
    return build_plan(spec, Lock(request={}, simulated=True, groups=groups))


def planned_group(machine: str) -> PlannedGroup:
    """The one group of a one-group plan."""
    return plan(cluster_spec(machine)).groups[0]
