"""docs/extending/alert.md is true: its rule is exported in a copy of the code, and promtool shows that it fires."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.support.extending import copied, python
from tests.support.prometheus import TOOLS

pytestmark = [pytest.mark.heavy]


def test_a_rule_is_exported_and_tested_as_the_page_says(tmp_path: Path) -> None:
    assert len(copied("alert.md", tmp_path)) == 3
    tools = tmp_path / TOOLS.relative_to(TOOLS.parents[3])
    tools.parent.mkdir(parents=True)
    tools.symlink_to(TOOLS)
    done = python(
        tmp_path, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist",
        "tests/unit/monitoring/test_alert_rules.py::test_rules_fire_and_are_silent[nvswitch and EFA]",
        "tests/unit/monitoring/test_dashboards.py::test_every_metric_is_one_that_an_exporter_gives",
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:]
    assert " passed" in done.stdout
    script = (
        "from provisioner.monitoring.rules import alert_rules\nfrom tests.support.watched_nodes import example\n"
        "print([rule.name for rule in alert_rules(example('aws-p4d.yaml'))])"
    )
    assert "NodeOverloaded" in python(tmp_path, "-c", script).stdout
    shutil.rmtree(tmp_path)
