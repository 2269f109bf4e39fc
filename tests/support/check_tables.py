"""Which file of tests/unit/verify has the table of faults that makes a check fail.

`python -m tests.support.check_tables CHECK` prints it.
"""

from __future__ import annotations

import sys

from provisioner.verify.registry import declared
from tests.support.field_checks import FIELD_CHECKS
from tests.support.healthy_fabric import FABRIC_CHECKS
from tests.support.healthy_fio import FIO_CHECKS
from tests.support.healthy_gpu import GPU_CHECKS
from tests.support.healthy_host import HOST_CHECKS
from tests.support.healthy_load import LOAD_CHECKS, REACH_CHECKS

AREAS = {
    "test_gpu_checks.py": GPU_CHECKS,
    "test_host_checks.py": HOST_CHECKS,
    "test_load_checks.py": LOAD_CHECKS | REACH_CHECKS,
    "test_fio.py": FIO_CHECKS,
    "test_field_faults.py": FIELD_CHECKS,
    "test_fabric_checks.py": FABRIC_CHECKS,
}
"""Checks of a module that its `AREA` lists (tests/support), or that a set there names."""
PREFIXES = {
    "baseline.scratch_": "test_fio.py",
    "fleet.slow_": "test_fleet_load.py",
    "baseline.": "test_baseline.py",
    "bmc.": "test_bmc_checks.py",
    "cloud.": "test_cloud_checks.py",
    "fabric.": "test_rdma_setup.py",
    "fleet.": "test_fleet_checks.py",
    "rdma.": "test_rdma_checks.py",
}
"""Checks that no area and no line of ALONE has, by the beginning of their id; the first match counts."""
ALONE = {
    "efa.drops": "test_rdma_checks.py",
    "fabric.own_cards": "test_fabric_checks.py",
    "fleet.bios_settings": "test_bmc_checks.py",
    "fleet.firmware": "test_bmc_checks.py",
    "fleet.gid_index": "test_rdma_setup.py",
    "fleet.rdma_mtu": "test_rdma_setup.py",
    "fleet.slow_scratch": "test_fio.py",
    "fleet.storage_ports": "test_storage_ports.py",
    "fleet.transceivers": "test_rdma_setup.py",
    "gpu.replaced": "test_baseline.py",
    "image.parts": "test_image_parts.py",
    "nccl.log": "test_support_bundle.py",
    "peermem.loaded": "test_rdma_checks.py",
    "services.node_exporter": "test_rdma_setup.py",
    "storage.shared": "test_shared_storage.py",
}
"""Checks whose file follows from neither."""
DEFAULT = "test_checks.py"
"""The file of every other check."""


def tables_of(check: str) -> list[str]:
    """The files of a check. A test fails where a check has more than one."""
    files = [file for file, checks in AREAS.items() if check in checks]
    files += [file for name, file in ALONE.items() if name == check]
    by_prefix = next((file for prefix, file in PREFIXES.items() if check.startswith(prefix)), DEFAULT)
    return files or [by_prefix]


if __name__ == "__main__":
    print(*(" ".join(tables_of(check.id)) for check in declared() if check.id in sys.argv[1:]), sep="\n")
