"""JUnit XML: one test suite for each node; an unknown fatal check is an error, a failed one a failure."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from xml.etree import ElementTree

from provisioner.verify.results import CheckResult, NodeReport, Report

_ILLEGAL = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def junit(report: Report) -> bytes:
    """The document, UTF-8. Warnings and informative checks that are not met are failures too, marked by their type."""
    root = ElementTree.Element("testsuites", name=_text(report.title), time=f"{report.seconds.get('verify', 0):.3f}")
    totals = {"tests": 0, "failures": 0, "errors": 0, "skipped": 0}
    for node in report.nodes:
        counts = _suite(root, node, report.started)
        totals = {key: totals[key] + counts[key] for key in totals}
    for key in ("tests", "failures", "errors"):
        root.set(key, str(totals[key]))
    ElementTree.indent(root)
    document: bytes = ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)
    return document + b"\n"


def _suite(root: ElementTree.Element, node: NodeReport, started: float) -> dict[str, int]:
    suite = ElementTree.SubElement(root, "testsuite", name=_text(node.name))
    suite.set("timestamp", datetime.fromtimestamp(started, UTC).strftime("%Y-%m-%dT%H:%M:%S"))
    suite.set("hostname", _text(node.name))
    properties = ElementTree.SubElement(suite, "properties")
    for key in ("group", "site", "machine"):
        ElementTree.SubElement(properties, "property", name=key, value=_text(getattr(node, key)))
    if node.simulated:
        ElementTree.SubElement(properties, "property", name="simulated", value="true")
    counts = {"tests": 0, "failures": 0, "errors": 0, "skipped": 0}
    checks = node.checks or (
        CheckResult("verify.checks", "fatal", "unknown", "reconfigure", message=node.error or "nothing was checked"),
    )
    for check in checks:
        counts["tests"] += 1
        case = ElementTree.SubElement(suite, "testcase", name=_text(check.id), classname=_text(node.name), time="0")
        outcome = _outcome(check)
        if outcome:
            counts[{"failure": "failures", "error": "errors"}.get(outcome, outcome)] += 1
            element = ElementTree.SubElement(case, outcome, message=_text(check.message))
            if outcome != "skipped":
                element.set("type", f"{check.severity}.{check.action}")
                element.text = _text(f"{check.says}\nexpected: {check.expected}\nactual: {check.actual}")
    for key, value in counts.items():
        suite.set(key, str(value))
    suite.set("time", "0")
    return counts


def _outcome(check: CheckResult) -> str:
    if check.status == "fail":
        return "failure"
    if check.status == "unknown":
        return "error" if check.severity == "fatal" else "skipped"
    return "skipped" if check.status == "skip" else ""


def _text(value: object) -> str:
    """Without the characters that XML cannot hold: tools print them."""
    return _ILLEGAL.sub("\ufffd", str(value))
