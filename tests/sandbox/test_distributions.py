"""One node that goes from distribution to distribution: healthy on each, and a second run changes nothing."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from tests.support.playbook import play
from tests.support.sandbox_cluster import SandboxCluster, wrongs

pytestmark = pytest.mark.sandbox

OTHERS = ("debian-12", "ubuntu-22.04")
"""Distributions beside ubuntu-24.04, which the other sandboxes have."""


@pytest.fixture(scope="module")
def moved(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SandboxCluster]:
    """One p4d that goes from distribution to distribution."""
    sandbox_cluster = SandboxCluster.of_example("aws-p4d", tmp_path_factory.mktemp("os"), count=1)
    try:
        yield sandbox_cluster
    finally:
        sandbox_cluster.down()


@pytest.mark.slow
@pytest.mark.parametrize("os", OTHERS)
def test_another_distribution_is_a_new_node_and_as_healthy(moved: SandboxCluster, os: str) -> None:
    """What the roles install differs by names and closures. A node of the distribution before is made anew."""
    text = re.sub(r"^  os: .*\n", "", moved.file.read_text(), flags=re.M)
    moved.file.write_text(re.sub(r"^stack:.*\n", rf"\g<0>  os: {os}\n", text, flags=re.M))
    previous = moved.containers()
    first = moved.up()
    assert first.status == 0, (first.stderr[-3000:], wrongs(first))
    assert first.json["changes"] == {"resources": 4 if previous else 2, "configured": 1}
    (check,) = (c for c in first.json["nodes"][0]["checks"] if c["id"] == "os.release")
    assert (check["status"], check["expected"], check["actual"]) == ("pass", os, os)
    assert play(moved).changed() == {"train-0": 0}
    second = moved.up()
    # The mirror lets go of the packages of the lock before, which no node runs any more.
    assert second.json["changes"] == {"resources": 2 if previous else 0, "configured": 0}
    assert second.status == 0, second.stderr
