"""One fault on one node at a time: break it, watch which alerts fire, mend it. All nodes at the same time.

Between faults the node is cleared, until no alert of it fires or is pending.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field

from provisioner.common.errors import ProviderError
from provisioner.monitoring import servers
from provisioner.monitoring.alertmanager import WATCHDOG
from provisioner.monitoring.fleet import WatchedFleet
from provisioner.monitoring.models import SCRAPE_S
from provisioner.monitoring.rules.checks import alert_name, watched_checks
from provisioner.sandbox import containers, faults
from provisioner.sandbox.fault_list import Fault
from provisioner.verify.merged_checks import reported

HEALTH = "gpuprov-health.service"
HEALTH_DEADLINE_S = 180.0
"""Role health ends a run after 120 s."""
RUNS = 2
"""Runs of the checks after which their results are there: the first may have begun before the fault."""
MOST_S = 3600.0
"""For one fault, whatever its checks do."""
POLL_S = 0.5
MARGIN_SCRAPES = 6
"""Scrapes and evaluations that may lie between a result and its alert, beside what the rule waits."""
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Watched:
    """The servers that watch a cluster, and what they do."""

    prometheus: str
    alertmanager: str
    fleet: WatchedFleet
    speed: int

    @property
    def check_s(self) -> float:
        """Seconds between two runs of the checks of a node."""
        assert self.fleet.health_minutes is not None
        return self.fleet.health_minutes * 60 / self.speed

    @property
    def window_s(self) -> float:
        """How long a rule may wait once the results are there: the slowest one waits for three runs."""
        return 3 * self.check_s + MARGIN_SCRAPES * SCRAPE_S / self.speed

    def alerts(self, node: str = "") -> dict[str, bool]:
        """Alerts of a node that fire now, or of all → whether another alert hides it."""
        filters = [f'alertname!="{WATCHDOG}"', *([f'node="{node}"'] if node else [])]
        rows = servers.get(f"http://{self.alertmanager}/api/v2/alerts", {"filter": filters})
        firing: dict[str, bool] = {}
        for row in rows:
            if row["status"]["state"] in ("active", "suppressed"):
                name = row["labels"]["alertname"]
                is_hidden = row["status"]["state"] == "suppressed"
                firing[name] = is_hidden and firing.get(name, True)
        return firing

    def unsettled(self, node: str) -> set[str]:
        """Alerts of a node that fire, or will fire if nothing changes (`for`)."""
        return {row["metric"]["alertname"] for row in servers.query(self.prometheus, f'ALERTS{{node="{node}"}}')}


@dataclass(slots=True)
class NodeTimer:
    """The timer of a node, in divided time. `runs`: how often the checks have run to their end."""

    container: str
    runs: int = 0

    def start(self, watched: Watched, ended: threading.Event) -> None:
        """Run the checks again and again, until all has `ended`."""
        while not ended.is_set():
            started = time.monotonic()
            run_checks(self.container)
            self.runs += 1
            ended.wait(max(0.0, watched.check_s - (time.monotonic() - started)))


@dataclass(slots=True)
class Trial:
    """One fault on one node: alert → seconds from the fault until it fired, and which of them another one hides."""

    fault: Fault
    node: str
    seconds: dict[str, float] = field(default_factory=dict)
    hidden: set[str] = field(default_factory=set)
    lasting: list[str] = field(default_factory=list)
    error: str = ""
    """Why the node could not have the fault, or could not be mended; empty where it could."""


def run_checks(container: str) -> None:
    """One run of the node's own checks; a fault may be that they cannot run."""
    try:
        containers.execute(container, "systemctl", "start", HEALTH, deadline=HEALTH_DEADLINE_S)
    except ProviderError:
        return


def all_trials(
    watched: Watched, work: Mapping[str, list[Fault]], container_names: Mapping[str, str], say: Say
) -> list[Trial]:
    """The faults of each node, one after the other. However it ends, no node has a fault afterwards."""
    ended, trials = threading.Event(), list[Trial]()
    with ThreadPoolExecutor(2 * len(work)) as pool:
        try:
            node_timers = {node: NodeTimer(container_names[node]) for node in work}
            timers = [pool.submit(timer.start, watched, ended) for timer in node_timers.values()]
            queues = [
                pool.submit(_try_each, watched, node, node_timers[node], queued, ended, say)
                for node, queued in work.items()
            ]
            for done in as_completed(queues):
                trials += done.result()
        finally:
            ended.set()
    for timer in timers:
        timer.result()
    return trials


def _try_each(
    watched: Watched, node: str, timer: NodeTimer, queued: Sequence[Fault], ended: threading.Event, say: Say
) -> list[Trial]:
    trials = []
    try:
        for fault in queued:
            trial = Trial(fault, node)
            try:
                _try(watched, trial, timer, ended)
            except ProviderError as error:  # of podman: cluster.yaml may leave out what the fault breaks
                trial.error = str(error)
                with contextlib.suppress(ProviderError):
                    faults.clear(timer.container)
            if ended.is_set():
                break
            trials.append(trial)
            say(f"{node}: {fault.name}: {trial.error or ', '.join(trial.seconds) or 'no alert'}")
    finally:
        with contextlib.suppress(ProviderError):
            faults.clear(timer.container)
    return trials


def _try(watched: Watched, trial: Trial, timer: NodeTimer, ended: threading.Event) -> None:
    """Break the node, watch, mend it, and wait until its alerts are gone; less of it once all has `ended`. On a slow
    computer the checks take longer than the time between two of their runs: runs count, and not seconds alone. Raises
    ProviderError where the node cannot be broken or mended."""
    firing_before = watched.unsettled(trial.node)
    expected = expected_alert(watched.fleet, trial.fault)
    started = time.monotonic()
    faults.inject(timer.container, trial.fault.name)
    last_new, last_run = started, timer.runs + RUNS
    deadline = latest = started + MOST_S
    while (moment := time.monotonic()) < deadline and not ended.wait(POLL_S):
        if timer.runs >= last_run and deadline == latest:  # the results are there, and rules wait from here on
            deadline = moment + watched.window_s
        for name, hidden in watched.alerts(trial.node).items():
            if name in firing_before:
                continue
            if name not in trial.seconds:
                trial.seconds[name], last_new = moment - started, moment
            if hidden:
                trial.hidden.add(name)
        settled = moment - last_new > watched.check_s + MARGIN_SCRAPES * SCRAPE_S / watched.speed
        if expected in trial.seconds and settled:
            break
    faults.clear(timer.container)
    if ended.is_set():
        return
    for _ in range(2):  # the first may join a run that began before
        run_checks(timer.container)
    deadline = time.monotonic() + watched.window_s
    while (lasting := watched.unsettled(trial.node) - firing_before) and time.monotonic() < deadline:
        if ended.wait(POLL_S):
            break
    trial.lasting = sorted(lasting)


def expected_alert(fleet: WatchedFleet, fault: Fault) -> str:
    """The alert on the check that finds a fault; "" where the nodes do not run that check by themselves."""
    name = reported(fault.check)
    return alert_name(name) if name in watched_checks(fleet) else ""
