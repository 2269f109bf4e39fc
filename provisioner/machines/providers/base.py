"""What a provider is: what every one has, and capabilities that it may have besides (docs/extending/provider.md).

A provider is a folder here: `site.py` has the model of its sites (spec/site.py), `provider.py` its class as `PROVIDER`.
One that only has sites can run in the sandbox. One object works for one site of one cluster.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar, Protocol

from provisioner.common.errors import GpuprovError
from provisioner.common.events import Events
from provisioner.common.paths import IDENTITY
from provisioner.common.preflight import Finding
from provisioner.machines.providers.capacity import Capacity
from provisioner.machines.providers.hosts import Host
from provisioner.machines.providers.images import Disks, Images
from provisioner.machines.providers.market import Market
from provisioner.machines.providers.orphans import Orphans
from provisioner.plan.models import Plan
from provisioner.spec import folders
from provisioner.spec.site import Site
from provisioner.stack.models import BaseImage, Stack
from provisioner.transport.ssh_config import SimulatedJumpHost

SANDBOX = "sandbox"


@dataclass(frozen=True, slots=True)
class Place:
    """Where a provider object works: one site of one cluster. `workspace`: the site's folder in the run directory."""

    cluster: str
    site: str
    settings: Site
    workspace: Path

    @property
    def identity(self) -> str:
        """What tells this cluster from every other one of its name (session.Cluster.identity); empty before anything
        was made."""
        with contextlib.suppress(OSError, ValueError):
            id_text = (self.workspace.parent.parent / "id").read_text(encoding="utf-8")
            return id_text.strip() if IDENTITY.fullmatch(id_text) else ""
        return ""


@dataclass(frozen=True, slots=True)
class ProviderBlock:
    """A Terraform provider: where it comes from, which versions, its configuration, and the blocks in that, by name."""

    source: str
    version: str
    configuration: Mapping[str, Any]
    blocks: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Standing:
    """A machine that bears the cluster's and the site's name. `ours`: it was made from this run directory."""

    node: str
    id: str
    ours: bool


class Module(ABC):
    """The Terraform module that makes a site's machines: terraform/<folder>."""

    folder: ClassVar[str]
    data_resources: ClassVar[tuple[str, ...]] = ()
    """Types of Terraform resources that hold data which is nowhere else."""
    shared: ClassVar[tuple[str, ...]] = ()
    """Terraform addresses of what serves every machine and may be made anew without changing any of them."""

    @abstractmethod
    def inputs(self, plan: Plan) -> dict[str, Any]:
        """The provider's own object of the module's variables, and nothing that all modules take."""

    @abstractmethod
    def address(self, node: str) -> str:
        """The Terraform address of a node's machine. Its `id` is the node's, and replacing it alone makes a new one."""

    def node_at(self, address: str) -> str:
        """The node whose machine has that Terraform address; empty for every other resource. Machines are instances of
        a `for_each` over the nodes' names (docs/extending/provider.md)."""
        name = address.rpartition('["')[2].removesuffix('"]')
        return name if self.address(name) == address else ""

    def blocks(self, plan: Plan) -> Mapping[str, ProviderBlock]:  # noqa: ARG002
        """The Terraform providers that the root module names, by their local name."""
        return {}

    def environment(self) -> Mapping[str, str]:
        """Variables of Terraform's processes besides this process's own: credentials, which no file and no argument may
        have. Asked before each of them. Raises GpuprovError where there are none."""
        return {}

    def user_data(self, plan: Plan, ssh_public_key: str) -> str:  # noqa: ARG002
        """What machines do at first boot: let the access user in, and nothing else."""
        return ""

    def attached(self, node: str) -> Collection[str]:  # noqa: ARG002
        """Terraform addresses of what is made anew with a node's machine and belongs to it alone."""
        return ()

    def described(self, attributes: Mapping[str, Any]) -> dict[str, Any] | None:  # noqa: ARG002
        """A node's entry of the module's output `nodes`, out of what the state has of its machine (`address`): an apply
        that fails leaves no output. None where that can't be told."""
        return None

    def lost(self, known: Collection[str]) -> list[str]:  # noqa: ARG002
        """Terraform addresses of machines that the state knows and that are gone, where a refresh can't see it.
        `known`: names of nodes."""
        return []

    def standing(self) -> list[Standing]:
        """Every machine of the site that stands, asked of the provider, not of Terraform's state. Raises ProviderError
        where it can't be known."""
        return []


class Access(Protocol):
    """Another way to a machine than its address."""

    def proxy(self, machine: str) -> str | None:
        """The command whose input and output are the ssh connection to a machine, by its id; None where its address is
        called."""

    def host_key(self, machine: str) -> str | None:
        """The ed25519 host key ("ssh-ed25519 AAAA…") of a machine by its id, learnt by another way than ssh's network;
        None where it is not known yet."""

    def console(self, machine: str) -> str | None:
        """What a machine's console shows, by its id; None where it shows nothing, or may not be read."""


class Hosts(Protocol):
    """Machines that exist already: none is made, and none is removed."""

    def listed(self, groups: Collection[str]) -> list[Host]:
        """Those that cluster.yaml names, in its order, each with its group. `groups`: those at the site; () where that
        does not matter. Raises GpuprovError where it can't be told."""

    def host_key(self, machine: str) -> str | None:
        """The ed25519 host key of a machine by its id (Host.name), as a person has written it down; None where nobody
        has. Raises GpuprovError where it should be there and is not."""


@dataclass(frozen=True, slots=True)
class Installation:
    """What machines with nothing but a BMC are installed from. `source`: the distribution's image, or a folder of
    netboot images; with `disk_image` a raw disk, which is written as it is; `sha256`: of the file, "" for a folder;
    `serve`: host[:port] of this computer, "" for whatever faces a BMC;
    `reinstall`: serial numbers of machines whose disks may be overwritten."""

    os: str | None
    disk: str
    source: Path
    sha256: str
    serve: str
    mirror: str
    reinstall: tuple[str, ...]
    disk_image: bool = False


@dataclass(frozen=True, slots=True)
class Netboot:
    """How machines that start from the network are installed. `interface`: of this computer, the only one that answers;
    `proxy`: another server gives their addresses; `gateway`, `dns`: of those that have theirs from cluster.yaml."""

    installation: Installation
    interface: str
    proxy: bool
    gateway: str
    dns: tuple[str, ...]


class Management(Protocol):
    """BMCs of machines that exist."""

    credentials: str
    """`env:NAME` or `file:PATH` (redfish/accounts.py)."""
    installation: Installation | None
    """None where the machines run already: then they are only looked at."""
    firmware: Mapping[str, Mapping[str, str]]
    """Group → part → version that its machines are pinned to."""
    power_budget_w: float | None
    """What all machines of the site may draw together."""


class SandboxMirror(Protocol):
    """Packages and container images that simulated machines take from a mirror on this machine."""

    def pin(self, stacks: Mapping[str, Stack], events: Events) -> dict[str, Stack]:
        """Give every image its digest and every repository its place."""

    def role_variables(self) -> dict[str, Any]:
        """Variables for the Ansible roles: the mirror's registry, and the CA that signed its certificate."""


class Provider(ABC):
    """One site of one cluster. No method makes a machine; they may be called in any order."""

    name: ClassVar[str]
    simulated: ClassVar[bool] = False
    """Whether its machines only act as if they had the hardware. Every verdict on them says so."""

    module: Module | None = None
    """How Terraform makes the machines."""
    capacity: Capacity | None = None
    """Which zones and kinds are asked in turn where machines can't be had."""
    access: Access | None = None
    hosts: Hosts | None = None
    """The machines, where they exist already."""
    management: Management | None = None
    """How the machines are reached by their BMCs."""
    netboot: Netboot | None = None
    """How machines that have no operating system yet are installed over the network; None where they are not."""
    images: Images | None = None
    """How images of its machines are made."""
    disks: Disks | None = None
    """How those become disks."""
    sandbox_mirror: SandboxMirror | None = None

    def __init__(self, site_context: Place) -> None:
        self.place = site_context

    @abstractmethod
    def base_image(self, system: str) -> BaseImage:
        """What machines of the site boot for a distribution (ubuntu-24.04), by the provider's own id. Raises
        GpuprovError where there is no such image, or nobody may ask."""

    def vendor_image(self, name: str) -> BaseImage:
        """The provider's own GPU image of that name (stack/data/vendor_images.yaml) in the site's region, by the
        provider's own id. Raises GpuprovError where it is not there, or nobody may ask."""
        raise GpuprovError(f"{self.name} has no image {name}")

    def who(self) -> Finding | None:
        """Whose account answers; a finding that blocks where nobody is signed in. None where there is no account. May
        raise GpuprovError."""
        return None

    def account(self) -> Finding | None:
        """`who`, and where the provider's SDK is missing, that."""
        try:
            return self.who()
        except GpuprovError as error:
            return Finding("blocks", "credentials", error.message, error.hint)

    def jump_host(self, nodes: Collection[str]) -> SimulatedJumpHost | None:  # noqa: ARG002
        """What stands for the jump hosts of these nodes in the sandbox; None where they have none, and for real ones.
        Raises ProviderError where it does not answer."""
        return None

    def refuse_missing_files(self) -> None:  # noqa: B027 (most name none)
        """Raise GpuprovError for a file of this computer, or a variable, that the site names and that is not there, or
        can't be used. Nobody is asked; called before anything else that `plan` and `up` do."""

    @abstractmethod
    def preflight(self, plan: Plan, existing_nodes: Collection[str]) -> list[Finding]:
        """What would keep `up` from working: found before anything is spent. `existing_nodes`: names of the site's
        nodes that were made already."""

    @abstractmethod
    def clean(self, events: Events) -> list[str]:
        """Remove by tag what Terraform's state forgot. Returns what is still left, one sentence each."""

    @classmethod
    def market(cls) -> Market | None:
        """Prices and offers, asked of the provider."""
        return None

    @classmethod
    def orphans(cls, region: str) -> Orphans | None:  # noqa: ARG003
        """What is left in a region of clusters that nobody may remember, found by tag."""
        return None


def find(name: str) -> type[Provider] | None:
    """The provider of a folder; None for one that can only run in the sandbox, and for any other name."""
    module = f"{folders.PACKAGE}.{name}.provider"
    if name not in folders.names() or find_spec(module) is None:
        return None
    provider_class: type[Provider] = import_module(module).PROVIDER
    return provider_class


def provider_of(name: str, site_context: Place) -> Provider:
    """The provider of that name at a site. Raises GpuprovError for one that makes no machines yet."""
    provider_class = find(name)
    if provider_class is None:
        raise GpuprovError(
            f"gpuprov supports {name} in the sandbox only",
            hint="add --sandbox to run the file in the sandbox",
        )
    return provider_class(site_context)


def with_capability(capability: str) -> list[str]:
    """The providers whose class has a capability of its own (market, orphans), but for the sandbox."""
    known = {name: find(name) for name in folders.names() if name != SANDBOX}
    base = getattr(Provider, capability).__func__
    return [name for name, provider in known.items() if provider and getattr(provider, capability).__func__ is not base]
