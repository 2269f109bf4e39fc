"""All forms of a report on disk."""

from __future__ import annotations

import json
from pathlib import Path

from provisioner.paths import write_whole
from provisioner.verify.report.html import html
from provisioner.verify.report.junit import junit
from provisioner.verify.results import Report


def write_all(report: Report, directory: Path) -> dict[str, Path]:
    """Write report.json, report.xml (JUnit) and report.html; the paths by kind: json, junit, html."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    paths = {
        kind: directory / f"report.{end}" for kind, end in {"json": "json", "junit": "xml", "html": "html"}.items()
    }
    write_whole(paths["json"], json.dumps(report.to_json(), indent=1, default=str) + "\n")
    write_whole(paths["junit"], junit(report))
    write_whole(paths["html"], html(report))
    return paths
