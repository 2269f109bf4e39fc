"""Scanners' reports read by what is in them; what was not scanned, or scanned for nothing, is never "none"."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from provisioner.lifecycle.images.vulnerabilities import SEVERITIES, NotScannedError, parse, scan, summary_line

SCANS = Path(__file__).parent / "scans"


def report(name: str, **changed: Any) -> str:
    document = json.loads((SCANS / f"{name}.json").read_text(encoding="utf-8"))
    return json.dumps({key: value for key, value in {**document, **changed}.items() if value is not None})


@pytest.mark.parametrize(
    ("name", "system", "counts", "fixable", "line"),
    [
        ("grype-ubuntu", "ubuntu-20.04", {"high": 1}, 0, "1 high (grype 0.75.0, 2024-04-10)"),
        ("grype-debian", "debian-10", {"critical": 1, "high": 1, "negligible": 1}, 0,
         "1 critical, 1 high, 1 negligible (grype 0.69.1, 2025-06-18)"),
        ("trivy-debian", "debian-10", {"critical": 1}, 1, "1 critical; 1 fixed in a newer version (trivy)"),
    ],
)  # fmt: skip
def test_a_report_is_counted(name: str, system: str, counts: dict[str, int], fixable: int, line: str) -> None:
    counted = parse(report(name), system)
    assert counted.counts == dict.fromkeys(SEVERITIES, 0) | counts
    assert (counted.fixable, summary_line(counted, "")) == (fixable, line)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "not JSON"),
        ("[]", "neither grype's nor trivy's"),
        ('{"bomFormat": "CycloneDX"}', "neither grype's nor trivy's"),
        (report("grype-debian", distro={"name": "", "version": ""}), "about no distribution, not debian-10"),
        (report("grype-debian", distro=None), "about no distribution"),
        (report("grype-ubuntu"), "about ubuntu-20.04, not debian-10"),
        (report("grype-debian", matches=[{"vulnerability": {}}]), "not as expected"),
        (report("grype-debian", matches=[3]), "not as expected"),
        (report("trivy-debian", Metadata=None), "about no distribution"),
        (report("trivy-debian", Results=None), "no result for the distribution's packages"),
        (report("trivy-debian", Results=[{"Class": "lang-pkgs"}]), "no result for the distribution's packages"),
        (report("trivy-debian", Results=[{"Class": "os-pkgs", "Vulnerabilities": [{}]}]), "not as expected"),
    ],
)  # fmt: skip
def test_what_did_not_look_at_these_packages_is_not_scanned(text: str, reason: str) -> None:
    with pytest.raises(NotScannedError, match=reason):
        parse(text, "debian-10")


def test_none_known_is_said_where_they_were_looked_at() -> None:
    empty = report("trivy-debian", Results=[{"Class": "os-pkgs", "Type": "debian"}])
    assert summary_line(parse(empty, "debian-10"), "") == "none known (trivy)"
    assert summary_line(parse(report("grype-debian", matches=[]), "debian-10"), "").startswith("none known (grype")
    assert summary_line(None, "") == "not scanned: the recipe names no database (image.scan)"


def program(folder: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    file = folder / "grype"
    file.write_text(f"#!/bin/sh\n{text}\n")
    file.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


def test_a_scanner_is_told_to_fetch_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(tmp_path, monkeypatch, f'echo "$* $GRYPE_DB_AUTO_UPDATE $GRYPE_DB_CACHE_DIR" >{tmp_path}/told\n'
            f"cat {SCANS}/grype-debian.json")  # fmt: skip
    done = scan(tmp_path / "bill.json", "grype", tmp_path, "debian-10")
    assert done.found.counts["critical"] == 1
    assert json.loads(done.text)["matches"]
    assert (tmp_path / "told").read_text() == f"sbom:{tmp_path}/bill.json -o json false {tmp_path}\n"


@pytest.mark.parametrize(
    ("text", "database", "reason"),
    [
        ("echo db is too old >&2; exit 1", ".", "ended with status 1: db is too old"),
        ("true", ".", "not JSON"),
        ("true", "none", "no database"),
    ],
)
def test_a_scan_that_fails_is_no_scan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, database: str, reason: str
) -> None:
    program(tmp_path, monkeypatch, text)
    with pytest.raises(NotScannedError, match=reason):
        scan(tmp_path / "bill.json", "grype", tmp_path / database, "debian-10")
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(NotScannedError, match="grype is not installed"):
        scan(tmp_path / "bill.json", "grype", tmp_path, "debian-10")
