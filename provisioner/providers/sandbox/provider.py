"""The sandbox: every site is rehearsed on this machine, as podman nodes with simulated hardware."""

from __future__ import annotations

import platform
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from provisioner.errors import GpuprovError
from provisioner.events import Events
from provisioner.plan import Plan
from provisioner.preflight import Finding
from provisioner.providers.base import ProviderBlock, Standing
from provisioner.sandbox import assets, containers, image, network
from provisioner.sandbox.inputs import module_inputs
from provisioner.sandbox.keys import MIRROR_HOST
from provisioner.spec.site import Site
from provisioner.stack.models import BaseImage, Stack

REGISTRY = f"{MIRROR_HOST}:5000"
MEMORY_PER_NODE_MIB = 150
"""What a configured node was seen to use (docs/sandbox.md), rounded up."""


class Sandbox:
    """See providers/base.py for the contract."""

    name = "sandbox"
    module = "sandbox"
    data_resources = ()
    simulated = True

    def __init__(self) -> None:
        self._assets: assets.Assets | None = None

    def pin(self, stacks: Mapping[str, Stack], events: Events) -> dict[str, Stack]:
        """Build the image and the mirror where they are missing; packages and images then come from there."""
        made = self._prepare(stacks.values(), events)
        # Containers run this machine's kernel, whatever is wanted: the lock says what there is.
        here = {"kernel": platform.release()}
        return {name: made.localise(stack).model_copy(update=here) for name, stack in stacks.items()}

    def base_image(self, site: Site, system: str) -> BaseImage:  # noqa: ARG002 (every site boots the same one)
        """The nodes' container image, named after what it was built from."""
        return BaseImage(id=image.node_reference(), why="simulated: the sandbox's node image")

    def terraform(self, plan: Plan, site: str) -> Mapping[str, ProviderBlock]:  # noqa: ARG002 (built into Terraform)
        return {}

    def preflight(self, plan: Plan, site: str, there: int) -> list[Finding]:  # noqa: ARG002
        """Enough addresses and memory for the nodes."""
        nodes = sum(group.spec.count for group in plan.groups if group.site == site)
        findings = []
        for one in plan.spec.sites[site].file_systems():
            said = f"a rehearsal makes no file system: nothing is mounted at {one.path}, and storage.shared is skipped"
            findings.append(Finding("warning", "storage", said, "nothing has to be done"))
        if nodes > network.MOST_NODES:
            findings.append(
                Finding(
                    "blocks",
                    "nodes",
                    f"{nodes} nodes at {site}; a rehearsal has addresses for {network.MOST_NODES}",
                    "rehearse with smaller counts",
                )
            )
        free, wanted = _available_mib(), nodes * MEMORY_PER_NODE_MIB
        if free is None:
            findings.append(Finding("unknown", "memory", "/proc/meminfo can't be read"))
        elif free < wanted:
            message = f"{nodes} nodes want about {wanted} MiB, {free} MiB are available"
            findings.append(Finding("warning", "memory", message, "rehearse with smaller counts"))
        return findings

    def module_inputs(self, plan: Plan, site: str, workspace: Path) -> dict[str, Any]:
        """The module's `sandbox` object (terraform/sandbox/variables.tf)."""
        stacks = [*(group.stack for group in plan.groups if group.site == site), *plan.beside]
        return module_inputs(plan, site, workspace, self._prepare(stacks, Events()))

    def user_data(self, plan: Plan, site: str, ssh_public_key: str) -> str:  # noqa: ARG002 (node.sh makes the user)
        return ""

    def address(self, node: str) -> str:
        """The resource of a node's container (terraform/sandbox/main.tf)."""
        return f'module.site.terraform_data.node["{node}"]'

    def attached(self, node: str) -> Collection[str]:  # noqa: ARG002 (a container is whole)
        return ()

    def lost(self, workspace: Path, known: Collection[str]) -> list[str]:
        """Nodes whose container is gone or stopped: `terraform_data` has no refresh that would see it."""
        if not known:
            return []
        running = {(c.role, c.node) for c in self._containers(workspace) if c.state == "running"}
        gone = [self.address(name) for name in sorted(known) if ("node", name) not in running]
        return gone + ([] if ("mirror", "") in running else ["module.site.terraform_data.mirror"])

    def standing(self, plan: Plan, site: str, workspace: Path) -> list[Standing]:  # noqa: ARG002
        """A container of its workspace takes no other's place (node.sh): none stands beside the state."""
        return []

    def instead(self, plan: Plan, site: str, workspace: Path, error: str) -> None:
        """This machine's shortages do not end elsewhere."""

    def without(self, workspace: Path) -> list[str]:  # noqa: ARG002
        return []

    def do_without(self, workspace: Path, nodes: Mapping[str, Collection[str]]) -> None:
        """Nothing is ever short."""

    def settle(self, workspace: Path) -> None:
        """Nothing was tried."""

    def proxy(self, site: Site, machine: str) -> None:
        """Its network is this machine."""

    def host_key(self, site: Site, machine: str) -> None:
        """Its network is this machine."""

    def role_variables(self) -> dict[str, Any]:
        """The mirror's registry and the CA that signed its certificate."""
        if self._assets is None:
            raise GpuprovError("the sandbox was not prepared", hint="this is a bug in gpuprov")
        return {"gpuprov_registry": REGISTRY, "gpuprov_registry_ca": self._assets.registry_ca}

    def clean(self, workspace: Path, events: Events) -> list[str]:
        """Remove the workspace's containers by label and give its addresses back."""
        for container in self._containers(workspace):
            events("down", "log", f"removing {container.name}", node=container.node or None)
            containers.remove(container.name)
        left = [f"container {container.name}" for container in self._containers(workspace)]
        if not left:
            network.release_octet(workspace)
        return left

    def _prepare(self, stacks: Collection[Stack], events: Events) -> assets.Assets:
        self._assets = assets.prepare(stacks, events)
        return self._assets

    @staticmethod
    def _containers(workspace: Path) -> list[containers.Container]:
        return containers.list_containers(workspace)


def provider() -> Sandbox:
    """The one instance of this process: what was prepared for one stage serves the next."""
    return _INSTANCE


_INSTANCE = Sandbox()


def _available_mib() -> int | None:
    """MemAvailable of /proc/meminfo, MiB (proc(5) gives kB)."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        return next(int(line.split()[1]) // 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, ValueError, StopIteration):
        return None
