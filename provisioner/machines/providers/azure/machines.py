"""The machines of a site as Azure has them, found by tag."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from provisioner.machines.providers.azure.client import Subscription, enum_text, parts

CLUSTER, SITE, NODE, GROUP, IDENTITY = (
    "gpuprov-cluster", "gpuprov-site", "gpuprov-node", "gpuprov-group", "gpuprov-id",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Machine:
    """`id`: as Terraform's state has it; `number`: the machine's own (vmId), which its replacement does not have."""

    id: str
    number: str
    resource_group: str
    name: str
    tags: Mapping[str, str]
    size: str
    state: str


def listed(subscription: Subscription) -> list[Machine]:
    """Every machine of the subscription in the region. Raises Trouble."""
    client = subscription.client("compute")
    rows = subscription.all(lambda: client.virtual_machines.list_by_location(subscription.region))
    return [_machine(row) for row in rows]


def of_site(subscription: Subscription, cluster: str, site: str) -> list[Machine]:
    """The machines with a site's tags that stand. One that Azure could not allocate has failed and nothing runs: it
    is left out, Terraform makes it over. Raises Trouble."""
    site_machines = [
        machine
        for machine in listed(subscription)
        if (machine.tags.get(CLUSTER), machine.tags.get(SITE)) == (cluster, site)
    ]
    return [machine for machine in site_machines if machine.state != "Failed" or _runs(subscription, machine)]


def _runs(subscription: Subscription, machine: Machine) -> bool:
    """Whether a machine whose making failed has been allocated all the same (OSProvisioningTimedOut). Raises
    Trouble."""
    client = subscription.client("compute")
    view = subscription.ask(lambda: client.virtual_machines.instance_view(machine.resource_group, machine.name))
    codes = [str(status.code) for status in view.statuses or ()]
    return any(code.startswith("PowerState/") and "deallocated" not in code for code in codes)


def _machine(row: Any) -> Machine:
    names = parts(str(row.id))
    # Azure gives resource groups in capitals at times; ours have none.
    group = names["resourcegroups"]
    group = group.lower() if group.lower().startswith("gpuprov-") else group
    number = f"/subscriptions/{names['subscriptions']}/resourceGroups/{group}"
    return Machine(
        f"{number}/providers/Microsoft.Compute/virtualMachines/{row.name}", str(row.vm_id), group, str(row.name),
        dict(row.tags or {}), enum_text(getattr(row.hardware_profile, "vm_size", "")),
        enum_text(row.provisioning_state),
    )  # fmt: skip
