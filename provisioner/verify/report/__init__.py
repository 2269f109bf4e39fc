"""A report for every reader: JSON and JUnit for machines, a table for a terminal, one HTML page for people."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from provisioner.paths import write_whole
from provisioner.verify.report import compare
from provisioner.verify.report.html import html
from provisioner.verify.report.junit import junit
from provisioner.verify.results import Report


def write(report: Report, directory: Path, *, title: str, previous: str | Path | None = None) -> Path:
    """Write report.json, report.xml (JUnit) and report.html into a directory; the path of the page. `previous`: the
    page of an earlier run, whose report.json the page is compared with."""
    before = compare.earlier(previous)
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    titled = replace(report, title=title)
    write_whole(directory / "report.json", json.dumps(report.to_json(), indent=1, default=str) + "\n")
    write_whole(directory / "report.xml", junit(titled))
    write_whole(directory / "report.html", html(titled, before))
    return directory / "report.html"
