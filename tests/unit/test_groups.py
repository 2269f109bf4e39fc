"""Which tests run in the same process (tests/conftest.py)."""

from __future__ import annotations

import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

from tests.conftest import group
from tests.support.sandbox_cluster import ROOT


@pytest.mark.parametrize(
    ("nodeid", "name"),
    [
        ("tests/sandbox/test_up.py::test_x[a::b@c]", "p4d"),
        ("tests/sandbox/test_driver.py::test_x", "lone"),
        ("tests/unit/terraform/aws/test_aws_plan.py::test_x", "aws"),
        ("tests/sandbox/test_broken_runs.py::test_x[1]", "tests/sandbox/test_broken_runs.py::test_x[1]"),
        ("tests/unit/plan/test_plan.py::test_x", "tests/unit/plan/test_plan.py"),
    ],
)
def test_the_group_of_a_test(nodeid: str, name: str) -> None:
    assert group(nodeid) == name


def test_the_tests_of_a_file_run_in_one_process() -> None:
    """By pytest-xdist itself: which process ran which test."""
    files = ["tests/unit/plan/test_plan.py", "tests/unit/common/test_suggest.py"]
    argv = [sys.executable, "-m", "pytest", "-v", "-n", "2", "-p", "no:cacheprovider", *files]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=True)
    processes = defaultdict(set)
    for line in done.stdout.splitlines():
        if " PASSED " in line:
            worker, _, result = line.partition("]")
            processes[Path(result.split(" PASSED ")[1].partition("::")[0]).name].add(worker)
    assert {name: len(workers) for name, workers in processes.items()} == {"test_plan.py": 1, "test_suggest.py": 1}
