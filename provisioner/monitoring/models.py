"""A rule with the series that fire it: the rule file and its `promtool test rules` file come from one row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Severity = Literal["page", "ticket", "none"]
"""page: wake somebody; ticket: by daylight; none: for Alertmanager alone (dead man's switch)."""

TARGET_LABELS = ("cluster", "site", "group", "node", "machine", "gpu_model", "simulated")
"""Labels that the scrape configuration sets. Rules and dashboards use these, never the exporter's `Hostname`."""

NODE_JOB, DCGM_JOB = "gpuprov-node", "gpuprov-dcgm"
"""Scrape jobs: node_exporter, and dcgm-exporter."""

SCRAPE_S = 30
"""Seconds between two scrapes: dcgm-exporter collects every 30 s (dcgm-exporter, pkg/cmd/app.go), so that more often
gives repeats."""


@dataclass(frozen=True, slots=True)
class Series:
    """Samples of one series for a test, one each SCRAPE_S. `values`: promtool's notation, as `0x20 79x60`."""

    metric: str
    values: str
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AlertRule:
    """An alerting rule. `pending`: Prometheus' `for`. `severity`, `summary` and `description` are templates of
    Prometheus. `doc`: the page of `gpuprov docs` that says what to do; `command` does it or shows more. `basis`: what a
    limit rests on.

    `twin` names the rule that fires where the metric of this rule is absent; "" for a rule that is about absence, or
    that needs no metric. `firing` has the series that fire it `fires_at_s` seconds after the first sample, `silent`
    those of a healthy node (None: too many to be tested). `counts_nan`: the rule looks at which series exist, and not
    at their values.
    """

    name: str
    expr: str
    pending: str
    severity: Severity | str
    summary: str
    description: str
    doc: str
    command: str
    firing: tuple[Series, ...]
    silent: tuple[Series, ...] | None
    fires_at_s: int
    twin: str = ""
    basis: str = ""
    keep_firing_for: str = ""
    counts_nan: bool = False
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RecordingRule:
    """A series that Prometheus computes. `about` says in one line what it is, with its unit."""

    record: str
    expr: str
    about: str


@dataclass(frozen=True, slots=True)
class RuleGroup:
    """Rules that Prometheus evaluates together, in this order."""

    name: str
    rules: tuple[AlertRule | RecordingRule, ...]
    interval_s: int = SCRAPE_S
