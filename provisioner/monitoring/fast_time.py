"""The exported rules with all times divided, so that what takes minutes is tested in seconds.

Divided are the intervals of scrapes and evaluations, the windows of the expressions, `for` and `keep_firing_for`, the
horizon of predict_linear, and the ages that are compared with time(). Counts of samples, and rates per second, stay
what they are.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

_DURATION = re.compile(r"([0-9]+)(ms|[smhd])")
_UNIT_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_WINDOW = re.compile(r"\[([0-9]+(?:ms|[smhd]))\]")
_AGE = re.compile(r"(time\(\) - \w+(?:\{[^}]*\})? > )([0-9]+)\b")
_HORIZON = re.compile(r"(\[[0-9]+(?:ms|[smhd])\], )([0-9]+)\b")
"""Of predict_linear, whose second argument it is."""
_SERVER_TIMES = ("scrape_interval", "scrape_timeout", "evaluation_interval")
_MANAGER_TIMES = ("group_wait", "group_interval", "repeat_interval")


def hurry(folder: Path, speed: int) -> None:
    """Divide the times of an exported folder (prometheus.yml, alertmanager.yml, rules/) by `speed`."""
    _rewrite(folder / "prometheus.yml", lambda document: _divide(document, _SERVER_TIMES, speed))
    _rewrite(folder / "alertmanager.yml", lambda document: _divide(document, _MANAGER_TIMES, speed))
    for file in sorted((folder / "rules").glob("*.yml")):
        _rewrite(file, lambda document: _rules(document, speed))


def divided(duration: str, speed: int) -> str:
    """
    >>> divided("10m", 15), divided("30s", 60), divided("0s", 15)
    ('40s', '500ms', '0s')
    """
    match = _DURATION.fullmatch(duration)
    assert match is not None, duration
    milliseconds = int(match[1]) * _UNIT_MS[match[2]] // speed
    return f"{milliseconds}ms" if milliseconds % 1000 else f"{milliseconds // 1000}s"


def expression(expr: str, speed: int) -> str:
    """An expression with shorter windows and ages.

    >>> expression("increase(a[15m]) > 0", 15), expression('time() - a{b="c"} > 1800', 15)
    ('increase(a[60s]) > 0', 'time() - a{b="c"} > 120')
    >>> expression("predict_linear(a[6h], 14400) < 0", 15)
    'predict_linear(a[1440s], 960) < 0'
    """
    shorter = _WINDOW.sub(lambda match: f"[{divided(match[1], speed)}]", expr)
    for seconds in (_AGE, _HORIZON):
        shorter = seconds.sub(lambda match: f"{match[1]}{int(match[2]) / speed:g}", shorter)
    return shorter


def _rules(document: Any, speed: int) -> None:
    for group in document["groups"]:
        _divide(group, ("interval",), speed)
        for rule in group["rules"]:
            rule["expr"] = expression(rule["expr"], speed)
            _divide(rule, ("for", "keep_firing_for"), speed)


def _divide(document: Any, names: tuple[str, ...], speed: int) -> None:
    """Divide the durations under these keys, at any depth."""
    for key, value in document.items() if isinstance(document, dict) else enumerate(document):
        if key in names:
            document[key] = divided(value, speed)
        elif isinstance(value, dict | list):
            _divide(value, names, speed)


def _rewrite(file: Path, change: Any) -> None:
    document = yaml.safe_load(file.read_text(encoding="utf-8"))
    change(document)
    file.write_text(yaml.safe_dump(document, sort_keys=False, width=1_000_000), encoding="utf-8")
