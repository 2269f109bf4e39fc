"""Known vulnerabilities of an image: what an installed scanner reads from its bill of materials and a database on this
computer. What was not scanned is unknown, never "none".

grype (https://github.com/anchore/grype) and trivy (https://github.com/aquasecurity/trivy) are recognised by what they
wrote. Neither is asked to fetch anything: the database is a folder that somebody else keeps up to date.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from provisioner.common.text import printable
from provisioner.lifecycle.images.manifest import Vulnerabilities

SCAN_S = 900.0
SEVERITIES = ("critical", "high", "medium", "low", "negligible", "unknown")
"""Worst first. trivy knows no negligible."""
COMMANDS = {
    "grype": ("grype", "sbom:{bill}", "-o", "json"),
    "trivy": (
        "trivy", "sbom", "--quiet", "--format", "json", "--skip-db-update", "--skip-java-db-update", "--offline-scan",
        "--cache-dir", "{database}", "{bill}",
    ),
}  # fmt: skip
"""https://trivy.dev/docs/latest/guide/advanced/air-gap/"""
ENVIRONMENT = {
    "GRYPE_DB_AUTO_UPDATE": "false", "GRYPE_CHECK_FOR_APP_UPDATE": "false", "GRYPE_DB_CACHE_DIR": "{database}",
}  # fmt: skip
"""https://oss.anchore.com/docs/guides/vulnerability/database/; grype refuses a database that is five days old."""


class NotScannedError(Exception):
    """Why it is not known what is vulnerable."""


@dataclass(frozen=True, slots=True)
class Scan:
    """What a scanner found, and its own words."""

    found: Vulnerabilities
    text: str


def scan(bill: Path, scanner: str, database: Path, system: str) -> Scan:
    """Scan the bill of an image of that distribution (ubuntu-24.04). Raises NotScannedError."""
    program = shutil.which(scanner)
    if program is None:
        raise NotScannedError(f"{scanner} is not installed")
    if not database.is_dir():
        raise NotScannedError(f"there is no database: {database} is not a folder")
    paths = {"bill": str(bill), "database": str(database)}
    command = [program, *(argument.format(**paths) for argument in COMMANDS[scanner][1:])]
    environment = {**os.environ, **{key: value.format(**paths) for key, value in ENVIRONMENT.items()}}
    try:
        done = subprocess.run(
            command, capture_output=True, stdin=subprocess.DEVNULL, timeout=SCAN_S, check=False, env=environment
        )
    except subprocess.TimeoutExpired:
        raise NotScannedError(f"{scanner} did not finish in {SCAN_S:.0f} s") from None
    except OSError as error:
        raise NotScannedError(f"{scanner} could not be run: {error.strerror}") from None
    if done.returncode:
        lines = done.stderr.decode("utf-8", "replace").strip().splitlines() or ["it said nothing"]
        raise NotScannedError(f"{scanner} ended with status {done.returncode}: {str(printable(lines[-1]))[:300]}")
    text = done.stdout.decode("utf-8", "replace")
    return Scan(parse(text, system), text)


def parse(text: str, system: str) -> Vulnerabilities:
    """Summarise a scanner's JSON. Raises NotScannedError for what is none, and for a report that does not say that it
    looked at this distribution's packages: then it found nothing because it looked for nothing."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        raise NotScannedError("the scanner's report is not JSON") from None
    try:
        if isinstance(document, dict) and isinstance(document.get("matches"), list):
            return _grype(document, system)
        if isinstance(document, dict) and "SchemaVersion" in document:
            return _trivy(document, system)
    except (KeyError, TypeError, AttributeError) as error:
        raise NotScannedError(f"the scanner's report is not as expected: {type(error).__name__} {error}") from None
    raise NotScannedError("the report is neither grype's nor trivy's")


def _grype(document: Mapping[str, Any], system: str) -> Vulnerabilities:
    """`grype -o json`. descriptor.name is empty in some releases (https://github.com/anchore/grype/issues/1538); the
    database's date is in db, or in db.status since its schema 6."""
    distro, descriptor = document.get("distro") or {}, document.get("descriptor") or {}
    _same(f"{distro.get('name') or ''}-{distro.get('version') or ''}", system)
    database = descriptor.get("db") or {}
    built = database.get("built") or (database.get("status") or {}).get("built") or ""
    severities = {}
    for match in document["matches"]:
        vulnerability, artifact = match["vulnerability"], match["artifact"]
        fixed = (vulnerability.get("fix") or {}).get("state") == "fixed"
        severities[vulnerability["id"], artifact["name"]] = (vulnerability.get("severity"), fixed)
    return _summary(f"grype {descriptor.get('version') or ''}".strip(), str(built), severities)


def _trivy(document: Mapping[str, Any], system: str) -> Vulnerabilities:
    """`trivy sbom --format json`. It names neither its version nor the database's date."""
    known = (document.get("Metadata") or {}).get("OS") or {}
    _same(f"{known.get('Family') or ''}-{known.get('Name') or ''}", system)
    results = [candidate for candidate in document.get("Results") or () if candidate.get("Class") == "os-pkgs"]
    if not results:
        raise NotScannedError("the report has no result for the distribution's packages")
    severities = {}
    for result in results:
        for row in result.get("Vulnerabilities") or ():
            severities[row["VulnerabilityID"], row["PkgName"]] = (row.get("Severity"), bool(row.get("FixedVersion")))
    return _summary("trivy", "", severities)


def _same(looked_at: str, system: str) -> None:
    """Whether a scanner looked at that distribution: debian-12.11 is debian-12."""
    if looked_at != system and not looked_at.startswith(f"{system}."):
        raise NotScannedError(
            f"the report is about {str(printable(looked_at.strip('-')))[:60] or 'no distribution'}, not {system}"
        )


def _summary(scanner: str, database: str, severities: Mapping[tuple[str, str], tuple[Any, bool]]) -> Vulnerabilities:
    levels = [str(severity or "").lower() for severity, _ in severities.values()]
    count = Counter(level if level in SEVERITIES else "unknown" for level in levels)
    return Vulnerabilities(
        scanner=str(printable(scanner))[:60], database=str(printable(database))[:40],
        counts={level: count[level] for level in SEVERITIES}, fixable=sum(fixed for _, fixed in severities.values()),
    )  # fmt: skip


def summary_line(vulnerabilities: Vulnerabilities | None, reason: str) -> str:
    """In a line: "2 critical, 5 high … 3 of them fixed in a newer version (grype 0.75.0, 2024-04-10)", or "not
    scanned: why"."""
    if vulnerabilities is None:
        return f"not scanned: {reason or 'the recipe names no database (image.scan)'}"
    counts = ", ".join(f"{number} {level}" for level, number in vulnerabilities.counts.items() if number)
    fixed = f"; {vulnerabilities.fixable} fixed in a newer version" if vulnerabilities.fixable else ""
    source = ", ".join(filter(None, (vulnerabilities.scanner, vulnerabilities.database[:10])))
    return f"{counts or 'none known'}{fixed} ({source})"
