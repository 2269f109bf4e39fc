"""The machines of a cluster by their BMCs: looked at side by side, and switched on and off by name."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from provisioner import catalog
from provisioner.errors import GpuprovError
from provisioner.fleet import Node
from provisioner.machines.journal import Journal
from provisioner.machines.redfish import bmc_of
from provisioner.paths import private_dir, write_whole
from provisioner.providers.base import Management
from provisioner.providers.hosts import Host
from provisioner.redfish import inventory, logs
from provisioner.redfish.bios import Setting, settings
from provisioner.redfish.client import Bmc
from provisioner.redfish.document import document, of_tree
from provisioner.redfish.errors import BmcError
from provisioner.redfish.inventory import Inventory
from provisioner.redfish.logs import Log
from provisioner.redfish.machine import Controlled
from provisioner.redfish.side_by_side import Outcome, each
from provisioner.redfish.tree import Tree, is_saved, saved
from provisioner.redfish.trust import Pins
from provisioner.session import Cluster
from provisioner.verify.bmc import Finding, Wanted, firmware_differs, judge
from provisioner.verify.bundle import Bundle, Output
from provisioner.verify.parsers.bmc import parse

T = TypeVar("T")
FILE = "bmc.json"
LOOK_S = 120.0
"""Seconds for one BMC: a DGX H100 shows some 300 resources that are read one after the other."""
Beside = Callable[[], dict[str, dict[str, Output]]]
"""Gives node → file of its bundle → what this computer has found out for it."""


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
    settings: tuple[Setting, ...] | None
    logs: tuple[Log, ...]
    resources: dict[str, object]


def _all(cluster: Cluster) -> list[Managed]:
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
    return found


def machines(cluster: Cluster, names: Sequence[str] = ()) -> list[Managed]:
    """Those with a BMC; `names`: nodes or hosts, empty for all. Raises GpuprovError for a name that is none, and where
    there is no BMC at all: a machine that is not in the file is never touched."""
    found = _all(cluster)
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
    return Looked(found, settings(tree, host.system), events, dict(tree.saved()))


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


def documents(
    cluster: Cluster, asked: Sequence[Managed], looked: Mapping[str, Looked], *, live: bool = True
) -> dict[str, dict[str, Any]]:
    """Host → its bmc.json. `live`: they were asked just now, so that their events count as seen."""
    new = _new_events(cluster, looked) if live else dict.fromkeys(looked)
    sites: dict[str, list[float | None]] = {}
    for one in asked:
        mine = looked.get(one.host.name)
        sites.setdefault(one.site, []).append(mine.found.drawn.drawn_w if mine is not None else None)
    drawn = {
        site: {"drawn_w": sum(w for w in watts if w is not None), "silent": sum(w is None for w in watts)}
        for site, watts in sites.items()
    }
    return {
        one.host.name: document(mine.found, mine.settings, new[one.host.name], drawn[one.site])
        for one in asked
        if (mine := looked.get(one.host.name)) is not None
    }


def findings(
    cluster: Cluster, asked: Sequence[Managed], looked: Mapping[str, Looked], *, live: bool = True
) -> dict[str, list[Finding]]:
    """Host → what its facts mean, beside the others of its group. Of a machine's budget nothing is said where not all
    of its site were asked."""
    read = {host: parse(json.dumps(one)) for host, one in documents(cluster, asked, looked, live=live).items()}
    made = {}
    for one in asked:
        if (mine := read.get(one.host.name)) is not None:
            group = cluster.spec.groups.get(one.host.group)
            gpus = catalog.load().machine(group.machine).gpu_count if group is not None else None
            wanted = expected(one)
            judged = judge(mine, Wanted(gpus, None, wanted["serial"], wanted["firmware"], wanted["budget_w"]))
            made[one.host.name] = judged
    for name in {one.host.group for one in asked}:
        members = {
            one.host.name: read[one.host.name] for one in asked if one.host.group == name and one.host.name in read
        }
        for host, finding in firmware_differs(members).items():
            made[host].append(finding)
    return made


def expected(one: Managed) -> dict[str, Any]:
    """What verify expects of its BMC (Expected.bmc)."""
    management = one.management
    return {
        "serial": one.serial, "firmware": dict(management.firmware.get(one.host.group, {})),
        "budget_w": management.power_budget_w,
    }  # fmt: skip


@contextlib.contextmanager
def beside(cluster: Cluster, nodes: Sequence[Node]) -> Iterator[tuple[dict[str, dict[str, Any]], Beside]]:
    """What BMCs add to proving these nodes: node → what is expected of its BMC, and what gives node → bmc.json, once
    all are read. They are asked in a thread of their own from the beginning, within LOOK_S."""
    asked = [one for one in _all(cluster) if one.node in {node.name for node in nodes}]
    if cluster.sandbox or not asked:
        yield {}, dict
        return
    everyone = [one for one in _all(cluster) if one.site in {other.site for other in asked}]
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(_files, cluster, everyone)
        yield {one.node: expected(one) for one in asked}, reading.result


def with_tree(bundle: Bundle, folder: Path) -> Bundle:
    """A bundle with the bmc.json of the Redfish tree that lies in its folder: NAME.redfish.json (also .gz), or the tree
    itself, as a folder `redfish` or beside its files. As it is where there is none, or it has a bmc.json."""
    trees = [*sorted(folder.glob("*.redfish.json")), *sorted(folder.glob("*.redfish.json.gz"))]
    if not trees and is_saved(folder):
        trees = [folder]
    if not trees or FILE in bundle.files:
        return bundle
    if len(trees) > 1:
        said = f"{len(trees)} Redfish trees lie here: {', '.join(one.name for one in trees[:4])}"
        raise GpuprovError(said, where=str(folder), hint="leave the one of this machine")
    try:
        output = Output(json.dumps(of_tree(saved(trees[0]))), rc=0)
    except BmcError as error:
        output = Output("", missing=True, error=f"{trees[0].name}: {error.message}")
    return replace(bundle, files={**bundle.files, FILE: output})


def _files(cluster: Cluster, asked: Sequence[Managed]) -> dict[str, dict[str, Output]]:
    """Node → bmc.json as a file of its bundle; of a BMC that could not be read why not."""
    names = {one.host.name: one.node for one in asked if one.node}
    outcomes = look(cluster, asked, LOOK_S)
    looked = {one.machine: one.value for one in outcomes if one.value is not None}
    found = {
        names[host]: Output(json.dumps(one), rc=0)
        for host, one in documents(cluster, asked, looked).items()
        if host in names
    }
    for outcome in outcomes:
        if outcome.error is not None and outcome.machine in names:
            said = getattr(outcome.error, "message", str(outcome.error))
            found[names[outcome.machine]] = Output("", missing=True, error=said)
    return {node: {FILE: output} for node, output in found.items()}


def _new_events(cluster: Cluster, looked: Mapping[str, Looked]) -> dict[str, list[logs.Entry]]:
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
