"""A node against the fleet's own record: slower than it was when somebody wrote down what is right.

The checks differ by what they measure alone, so they are made of one table. How far below its record a measure may lie
stands in the catalogue's health.yaml under the check's own id.
"""

from __future__ import annotations

from collections.abc import Callable

from provisioner.verify.baseline import NAMED, Baseline, gpu_identities, hardware_changes, is_slower
from provisioner.verify.check import check, fail, saw, skip
from provisioner.verify.checks.load import LOAD, NEEDS, reached
from provisioner.verify.checks.storage_load import NEEDS as OF_FIO
from provisioner.verify.checks.storage_load import NO_SCRATCH, tried
from provisioner.verify.expectations import Expected
from provisioner.verify.facts import Facts

DISKS = (*(f"storage.{name}" for name in ("io", "bandwidth", "latency", "raid", "nvme_state")), "fleet.slow_scratch")
FOLLOWS = {
    "host_copy": ("load.host_copy", "fleet.slow_host_copy", "load.pcie_link", "gpu.pcie", "gpu.pcie_gen"),
    "peer_copy": ("load.peer_copy", "nvlink.links", "nvlink.speed", "nvlink.topology", "nvswitch.fabric"),
    "memory": ("load.memory_rate", "load.memory", "fleet.slow_memory", "load.throttle", "gpu.ecc"),
    "clock": ("load.throttle", "gpu.throttle", "gpu.clocks", "gpu.power_limit", "gpu.power_brake"),
    "compute": (
        *(
            "load.compute_rate",
            "load.compute",
            "load.sustained",
            "fleet.slow_compute",
            "baseline.clock",
            "load.throttle",
            "gpu.throttle",
        ),
        *("gpu.clocks", "gpu.power_limit", "gpu.power_brake"),
    ),
    "busbw": (
        *("nccl.bandwidth", "nccl.transport", "fleet.slow_nccl", "load.peer_copy", "baseline.peer_copy"),
        *("gpu.count", "nvlink.links", "nvlink.topology", "nvswitch.fabric"),
    ),
    "training": (
        *("load.training", "fleet.slow_training", "gpu.count"),
        *(f"baseline.{name}" for name in ("host_copy", "peer_copy", "memory", "clock", "compute", "busbw")),
        *(f"load.{name}" for name in ("host_copy", "peer_copy", "memory", "compute", "sustained", "throttle")),
        *("load.memory_rate", "load.compute_rate"),
        *("nccl.bandwidth", "nccl.transport", "fleet.slow_nccl", "fleet.slow_compute", "fleet.slow_memory"),
    ),
    "scratch_write": DISKS,
    "scratch_read": (*DISKS, "baseline.scratch_write"),
    "scratch_iops": (*DISKS, "baseline.scratch_write", "baseline.scratch_read"),
}
"""Measure → the checks whose failure explains that it is slower than it was."""
SAYS = {
    "host_copy": "Copies between host and GPU are slower than this fleet's own record: look at the PCIe link first.",
    "peer_copy": "Copies from GPU to GPU are slower than this fleet's own record: look at NVLink's counters first.",
    "memory": "The GPUs' memory is slower than this fleet's own record. Look at remapped rows and temperature.",
    "clock": "The GPUs run at lower clocks at work than this fleet's own record. Look at power limits and cooling.",
    "compute": "Matrix products are slower than this fleet's own record: clocks, power or a driver that was changed.",
    "busbw": "all_reduce is slower than this fleet's own record: NVLink, or another NCCL than before.",
    "training": "The reference model trains slower than this fleet's own record, though no part alone is slower.",
    "scratch_write": "Scratch is written slower than in this fleet's own record: look at the disks' wear and links.",
    "scratch_read": "Scratch is read slower than in this fleet's own record: look for one slow disk of the array.",
    "scratch_iops": "Small reads of scratch are slower than in this fleet's own record: look for one slow disk.",
}


def _against(name: str) -> Callable[[Facts, Expected, Baseline | None], None]:
    measure, id, disk = NAMED[name], f"baseline.{name}", name.startswith("scratch")

    @check(
        id,
        severity="warn",
        action="vendor",
        level="stress" if disk else "standard",
        needs=OF_FIO if disk else NEEDS,
        follows=FOLLOWS[name] if disk else (LOAD, *FOLLOWS[name]),
        applies=(lambda e: e.scratch) if disk else None,
        otherwise=NO_SCRATCH,
        says=SAYS[name],
    )
    def judge(node: Facts, expected: Expected, baseline: Baseline | None) -> None:
        record = baseline.values.get(name) if baseline is not None else None
        if baseline is None or record is None:
            skip("there is no record to compare with: `gpuprov verify FILE --save-baseline` writes one")
        value = measure.of(node)
        if value is None:
            if disk:
                tried(node)
            else:
                reached(node, expected)
            skip("not measured")
        share = expected.most.get(id)
        if share is None:
            skip("the catalogue has no limit for it")
        saw(
            expected=f"{record * (1 - share):.4g} {measure.unit} or more ({baseline.whose}: {record:.4g})",
            actual=round(value, 2),
        )
        if is_slower(value, record, share):
            below = 1 - value / record
            fail(f"{value:.4g} {measure.unit} is {below:.1%} below {baseline.whose}, {record:.4g}")

    return judge


# Told, and no more: a part that was changed is proven like any other; whoever counts parts wants to know.
@check(
    "gpu.replaced",
    severity="info",
    action="none",
    level="standard",
    needs=("gpus",),
    follows=("gpu.count",),
    listing=True,
    says="A GPU is another one than when this machine was last declared to be right: a board was changed.",
)
def test_replaced(node: Facts, baseline: Baseline | None) -> None:
    if baseline is None or not baseline.gpus:
        skip("there is no record of this machine's GPUs: `gpuprov verify FILE --save-baseline` writes one")
    changes = hardware_changes(baseline.gpus, gpu_identities(node), node.gpus_present)
    saw(expected=f"those of {baseline.at[:10]}", actual=changes or "the same")
    if changes:
        fail(f"the hardware changed since {baseline.whose}: {'; '.join(changes[:8])}")


for _name in FOLLOWS:
    globals()[f"test_{_name}"] = _against(_name)
