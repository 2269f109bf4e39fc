"""Faults of a p4d: exactly its check fails, on exactly that node; cleared, all is well again."""

from __future__ import annotations

import random
from itertools import combinations

import pytest

from provisioner.sandbox import faults
from tests.support.faulty import check_of, containers_of, level_of, machines, possible, some, try_faults
from tests.support.sandbox_cluster import SandboxCluster, failing

pytestmark = [pytest.mark.sandbox, pytest.mark.shares("p4d"), pytest.mark.begins(2)]

P4D = "p4d.24xlarge"
ALONE = {"nvidia-smi-hangs", "docker-dead", "load-hang"}
"""Faults beside which others can't be seen."""
UNLOADED = {"driver-mismatch", "wrong-image", "load-crash"}
"""Faults that keep the load program from its end: what shows under load alone can't be seen beside them."""


def test_faults_of_a_p4d(p4d: SandboxCluster) -> None:
    """Always the same of them, all with `make test-slow`; tests/unit/sandbox has what each one changes."""
    try_faults(p4d, [(name,) for name in some(possible(P4D))], list(machines(p4d)))


@pytest.mark.slow
def test_two_faults_at_once(p4d: SandboxCluster) -> None:
    pairs = list(combinations([name for name in possible(P4D) if name not in ALONE], 2))
    # Two faults of one part are one fault to whoever looks: which of them is told is that check's own matter.
    apart = [pair for pair in pairs if len({check_of(fault) for fault in pair}) == 2]
    apart = [pair for pair in apart if not UNLOADED & {*pair} or level_of(pair) == "quick"]
    try_faults(p4d, random.Random(4).sample(apart, 4), list(machines(p4d)))


def test_a_fault_from_the_command_line(p4d: SandboxCluster) -> None:
    done = p4d.run("sandbox", "fault", p4d.file, "train-1", "gpu-lost")
    assert done.status == 0, done.stderr
    assert failing(p4d.verify("--level", "quick").json) == {"train-1": {"gpu.count"}}
    cleared = p4d.run("sandbox", "clear", p4d.file, "train-1", "gpu-lost")
    assert cleared.status == 0, cleared.stderr


def test_a_fault_that_the_machine_can_not_have_is_refused(p4d: SandboxCluster) -> None:
    result = p4d.run("sandbox", "fault", p4d.file, "train-0", "ib-port-down")
    assert result.status == 2
    assert "InfiniBand" in result.stderr


def test_a_misspelled_fault_gets_the_nearest_word(p4d: SandboxCluster) -> None:
    result = p4d.run("sandbox", "fault", p4d.file, "train-0", "gpu-lots")
    assert result.status == 2
    assert "gpu-lost" in result.stderr


def test_a_fault_of_a_moment_is_noted_and_one_that_lasts_condemns(p4d: SandboxCluster) -> None:
    """The probe looks again, up to three times."""
    container = containers_of(p4d)["train-0"]

    def brake() -> dict[str, str]:
        verdict = p4d.verify("--level", "quick", "--node", "train-0")
        checks = {check["id"]: check for check in verdict.json["nodes"][0]["checks"]}
        return {key: checks["gpu.power_brake"][key] for key in ("status", "severity", "message")}

    try:
        faults.leave_only(container, [("power-brake-moment", 3)])
        over = brake()
        assert (over["status"], "GPU 3 for a moment" in over["message"]) == ("note", True)
        assert brake()["status"] == "pass"
        faults.leave_only(container, [("power-brake", 3)])
        lasting = brake()
        assert (lasting["status"], lasting["severity"]) == ("fail", "fatal")
        assert "in each of 3 looks" in lasting["message"]
    finally:
        faults.clear(container)
    assert failing(p4d.verify("--level", "standard").json) == {}
