"""The fleets of the other examples, one after the other: healthy, and the faults that only they can have are found.
(aws-p4d is test_faults.py's, rtx4090 test_upgrade.py's, three-sites test_sites.py's.)"""

from __future__ import annotations

import pytest

from tests.support.faulty import try_own_faults
from tests.support.sandbox_cluster import SandboxCluster

pytestmark = [pytest.mark.sandbox, pytest.mark.slow, pytest.mark.apart]


def test_example_is_healthy_and_its_faults_are_found(example: SandboxCluster) -> None:
    try_own_faults(example)
