"""GpuprovBreakerTripped in Alertmanager: a verdict found more bad nodes than may go into quarantine, so none did.

The quarantine is decided by whoever runs gpuprov, and no exporter knows of it. So gpuprov posts this alert itself.
Nothing is kept of it here: the alert names the bad nodes, and is resolved once none of them is a suspect any more.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlencode

from provisioner.common import manual
from provisioner.common.text import counted
from provisioner.monitoring.alertmanager import Alertmanager

if TYPE_CHECKING:
    from provisioner.verify.results import Breaker

NAME = "GpuprovBreakerTripped"
LASTS = timedelta(days=7)
"""An alert that nobody posts again ends by then."""
NODES = "nodes"
"""Annotation with the names of the bad nodes, separated by spaces."""


class Trip(NamedTuple):
    """What a verdict says of the breaker. `breaker`: None if it did not trip; `suspects`: nodes that are neither in
    quarantine nor known to be healthy."""

    breaker: Breaker | None
    suspects: Collection[str] = ()


def settle(url: str, cluster: str, trip: Trip) -> None:
    """Post the alert if the breaker tripped. Of an earlier trip, take out the nodes that are no suspects any more, and
    resolve it once there is none. `url`: of the Alertmanager, without /api; `cluster`: the label of the cluster. Raises
    GpuprovError."""
    with Alertmanager(url) as manager:
        posted = _posted_annotations(manager, cluster)
        old_nodes = (posted or {}).get(NODES, "").split()
        bad = trip.breaker.bad if trip.breaker is not None else ()
        nodes = sorted({*old_nodes, *bad} & {*trip.suspects})
        if trip.breaker is not None:
            _post(manager, cluster, {**_annotations(trip.breaker), NODES: " ".join(nodes)}, LASTS)
        elif posted is not None and not nodes:
            _post(manager, cluster, posted, timedelta(0))
        elif posted is not None and nodes != old_nodes:
            _post(manager, cluster, {**posted, NODES: " ".join(nodes)}, LASTS)


def _posted_annotations(manager: Alertmanager, cluster: str) -> dict[str, str] | None:
    """Of the alert that fires; None if it does not. Raises GpuprovError."""
    query = [("filter", f'alertname="{NAME}"'), ("filter", f'cluster="{cluster}"')]
    rows = manager.request("GET", f"alerts?{urlencode(query)}")
    try:
        for row in rows:
            if (row["labels"]["alertname"], row["labels"]["cluster"]) == (NAME, cluster):
                return {str(name): str(text) for name, text in row["annotations"].items()}
    except (TypeError, LookupError, AttributeError) as error:
        raise manager.unfit() from error
    return None


def _annotations(breaker: Breaker) -> dict[str, str]:
    return {
        "summary": f"{counted(len(breaker.bad), 'node')} turned bad at once, and none was put into quarantine",
        "description": breaker.message,
        "runbook": manual.see("quarantine", "The breaker").strip("`"),
        "command": "gpuprov verify FILE",
    }


def _post(manager: Alertmanager, cluster: str, annotations: Mapping[str, str], lasts: timedelta) -> None:
    start = datetime.now(UTC)
    document = {
        "labels": {"alertname": NAME, "cluster": cluster, "severity": "page"},
        "annotations": annotations,
        "startsAt": start.isoformat(),  # Alertmanager takes endsAt for an alert without it
        "endsAt": (start + lasts).isoformat(),
    }
    manager.request("POST", "alerts", [document])
