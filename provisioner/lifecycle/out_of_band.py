"""The machines of a cluster by their BMCs: looked at side by side, and switched on and off by name."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from provisioner import catalog
from provisioner.errors import GpuprovError
from provisioner.machines.journal import Journal
from provisioner.machines.redfish import bmc_of
from provisioner.paths import private_dir, write_whole
from provisioner.providers.base import Management
from provisioner.providers.hosts import Host
from provisioner.redfish import inventory, logs
from provisioner.redfish.client import Bmc
from provisioner.redfish.errors import BmcError
from provisioner.redfish.inventory import Inventory
from provisioner.redfish.judge import Expected, Finding, firmware_differs, judge
from provisioner.redfish.logs import Log
from provisioner.redfish.machine import Controlled
from provisioner.redfish.side_by_side import Outcome, each
from provisioner.redfish.tree import Tree, saved
from provisioner.redfish.trust import Pins
from provisioner.session import Cluster

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Managed:
    """A machine of cluster.yaml that has a BMC. `node`: its name in the fleet, "" before it is one; `serial`: what it
    must show: of cluster.yaml, or of its installation; "" where neither is known."""

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
    logs: tuple[Log, ...]
    resources: dict[str, object]


def machines(cluster: Cluster, names: Sequence[str] = ()) -> list[Managed]:
    """Those with a BMC; `names`: nodes or hosts, empty for all. Raises GpuprovError for a name that is none, and where
    there is no BMC at all: a machine that is not in the file is never touched."""
    nodes = {(node.site, node.id): node.name for node in cluster.nodes()}
    found = []
    for site in cluster.spec.sites:
        provider = cluster.providers.at(site)
        if provider.hosts is None or provider.management is None:
            continue
        journal = Journal(cluster.paths.site(site) / "bmc.json").load()
        groups = [name for name, group in cluster.spec.groups.items() if cluster.spec.site_of(name) == site]
        for host in provider.hosts.listed(groups):
            if host.bmc:
                known = host.serial or (journal[host.name].serial if host.name in journal else "")
                found.append(Managed(host, site, nodes.get((site, host.name), ""), known, provider.management))
    if not found:
        raise GpuprovError(
            "no host has a BMC", where=str(cluster.file),
            hint="give `bmc` for the hosts of a bare-metal site, and `credentials` for the site",
        )  # fmt: skip
    if not names:
        return found
    chosen = [next((one for one in found if one.is_called(name)), None) for name in names]
    for name, one in zip(names, chosen, strict=True):
        if one is None:
            raise GpuprovError(
                f"{name} is no machine with a BMC", where=str(cluster.file), hint="name a node or a host of it"
            )
    return [one for one in chosen if one is not None]


def look(cluster: Cluster, asked: Sequence[Managed], seconds: float) -> list[Outcome[Looked]]:
    """Read each machine, in the order asked; nothing is changed."""
    return _each(cluster, asked, lambda bmc: _read(bmc.tree()), seconds)


def look_back(asked: Sequence[Managed], folder: Path) -> list[Outcome[Looked]]:
    """The same of trees that were kept, HOST.redfish.json (also .gz) or a folder HOST; no BMC is asked."""
    outcomes = []
    for one in asked:
        kept = [folder / f"{one.host.name}{end}" for end in (".redfish.json", ".redfish.json.gz", "")]
        try:
            outcomes.append(Outcome(one.host.name, _read(saved(next(filter(Path.exists, kept), kept[0])))))
        except BmcError as error:
            outcomes.append(Outcome(one.host.name, error=error))
    return outcomes


def _read(tree: Tree) -> Looked:
    found = inventory.read(tree)
    host = inventory.find_host(tree)
    events = logs.event_logs(tree, host.system, host.systems, host.managers)
    return Looked(found, events, dict(tree.saved()))


def switch(cluster: Cluster, asked: Sequence[Managed], kinds: Sequence[str], seconds: float) -> list[Outcome[str]]:
    """Send each machine the first of these kinds of reset that it has; its serial number is read first."""
    serials = {one.host.name: one.serial for one in asked}

    def send(bmc: Bmc) -> str:
        machine = Controlled(bmc, serials[bmc.machine])
        machine.reset(*kinds)
        return machine.power() or "?"

    return _each(cluster, asked, send, seconds)


def _each(cluster: Cluster, asked: Sequence[Managed], work: Callable[[Bmc], T], seconds: float) -> list[Outcome[T]]:
    by_name = {one.host.name: one for one in asked}
    pins, stop = Pins(private_dir(cluster.paths.root) / "bmc_pins.json"), threading.Event()

    def one(name: str) -> T:
        mine = by_name[name]

        def told(sentence: str) -> None:
            cluster.events("fleet", "log", sentence, node=mine.node or name)

        with bmc_of(mine.host, mine.management, pins, cluster.file.parent, seconds, told, stop) as bmc:
            return work(bmc)

    done = {outcome.machine: outcome for outcome in each(list(by_name), one, seconds, stop)}
    return [done[name] for name in by_name]


def findings(
    cluster: Cluster, asked: Sequence[Managed], looked: dict[str, Looked], *, live: bool = True
) -> dict[str, list[Finding]]:
    """Host → what its facts mean, beside the others of its group. `live`: they were asked just now, so that their
    events count as seen."""
    new = _new_events(cluster, looked) if live else {host: [] for host in looked}
    made = {}
    for one in asked:
        if (mine := looked.get(one.host.name)) is not None:
            group = cluster.spec.groups.get(one.host.group)
            gpus = catalog.load().machine(group.machine).gpu_count if group is not None else None
            made[one.host.name] = judge(mine.found, Expected(gpus=gpus), new[one.host.name])
    for name in {one.host.group for one in asked}:
        members = {
            one.host.name: looked[one.host.name].found
            for one in asked
            if one.host.group == name and one.host.name in looked
        }
        for host, finding in firmware_differs(members).items():
            made[host].append(finding)
    return made


def _new_events(cluster: Cluster, looked: dict[str, Looked]) -> dict[str, list[logs.Entry]]:
    """Host → entries that were not there when gpuprov looked last; everything at the first look. What was seen is kept
    in bmc_seen.json by time and text: BMCs give ids anew after a log is cleared."""
    file = cluster.paths.root / "bmc_seen.json"
    try:
        seen = json.loads(file.read_text(encoding="utf-8"))
        before = {host: set(one) for host, one in seen.items()}
    except (OSError, ValueError, AttributeError, TypeError, RecursionError):
        before = {}
    new, after = {}, dict(before)
    for host, one in looked.items():
        entries = {f"{e.time} {e.message}"[:200]: e for log in one.logs for e in log.entries}
        new[host] = [entry for key, entry in entries.items() if key not in before.get(host, set())]
        after[host] = set(entries)
    write_whole(file, json.dumps({host: sorted(one) for host, one in sorted(after.items())}) + "\n")
    return new


def save(folder: Path, looked: dict[str, Looked]) -> list[Path]:
    """Write what each BMC showed, as `redfish.tree.saved` reads it. Licence keys and names of users are in it."""
    files = []
    for host, one in looked.items():
        file = private_dir(folder) / f"{host}.redfish.json"
        write_whole(file, json.dumps(one.resources, indent=1, sort_keys=True) + "\n")
        files.append(file)
    return files
