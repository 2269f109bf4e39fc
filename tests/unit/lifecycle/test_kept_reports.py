"""`down --keep-reports`: the reports of all runs are copied before the run directory goes."""

from __future__ import annotations

from pathlib import Path

from provisioner.common.paths import private_dir
from provisioner.lifecycle.down import copy_reports
from provisioner.lifecycle.session import open_cluster

FILE = """\
name: vision
sites:
  here: {provider: aws, region: us-east-1}
groups:
  train: {site: here, machine: p4d.24xlarge, count: 1}
"""


def test_reports_are_copied_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "cluster.yaml").write_text(FILE)
    cluster = open_cluster(tmp_path / "cluster.yaml", sandbox=True)
    for name in ("20260101T000000", "20260102T000000"):
        run = private_dir(cluster.paths.runs / name)
        for file in ("report.html", "report.json", "report.xml", "events.jsonl"):
            (run / file).write_text(f"{name} {file}")
    private_dir(cluster.paths.runs / "20260103T000000")  # a run that came to no verdict
    secret = tmp_path / "secret"
    secret.write_text("key")
    (cluster.paths.runs / "20260102T000000" / "report.txt").symlink_to(secret)
    assert copy_reports(cluster, tmp_path / "kept") == 2
    copied_files = sorted(
        str(file.relative_to(tmp_path / "kept")) for file in (tmp_path / "kept").rglob("*") if file.is_file()
    )
    days, kinds = ("20260101", "20260102"), ("html", "json", "xml")
    assert copied_files == [f"{day}T000000/report.{kind}" for day in days for kind in kinds]
    assert (tmp_path / "kept" / "20260101T000000" / "report.json").read_text() == "20260101T000000 report.json"
