"""What to do about a full disk: a person deletes files. Neither `gpuprov up` nor a new machine helps."""

from __future__ import annotations

import pytest

from provisioner.verify.registry import declared
from provisioner.verify.report.terminal import next_steps
from provisioner.verify.results import CheckResult, NodeReport, Report
from provisioner.verify.runbook import COMMANDS, STEPS

DISK_SPACE = ("storage.full", "storage.tmp", "storage.root_space", "storage.inodes", "container.disk")


@pytest.mark.parametrize("id", DISK_SPACE)
def test_a_check_of_disk_space_asks_for_files_to_be_deleted(id: str) -> None:
    assert {check.action for check in declared() if check.id == id} == {"clean"}


def test_a_full_disk_asks_for_no_command_that_changes_the_machine() -> None:
    full_disk = CheckResult("storage.full", "fatal", "fail", "clean", message="full: / (99%)")
    node = NodeReport("train-0", "train", "here", "p4d.24xlarge", True, (full_disk,))
    assert next_steps(Report((node,), {}, 0.0), "c.yaml") == [
        "clean train-0: gpuprov exec c.yaml --node train-0 df -h, then delete what fills it: "
        "`gpuprov docs runbook clean`"
    ]
    commands = " ".join((COMMANDS["clean"], *STEPS["clean"]))
    assert "gpuprov up FILE" not in commands and "gpuprov replace" not in commands
    assert any("gpuprov verify FILE --node NODE" in step for step in STEPS["clean"]), "the way back into service"
