"""cluster.yaml as frozen models: shapes only.

What a value means for a machine (MIG on a V100, EFA on a machine without it) is checked in spec/rules.py, where
the catalogue is at hand; what can be said from the file alone is said here. A field's `title` finishes the
sentence "this is not ..." in an error; its `description` is what an editor shows. docs/reference/cluster-yaml.md has
every key.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping
from functools import lru_cache
from ipaddress import IPv4Network, IPv6Network
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, PrivateAttr

from provisioner import catalog
from provisioner.catalog import Catalog
from provisioner.catalog.description import MACHINE_NAME, MACHINE_NAME_TITLE, MachineDescription
from provisioner.catalog.models import Machine
from provisioner.catalog.prices import Price
from provisioner.common.errors import GpuprovError
from provisioner.spec.base import NAME_TITLE, Command, Model, Name, Text
from provisioner.spec.groups import Group
from provisioner.spec.image import ImageRecipe
from provisioner.spec.maintenance import Maintenance
from provisioner.spec.scheduler import Scheduler
from provisioner.spec.site import LoginName
from provisioner.spec.sites import AnySite
from provisioner.spec.stack_request import StackRequest
from provisioner.spec.state import AnyState, LocalState

DEFAULT_USER = "ubuntu"


BROADEST = {4: 8, 6: 12}
"""Prefix lengths of the broadest networks that access.allow takes: 128 of them are never every address. A /12 of IPv6
is a whole registry's (https://www.iana.org/assignments/ipv6-unicast-address-assignments)."""
PRIVATE = IPv6Network("fc00::/7")


def _narrow(network: IPv4Network | IPv6Network) -> IPv4Network | IPv6Network:
    """Raises ValueError for a network that is as good as every address."""
    private = isinstance(network, IPv6Network) and network.subnet_of(PRIVATE)
    if network.prefixlen < BROADEST[network.version] and not private:
        raise ValueError(f"broader than /{BROADEST[network.version]}")
    return network


MachineName = Annotated[str, Field(pattern=MACHINE_NAME, title=MACHINE_NAME_TITLE)]


class Access(Model):
    """Who may log in, with which key, from which networks."""

    user: LoginName | None = Field(
        default=None,
        title="a login name",
        description="Account on the nodes, where a site has none of its own. Null: the provider's usual one",
        examples=["ubuntu"],
    )
    ssh_key: Text | None = Field(
        default=None,
        title="the path of a private key",
        description="Your private key; its public half goes to the nodes. Null makes a key for this cluster",
        examples=["~/.ssh/id_ed25519"],
    )
    allow: tuple[Annotated[IPv4Network | IPv6Network, AfterValidator(_narrow)], ...] = Field(
        default=(),
        max_length=128,
        title="a list of networks such as 203.0.113.0/24",
        description="Networks that may reach ssh; empty: the address that gpuprov runs from",
        examples=[["203.0.113.0/24"]],
    )


class HealthCheck(Model):
    """gpuprov's own checks on the nodes themselves, again and again."""

    every: Annotated[str, Field(pattern=r"^[1-9][0-9]{0,2}[mh]$")] = Field(
        default="10m", title="minutes or hours such as 10m", description="How often", examples=["10m"]
    )
    textfile: Annotated[str, Field(pattern=r"^/([A-Za-z0-9._-]+/)*[A-Za-z0-9._-]+\.prom$", max_length=255)] = Field(
        default="/var/lib/prometheus/node-exporter/gpuprov.prom",
        title="the path of a .prom file",
        description="Where the results go, for node_exporter's textfile collector: the default is the directory that "
        "the package prometheus-node-exporter of Debian and Ubuntu reads",
    )


EXTERNAL = "external"
"""In place of a group: a Prometheus that is not of the cluster."""


class Prometheus(Model):
    """Who scrapes the nodes and evaluates the alerting rules."""

    at: Text | Annotated[tuple[Text, ...], Field(strict=False, min_length=1, max_length=32)] = Field(
        default="head",
        title="the name of a group, a list with one for each site, or external",
        description="A group of one machine, which gets Prometheus and Alertmanager and watches the nodes of its site; "
        "a list: one for each site. external: your own Prometheus, for which `gpuprov monitoring export` writes rules "
        "and targets",
        examples=["head", ["head-ohio", "head-west"], "external"],
    )
    retention: Annotated[str, Field(pattern=r"^[1-9][0-9]{0,3}[dwy]$")] = Field(
        default="31d",
        title="days, weeks or years such as 31d",
        description="How long the Prometheus of a group keeps its data",
        examples=["31d"],
    )
    retention_size: Annotated[str, Field(pattern=r"^[1-9][0-9]{0,4}(MB|GB|TB)$")] | None = Field(
        default=None,
        title="a size such as 40GB, or null",
        description="How much data it keeps, in units of 1024; the oldest goes first. Null: only `retention` counts",
        examples=["40GB"],
    )
    receivers: Text | None = Field(
        default=None,
        title="the path of a file",
        description="A YAML file with `receivers:` as Alertmanager reads them, beside this file: page, ticket and "
        "watchdog are the names that the routes have. It may hold secrets; only the group's machine gets it. Null: "
        "alerts are shown, and sent to nobody",
        examples=["receivers.yaml"],
    )

    def retention_bytes(self) -> int:
        """`retention_size` in bytes, as Prometheus counts them; 0 for no limit."""
        if self.retention_size is None:
            return 0
        return int(self.retention_size[:-2]) << {"MB": 20, "GB": 30, "TB": 40}[self.retention_size[-2:]]

    @property
    def groups(self) -> tuple[str, ...]:
        """The groups whose machines run it; none where it is external."""
        names = (self.at,) if isinstance(self.at, str) else self.at
        return () if names == (EXTERNAL,) else names


def _block_of_switch(value: object) -> object:
    """true and false in place of a block, and the word of its key `at`."""
    if isinstance(value, str):
        return {"at": value}
    return {True: {}, False: None}.get(value, value) if isinstance(value, bool) else value


def _or_switch(schema: dict[str, Any]) -> None:
    """What editors accept beside the block."""
    schema["anyOf"] = [*schema["anyOf"], {"type": "boolean"}, {"type": "string"}]


def _with_port(url: str) -> str:
    """Raises ValueError for a host or port that no URL has."""
    parts = urlsplit(url)
    if not parts.hostname or parts.port == 0:
        raise ValueError("no host, or a port that does not exist")
    return url


AlertmanagerUrl = Annotated[
    str,
    Field(pattern=r"^https?://[A-Za-z0-9.\[\]:-]+(/[A-Za-z0-9._~/-]*)?$", max_length=255),
    AfterValidator(_with_port),
]
"""No `@`: a password does not belong into cluster.yaml."""


class Monitoring(Model):
    """What watches the fleet."""

    dcgm_exporter: bool = Field(
        default=True, title="true or false", description="GPU metrics on port 9400 of each node"
    )
    prometheus: Annotated[Prometheus | None, BeforeValidator(_block_of_switch)] = Field(
        default=None,
        title="a block, the name of a group, external, true, false or null",
        description="Who scrapes the nodes; true is `{at: head}`, false is null, a name is `{at: NAME}`",
        examples=[{"at": "external"}],
        json_schema_extra=_or_switch,
    )
    node_exporter: bool | None = Field(
        default=None,
        title="true, false or null",
        description="Metrics of the host on port 9100 of each node, by the distribution's node_exporter. Null: where "
        "`prometheus` is set; false: the nodes have one of their own",
    )
    alertmanager: AlertmanagerUrl | None = Field(
        default=None,
        json_schema_extra={"writeOnly": True},  # a password in it is not repeated in an error
        title="a URL such as http://10.0.0.9:9093, without user and password",
        description="Your Alertmanager, reached from the computer that runs gpuprov. Alerts of nodes that gpuprov "
        "takes out of service are silenced there, until they are back, and a tripped breaker is an alert there. Null: "
        "neither",
        examples=["http://10.0.0.9:9093"],
    )
    grafana: bool = Field(
        default=False,
        title="true or false",
        description="Grafana, from its maker's repository, beside the Prometheus of a group, with gpuprov's dashboards",
    )
    image_days: int | None = Field(
        default=90,
        ge=1,
        le=3650,
        title="a whole number of days, or null",
        description="Age of a golden image from which an alert makes a ticket for the group whose nodes were made of "
        "it. Null: no alert",
        examples=[30],
    )
    health_check: HealthCheck | None = Field(
        default=None,
        title="a block, or null",
        description="Runs gpuprov's quick checks on every node by a timer and writes metrics. Null: no timer, but with "
        "`prometheus`, whose alerts need it, every 10 minutes",
        examples=[{"every": "10m"}],
    )

    @property
    def timer(self) -> HealthCheck | None:
        """How the nodes run the checks by themselves; None where they do not."""
        return self.health_check or (HealthCheck() if self.prometheus else None)

    @property
    def heads(self) -> tuple[str, ...]:
        """The groups whose machines run Prometheus."""
        return self.prometheus.groups if self.prometheus else ()

    def has_grafana(self, group: str) -> bool:
        """Whether machines of the group run Grafana."""
        return self.grafana and group in self.heads

    @property
    def installs_node_exporter(self) -> bool:
        """Whether gpuprov installs node_exporter on the nodes."""
        return self.prometheus is not None if self.node_exporter is None else self.node_exporter


class Verify(Model):
    """What it takes to be handed over."""

    level: Literal["quick", "standard", "stress"] = Field(default="standard", description="How much is proven")
    min_healthy: Annotated[str, Field(pattern=r"^(100|[1-9]?[0-9])%$")] | Annotated[int, Field(ge=0)] = Field(
        default="100%",
        title="a number of nodes or a percentage such as 90%",
        description="Nodes that must be healthy for the run to succeed: a number, or a percentage of the fleet",
        examples=["100%", 4],
    )
    reboot: Literal["never", "first", "all"] = Field(
        default="never",
        description="Which new machines boot a second time and are proven again before they are handed over: the first "
        "one of each group, or all",
    )
    diag: Annotated[int, Field(ge=1, le=4)] | None = Field(
        default=None,
        title="1, 2, 3, 4 or null",
        description="Run level of `dcgmi diag` in place of the level's own (standard 1, stress 3); 4 tests all GPU "
        "memory and sudden power, and takes up to 2.5 hours",
        examples=[4],
    )
    checks: tuple[Text, ...] = Field(
        default=(), max_length=32, title="a list of directories", description="Directories with checks of your own"
    )


class Hooks(Model):
    """How a node is taken out of service and put back: what your scheduler wants to hear."""

    drain: Command | None = Field(
        default=None,
        title="a shell command",
        description="Takes a node out of service: run on this machine, with GPUPROV_NODE, GPUPROV_ADDRESS, "
        "GPUPROV_ACTION and GPUPROV_REASON set",
        examples=['scontrol update nodename="$GPUPROV_NODE" state=drain reason="gpuprov: $GPUPROV_REASON"'],
    )
    resume: Command | None = Field(
        default=None,
        title="a shell command",
        description="Puts a node back into service, as `drain`",
        examples=['scontrol update nodename="$GPUPROV_NODE" state=resume'],
    )
    interrupted: Command | None = Field(
        default=None,
        title="a shell command",
        description="Run on a spot node, as root, when the cloud has announced that it takes it, with GPUPROV_NODE, "
        "GPUPROV_ACTION and GPUPROV_TIME set; about 100 seconds are left to it",
        examples=['scontrol update nodename="$(hostname)" state=drain reason="spot: $GPUPROV_ACTION"'],
    )
    timeout_s: int = Field(
        default=3600,
        ge=1,
        le=604_800,
        title="a whole number of seconds",
        description="How long `drain` and `resume` may take, seconds",
    )


class Quarantine(Model):
    """How many nodes gpuprov may take out of service for their verdict: with more, the cause is not the nodes."""

    automatic: bool = Field(
        default=True,
        title="true or false",
        description="Whether a verdict of `up` and `verify` puts nodes into quarantine; false leaves that to people",
    )
    share: Annotated[str, Field(pattern=r"^(100|[1-9][0-9]?)%$")] = Field(
        default="20%",
        title="a percentage such as 20%",
        description="Nodes that may be in quarantine at once, as a percentage of the fleet, rounded down, at least one",
        examples=["20%"],
    )
    most: int = Field(
        default=8,
        ge=1,
        le=10_000,
        title="a whole number",
        description="Nodes that may be in quarantine at once, however large the fleet",
    )

    def bound(self, nodes: int) -> int:
        """How many of that many nodes may be in quarantine at once.

        >>> Quarantine().bound(4), Quarantine().bound(24), Quarantine().bound(1000)
        (1, 4, 8)
        """
        return min(self.most, max(1, nodes * int(self.share.rstrip("%")) // 100))


class Upgrade(Model):
    """How `gpuprov upgrade` moves a running fleet to a new lock."""

    batch: Annotated[str, Field(pattern=r"^(100|[1-9][0-9]?)%$")] | Annotated[int, Field(ge=1)] = Field(
        default="25%",
        title="a number of nodes or a percentage such as 25%",
        description="Nodes that are moved at once after the canaries: a number, or a percentage of those to be moved",
        examples=["25%", 4],
    )
    canary: int = Field(
        default=1, ge=1, le=100, title="a whole number", description="Nodes of each group that are moved first"
    )


class Timeouts(Model):
    """How long gpuprov waits, seconds. What is waited for is said when the wait begins, with its end."""

    machine_s: int = Field(
        default=1200,
        ge=60,
        le=86_400,
        title="a whole number of seconds",
        description="Until a provider has made a machine",
    )
    ssh_s: int = Field(
        default=300,
        ge=1,
        le=86_400,
        title="a whole number of seconds",
        description="Until a new machine's sshd answers; bare metal may boot for a quarter of an hour",
    )


class Configure(Model):
    """How nodes are brought to the lock."""

    push: bool = Field(
        default=False,
        title="true or false",
        description="Run Ansible on this computer and push each task to the nodes; otherwise each node runs it itself",
    )


@lru_cache(maxsize=16)
def _extended(machines: tuple[tuple[str, MachineDescription], ...]) -> Catalog:
    return catalog.load().with_described(dict(machines))


class ClusterSpec(Model):
    """A GPU fleet, as gpuprov makes it from one file."""

    name: Name = Field(title=NAME_TITLE, description="Name of the cluster", examples=["vision"])
    sites: Annotated[dict[Name, AnySite], Field(min_length=1)] = Field(
        title="one or more sites", description="Where machines come from; one Terraform root and state for each"
    )
    groups: Annotated[dict[Name, Group], Field(min_length=1)] = Field(
        title="one or more groups", description="Groups of equal machines"
    )
    machines: dict[MachineName, MachineDescription] = Field(
        default={},
        title="a block of machine types, or the path of a file that has one",
        description="Machine types that the catalogue does not have, by name; or the path of a file with `machines:`",
    )
    stack: StackRequest = Field(default=StackRequest(), description="Versions that are pinned; the rest is chosen")
    access: Access = Field(default=Access(), description="Who may log in")
    monitoring: Monitoring = Field(default=Monitoring(), description="What watches the fleet")
    verify: Verify = Field(default=Verify(), description="What it takes to be handed over")
    scheduler: Scheduler = Field(default=Scheduler(), description="What gives jobs to the nodes")
    hooks: Hooks = Field(default=Hooks(), description="How nodes are taken out of service and put back")
    timeouts: Timeouts = Field(default=Timeouts(), description="How long is waited for what")
    configure: Configure = Field(default=Configure(), description="Where Ansible runs")
    quarantine: Quarantine = Field(
        default=Quarantine(), description="How many nodes may be out of service for their verdict"
    )
    upgrade: Upgrade = Field(default=Upgrade(), description="How a running fleet is moved to a new lock")
    maintenance: Maintenance = Field(
        default=Maintenance(), description="When and how `gpuprov maintain` patches, cleans and reboots nodes"
    )
    state: AnyState = Field(default=LocalState(), description="Where Terraform's state is kept")
    image: ImageRecipe | None = Field(
        default=None,
        title="a block, or null",
        description="Makes the file a recipe: `gpuprov image build` makes an image of each of its groups",
    )

    @property
    def catalog(self) -> Catalog:
        """The catalogue and the file's own machine types."""
        return _extended(tuple(self.machines.items())) if self.machines else catalog.load()

    def machine(self, group: str, site: str | None = None) -> Machine:
        """The machine type of a group at a site, else at the one that it is at. Raises GpuprovError for a type that is
        not known any more."""
        return self.catalog.machine(self.groups[group].machine_type(site or self.site_of(group)))

    @property
    def health_timer(self) -> HealthCheck | None:
        """How the nodes run the checks by themselves; None where they do not."""
        return self.monitoring.timer or (HealthCheck() if self.scheduler.slurm is not None else None)

    @property
    def heads(self) -> frozenset[str]:
        """The groups whose machines do something for the other nodes: Prometheus, slurmctld."""
        controllers = (self.scheduler.head,) if self.scheduler.head is not None else ()
        return frozenset((*self.monitoring.heads, *controllers))

    @property
    def drains(self) -> bool:
        """Whether anything takes nodes out of service: a command of `hooks`, or the scheduler."""
        return self.hooks.drain is not None or self.scheduler.slurm is not None

    def node_groups(self) -> dict[str, str]:
        """Node → its group, of all nodes that the file wants."""
        return {node: name for name, group in self.groups.items() for node in group.node_names(name)}

    _chosen_sites: Mapping[str, str] = PrivateAttr(default_factory=dict)

    def sites_of(self, group: str) -> tuple[str, ...]:
        """The sites that a group may be at, in the order in which they are tried (`site_order`); where there is one
        site it may be left out (rules.py refuses the rest)."""
        sites = self.groups[group].sites or (next(iter(self.sites)),)
        if self.groups[group].site_order == "file" or len(sites) == 1:
            return sites
        prices = self.site_prices(group)
        return tuple(sorted(sites, key=lambda site: price.price if (price := prices[site]) else math.inf))

    def list_prices(self, group: str) -> dict[str, Price | None]:
        """The list price on demand of a group's machine at each of its sites, in the order of the file. None where it
        is not known."""
        prices: dict[str, Price | None] = {}
        for site in self.groups[group].sites:
            prices[site] = None
            with contextlib.suppress(GpuprovError):  # a machine type that is not known any more
                region = getattr(self.sites.get(site), "region", "")
                prices[site] = self.catalog.price(self.machine(group, site), region)
        return prices

    def site_prices(self, group: str) -> dict[str, Price | None]:
        """The list prices of a group that compare: None for one in another currency than the first."""
        prices = self.list_prices(group)
        currency = next((price.currency for price in prices.values() if price), "")
        return {site: price if price and price.currency == currency else None for site, price in prices.items()}

    def site_of(self, group: str) -> str:
        """The site of a group: the chosen one (with_sites), else the first that is tried for it."""
        return self._chosen_sites.get(group) or self.sites_of(group)[0]

    def group_sites(self) -> dict[str, str]:
        """Group → the site that it is at."""
        return {name: self.site_of(name) for name in self.groups}

    def with_sites(self, chosen: Mapping[str, str]) -> ClusterSpec:
        """The same file, with the site that was chosen for each of these groups."""
        copy = self.model_copy()
        copy._chosen_sites = dict(chosen)
        return copy

    def by_machine(self) -> ClusterSpec:
        """The same file with each group whose machine type depends on its site as one group for each of its sites,
        called train@west: what a lock has a stack of."""
        groups: dict[str, Group] = {}
        for name, group in self.groups.items():
            if len(group.machine_types) == 1:
                groups[name] = group.at(self.site_of(name))
            else:
                for site in group.sites:
                    update = {"site": site, "site_order": "file"}
                    groups[f"{name}@{site}"] = group.at(site).model_copy(update=update)
        return self if groups == self.groups else self.model_copy(update={"groups": groups})

    def user(self, site: str) -> str:
        """The account on the nodes of a site: its own, else that of `access`, else the provider's usual one."""
        settings = self.sites.get(site)
        if settings is None:  # its machines are still there, and its block is not
            return self.access.user or DEFAULT_USER
        return settings.user or self.access.user or catalog.load().provider(settings.provider).user
