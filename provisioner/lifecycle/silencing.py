"""Alerts of nodes out of service are silenced in the Alertmanagers of the cluster, and a tripped breaker is an alert
there: in the one that cluster.yaml names (monitoring.alertmanager), and in those of its head nodes, through ssh.

An Alertmanager that fails keeps no command: it is a warning, and `settle` makes up for it after the next verdict.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING

from provisioner.common.errors import GpuprovError
from provisioner.common.events import Stage
from provisioner.common.text import few
from provisioner.lifecycle import alertmanagers
from provisioner.monitoring import breaker_alert, silences
from provisioner.monitoring.breaker_alert import Trip
from provisioner.monitoring.fleet import cluster_label

if TYPE_CHECKING:
    from provisioner.lifecycle.session import Cluster


PAUSE_S = 600.0
"""An Alertmanager that failed is left alone for so long: an upgrade of many batches would wait for it each time."""
_failed_until: dict[str, float] = {}
"""URL, or head node → until when, by the monotonic clock."""


def begin(cluster: Cluster, stage: Stage, comments: Mapping[str, str]) -> None:
    """Silence the alerts of nodes that are taken out of service: node → why."""
    if comments:
        _try(cluster, stage, lambda url, label: silences.begin(url, label, comments),
             f"alerts of {_some(comments)} are not silenced")  # fmt: skip


def end(cluster: Cluster, stage: Stage, names: Collection[str]) -> None:
    """Nodes are back in service, or are gone."""
    if names:
        _try(
            cluster, stage, lambda url, label: silences.end(url, label, names),
            f"alerts of {_some(names)} stay silenced for up to {silences.LASTS.days} days",
            heads=stage != "down",  # `down` has removed them
        )  # fmt: skip


def settle(
    cluster: Cluster, stage: Stage, comments: Mapping[str, str], *, heads: bool = True, trip: Trip | None = None
) -> None:
    """Silence these nodes of the cluster (node → why) and no others. `heads`: whether head nodes are still there.
    `trip`: what a verdict says of the breaker; None leaves its alert as it is."""

    def change(url: str, label: str) -> None:
        silences.settle(url, label, comments)
        if trip is not None:
            breaker_alert.settle(url, label, trip)

    subjects = "silences" if trip is None else f"silences and {breaker_alert.NAME}"
    _try(cluster, stage, change, f"{subjects} may be out of date", heads=heads)


def _try(
    cluster: Cluster, stage: Stage, change: Callable[[str, str], None], consequence: str, *, heads: bool = True
) -> None:
    for name, reached in alertmanagers.of(cluster, heads=heads).items():
        if time.monotonic() < _failed_until.get(name, 0.0):
            continue
        try:
            with reached as url:
                change(url, cluster_label(cluster.spec.name, simulated=cluster.sandbox))
        except GpuprovError as error:
            _failed_until[name] = time.monotonic() + PAUSE_S
            cluster.events(stage, "warning", f"{consequence}: {error}")


def _some(names: Collection[str]) -> str:
    return few(list(names), 3, ",")
