"""The roles on real nodes: a second run changes nothing, check mode is safe, what the lock is not for is refused."""

from __future__ import annotations

import platform
from typing import Any

import pytest

from tests.support.playbook import play
from tests.support.sandbox_cluster import SandboxCluster

pytestmark = [pytest.mark.sandbox, pytest.mark.shares("lone"), pytest.mark.begins(3)]


def stack(sandbox_cluster: SandboxCluster) -> dict[str, Any]:
    """The stack of the group, as the roles get it."""
    inventory = sandbox_cluster.inventory()
    group_stack: dict[str, Any] = inventory["all"]["children"]["train"]["vars"]["gpuprov_stack"]
    return group_stack


def test_a_second_run_of_every_role_changes_nothing(lone: SandboxCluster) -> None:
    played = play(lone)
    assert played.changed() == {"train-0": 0}
    assert min(counts["ok"] for counts in played.counts.values()) > 25


def test_check_mode_changes_nothing_and_fails_nowhere(lone: SandboxCluster) -> None:
    lone.run("ssh", lone.file, "train-0", "sudo rm /etc/profile.d/gpuprov-cuda.sh")
    assert play(lone, limit="train-0", check=True).changed()["train-0"] >= 1
    assert lone.run("ssh", lone.file, "train-0", "test -e /etc/profile.d/gpuprov-cuda.sh").status == 1
    assert play(lone, limit="train-0", tags="cuda").changed()["train-0"] >= 1
    assert lone.run("ssh", lone.file, "train-0", "test -e /etc/profile.d/gpuprov-cuda.sh").status == 0


def test_a_lock_for_another_distribution_or_kernel_is_refused(lone: SandboxCluster) -> None:
    locked = stack(lone)
    other = {"gpuprov_stack": {**locked, "os": "debian-12", "kernel": "3.10"}}
    message = play(lone, limit="train-0", tags="base", variables=other, check=True).failure("train-0")
    assert "this node is ubuntu-24.04, the lock is for debian-12" in message
    assert f"kernel {platform.release()} runs, the lock names 3.10" in message


def test_a_key_with_another_fingerprint_is_refused(lone: SandboxCluster) -> None:
    """The repository's key is not the pinned one: the node is not configured, and the error shows both."""
    locked = stack(lone)
    first, *other_repositories = locked["repositories"]
    wrong = {"gpuprov_stack": {**locked, "repositories": [{**first, "fingerprint": "0" * 40}, *other_repositories]}}
    message = play(lone, limit="train-0", tags="base", variables=wrong).failure("train-0")
    assert "0" * 40 in message
    assert first["fingerprint"] in message
    listing = lone.run("ssh", lone.file, "train-0", f"ls /etc/apt/keyrings/gpuprov-{first['name']}.asc")
    assert listing.status == 0
    assert play(lone, limit="train-0", tags="base").changed()["train-0"] == 0
