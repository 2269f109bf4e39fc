"""Faults of a site's Terraform state: what they leave is what Terraform itself leaves, and `up` comes out of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from provisioner.common.errors import GpuprovError
from provisioner.common.events import Events
from provisioner.common.paths import ERRORED, STATE, STATE_BACKUP
from provisioner.machines.terraform import binary
from provisioner.machines.terraform.workspace import Workspace
from provisioner.sandbox import state_faults

TEXT = 'resource "terraform_data" "node" {\n  for_each = toset(["a", "b"])\n  input    = each.key\n}\n'


@pytest.fixture
def space(tmp_path: Path) -> Workspace:
    (tmp_path / "main.tf").write_text(TEXT)
    workspace = Workspace(tmp_path, binary.find(), Events())
    workspace.init()
    workspace.plan()
    workspace.apply()
    return workspace


def inject(space: Workspace, name: str) -> None:
    fault = state_faults.find(name)
    assert fault is not None
    state_faults.inject(space.path, fault)


def test_a_state_that_could_not_be_saved_is_taken_up_again(space: Workspace) -> None:
    inject(space, "state-unsaved")
    assert len(json.loads((space.path / ERRORED).read_text())["resources"][0]["instances"]) == 2
    assert len(space.addresses()) < 2, "Terraform would make a machine again"
    space.save_errored(repair=True)
    assert space.plan().total == 0


def test_a_state_that_was_cut_is_damage(space: Workspace) -> None:
    (space.path / STATE_BACKUP).unlink(missing_ok=True)
    inject(space, "state-cut")
    with pytest.raises(ValueError, match=r"Unterminated|Expecting"):
        json.loads((space.path / STATE).read_text())
    assert "cut off" in str(space.damage())


def test_there_must_be_a_state(tmp_path: Path) -> None:
    fault = state_faults.find("state-cut")
    assert fault is not None and state_faults.find("quota") is None
    with pytest.raises(GpuprovError, match="no Terraform state yet"):
        state_faults.inject(tmp_path, fault)
