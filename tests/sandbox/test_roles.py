"""The roles on real nodes: a second run changes nothing, check mode is safe, what the lock is not for is refused."""

from __future__ import annotations

import platform
from typing import Any

import pytest

from tests.support.playbook import play
from tests.support.rehearsal import Rehearsal

pytestmark = pytest.mark.sandbox


def stack(rehearsal: Rehearsal) -> dict[str, Any]:
    """The stack of the group, as the roles get it."""
    inventory = rehearsal.inventory()
    found: dict[str, Any] = inventory["all"]["children"]["train"]["vars"]["gpuprov_stack"]
    return found


def test_a_second_run_of_every_role_changes_nothing(p4d: Rehearsal) -> None:
    said = play(p4d, limit="train-0:train-1")
    assert said.changed() == {"train-0": 0, "train-1": 0}
    assert min(counts["ok"] for counts in said.counts.values()) > 25


def test_check_mode_changes_nothing_and_fails_nowhere(p4d: Rehearsal) -> None:
    p4d.run("ssh", p4d.file, "train-0", "sudo rm /etc/profile.d/gpuprov-cuda.sh")
    assert play(p4d, limit="train-0", check=True).changed()["train-0"] >= 1
    assert p4d.run("ssh", p4d.file, "train-0", "test -e /etc/profile.d/gpuprov-cuda.sh").status == 1
    assert play(p4d, limit="train-0", tags="cuda").changed()["train-0"] >= 1
    assert p4d.run("ssh", p4d.file, "train-0", "test -e /etc/profile.d/gpuprov-cuda.sh").status == 0


def test_a_lock_for_another_distribution_or_kernel_is_refused(p4d: Rehearsal) -> None:
    locked = stack(p4d)
    other = {"gpuprov_stack": {**locked, "os": "debian-12", "kernel": "3.10"}}
    said = play(p4d, limit="train-1", tags="base", variables=other, check=True).failure("train-1")
    assert "this node is ubuntu-24.04, the lock is for debian-12" in said
    assert f"kernel {platform.release()} runs, the lock names 3.10" in said


def test_a_key_with_another_fingerprint_is_refused(p4d: Rehearsal) -> None:
    """The repository's key is not the pinned one: the node is not configured, and the error shows both."""
    locked = stack(p4d)
    first, *rest = locked["repositories"]
    wrong = {"gpuprov_stack": {**locked, "repositories": [{**first, "fingerprint": "0" * 40}, *rest]}}
    said = play(p4d, limit="train-2", tags="base", variables=wrong).failure("train-2")
    assert "0" * 40 in said
    assert first["fingerprint"] in said
    kept = p4d.run("ssh", p4d.file, "train-2", f"ls /etc/apt/keyrings/gpuprov-{first['name']}.asc")
    assert kept.status == 0
    assert play(p4d, limit="train-2", tags="base").changed()["train-2"] == 0
