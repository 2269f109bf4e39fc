"""GPUDirect Storage, where it is installed: whether disks reach the GPUs' memory, or cuFile silently copies instead."""

from __future__ import annotations

import re

from provisioner.verify.check import check, fail, saw, skip, unknown
from provisioner.verify.expectations import Expected
from provisioner.verify.facts import Facts

PACKAGE = re.compile(r"nvidia-fs(?:-dkms)?|nvidia-gds(?:-[0-9-]+)?")
LOCAL = ("NVMe", "NVMe P2PDMA")
"""Routes to the node's own disks: through nvidia-fs, and through the kernel's P2PDMA."""


def is_installed(node: Facts) -> bool:
    return any(PACKAGE.fullmatch(name) for name in node.packages or ()) or "nvidia_fs" in (node.modules or ())


@check(
    "storage.gds",
    severity="warn",
    documented="docs.nvidia.com/gpudirect-storage troubleshooting guide: cuFile falls back to the host's memory "
    "without an error; github NVIDIA/gds-nvidia-fs#60",
    action="reconfigure",
    needs=("packages.txt",),
    reads=("gds.txt",),
    vendor="nvidia",
    follows=("driver.responds", "gpu.count", "pcie.iommu"),
    says="GPUDirect Storage is installed and not direct: every read goes through the host's memory, and nothing "
    "reports it. `gdscheck -p` names what is missing (nvidia-fs, the IOMMU, cufile.json).",
)
def test_gds(node: Facts, expected: Expected) -> None:
    if not is_installed(node):
        skip("GPUDirect Storage is not installed")
    if node.gds is None:
        source = node.source("gds.txt")
        unknown(source.reason, "gds.txt", action="none" if source.state == "absent" else None)
    gds = node.gds
    direct = sorted(name for name, is_direct in gds.routes.items() if is_direct)
    saw(expected="a direct route, and every GPU on it", actual=f"direct: {', '.join(direct) or 'none'}")
    if gds.forced_compat:
        fail("cufile.json forces compatibility mode: nothing is direct")
    if not direct:
        fail(f"no route is direct (nvidia-fs {gds.nvidia_fs or 'is not loaded'})")
    if expected.local_nvme and not set(LOCAL) & set(direct):
        fail(f"local NVMe is not direct, only {', '.join(direct)} (nvidia-fs {gds.nvidia_fs or 'is not loaded'})")
    if without := [f"GPU {index}" for index, supports in gds.gpus.items() if not supports]:
        fail(f"{', '.join(without)} cannot take part")
