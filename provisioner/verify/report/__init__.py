"""A report for every reader: JSON and JUnit for machines, a table for a terminal, one HTML page for people."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from provisioner.common.paths import private_dir, write_whole
from provisioner.verify.report import compare
from provisioner.verify.report.document import check_document, node_document, report_document
from provisioner.verify.report.html import html
from provisioner.verify.report.junit import junit
from provisioner.verify.results import Report


def write(report: Report, directory: Path, *, title: str, previous: str | Path | None = None) -> Path:
    """Write report.json, report.xml (JUnit) and report.html into a directory; the path of the page. `previous`: the
    page of an earlier run, whose report.json the page is compared with."""
    earlier = compare.earlier(previous)
    private_dir(directory)
    titled = replace(report, title=title)
    write_whole(directory / "report.json", _document(report))
    write_whole(directory / "report.xml", junit(titled))
    write_whole(directory / "report.html", html(titled, earlier))
    return directory / "report.html"


def _document(report: Report) -> Iterator[str]:
    """The report's document as a text, node by node, with a line for each check. A thousand nodes have 200,000 of them,
    most of which are one and the same result: that is encoded once."""
    encode = json.JSONEncoder(default=str).encode
    lines: dict[int, str] = {}
    document = report_document(replace(report, nodes=())).to_json() | {"ok": report.ok}
    head, after = _around(encode(document | ({"simulated": True} if report.simulated else {})), "nodes")
    yield head
    for number, node in enumerate(report.nodes):
        for check in node.checks:
            if id(check) not in lines:
                lines[id(check)] = encode(check_document(check).to_json())
        begin, end = _around(encode(node_document(replace(node, checks=())).to_json() | {"ok": node.ok}), "checks")
        yield (",\n" if number else "\n") + begin
        if node.checks:
            yield "\n" + ",\n".join([lines[id(check)] for check in node.checks]) + "\n"
        yield end
    yield ("\n" if report.nodes else "") + after + "\n"


def _around(document: str, key: str) -> tuple[str, str]:
    """An object's text before and after the rows of its empty list `key`. The first one found is it: a quote in a value
    is escaped."""
    head, bracket, after = document.partition(f'"{key}": [')
    return head + bracket, after
