"""The fleets of the other examples, one after the other: healthy, and the faults that only they can have are found."""

from __future__ import annotations

import pytest

from tests.support.faulty import machines, possible, try_faults
from tests.support.rehearsal import Rehearsal

pytestmark = pytest.mark.sandbox

P4D = "p4d.24xlarge"
"""What test_faults.py has every fault of."""
EVERYWHERE = ("gpu-lost", "nvlink-down", "xid-79", "ecc-uncorrectable", "row-remap-pending", "wrong-driver")
"""Faults that look different on each generation, so that every example has them too."""


def test_example_is_healthy_and_its_faults_are_found(example: Rehearsal) -> None:
    nodes = machines(example)
    victim = list(nodes)[-1]
    alike = [node for node, machine in nodes.items() if machine == nodes[victim]]
    mine = possible(nodes[victim])
    wanted = [name for name in mine if name not in possible(P4D) or name in EVERYWHERE]
    try_faults(example, [(name,) for name in wanted], alike)
