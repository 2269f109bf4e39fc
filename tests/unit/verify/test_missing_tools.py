"""A missing tool that a role was to install makes its check unknown; without a lock the check is skipped."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from provisioner.verify.expectations import Expected
from provisioner.verify.pytest_runner import Case
from tests.support.healthy_bundle import bundle, expected, healthy
from tests.support.judging import judge

Texts = dict[str, Any]
P4D = "p4d.24xlarge"
UNWATCHED = "Error: Health watches not enabled. Please enable watches. \n"


def status(check: str, texts: Texts, expectation: Expected) -> str:
    verdict = judge({"n": Case(bundle(texts), expectation)})["n"]
    return next(c.status for c in verdict.checks if c.id == check)


def unlocked(expectation: Expected) -> Expected:
    return replace(expectation, packages=None, dcgm_exporter=None, tuned=None)


@pytest.mark.parametrize("check", ["dcgm.health", "dcgm.health_warning"])
def test_watches_that_role_dcgm_exporter_sets(check: str) -> None:
    texts: Texts = dict(healthy(P4D)) | {"dcgmi-health.json": UNWATCHED}
    assert status(check, texts, expected(P4D)) == "unknown"
    assert status(check, texts, unlocked(expected(P4D))) == "skip"


def without_nvme_cli(texts: Texts) -> Texts:
    """No disk says anything of its health, and dpkg has no nvme-cli."""
    host: dict[str, Any] = json.loads(str(texts["host.json"]))
    host = {name: value for name, value in host.items() if name != "smart"}
    assert "nvme-cli" not in texts["packages.txt"]
    return texts | {"host.json": json.dumps(host)}


def test_nvme_cli_that_role_base_installs() -> None:
    texts = without_nvme_cli(dict(healthy(P4D)))
    assert status("storage.nvme_wear", texts, expected(P4D)) == "unknown"
    assert status("storage.nvme_wear", texts, unlocked(expected(P4D))) == "skip"
    listed = texts | {"packages.txt": f"{texts['packages.txt']}nvme-cli\t2.4\tii \n"}
    assert status("storage.nvme_wear", listed, expected(P4D)) == "skip"
