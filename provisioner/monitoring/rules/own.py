"""Alerts on Prometheus itself: rules that fail, an Alertmanager that is gone, and the dead man's switch."""

from __future__ import annotations

from provisioner.monitoring.alertmanager import WATCHDOG
from provisioner.monitoring.fleet import WatchedFleet
from provisioner.monitoring.models import AlertRule, RuleGroup, Series
from provisioner.monitoring.rules.series import constant, rising

NO_MANAGER = "PrometheusWithoutAlertmanager"


def rule_group(fleet: WatchedFleet) -> RuleGroup:
    """The same for every cluster but for the label `cluster`."""
    labels = {"cluster": fleet.cluster}
    no_manager = "prometheus_notifications_alertmanagers_discovered"
    failures = "prometheus_rule_evaluation_failures_total"
    rule_group_label = {"rule_group": "/etc/prometheus/rules/gpuprov.yml;gpuprov-nodes"}
    rules = (
        AlertRule(
            name=WATCHDOG,
            expr="vector(1)",
            pending="0s",
            severity="none",
            summary="Prometheus and Alertmanager deliver alerts",
            description="This alert always fires. Send it to a service that alarms when it stays away.",
            doc='monitoring "Dead man\'s switch"',
            command="amtool alert query alertname=GpuprovWatchdog",
            firing=(),
            silent=(),
            fires_at_s=60,
            labels=labels,
        ),
        AlertRule(
            name=NO_MANAGER,
            expr=f"{no_manager} < 1 or absent({no_manager})",
            pending="5m",
            severity="page",
            summary="Prometheus knows no Alertmanager, or does not scrape itself: nobody may get an alert",
            description="The section `alerting` of prometheus.yml names none, or its service discovery finds none. "
            "Only the dead man's switch tells of it.",
            doc='monitoring "Dead man\'s switch"',
            command="promtool check config /etc/prometheus/prometheus.yml",
            firing=(Series(no_manager, constant(0)),),
            silent=(Series(no_manager, constant(1)),),
            fires_at_s=360,
            twin=WATCHDOG,
            labels=labels,
        ),
        AlertRule(
            name="PrometheusRuleFailures",
            expr=f'increase({failures}{{rule_group=~".*;gpuprov-.*"}}[10m]) > 0',
            pending="5m",
            severity="ticket",
            summary="Prometheus fails to evaluate {{ $labels.rule_group }}",
            description="Alerts of this group may be missing. /rules of Prometheus shows the error.",
            doc="monitoring",
            command="promtool check rules /etc/prometheus/rules/*.yml",
            firing=(Series(failures, rising(1), rule_group_label),),
            silent=(Series(failures, constant(3), rule_group_label),),
            fires_at_s=600,
            twin=WATCHDOG,
            labels=labels,
        ),
    )
    return RuleGroup(f"gpuprov-prometheus-{fleet.cluster}", rules)
