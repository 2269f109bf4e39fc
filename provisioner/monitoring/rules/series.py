"""Series for the tests of rules: what exporters of a group's nodes give, and selectors of one cluster."""

from __future__ import annotations

from collections.abc import Mapping

from provisioner.monitoring.fleet import WatchedFleet, WatchedGroup
from provisioner.monitoring.models import DCGM_JOB, NODE_JOB, SCRAPE_S, TARGET_LABELS, Series

ON_NODE = ", ".join(TARGET_LABELS)
ON_GROUP = ", ".join(label for label in TARGET_LABELS if label != "node")
"""As an aggregation has them."""
VERIFY = "gpuprov verify FILE --node {{ $labels.node }}"
"""The command of an alert that a verdict explains."""
LONG_S = 7 * 3600
"""Seconds that a series of a test lasts: longer than any test looks."""


def select(fleet: WatchedFleet, metric: str, **labels: str) -> str:
    """The metric's series of this cluster alone: one Prometheus may watch several.

    >>> select(fleet, "up", job="gpuprov-node")
    'up{cluster="vision",job="gpuprov-node"}'
    """
    matchers = {"cluster": fleet.cluster, **labels}
    return f"{metric}{{{','.join(_matcher(label, value) for label, value in matchers.items())}}}"


def _matcher(label: str, value: str) -> str:
    """`!value`: unequal; `~value`: a regular expression."""
    operator = {"!": "!=", "~": "=~"}.get(value[:1], "=")
    return f'{label}{operator}"{value.lstrip("!~")}"'


def series_text(metric: str, labels: Mapping[str, str]) -> str:
    """As Prometheus writes a series."""
    matchers = ",".join(f'{name}="{value}"' for name, value in labels.items())
    return f"{metric}{{{matchers}}}" if matchers else metric


def duration(seconds: int) -> str:
    """As Prometheus writes it, such as 20m or 90s."""
    for size, unit in ((3600, "h"), (60, "m")):
        if seconds % size == 0:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"


def samples(seconds: int) -> int:
    """Scrapes within so many seconds."""
    return seconds // SCRAPE_S


def constant(value: float | str) -> str:
    """Samples that stay the same, in promtool's notation."""
    return f"{value}x{samples(LONG_S)}" if isinstance(value, str) else f"{value:g}x{samples(LONG_S)}"


def rising(each: float) -> str:
    """A counter that grows by `each` from scrape to scrape."""
    return f"0+{each:g}x{samples(LONG_S)}"


def up(fleet: WatchedFleet, group: WatchedGroup, job: str = NODE_JOB, value: int = 1, node: int = 0) -> Series:
    """Whether a node's exporter answered the scrape."""
    return Series("up", constant(value), {**_target(fleet, group, node), "job": job})


def on_node(fleet: WatchedFleet, group: WatchedGroup, metric: str, values: str, node: int = 0, **labels: str) -> Series:
    """A series of node_exporter or its textfile collector."""
    return Series(metric, values, {**_target(fleet, group, node), "job": NODE_JOB, **labels})


def on_gpu(
    fleet: WatchedFleet, group: WatchedGroup, metric: str, values: str, gpu: int = 0, node: int = 0, **labels: str
) -> Series:
    """A series of dcgm-exporter, with the labels by which rules aggregate."""
    target = _target(fleet, group, node)
    identity = {"gpu": str(gpu), "UUID": f"GPU-{node:04d}-{gpu:04d}"}
    return Series(metric, values, {**target, "job": DCGM_JOB, **identity, **labels})


def on_gpus(
    fleet: WatchedFleet, group: WatchedGroup, metric: str, values: str, node: int = 0, less: int = 0
) -> tuple[Series, ...]:
    """One series for each GPU of a node, but the last `less`."""
    return tuple(on_gpu(fleet, group, metric, values, gpu, node) for gpu in range(group.machine.gpu_count - less))


def _target(fleet: WatchedFleet, group: WatchedGroup, node: int) -> dict[str, str]:
    return fleet.labels(group, f"{group.name}-{node}")
