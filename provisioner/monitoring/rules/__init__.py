"""The rules of one cluster, as Prometheus reads them, and their tests, as `promtool test rules` reads them."""

from __future__ import annotations

from typing import Any

from provisioner.common import manual
from provisioner.monitoring.fleet import WatchedFleet
from provisioner.monitoring.models import AlertRule, RecordingRule, RuleGroup
from provisioner.monitoring.rules import capacity, checks, efa, gpus, host, images, network, nodes, own, usage, xids


def rule_groups(fleet: WatchedFleet) -> tuple[RuleGroup, ...]:
    """All of them, in the order of the file."""
    by_subject = (nodes, capacity, host, checks, gpus, xids, network, efa, images, usage, own)
    return tuple(group for subject in by_subject if (group := subject.rule_group(fleet)) is not None)


def alert_rules(fleet: WatchedFleet) -> tuple[AlertRule, ...]:
    """The alerting rules alone."""
    return tuple(rule for group in rule_groups(fleet) for rule in group.rules if isinstance(rule, AlertRule))


def document(group: RuleGroup) -> dict[str, Any]:
    """A rule file of Prometheus 2.42 or later (`keep_firing_for`)."""
    rules = [_alert(rule) if isinstance(rule, AlertRule) else _recording(rule) for rule in group.rules]
    return {"groups": [{"name": group.name, "interval": f"{group.interval_s}s", "rules": rules}]}


def _alert(rule: AlertRule) -> dict[str, Any]:
    page, _, heading = rule.doc.partition(" ")
    annotations = {
        "summary": rule.summary,
        "description": rule.description,
        "runbook": manual.see(page, heading.strip('"')).strip("`"),
        "command": rule.command,
        "basis": rule.basis,
    }
    body = {
        "alert": rule.name,
        "expr": rule.expr,
        "for": rule.pending,
        "keep_firing_for": rule.keep_firing_for,
        "labels": {"severity": rule.severity, **rule.labels},
        "annotations": {name: text for name, text in annotations.items() if text},
    }
    return {key: value for key, value in body.items() if value}


def _recording(rule: RecordingRule) -> dict[str, Any]:
    return {"record": rule.record, "expr": rule.expr}
