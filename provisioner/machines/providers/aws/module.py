"""terraform/aws: what the module is told."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from provisioner.common.errors import GpuprovError, ProviderError
from provisioner.machines.providers import first_boot
from provisioner.machines.providers.aws import reservations, storage, tagged_resources
from provisioner.machines.providers.aws.capacity import Ec2Capacity
from provisioner.machines.providers.aws.client import Region
from provisioner.machines.providers.aws.site import AwsSite
from provisioner.machines.providers.base import Module, Place, ProviderBlock, Standing
from provisioner.machines.providers.capacity import Choices
from provisioner.machines.providers.public_address import PublicAddress
from provisioner.machines.providers.trouble import Trouble
from provisioner.plan.models import Plan, PlannedGroup

VERSION = ">= 5.74, < 6.0"
"""As terraform/aws/versions.tf; a test holds them equal."""
CREATE_S = 1200
"""What the module takes by itself; naming it would show as a change of every instance that was made before."""
RETRIES = 6
"""Of one call: Terraform's own 25 would ask for ten minutes where EC2 has said that it has no such machine."""


class Ec2Module(Module):
    """See providers/base.py for the contract."""

    folder = "aws"
    data_resources = ("aws_efs_file_system", "aws_fsx_lustre_file_system")

    def __init__(
        self, site_context: Place, site: AwsSite, capacity: Ec2Capacity, public_address: PublicAddress
    ) -> None:
        self._site_context, self._site, self._capacity, self._public_address = (
            site_context,
            site,
            capacity,
            public_address,
        )

    def blocks(self, plan: Plan) -> Mapping[str, ProviderBlock]:  # noqa: ARG002
        configuration = {"region": self._site.region, "max_retries": RETRIES}
        return {"aws": ProviderBlock("hashicorp/aws", VERSION, configuration)}

    def inputs(self, plan: Plan) -> dict[str, Any]:
        site, site_context = self._site, self._site_context
        allow = [str(network) for network in plan.spec.access.allow if network.version == 4]
        if self._public_address.is_needed(plan):
            allow = [self._public_address.network]
        zones = self._capacity.zones(plan)
        choices = Choices.read(site_context.workspace)
        groups = [group for group in plan.groups if group.site == site_context.site]
        return {
            "site": site_context.site if len(plan.spec.sites) > 1 else "",
            "zones": list(zones),
            "groups": {group.name: self._group(plan, group, choices) for group in groups},
            "internet": site.internet,
            **({"create_timeout": f"{wait}s"} if (wait := plan.spec.timeouts.machine_s) != CREATE_S else {}),
            **{
                key: value
                for key, value in {
                    "permissions_boundary": site.permissions_boundary,
                    "instance_profile": site.instance_profile,
                    "root": {"kms_key_id": site.kms_key} if site.kms_key else None,
                    "security_groups": list(site.security_groups),
                }.items()
                if value
            },
            "access": {"allow": allow, "instance_connect": site.connect == "instance-connect"},
            **({"vpc": {"id": site.vpc.id, "subnet_ids": list(site.vpc.subnets)}} if site.vpc else {}),
            **storage.inputs(site),
        }

    def _group(self, plan: Plan, group: PlannedGroup, choices: Choices) -> dict[str, Any]:
        """What the module is told of a group beside what all modules are."""
        option, without = choices.taken.get(group.name), choices.without.get(group.name)
        reserved = (
            group.spec.placement == "cluster" and (option.kind if option else group.spec.capacity.kind) == "reservation"
        )
        placement_group = reservations.placement_group(Region(self._site.region), group) if reserved else None
        base = plan.base(group)
        if base is None or base.id is None:
            raise GpuprovError(
                f"the lock has no image of {group.boots} for {self._site_context.site}",
                hint="run `gpuprov lock` again, signed in to AWS",
            )
        return {
            "image_id": base.id,
            "efa_interfaces": group.efa_devices,
            **({"zone": option.zone, "kind": option.kind} if option else {}),
            **({"placement_group": placement_group} if placement_group else {}),
            **({"without": without} if without else {}),
        }

    def user_data(self, plan: Plan, ssh_public_key: str) -> str:
        return first_boot.cloud_config(plan.spec.user(self._site_context.site), ssh_public_key)

    def address(self, node: str) -> str:
        return f'module.site.aws_instance.node["{node}"]'

    def described(self, attributes: Mapping[str, Any]) -> dict[str, Any] | None:
        tags = attributes.get("tags") or {}
        return {
            "id": attributes.get("id"), "group": tags.get("gpuprov-group"), "machine": attributes.get("instance_type"),
            "zone": attributes.get("availability_zone"), "private_ip": attributes.get("private_ip"),
            "public_ip": attributes.get("public_ip") or None,
        }  # fmt: skip

    def attached(self, node: str) -> Collection[str]:
        return (f'module.site.aws_eip_association.node["{node}"]',)

    def standing(self) -> list[Standing]:
        site_context = self._site_context
        try:
            rows = _machines(Region(self._site.region), site_context.cluster, site_context.site)
        except Trouble as error:
            message = f"which machines stand in {self._site.region}: {error}"
            raise ProviderError(message, where=f"site {site_context.site}") from None
        tagged_machines = [(row["InstanceId"], tagged_resources.tags_of(row)) for row in rows]
        identity = site_context.identity
        return [
            Standing(
                tags.get(tagged_resources.NODE, ""),
                number,
                bool(identity) and tags.get(tagged_resources.IDENTITY) == identity,
            )
            for number, tags in tagged_machines
        ]


def _machines(region: Region, cluster: str, site: str) -> list[dict[str, Any]]:
    """The instances of a site that are not gone, by tag. Raises Trouble."""
    tags = {tagged_resources.CLUSTER: cluster, tagged_resources.SITE: site}
    filters = [{"Name": f"tag:{key}", "Values": [value]} for key, value in tags.items()]
    filters.append({"Name": "instance-state-name", "Values": ["pending", "running", "stopping", "stopped"]})
    rows = region.all("ec2", "describe_instances", "Reservations", Filters=filters)
    return [machine for row in rows for machine in row["Instances"]]
