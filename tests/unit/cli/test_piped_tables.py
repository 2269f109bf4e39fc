"""A report in a pipe: a line for each finding, as long as its text."""

from __future__ import annotations

import pytest

from provisioner.cli import tables
from provisioner.verify.report.terminal import table
from provisioner.verify.results import CheckResult, NodeReport, Report

LONG = "explained by gpu.count: 9 pairs differ: GPU1-NIC1 PIX (others NODE); " * 6


def test_a_finding_is_one_line_without_padding(capsys: pytest.CaptureFixture[str]) -> None:
    checks = (
        CheckResult("gpu.topology", "fatal", "fail", "replace", message=LONG.strip()),
        CheckResult("gpu.xid", "fatal", "fail", "reset", message="Xid 79"),
    )
    nodes = tuple(NodeReport(name, "train", "here", "p4d.24xlarge", True, checks) for name in ("train-0", "train-1"))
    tables.show(table(Report(nodes, {}, 0.0), file="c.yaml"))
    lines = capsys.readouterr().out.splitlines()
    findings = [line for line in lines if "gpu.xid " in line or "gpu.topology " in line]
    assert len(findings) == 4 and all(line == line.rstrip() for line in lines)
    assert [line.split() for line in findings if "gpu.xid" in line] == [
        [name, "gpu.xid", "FAIL", "reset", "Xid", "79"] for name in ("train-0", "train-1")
    ]
    assert max(len(line) for line in lines if LONG[:20] not in line) <= 120
