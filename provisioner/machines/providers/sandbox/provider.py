"""The sandbox: every site as podman nodes with simulated hardware on this machine."""

from __future__ import annotations

import json
import platform
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from provisioner.common.events import Events
from provisioner.common.paths import cache, private_dir
from provisioner.common.preflight import Finding
from provisioner.common.text import counted
from provisioner.machines.providers import capacity, first_boot
from provisioner.machines.providers.base import Module, Place, Provider
from provisioner.machines.providers.orphans import Orphans
from provisioner.machines.providers.sandbox.capacity import SimulatedCapacity
from provisioner.machines.providers.sandbox.disks import SandboxDisks
from provisioner.machines.providers.sandbox.images import SandboxImages
from provisioner.machines.providers.sandbox.orphans import OnThisMachine
from provisioner.plan.models import Plan
from provisioner.sandbox import assets, cloud_base, containers, image, jump_host, network
from provisioner.sandbox.inputs import module_inputs
from provisioner.sandbox.keys import MIRROR_HOST, keys
from provisioner.spec.site import JumpHost
from provisioner.stack.models import BaseImage, Stack
from provisioner.transport.ssh_config import SimulatedJumpHost

REGISTRY = f"{MIRROR_HOST}:5000"
MEMORY_PER_NODE_MIB = 150
"""What a configured node was seen to use (docs/concepts/sandbox.md), rounded up."""


BESIDE = {"mirror": "module.site.terraform_data.mirror", "jump": "module.site.terraform_data.jump[0]"}
"""Role of a container beside the nodes → its Terraform address."""


class SandboxModule(Module):
    """terraform/sandbox."""

    folder = "sandbox"
    shared = tuple(BESIDE.values())

    def __init__(self, site_context: Place, capacity: SimulatedCapacity) -> None:
        self._site_context, self._capacity = site_context, capacity

    def inputs(self, plan: Plan) -> dict[str, Any]:
        """The module's `sandbox` object (terraform/sandbox/variables.tf)."""
        site = self._site_context.site
        stacks = [*(group.stack for group in plan.groups if group.site == site), *plan.beside]
        variables = module_inputs(plan, site, self._site_context.workspace, assets.prepare(stacks, Events()))
        refused, zones = self._capacity.refusals(plan), self._capacity.taken()
        without = capacity.without(self._site_context.workspace)
        more = {"refusals": refused, "zones": zones, "without": without}
        return variables | {key: value for key, value in more.items() if value}

    def user_data(self, plan: Plan, ssh_public_key: str) -> str:
        return first_boot.cloud_config(plan.spec.user(self._site_context.site), ssh_public_key)

    def address(self, node: str) -> str:
        """The resource of a node's container (terraform/sandbox/main.tf)."""
        return f'module.site.terraform_data.node["{node}"]'

    def described(self, attributes: Mapping[str, Any]) -> dict[str, Any] | None:
        output = (attributes.get("output") or {}).get("value") or {}
        node = str(output.get("GPUPROV_NODE", ""))
        machine = json.loads(Path(output["GPUPROV_HARDWARE"]).read_text(encoding="utf-8"))["machine"]
        return {
            "id": attributes.get("id"), "group": node.rpartition("-")[0], "machine": machine, "zone": "",
            "private_ip": output.get("GPUPROV_PRIVATE_IP"), "public_ip": output.get("GPUPROV_PUBLIC_IP"),
        }  # fmt: skip

    def lost(self, known: Collection[str]) -> list[str]:
        """Nodes whose container is gone, stopped or was never started: `terraform_data` has no refresh that would see
        it. Terraform writes a resource down before its provisioners have run, and says nothing where it is killed in
        one."""
        recorded = self._recorded()
        names = {*known, *(key for name, key in recorded if name == "node")}
        if not names and not recorded:
            return []
        running = {
            (c.role, c.node) for c in containers.list_containers(self._site_context.workspace) if c.state == "running"
        }
        missing = [self.address(name) for name in sorted(names) if ("node", name) not in running]
        roles = ("mirror", "jump") if self._site_context.settings.jump_hosts(sorted(names)) else ("mirror",)
        return missing + [BESIDE[role] for role in roles if (role, "") not in running]

    def _recorded(self) -> set[tuple[str, str]]:
        """Name and key of every resource in the state, which is always a file here."""
        try:
            state = json.loads((self._site_context.workspace / "terraform.tfstate").read_text(encoding="utf-8"))
            return {
                (str(resource["name"]), str(instance.get("index_key", "")))
                for resource in state["resources"] if resource["type"] == "terraform_data"
                for instance in resource["instances"]
            }  # fmt: skip
        except (OSError, ValueError, LookupError, TypeError, AttributeError):  # Terraform says what is wrong with it
            return set()


class Mirror:
    """Packages and images come from a mirror beside the nodes."""

    def pin(self, stacks: Mapping[str, Stack], events: Events) -> dict[str, Stack]:
        """Build the image and the mirror where they are missing; packages and images then come from there."""
        prepared = assets.prepare(stacks.values(), events)
        # Containers run this machine's kernel, whatever is wanted: the lock says what there is.
        running_kernel = {"kernel": platform.release()}
        return {name: prepared.localise(stack).model_copy(update=running_kernel) for name, stack in stacks.items()}

    def role_variables(self) -> dict[str, Any]:
        """The mirror's registry and the CA that signed its certificate."""
        secrets = keys(private_dir(cache() / "sandbox") / "keys")
        return {"gpuprov_registry": REGISTRY, "gpuprov_registry_ca": secrets.ca}


TRIED = frozenset(["provider", "user", "jump", "region", "zones", "method", "hosts", "inventory", "storage"])
"""Keys of a site that a sandbox has: its nodes, their user, the way to them, whether a zone has capacity; of storage
and of the method there is a sentence of its own."""


class Sandbox(Provider):
    """See providers/base.py for the contract."""

    name = "sandbox"
    simulated = True

    def __init__(self, site_context: Place) -> None:
        super().__init__(site_context)
        self.capacity = SimulatedCapacity(site_context)
        self.module = SandboxModule(site_context, self.capacity)
        self.images, self.disks = SandboxImages(site_context), SandboxDisks()
        self.sandbox_mirror = Mirror()

    @classmethod
    def orphans(cls, region: str) -> Orphans:  # noqa: ARG003 (there is one machine)
        return OnThisMachine()

    def base_image(self, system: str) -> BaseImage:  # noqa: ARG002 (every site boots the same one)
        """The nodes' container image, named after what it was built from."""
        return BaseImage(id=cloud_base.machine_reference(), why="simulated: the sandbox's node image")

    def vendor_image(self, name: str) -> BaseImage:
        """The nodes' image with simulated packages of what that one holds (sandbox/vendor_layer.py)."""
        return BaseImage(id=image.node_reference(), why=f"simulated: the sandbox's node image as {name}")

    def preflight(self, plan: Plan, existing_nodes: Collection[str]) -> list[Finding]:  # noqa: ARG002
        """Enough addresses and memory for the nodes."""
        nodes = sum(group.spec.count for group in plan.groups if group.site == self.place.site)
        findings = []
        for file_system in self.place.settings.file_systems():
            text = (
                f"a sandbox makes no file system: nothing is mounted at {file_system.path}, and storage.shared is "
                "skipped"
            )
            findings.append(Finding("warning", "storage", text, "nothing has to be done"))
        for text in self.place.settings.not_in_sandbox():
            findings.append(Finding("warning", "machines", text, "nothing has to be done"))
        if keys := self._not_tried(plan):
            message = f"nothing in the sandbox tries {', '.join(keys)}"
            findings.append(Finding("warning", "machines", message, "nothing has to be done"))
        if nodes > network.MOST_NODES:
            findings.append(
                Finding(
                    "blocks",
                    "nodes",
                    f"{nodes} nodes at {self.place.site}; a sandbox has addresses for {network.MOST_NODES}",
                    "use smaller counts",
                )
            )
        free, needed_mib = _available_mib(), nodes * MEMORY_PER_NODE_MIB
        if free is None:
            findings.append(Finding("unknown", "memory", "cannot read /proc/meminfo"))
        elif free < needed_mib:
            message = f"{counted(nodes, 'node')} want about {needed_mib} MiB, {free} MiB are available"
            findings.append(Finding("warning", "memory", message, "use smaller counts"))
        return findings

    def _not_tried(self, plan: Plan) -> list[str]:
        """Keys of cluster.yaml that say how the real machines are made and reached: here only their form is looked at.
        Those of the cluster are told at its first site alone."""
        spec, site = plan.spec, self.place.site
        keys = [f"sites.{site}.{key}" for key in sorted(self.place.settings.model_fields_set - TRIED)]
        if site == next(iter(spec.sites)):
            keys += [f"access.{key}" for key in ("allow", "ssh_key") if key in spec.access.model_fields_set]
            keys += ["state"] if "state" in spec.model_fields_set else []
        return keys

    def jump_host(self, nodes: Collection[str]) -> SimulatedJumpHost | None:
        hosts = set(self.place.settings.jump_hosts(nodes).values())
        if not hosts:
            return None
        address, key = jump_host.address_and_key(self.place.workspace, hosts)
        parsed = [JumpHost.parse(text) for text in sorted(hosts)]
        users = {host.name: host.user or jump_host.USER for host in parsed}
        return SimulatedJumpHost(users, address, key)

    def clean(self, events: Events) -> list[str]:
        """Remove the workspace's containers by label and give its addresses back."""
        workspace = self.place.workspace
        for container in containers.list_containers(workspace):
            events("down", "log", f"removing {container.name}", node=container.node or None)
            containers.remove(container.name)
        remaining = [f"container {container.name}" for container in containers.list_containers(workspace)]
        return remaining or network.release_octet(workspace)


PROVIDER = Sandbox


def _available_mib() -> int | None:
    """MemAvailable of /proc/meminfo, MiB (proc(5) gives kB)."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        return next(int(line.split()[1]) // 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, ValueError, StopIteration):
        return None
