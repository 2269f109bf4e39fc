"""The roles on real nodes: a second run changes nothing on any distribution, check mode is safe, what the lock is not
for is refused."""

from __future__ import annotations

import json
import platform
import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.playbook import play
from tests.support.rehearsal import Rehearsal, wrongs

pytestmark = pytest.mark.sandbox

OTHERS = ("debian-12", "ubuntu-22.04")
"""Distributions beside ubuntu-24.04, which the other rehearsals have."""


@pytest.fixture(scope="module")
def moved(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rehearsal]:
    """One p4d that goes from distribution to distribution."""
    rehearsal = Rehearsal.of_example("aws-p4d", tmp_path_factory.mktemp("os"), count=1)
    try:
        yield rehearsal
    finally:
        rehearsal.down()


def stack(rehearsal: Rehearsal) -> dict[str, Any]:
    """The stack of the group, as the roles get it."""
    inventory = json.loads((rehearsal.root / "inventory.yml").read_text())
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


@pytest.mark.parametrize("os", OTHERS)
def test_another_distribution_is_a_new_node_and_as_healthy(moved: Rehearsal, os: str) -> None:
    """What the roles install differs by names and closures. A node of the distribution before is made anew."""
    text = re.sub(r"^  os: .*\n", "", moved.file.read_text(), flags=re.M)
    moved.file.write_text(re.sub(r"^stack:.*\n", rf"\g<0>  os: {os}\n", text, flags=re.M))
    before = moved.containers()
    first = moved.up()
    assert first.status == 0, (first.stderr[-3000:], wrongs(first))
    assert first.json["changes"] == {"resources": 4 if before else 2, "configured": 1}
    (check,) = (c for c in first.json["nodes"][0]["checks"] if c["id"] == "os.release")
    assert (check["status"], check["expected"], check["actual"]) == ("pass", os, os)
    assert play(moved).changed() == {"train-0": 0}
    again = moved.up()
    # The mirror lets go of the packages of the lock before, which no node runs any more.
    assert again.json["changes"] == {"resources": 2 if before else 0, "configured": 0}
    assert again.status == 0, again.stderr


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
