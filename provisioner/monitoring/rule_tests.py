"""Tests of the rules, for `promtool test rules`: each rule fires, and is silent for a healthy node, none and NaN."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from provisioner.monitoring.alertmanager import WATCHDOG
from provisioner.monitoring.models import SCRAPE_S, AlertRule, RuleGroup, Series
from provisioner.monitoring.rules.checks import BY_CHECK
from provisioner.monitoring.rules.nodes import MISSING
from provisioner.monitoring.rules.own import NO_MANAGER
from provisioner.monitoring.rules.series import constant, series_text

ABOUT_NOTHING = (MISSING, NO_MANAGER)
"""Rules that fire where there is no series at all."""


def document(group: RuleGroup, rule_file: str) -> dict[str, Any]:
    """The test file of one group of rules; `rule_file` has the group, by a path from the test file."""
    rules = [rule for rule in group.rules if isinstance(rule, AlertRule)]
    # Each check has series of its own, so that one test has all of them: promtool evaluates every rule in each test.
    of_checks = [rule for rule in rules if rule.severity == BY_CHECK]
    single = [case for rule in rules if rule.severity != BY_CHECK for case in _cases([rule])]
    return {
        "rule_files": [rule_file],
        "evaluation_interval": "1m",
        "tests": [*(_cases(of_checks) if of_checks else ()), *single],
    }


def _cases(rules: Sequence[AlertRule]) -> Iterator[dict[str, Any]]:
    first = rules[0]
    yield _test(rules, "fires", [series for rule in rules for series in rule.firing], fires=True)
    if first.name == WATCHDOG:
        return
    if first.silent is not None:
        silent = [series for rule in rules for series in rule.silent or ()]
        yield _test(rules, "is silent for a healthy node", silent, fires=False)
    if first.name not in ABOUT_NOTHING:
        yield _test(rules, "is silent without any series", (), fires=False)
    if not first.counts_nan and first.twin:
        unanswered = [Series(row.metric, constant("NaN+0"), row.labels) for rule in rules for row in rule.firing]
        yield _test(rules, "is silent for NaN", unanswered, fires=False)


def _test(rules: Sequence[AlertRule], outcome: str, series: Iterable[Series], *, fires: bool) -> dict[str, Any]:
    return {
        "name": f"{rules[0].name if len(rules) == 1 else 'every check'} {outcome}",
        "interval": f"{SCRAPE_S}s",
        "input_series": [{"series": series_text(row.metric, row.labels), "values": row.values} for row in series],
        "promql_expr_test": [
            {
                "expr": f"count({_alert(rule)})",
                "eval_time": f"{rule.fires_at_s}s",
                "exp_samples": [{"labels": "{}", "value": 1}] if fires else [],
            }
            for rule in rules
        ],
    }


def _alert(rule: AlertRule) -> str:
    return series_text("ALERTS", {"alertname": rule.name, "alertstate": "firing", **rule.labels})
