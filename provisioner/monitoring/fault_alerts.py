"""Which alert fires for which fault of the sandbox, and after how long, on a real Prometheus and Alertmanager.

The rules are the exported ones with all times divided (fast_time.py). fault_trials.py breaks and mends the nodes.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

from provisioner.common.errors import GpuprovError
from provisioner.common.text import few
from provisioner.monitoring import export, fast_time, servers
from provisioner.monitoring.fault_trials import (
    MARGIN_SCRAPES,
    POLL_S,
    Say,
    Trial,
    Watched,
    all_trials,
    expected_alert,
    run_checks,
)
from provisioner.monitoring.fleet import WatchedFleet, watched_fleet
from provisioner.monitoring.models import DCGM_JOB, NODE_JOB, SCRAPE_S
from provisioner.monitoring.server_config import ALERTMANAGER, OWN_ADDRESS
from provisioner.monitoring.targets import targets
from provisioner.output.monitoring import FaultAlerts, FiringAlert, MonitoringTestOutput
from provisioner.rundir.fleet import Node
from provisioner.sandbox import containers, faults
from provisioner.sandbox.fault_list import Fault
from provisioner.spec.models import ClusterSpec
from provisioner.verify.merged_checks import reported
from provisioner.verify.registry import declared

FIRST_SCRAPE_S = 120.0


def run(
    spec: ClusterSpec, nodes: Sequence[Node], root: Path, folder: Path, names: Sequence[str], speed: int, say: Say
) -> MonitoringTestOutput:
    """Inject faults into the nodes of a sandbox whose run directory is `root`, one after the other, and see what fires.

    `folder`: an empty one for the servers' files. `names`: faults; all that the nodes can have where there is none.
    `speed`: by how much all times are divided. Raises GpuprovError for a cluster that nothing watches.
    """
    fleet = watched_fleet(spec, nodes, simulated=True)
    _refuse_unwatched(fleet, nodes)
    work = distribute(nodes, names)
    servers.tool(servers.PROMETHEUS)
    export.write(folder, spec, nodes, sandbox=True)
    fast_time.hurry(folder, speed)
    container_names = {node.name: containers.find_node(root, node.name).name for node in nodes}
    for node in nodes:
        faults.clear(container_names[node.name])
    with ExitStack() as stack:
        manager = stack.enter_context(servers.alertmanager(folder))
        port = servers.free_port()
        _set_addresses(folder, manager, port)
        watched = Watched(stack.enter_context(servers.prometheus(folder, port)), manager, fleet, speed)
        say(f"{len(nodes)} nodes, {sum(map(len, work.values()))} faults, all times divided by {speed}")
        _wait_for_targets(watched, nodes)
        healthy_alerts = _healthy(watched, container_names)
        trials = all_trials(watched, work, container_names, say)
    order = {fault.name: number for number, fault in enumerate(faults.FAULTS)}
    rows = [row_of(fleet, trial, speed) for trial in sorted(trials, key=lambda trial: order[trial.fault.name])]
    return MonitoringTestOutput(
        cluster=fleet.cluster, speed=speed, nodes=len(nodes), healthy=healthy_alerts, faults=rows
    )


def distribute(nodes: Sequence[Node], names: Sequence[str]) -> dict[str, list[Fault]]:
    """Node → the faults that it gets, each fault once. Raises GpuprovError for a fault that no node can have."""
    possible = {node.name: {fault.name for fault in faults.list_faults(node.machine)} for node in nodes}
    requested = [faults.find_fault(name) for name in names] or [fault for fault in faults.FAULTS if not fault.moment]
    work: dict[str, list[Fault]] = {node.name: [] for node in nodes}
    for fault in dict.fromkeys(requested):
        able = [name for name in work if fault.name in possible[name]]
        if able:
            work[min(able, key=lambda name: len(work[name]))].append(fault)
        elif names:
            raise GpuprovError(
                f"no node of this cluster can have the fault {fault.name}: it needs {fault.needs}",
                hint="`gpuprov sandbox faults --machine TYPE` lists those of a machine type",
            )
    return work


def _refuse_unwatched(fleet: WatchedFleet, nodes: Sequence[Node]) -> None:
    if not nodes:
        raise GpuprovError("the cluster has no nodes", hint="`gpuprov up FILE --sandbox` makes them")
    if fleet.health_minutes is None:
        raise GpuprovError(
            "the nodes do not run gpuprov's checks", hint="set monitoring.prometheus to { at: external }, then `up`"
        )


def _set_addresses(folder: Path, manager: str, port: int) -> None:
    """Write the servers' addresses into prometheus.yml."""
    file = folder / "prometheus.yml"
    text = file.read_text(encoding="utf-8").replace(ALERTMANAGER, manager).replace(OWN_ADDRESS, f"127.0.0.1:{port}")
    file.write_text(text, encoding="utf-8")


def _wait_for_targets(watched: Watched, nodes: Sequence[Node]) -> None:
    """Wait until every exporter has answered once. Raises GpuprovError naming those that do not."""
    expected_targets = {
        (job, row["labels"]["node"]) for job, rows in targets(watched.fleet, nodes).items() for row in rows
    }
    deadline = time.monotonic() + FIRST_SCRAPE_S
    while True:
        rows = servers.query(watched.prometheus, f'up{{job=~"{NODE_JOB}|{DCGM_JOB}"}} == 1')
        silent = sorted(expected_targets - {(row["metric"]["job"], row["metric"]["node"]) for row in rows})
        if not silent:
            return
        if time.monotonic() > deadline:
            raise GpuprovError(
                f"Prometheus reaches no exporter of {few([f'{node} ({job})' for job, node in silent], 4, ',')}",
                hint="`gpuprov up FILE --sandbox` starts exporters that have stopped",
            )
        time.sleep(POLL_S)


def _healthy(watched: Watched, container_names: Mapping[str, str]) -> list[FiringAlert]:
    """What fires without any fault: nothing should. The checks run once before."""
    with ThreadPoolExecutor(len(container_names)) as pool:
        list(pool.map(run_checks, container_names.values()))
    time.sleep(MARGIN_SCRAPES * SCRAPE_S / watched.speed)
    return [FiringAlert(alert=name, seconds=0, hidden=hidden) for name, hidden in sorted(watched.alerts().items())]


def row_of(fleet: WatchedFleet, trial: Trial, speed: int) -> FaultAlerts:
    """What is reported of a trial: seconds as the exported rules have them."""
    expected = "" if trial.error else expected_alert(fleet, trial.fault)
    alerts = [
        FiringAlert(alert=name, seconds=round(seconds * speed), hidden=name in trial.hidden)
        for name, seconds in sorted(trial.seconds.items(), key=lambda item: item[1])
    ]
    return FaultAlerts(
        fault=trial.fault.name, node=trial.node, check=reported(trial.fault.check), expected=expected, alerts=alerts,
        reason=next(_reasons(trial, expected), ""), lasting=trial.lasting,
    )  # fmt: skip


def _reasons(trial: Trial, expected: str) -> Iterator[str]:
    """Why no alert on the fault's check fired."""
    if trial.error:
        yield trial.error
    if expected and expected not in trial.seconds:
        yield f"{expected} did not fire"
    if expected:
        return
    check = next((row for row in declared() if row.id == trial.fault.check), None)
    if check is not None and check.level != "quick":
        yield f"{check.id} runs at level {check.level} alone"
    elif check is not None and check.severity == "info":
        yield f"{check.id} condemns nobody and makes no alert"
    else:
        yield f"{trial.fault.check} compares nodes, or asks from outside: `gpuprov verify` finds it"
