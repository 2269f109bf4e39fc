"""docs/extending/alert.md is true: its rule is exported in a copy of the code, and promtool shows that it fires."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.support.extending import copied, python
from tests.support.prometheus import TOOLS

pytestmark = [pytest.mark.heavy]

FIRED = """
import sys
from pathlib import Path
from provisioner.monitoring.rules import rule_groups
from tests.unit.monitoring.test_alert_rules import fleet, run
folder = Path(sys.argv[1])
(group,) = [group for group in rule_groups(fleet(folder)) if group.name == "gpuprov-host-vision"]
done = run(folder, group)
print([rule.name for rule in group.rules], done.stdout, done.stderr)
sys.exit(done.returncode)
"""
"""What test_alert_rules.py does with every group of rules, with the page's."""


def test_a_rule_is_exported_and_tested_as_the_page_says(tmp_path: Path) -> None:
    assert len(copied("alert.md", tmp_path)) == 3
    tools = tmp_path / TOOLS.relative_to(TOOLS.parents[3])
    tools.parent.mkdir(parents=True)
    tools.symlink_to(TOOLS)
    metrics = python(
        tmp_path, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist",
        "tests/unit/monitoring/test_dashboards.py::test_every_metric_is_one_that_an_exporter_gives",
    )  # fmt: skip
    assert metrics.returncode == 0 and " passed" in metrics.stdout, metrics.stdout[-3000:]
    fired = python(tmp_path, "-c", FIRED, str(tmp_path))
    assert fired.returncode == 0, fired.stdout[-3000:] + fired.stderr[-3000:]
    assert "NodeOverloaded" in fired.stdout
    shutil.rmtree(tmp_path)
