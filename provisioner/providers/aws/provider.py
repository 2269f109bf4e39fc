"""Amazon EC2: real machines by terraform/aws. See providers/base.py for the contract."""

from __future__ import annotations

import json
import re
import shutil
import urllib.request
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from provisioner.errors import GpuprovError, ProviderError
from provisioner.events import Events
from provisioner.fleet import efa_devices
from provisioner.plan import Plan, PlannedGroup
from provisioner.preflight import Finding
from provisioner.providers.aws import allowed, console, image, remains, storage, tagged
from provisioner.providers.aws.ask import Region, Trouble
from provisioner.providers.aws.capacity import Choices, shortages, ways_of
from provisioner.providers.aws.preflight import preflight, zones_selling
from provisioner.providers.aws.site import AwsSite
from provisioner.providers.base import Instead, ProviderBlock, Standing
from provisioner.spec.site import Site
from provisioner.stack.models import BaseImage, Stack

MY_ADDRESS = "https://checkip.amazonaws.com/"
"""Answers with the address that it was called from (AWS's own service)."""
VERSION = ">= 5.74, < 6.0"
"""As terraform/aws/versions.tf; a test holds them equal."""
TUNNELS = {
    "ssm": "aws ssm start-session --target {machine} --document-name AWS-StartSSHSession --parameters portNumber=22 "
    "--region {region}",
    "instance-connect": "aws ec2-instance-connect open-tunnel --instance-id {machine} --remote-port 22 "
    "--region {region}",
}
"""`sites.*.connect` → the command that carries ssh.
https://docs.aws.amazon.com/systems-manager/latest/userguide/session-manager-getting-started-enable-ssh-connections.html
https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/connect-using-eice.html"""
TUNNEL_PROGRAMS = {"ssm": ("aws", "session-manager-plugin"), "instance-connect": ("aws",)}
INSTALL = (
    "https://docs.aws.amazon.com/cli/latest/userguide/getting-started-install.html, and for Session Manager its plugin"
)
RETRIES = 6
"""Of one call: Terraform's own 25 would ask for ten minutes where EC2 has said that it has no such machine."""


class Aws:
    """One region at a time: each method is told the site."""

    name = "aws"
    module = "aws"
    data_resources = ("aws_efs_file_system", "aws_fsx_lustre_file_system")
    simulated = False

    def pin(self, stacks: Mapping[str, Stack], events: Events) -> dict[str, Stack]:  # noqa: ARG002
        """Packages and images are the vendors' own: nothing of EC2's is in them."""
        return dict(stacks)

    def base_image(self, site: Site, system: str) -> BaseImage:
        return image.base_image(Region(_aws(site).region), system)

    def terraform(self, plan: Plan, site: str) -> Mapping[str, ProviderBlock]:
        place = _aws(plan.spec.sites[site])
        return {"aws": ProviderBlock("hashicorp/aws", VERSION, {"region": place.region, "max_retries": RETRIES})}

    def preflight(self, plan: Plan, site: str, there: int) -> list[Finding]:
        place = _aws(plan.spec.sites[site])
        groups = [group for group in plan.groups if group.site == site]
        found = preflight(
            Region(place.region), groups, place.zones, own_vpc=place.vpc is None, public=place.internet == "public",
            running=there,
        )  # fmt: skip
        bases = plan.bases.get(site, {})
        if found[0].status == "ok":
            found += _permitted(plan, site, groups)
        for group in groups:
            base = bases.get(group.stack.os)
            if base is None or base.id is None:
                said = f"the lock has no image of {group.stack.os}" + (f": {base.why}" if base else "")
                found.append(Finding("blocks", f"group {group.name}", said, "run `gpuprov lock` again, signed in"))
        if place.connect != "direct":
            found += [_program(name) for name in TUNNEL_PROGRAMS[place.connect]]
        found += storage.findings(place)
        if _asks_here(place, plan):
            try:
                found.append(Finding("ok", "access", f"ssh is open to {self._here} alone"))
            except GpuprovError as error:
                found.append(Finding("blocks", "access", error.message, "say in access.allow who may log in"))
        return found

    def module_inputs(self, plan: Plan, site: str, workspace: Path) -> dict[str, Any]:
        place = _aws(plan.spec.sites[site])
        allow = [str(network) for network in plan.spec.access.allow if network.version == 4]
        if _asks_here(place, plan):
            allow = [self._here]
        zones = self._zones(plan, site, workspace)
        choices = Choices.read(workspace)
        return {
            "site": site if len(plan.spec.sites) > 1 else "",
            "zones": list(zones),
            "groups": {group.name: _group(plan, site, group, choices) for group in plan.groups if group.site == site},
            "internet": place.internet,
            "access": {"allow": allow, "instance_connect": place.connect == "instance-connect"},
            **({"vpc": {"id": place.vpc.id, "subnet_ids": list(place.vpc.subnets)}} if place.vpc else {}),
            **storage.inputs(place),
        }

    def _zones(self, plan: Plan, site: str, workspace: Path) -> Sequence[str]:
        """cluster.yaml's zones in its order, or those that sell every machine of the site, found once and kept."""
        place, choices = _aws(plan.spec.sites[site]), Choices.read(workspace)
        if place.zones or choices.zones:
            return place.zones or choices.zones
        region = Region(place.region)
        names = sorted({group.machine.name for group in plan.groups if group.site == site})
        try:
            sold = [set(zones_selling(region, name)) for name in names]
        except Trouble as trouble:
            raise GpuprovError(f"which zones sell {names[0]}: {trouble}", hint="name them in sites.*.zones") from None
        choices.zones = tuple(sorted(set.intersection(*sold)))
        if not choices.zones:
            raise GpuprovError(
                f"no zone of {place.region} sells {' and '.join(names)}", hint="give each group a site of its own"
            )
        choices.write(workspace)
        return choices.zones

    def standing(self, plan: Plan, site: str, workspace: Path) -> list[Standing]:
        region = _aws(plan.spec.sites[site]).region
        mine = _written(workspace).get(tagged.IDENTITY)
        try:
            rows = _machines(Region(region), plan.spec.name, site)
        except Trouble as trouble:
            raise ProviderError(f"which machines stand in {region}: {trouble}", where=f"site {site}") from None
        found = [(row["InstanceId"], tagged.tags_of(row)) for row in rows]
        return [
            Standing(tags.get(tagged.NODE, ""), number, bool(mine) and tags.get(tagged.IDENTITY) == mine)
            for number, tags in found
        ]

    def instead(self, plan: Plan, site: str, workspace: Path, error: str) -> Instead | None:
        short = shortages(error)
        if not short:
            return None
        zones, choices = self._zones(plan, site, workspace), Choices.read(workspace)
        told, gone = [], []
        for name, shortage in short.items():
            group = plan.group(name)
            before = choices.taken.get(name, ways_of(group, zones)[0])
            way = choices.after(shortage, group, zones)
            told.append(f"{name}: {shortage.code} for {before}" + (f", now {way}" if way else ""))
            gone += [] if way else [f"{name} ({', '.join(map(str, choices.tried[name]))})"]
        if gone:
            choices.settled().write(workspace)
            said = f"{_aws(plan.spec.sites[site]).region} has no machines for {'; '.join(gone)}"
            return Instead(said, (), tuple(short))
        choices.write(workspace)
        return Instead("; ".join(told), tuple(short), tuple(short))

    def without(self, workspace: Path) -> list[str]:
        return [node for nodes in Choices.read(workspace).without.values() for node in nodes]

    def do_without(self, workspace: Path, nodes: Mapping[str, Collection[str]]) -> None:
        choices = Choices.read(workspace)
        wanted = {group: sorted(names) for group, names in nodes.items()}
        if choices.without != wanted:
            choices.without = wanted
            for group in wanted:  # its machines stand where the last attempt was made, and so will the others
                if tried := choices.tried.pop(group, None):
                    choices.taken[group] = tried[-1]
            choices.write(workspace)

    def settle(self, workspace: Path) -> None:
        choices = Choices.read(workspace)
        if choices.tried:
            choices.settled().write(workspace)

    @cached_property
    def _here(self) -> str:
        """The network of one address that this computer is seen with."""
        try:
            with urllib.request.urlopen(MY_ADDRESS, timeout=10) as answer:
                return f"{ip_address(answer.read(64).decode().strip())}/32"
        except (OSError, ValueError) as error:
            raise GpuprovError(
                f"this computer's public address is not known: {error}", hint="say in access.allow who may log in"
            ) from None

    def user_data(self, plan: Plan, site: str, ssh_public_key: str) -> str:  # noqa: ARG002
        user = {
            "name": plan.spec.access.user, "shell": "/bin/bash", "sudo": "ALL=(ALL) NOPASSWD:ALL", "lock_passwd": True,
            "ssh_authorized_keys": [ssh_public_key.strip()],
        }  # fmt: skip
        return "#cloud-config\n" + json.dumps({"users": [user], "disable_root": True, "ssh_pwauth": False}) + "\n"

    def address(self, node: str) -> str:
        return f'module.site.aws_instance.node["{node}"]'

    def attached(self, node: str) -> Collection[str]:
        return (f'module.site.aws_eip_association.node["{node}"]',)

    def lost(self, workspace: Path, known: Collection[str]) -> list[str]:  # noqa: ARG002 (a refresh sees it)
        return []

    def proxy(self, site: Site, machine: str) -> str | None:
        place = _aws(site)
        if place.connect == "direct":
            return None
        if not re.fullmatch(r"i-[0-9a-f]+", machine):  # it becomes part of a command
            raise GpuprovError(f"{machine!r} is no instance id", hint="nodes.json is damaged; look who wrote it")
        return TUNNELS[place.connect].format(machine=machine, region=place.region)

    def host_key(self, site: Site, machine: str) -> str | None:
        return console.host_key(Region(_aws(site).region), machine)

    def role_variables(self) -> dict[str, Any]:
        return {}

    def clean(self, workspace: Path, events: Events) -> list[str]:
        """What has the cluster's own identity and Terraform's state has forgotten is removed; what can't be is told."""
        tags = _written(workspace)
        if not tags:
            return []
        region = tags["region"]
        place = remains.remains(region)
        try:
            found = place.find()
        except ProviderError as error:
            return [f"whether anything is left in {region} could not be asked: {error.message}"]
        wanted = (tags[tagged.CLUSTER], tags[tagged.SITE], tags[tagged.IDENTITY])
        mine = [thing for thing in found.things if (thing.cluster, thing.site, thing.identity) == wanted]
        # IAM can't say who uses a role; this one is of nobody else.
        mine = [replace(thing, kept="") if thing.kept == tagged.SOMEWHERE else thing for thing in mine]
        events("down", "log", f"{region}: {len(mine)} things that Terraform had forgotten")
        left = place.remove(mine, lambda line: events("down", "progress", line)) if mine else []
        return [*left, *(f"{thing}: {thing.kept}" for thing in mine if thing.kept), *found.unknown]


def _aws(site: Site) -> AwsSite:
    assert isinstance(site, AwsSite)
    return site


def _asks_here(place: AwsSite, plan: Plan) -> bool:
    """Whether ssh is opened to this computer, because its address is called and nobody was named."""
    return place.internet == "public" and place.connect == "direct" and not plan.spec.access.allow


def _program(name: str) -> Finding:
    """Whether a program that ssh goes through is on this machine."""
    path = shutil.which(name)
    if path is None:
        return Finding("blocks", "access", f"{name} is not installed, and ssh goes through it", INSTALL)
    return Finding("ok", "access", f"ssh goes through {path}")


def _permitted(plan: Plan, site: str, groups: Sequence[PlannedGroup]) -> list[Finding]:
    """Whether the credentials may do what `up` does."""
    place, bases = _aws(plan.spec.sites[site]), plan.bases.get(site, {})
    names = allowed.wanted(
        own_vpc=place.vpc is None, public=place.internet == "public",
        instance_connect=place.connect == "instance-connect", efs=place.storage.efs is not None,
        fsx=place.storage.fsx is not None,
    )  # fmt: skip
    images = {group.name: base.id for group in groups if (base := bases.get(group.stack.os))}
    subnet = next(iter(place.vpc.subnets), None) if place.vpc else None
    region = Region(place.region)
    may = [*allowed.simulated(region, plan.spec.name, names), *allowed.tried(region, groups, images, subnet)]
    return may + list(storage.buckets(region, place))


def _machines(region: Region, cluster: str, site: str) -> list[dict[str, Any]]:
    """The instances of a site that are not gone, by tag. Raises Trouble."""
    tags = {tagged.CLUSTER: cluster, tagged.SITE: site}
    filters = [{"Name": f"tag:{key}", "Values": [value]} for key, value in tags.items()]
    filters.append({"Name": "instance-state-name", "Values": ["pending", "running", "stopping", "stopped"]})
    rows = region.all("ec2", "describe_instances", "Reservations", Filters=filters)
    return [one for row in rows for one in row["Instances"]]


def provider() -> Aws:
    return Aws()


def _written(workspace: Path) -> dict[str, str]:
    """The region and the tags of a workspace that was rendered; empty where there is none."""
    try:
        text = (workspace / "main.tf").read_text(encoding="utf-8")
        text = text[text.find('provider "aws"') :]  # what comes before it is the state's
    except FileNotFoundError:
        return {}
    keys = ("region", tagged.CLUSTER, tagged.SITE, tagged.IDENTITY)
    found = {key: re.search(rf'\b"?{key}"? *[=:] *"([^"]+)"', text) for key in keys}
    return {key: match[1] for key, match in found.items() if match} if all(found.values()) else {}


def _group(plan: Plan, site: str, group: PlannedGroup, choices: Choices) -> dict[str, Any]:
    """What the module is told of a group beside what all modules are."""
    way, without = choices.taken.get(group.name), choices.without.get(group.name)
    base = plan.bases.get(site, {}).get(group.stack.os)
    if base is None or base.id is None:
        raise GpuprovError(
            f"the lock has no image of {group.stack.os} for {site}", hint="run `gpuprov lock` again, signed in to AWS"
        )
    return {
        "image_id": base.id,
        "efa_interfaces": efa_devices(group),
        **({"zone": way.zone, "kind": way.kind} if way else {}),
        **({"without": without} if without else {}),
    }
