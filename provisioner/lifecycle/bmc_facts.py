"""What the machines' BMCs show, for those who judge it: `gpuprov bmc FILE status`, and `verify` beside what the
machines' own systems say."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

from provisioner.common.errors import GpuprovError
from provisioner.common.paths import write_whole
from provisioner.common.text import one_line
from provisioner.lifecycle.out_of_band import Looked, Managed, error_text, look, managed_machines
from provisioner.lifecycle.session import Cluster
from provisioner.machines.redfish import logs
from provisioner.machines.redfish.document import document, of_tree
from provisioner.machines.redfish.errors import BmcError
from provisioner.machines.redfish.side_by_side import GRACE_S
from provisioner.machines.redfish.tree import is_saved, saved
from provisioner.rundir.fleet import Node
from provisioner.verify.bmc import Finding, Wanted, firmware_differs, judge, settings_differ
from provisioner.verify.bundle import Bundle, Output
from provisioner.verify.parsers import Unreadable
from provisioner.verify.parsers.bmc import Bmc, parse

FILE = "bmc.json"
SEEN, LOOKED = "bmc_seen.json", "bmc_seen.new.json"
"""Files of the run directory: host → entries of its log that somebody has judged; the same after the last look."""
LOOK_S = 120.0
"""Seconds for one BMC: a DGX H100 shows some 300 resources that are read one after the other."""
Beside = Callable[[], dict[str, dict[str, Output]]]
"""Gives node → file of its bundle → what this computer has found out for it."""


def documents(
    cluster: Cluster, machines: Sequence[Managed], looked: Mapping[str, Looked], *, live: bool = True
) -> dict[str, dict[str, Any]]:
    """Host → its bmc.json. `live`: they were asked just now, and their events are seen once the caller says so
    (`count_as_seen`). What a site draws is known where all its machines were asked."""
    new = _new_events(cluster, looked) if live else dict.fromkeys(looked)
    complete_sites = {machine.site for machine in machines} - {
        machine.site for machine in managed_machines(cluster) if machine not in machines
    }
    drawn = {site: _drawn([machine for machine in machines if machine.site == site], looked) for site in complete_sites}
    return {
        machine.host.name: document(
            machine_facts.found,
            machine_facts.settings,
            new[machine.host.name],
            drawn.get(machine.site),
            factory_password=machine_facts.factory_password,
        )
        for machine in machines
        if (machine_facts := looked.get(machine.host.name)) is not None
    }


def _drawn(site: Sequence[Managed], looked: Mapping[str, Looked]) -> dict[str, Any]:
    """What the machines of a site draw together, and how many that are not off do not say."""
    inventories = [looked[machine.host.name].found if machine.host.name in looked else None for machine in site]
    watts = [inventory.drawn.drawn_w if inventory is not None else None for inventory in inventories]
    silent = sum(
        w is None and (inventory is None or inventory.power != "Off")
        for inventory, w in zip(inventories, watts, strict=True)
    )
    return {"drawn_w": sum(w for w in watts if w is not None), "silent": silent}


def findings(
    cluster: Cluster, machines: Sequence[Managed], looked: Mapping[str, Looked], *, live: bool = True
) -> dict[str, list[Finding]]:
    """Host → what its facts mean, beside the others of its group."""
    read, by_host = dict[str, Bmc](), dict[str, list[Finding]]()
    for host, facts in documents(cluster, machines, looked, live=live).items():
        try:
            read[host] = parse(json.dumps(facts))
        except Unreadable as error:  # thousands of parts, or none that has a name: it can answer anything
            by_host[host] = [Finding("facts", "unknown", f"what the BMC shows is not understood: {error}")]
    for machine in machines:
        if (bmc := read.get(machine.host.name)) is not None:
            group = cluster.spec.groups.get(machine.host.group)
            gpus = cluster.spec.machine(machine.host.group).gpu_count if group is not None else None
            expectation = expected(machine)
            judged = judge(
                bmc, Wanted(gpus, None, expectation["serial"], expectation["firmware"], expectation["budget_w"])
            )
            by_host[machine.host.name] = judged
    for name in {machine.host.group for machine in machines}:
        members = {
            machine.host.name: read[machine.host.name]
            for machine in machines
            if machine.host.group == name and machine.host.name in read
        }
        for host, finding in (*firmware_differs(members).items(), *settings_differ(members).items()):
            by_host[host].append(finding)
    if live:
        count_as_seen(cluster)
    return by_host


def expected(machine: Managed) -> dict[str, Any]:
    """What verify expects of its BMC (Expected.bmc)."""
    management = machine.management
    return {
        "serial": machine.serial, "firmware": dict(management.firmware.get(machine.host.group, {})),
        "budget_w": management.power_budget_w,
    }  # fmt: skip


@contextlib.contextmanager
def collecting(cluster: Cluster, nodes: Sequence[Node]) -> Iterator[tuple[dict[str, dict[str, Any]], Beside]]:
    """What BMCs add to proving these nodes: node → what is expected of its BMC, and what gives node → bmc.json, once
    all are read. They are asked in a thread of their own from the beginning, within LOOK_S."""
    machines = [machine for machine in managed_machines(cluster) if machine.node in {node.name for node in nodes}]
    if cluster.sandbox or not machines:
        yield {}, dict
        return
    budgeted = {machine.site for machine in machines if machine.management.power_budget_w is not None}
    neighbours = [
        machine for machine in managed_machines(cluster) if machine.site in budgeted and machine not in machines
    ]
    stop, reading = threading.Event(), Future[dict[str, dict[str, Output]]]()

    def read() -> None:
        try:
            reading.set_result(_files(cluster, machines, neighbours, stop))
        except Exception as error:
            reading.set_exception(error)

    thread = threading.Thread(target=read, daemon=True, name="bmcs")
    thread.start()
    try:
        yield {machine.node: expected(machine) for machine in machines}, reading.result
    except BaseException:  # Ctrl-C: the sessions are closed, and nobody waits for a BMC
        stop.set()
        thread.join(GRACE_S)
        raise


def with_tree(bundle: Bundle, folder: Path) -> Bundle:
    """A bundle with the bmc.json of the Redfish tree that lies in its folder: NAME.redfish.json (also .gz), or the tree
    itself, as a folder `redfish` or beside its files. As it is where there is none, or it has a bmc.json."""
    trees = [*sorted(folder.glob("*.redfish.json")), *sorted(folder.glob("*.redfish.json.gz"))]
    if not trees and is_saved(folder):
        trees = [folder.resolve()]  # whoever named it may have named a link to it
    if not trees or FILE in bundle.files:
        return bundle
    if len(trees) > 1:
        message = f"{len(trees)} Redfish trees lie here: {', '.join(one_line(tree.name, 80) for tree in trees[:4])}"
        raise GpuprovError(message, where=str(folder), hint="leave the one of this machine")
    try:
        output = Output(json.dumps(of_tree(saved(trees[0]))), rc=0)
    except BmcError as error:
        output = Output("", missing=True, error=f"{trees[0].name}: {error.message}")
    return replace(bundle, files={**bundle.files, FILE: output})


def _files(
    cluster: Cluster, machines: Sequence[Managed], neighbours: Sequence[Managed], stop: threading.Event
) -> dict[str, dict[str, Output]]:
    """Node → bmc.json as a file of its bundle; of a BMC that could not be read why not. `others` are asked what they
    draw: their event logs do not count as seen."""
    outcomes = {outcome.machine: outcome for outcome in look(cluster, [*machines, *neighbours], LOOK_S, stop)}
    looked = {host: outcome.value for host, outcome in outcomes.items() if outcome.value is not None}
    looked_machines = {
        machine.host.name: looked[machine.host.name] for machine in machines if machine.host.name in looked
    }
    host_documents = documents(cluster, machines, looked_machines)
    outputs = {}
    for machine in machines:
        host, error = machine.host.name, outcomes[machine.host.name].error
        if host in host_documents:
            site = _drawn([other for other in (*machines, *neighbours) if other.site == machine.site], looked)
            outputs[machine.node] = {FILE: Output(json.dumps(host_documents[host] | {"site": site}), rc=0)}
        else:
            outputs[machine.node] = {FILE: Output("", missing=True, error=error_text(error))}
    return outputs


def _new_events(cluster: Cluster, looked: Mapping[str, Looked]) -> dict[str, list[logs.Entry]]:
    """Host → entries that were not there when somebody judged the log last; everything at the first look. An entry is
    known by time and text: BMCs give ids anew after a log is cleared."""
    try:
        judged = json.loads((cluster.paths.root / SEEN).read_text(encoding="utf-8"))
        previous = {host: set(entry_keys) for host, entry_keys in judged.items()}
    except (OSError, ValueError, AttributeError, TypeError, RecursionError):
        previous = {}
    new, after = {}, dict(previous)
    for host, machine_facts in looked.items():
        entries = {f"{e.time} {e.message}"[:200]: e for log in machine_facts.logs for e in log.entries}
        new[host] = [entry for key, entry in entries.items() if key not in previous.get(host, set())]
        after[host] = set(entries)
    content = json.dumps({host: sorted(entries) for host, entries in sorted(after.items())})
    write_whole(cluster.paths.root / LOOKED, content + "\n")
    return new


def count_as_seen(cluster: Cluster) -> None:
    """The entries of the last look were judged, and the verdict is written: the next look does not give them again. A
    `verify` that dies before has judged nothing."""
    with contextlib.suppress(FileNotFoundError):
        (cluster.paths.root / LOOKED).replace(cluster.paths.root / SEEN)
