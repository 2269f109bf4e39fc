"""The exported suite of plain testinfra agrees with gpuprov's verdict, on healthy machines and on broken ones."""

from __future__ import annotations

import pytest

from provisioner.catalog import load
from tests.support.acceptance_suite import run_suite, with_outcome
from tests.support.healthy_bundle import expected, healthy

MACHINES = [machine.name for machine in load().machines()]


@pytest.mark.parametrize("machine", MACHINES)
def test_a_healthy_machine_passes(machine: str) -> None:
    outcomes = run_suite(healthy(machine), expected(machine))
    assert (with_outcome(outcomes, "failed"), with_outcome(outcomes, "xfailed")) == ({}, {})
    assert {"test_gpu_count", "test_gpu_model", "test_gpu_memory", "test_packages"} <= with_outcome(outcomes, "passed").keys()
