"""The machines of a cluster by their BMCs: looked at side by side, and switched on and off by name."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from provisioner.common.errors import GpuprovError
from provisioner.common.paths import private_dir, write_whole
from provisioner.lifecycle.session import Cluster
from provisioner.machines.bmc import bmc_of
from provisioner.machines.hosts import assign_names
from provisioner.machines.journal import Journal
from provisioner.machines.providers.base import Management
from provisioner.machines.providers.hosts import Host
from provisioner.machines.redfish import accounts, devices, inventory, logs
from provisioner.machines.redfish.bios import Setting, settings
from provisioner.machines.redfish.client import Bmc
from provisioner.machines.redfish.errors import BmcError
from provisioner.machines.redfish.inventory import Inventory
from provisioner.machines.redfish.logs import Log
from provisioner.machines.redfish.machine import Controlled
from provisioner.machines.redfish.side_by_side import Outcome, each
from provisioner.machines.redfish.tree import Tree, saved, text
from provisioner.machines.redfish.trust import Pins
from provisioner.output.status import StatusBmc

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Managed:
    """A machine of cluster.yaml that has a BMC. `node`: its name in the fleet, also before it is one; "" for a host
    that no group has a place for; `serial`: what it must show: of cluster.yaml, or of its installation; "" where
    neither is known."""

    host: Host
    site: str
    node: str
    serial: str
    management: Management

    def is_called(self, name: str) -> bool:
        return name in (self.host.name, self.node)


@dataclass(frozen=True, slots=True)
class Looked:
    """One machine as its BMC has it, with the entries of its event logs that are new."""

    found: Inventory
    settings: tuple[Setting, ...] | None
    logs: tuple[Log, ...]
    resources: dict[str, object]
    factory_password: bool | None = None
    """Whether it was read with a user and password that its maker has published; None where it was not asked."""


def managed_machines(cluster: Cluster) -> list[Managed]:
    """All machines of cluster.yaml that have a BMC."""
    managed = []
    for site in cluster.spec.sites:
        provider = cluster.providers.at(site)
        if provider.hosts is None or provider.management is None:
            continue
        journal = Journal(cluster.paths.site(site) / "bmc.json").load()
        groups = [name for name in cluster.spec.groups if cluster.spec.site_of(name) == site]
        hosts = provider.hosts.listed(groups)
        nodes = _names(cluster, site, groups, hosts)
        for host in hosts:
            if host.bmc:
                known = host.serial or (journal[host.name].serial if host.name in journal else "")
                managed.append(Managed(host, site, nodes.get(host.name, ""), known, provider.management))
    return managed


def _names(cluster: Cluster, site: str, groups: Sequence[str], hosts: Sequence[Host]) -> dict[str, str]:
    """Host → the name that its node has, or will have."""
    recorded = {node.id: node.name for node in cluster.nodes() if node.site == site}
    names_by_host = dict(recorded)
    for group in groups:
        names = cluster.spec.groups[group].node_names(group)
        named_hosts = assign_names([host for host in hosts if host.group == group], names, recorded)
        names_by_host |= {host.name: name for name, host in named_hosts.items()}
    return names_by_host


def machines(cluster: Cluster, names: Sequence[str] = ()) -> list[Managed]:
    """Those with a BMC; `names`: nodes or hosts, empty for all. Raises GpuprovError for a name that is none, and where
    there is no BMC at all: a machine that is not in the file is never touched."""
    managed = managed_machines(cluster)
    if not managed:
        raise GpuprovError(
            "no host has a BMC", where=str(cluster.file),
            hint="give `bmc` for the hosts of a bare-metal site, and `credentials` for the site",
        )  # fmt: skip
    if not names:
        return managed
    chosen = [next((machine for machine in managed if machine.is_called(name)), None) for name in names]
    for name, machine in zip(names, chosen, strict=True):
        if machine is None:
            raise GpuprovError(
                f"{name} is not a machine with a BMC", where=str(cluster.file), hint="name a node or a host of it"
            )
    return [machine for machine in chosen if machine is not None]


def look(
    cluster: Cluster, targets: Sequence[Managed], seconds: float, stop: threading.Event | None = None
) -> list[Outcome[Looked]]:
    """Read each machine, in the order asked; nothing is changed. `stop`: set by who wants it to end."""

    def read(bmc: Bmc) -> Looked:
        return replace(_read(bmc.tree()), factory_password=accounts.is_factory(bmc.account))

    return _each(cluster, targets, read, seconds, stop)


def look_back(targets: Sequence[Managed], folder: Path) -> list[Outcome[Looked]]:
    """The same of trees that were kept, HOST.redfish.json (also .gz) or a folder HOST; no BMC is asked."""
    outcomes = []
    for target in targets:
        candidates = [folder / f"{target.host.name}{end}" for end in (".redfish.json", ".redfish.json.gz", "")]
        try:
            outcomes.append(
                Outcome(target.host.name, _read(saved(next(filter(Path.exists, candidates), candidates[0]))))
            )
        except BmcError as error:
            outcomes.append(Outcome(target.host.name, error=error))
    return outcomes


def _read(tree: Tree) -> Looked:
    observed = inventory.read(tree)
    host = inventory.find_host(tree)
    events = logs.event_logs(tree, host.system, host.systems, host.managers)
    return Looked(observed, settings(tree, host.system), events, dict(tree.saved()))


def glance(cluster: Cluster, seconds: float) -> dict[str, StatusBmc]:
    """Node → power and health as its BMC says them, or the error that kept it from being asked: a few requests, for
    `status`."""
    targets = [machine for machine in managed_machines(cluster) if machine.node]

    def look_at(bmc: Bmc) -> StatusBmc:
        system = inventory.find_host(bmc.tree()).system
        return StatusBmc(power=text(system.get("PowerState")), health=devices.health(system), error=None)

    names = {target.host.name: target.node for target in targets}
    return {
        names[done.machine]: done.value or StatusBmc(power=None, health=None, error=error_text(done.error))
        for done in (_each(cluster, targets, look_at, seconds) if targets else [])
    }


def error_text(error: Exception | None) -> str:
    """An error in one sentence."""
    return getattr(error, "message", str(error))


def switch(cluster: Cluster, targets: Sequence[Managed], kinds: Sequence[str], seconds: float) -> list[Outcome[str]]:
    """Send each machine the first of these kinds of reset that it has; its serial number is read first."""
    serials = {target.host.name: target.serial for target in targets}

    def send(bmc: Bmc) -> str:
        machine = Controlled(bmc, serials[bmc.machine])
        machine.reset(*kinds)
        return machine.power() or "?"

    return _each(cluster, targets, send, seconds)


def _each(
    cluster: Cluster, targets: Sequence[Managed], work: Callable[[Bmc], T], seconds: float,
    ending: threading.Event | None = None,
) -> list[Outcome[T]]:  # fmt: skip
    by_name, stop = {target.host.name: target for target in targets}, ending or threading.Event()
    pins = Pins(private_dir(cluster.paths.root) / "bmc_pins.json")

    def work_on(name: str) -> T:
        target = by_name[name]

        def log_sentence(sentence: str) -> None:
            cluster.events("fleet", "log", sentence, node=target.node or name)

        with bmc_of(target.host, target.management, pins, cluster.file.parent, seconds, log_sentence, stop) as bmc:
            return work(bmc)

    done = {outcome.machine: outcome for outcome in each(list(by_name), work_on, seconds, stop)}
    return [done[name] for name in by_name]


def save(folder: Path, looked: dict[str, Looked]) -> list[Path]:
    """Write what each BMC showed, as `redfish.tree.saved` reads it. Licence keys and names of users are in it."""
    files = []
    for host, facts in looked.items():
        file = private_dir(folder) / f"{host}.redfish.json"
        write_whole(file, json.dumps(facts.resources, indent=1, sort_keys=True) + "\n")
        files.append(file)
    return files
