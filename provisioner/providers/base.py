"""What a provider is: the inputs of its Terraform module, what it checks before spending, how it pins versions.

One file (or folder) here and one folder in terraform/ make a provider. `get(name, sandbox)` finds it by name.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from provisioner.errors import GpuprovError
from provisioner.events import Events
from provisioner.plan import Plan
from provisioner.preflight import Finding
from provisioner.spec.models import ClusterSpec
from provisioner.spec.site import Site
from provisioner.stack.models import BaseImage, Stack

if TYPE_CHECKING:
    from provisioner.fleet import Node


_NAME = re.compile(r"[a-z]+")


@dataclass(frozen=True, slots=True)
class ProviderBlock:
    """A Terraform provider: where it comes from, which versions, and its configuration."""

    source: str
    version: str
    configuration: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Standing:
    """A machine that bears the cluster's and the site's name. `ours`: it was made from this run directory."""

    node: str
    id: str
    ours: bool


@dataclass(frozen=True, slots=True)
class Instead:
    """What follows from machines that could not be had. `groups`: whose machines are asked for in another way now. If
    it is empty, everything was tried, and what this run made of `short` goes: half a group is of no use."""

    message: str
    groups: tuple[str, ...]
    short: tuple[str, ...]


class Provider(Protocol):
    """A provider of machines. Methods are called in this order; none of them makes a machine."""

    name: str
    module: str
    """The folder in terraform/ that makes the machines."""

    data_resources: tuple[str, ...]
    """Types of Terraform resources that hold data which is nowhere else."""

    simulated: bool
    """Whether its machines only act as if they had the hardware. Every verdict on them says so."""

    def pin(self, stacks: Mapping[str, Stack], events: Events) -> dict[str, Stack]:
        """Of simulated machines: give every image its digest and every repository its place. Packages of all others
        are the vendors' (stack/pinning.py)."""

    def base_image(self, site: Site, system: str) -> BaseImage:
        """What machines of that site boot for a distribution (ubuntu-24.04), by the provider's own id. Raises
        GpuprovError where there is no such image, or nobody may ask."""

    def preflight(self, plan: Plan, site: str, there: int) -> list[Finding]:
        """What would keep `up` from working: found before anything is spent. `there`: machines of the site that were
        made already."""

    def terraform(self, plan: Plan, site: str) -> Mapping[str, ProviderBlock]:
        """The providers that the root module names, by their local name; {} where the module needs none."""

    def module_inputs(self, plan: Plan, site: str, workspace: Path) -> dict[str, Any]:
        """The provider object of the module, and nothing of the common contract."""

    def user_data(self, plan: Plan, site: str, ssh_public_key: str) -> str:
        """What machines do at first boot: let the access user in, and nothing else."""

    def address(self, node: str) -> str:
        """The Terraform address of a node's machine. Its `id` is the node's, and replacing it alone makes a new one."""

    def attached(self, node: str) -> Collection[str]:
        """Terraform addresses of what is made anew with a node's machine and belongs to it alone."""

    def lost(self, workspace: Path, known: Collection[str]) -> list[str]:
        """Terraform addresses of machines that the state knows and that are gone, where a refresh can't see it."""

    def standing(self, plan: Plan, site: str, workspace: Path) -> list[Standing]:
        """Every machine of the site that stands, asked of the provider, not of Terraform's state. Raises ProviderError
        where it can't be known."""

    def instead(self, plan: Plan, site: str, workspace: Path, error: str) -> Instead | None:
        """What to do after an apply that failed with that text; None where nothing can be done. The next
        `module_inputs` then says it."""

    def without(self, workspace: Path) -> list[str]:
        """Nodes that could not be had, and that their groups do without."""

    def do_without(self, workspace: Path, nodes: Mapping[str, Collection[str]]) -> None:
        """Group → nodes that are not asked for from now on; {} asks for all of them again."""

    def settle(self, workspace: Path) -> None:
        """An apply has succeeded: what was tried in vain may be tried again next time."""

    def proxy(self, site: Site, machine: str) -> str | None:
        """The command whose input and output are the ssh connection to a machine, by its id; None where its address is
        called."""

    def host_key(self, site: Site, machine: str) -> str | None:
        """The ed25519 host key ("ssh-ed25519 AAAA…") of a machine by its id, learnt by another way than ssh's network;
        None where there is none, or it is not known yet."""

    def role_variables(self) -> dict[str, Any]:
        """Variables for the Ansible roles that only this provider knows (a registry's CA)."""

    def clean(self, workspace: Path, events: Events) -> list[str]:
        """Remove what Terraform's state forgot, by tag. Returns what is still left, one sentence each."""


def proxies(spec: ClusterSpec, nodes: Collection[Node]) -> dict[str, str]:
    """Node → ssh's ProxyCommand, for those that are not called by their address."""
    found = {}
    for node in nodes:
        site = spec.sites.get(node.site)
        if site is not None and (command := get(site.provider, sandbox=False).proxy(site, node.id)):
            found[node.name] = command
    return found


def get(name: str, *, sandbox: bool) -> Provider:
    """The provider of a site; with `sandbox` every site is rehearsed on this machine."""
    wanted = "sandbox" if sandbox else name
    try:
        if not _NAME.fullmatch(wanted):
            raise ModuleNotFoundError(name=f"provisioner.providers.{wanted}")
        module = import_module(f"provisioner.providers.{wanted}.provider")
        if not hasattr(module, "provider"):
            raise ModuleNotFoundError(name=module.__name__)
    except ModuleNotFoundError as error:
        if error.name != f"provisioner.providers.{wanted}":
            raise
        raise GpuprovError(
            f"gpuprov can rehearse {name} but does not make machines there yet",
            hint="add --sandbox to rehearse the file on this machine",
        ) from None
    provider: Provider = module.provider()
    return provider
