"""JUnit XML: one test suite for each node; an unknown fatal check is an error, a failed one a failure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from xml.sax.saxutils import escape, quoteattr

from provisioner.verify.results import CheckResult, NodeReport, Report

_ILLEGAL = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def junit(report: Report) -> Iterator[str]:
    """The document, suite by suite. Warnings and informative checks that are not met are failures too, marked by their
    type; a warning that is acknowledged is skipped."""
    outcomes = Counter(_outcome(check) for node in report.nodes for check in _checks(node))
    counts = {key: outcomes[kind] for key, kind in (("failures", "failure"), ("errors", "error"))}
    yield "<?xml version='1.0' encoding='utf-8'?>\n"
    time = f"{report.seconds.get('verify', 0):.3f}"
    yield _tag("testsuites", name=report.title, time=time, tests=outcomes.total(), **counts) + "\n"
    inner: dict[int, tuple[str, str]] = {}
    for node in report.nodes:
        yield _suite(node, report.started, inner) + "\n"
    yield "</testsuites>\n"


def _checks(node: NodeReport) -> Sequence[CheckResult]:
    return node.checks or (
        CheckResult("verify.checks", "fatal", "unknown", "reconfigure", message=node.error or "nothing was checked"),
    )


def _suite(node: NodeReport, started: float, inner: dict[int, tuple[str, str]]) -> str:
    """`inner` keeps what is in a test case by its result, which many nodes can share."""
    counts = {"tests": 0, "failures": 0, "errors": 0, "skipped": 0}
    cases, attributes = [], f' classname={quoteattr(_text(node.name))} time="0">'
    for check in _checks(node):
        outcome = _outcome(check)
        counts["tests"] += 1
        if outcome:
            counts[{"failure": "failures", "error": "errors"}.get(outcome, outcome)] += 1
        if id(check) not in inner or not node.checks:
            inner[id(check)] = (f"  <testcase name={quoteattr(_text(check.id))}", _inner(check, outcome))
        begin, body = inner[id(check)]
        cases.append(f"{begin}{attributes}{body}</testcase>")
    properties = {key: getattr(node, key) for key in ("group", "site", "machine")}
    properties |= {"simulated": "true"} if node.simulated else {}
    stamp = datetime.fromtimestamp(started, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    head = _tag("testsuite", name=node.name, timestamp=stamp, hostname=node.name, **counts, time="0")
    known = "".join(_tag("property", name=key, value=value)[:-1] + "/>" for key, value in properties.items())
    return "\n".join([head, f"  <properties>{known}</properties>", *cases, "</testsuite>"])


def _inner(check: CheckResult, outcome: str) -> str:
    if not outcome:
        return ""
    if outcome == "skipped":
        owned = f"acknowledged by {check.acknowledgement}: " if check.acknowledged is not None else ""
        return _tag(outcome, message=owned + check.message) + f"</{outcome}>"
    details = escape(_text(f"{check.says}\nexpected: {check.expected}\nactual: {check.actual}"))
    return _tag(outcome, message=check.message, type=f"{check.severity}.{check.action}") + f"{details}</{outcome}>"


def _tag(name: str, /, **attributes: object) -> str:
    """A tag that opens."""
    return f"<{name}" + "".join(f" {key}={quoteattr(_text(value))}" for key, value in attributes.items()) + ">"


def _outcome(check: CheckResult) -> str:
    if check.acknowledged is not None:
        return "skipped"
    if check.status == "fail":
        return "failure"
    if check.status == "unknown":
        return "error" if check.severity == "fatal" else "skipped"
    return "skipped" if check.status in ("skip", "note") else ""


def _text(value: object) -> str:
    """Without the characters that XML cannot hold: tools print them."""
    return _ILLEGAL.sub("\ufffd", str(value))
