"""Values that a GPU does not give any more, instances that are not there, and what the exporter has seen."""

from __future__ import annotations

from provisioner.verify.check import check, fail, saw, skip
from provisioner.verify.checks.gpu import answering
from provisioner.verify.expectations import Expected
from provisioner.verify.facts import Facts

UNSAID = {"addressing_mode"}
"""What drivers answer with Unknown Error on healthy GPUs, too."""


@check(
    "gpu.readings",
    severity="fatal",
    documented="nvidia-smi(1): ERR! for a sensor that fails; github gpustack/runtime#26: eight H100 of which one gave "
    "ERR! after an Xid 119",
    action="reset",
    needs=("gpus",),
    vendor="nvidia",
    follows=("gpu.count",),
    says="A GPU gives an error (Unknown Error, ERR!) where others give a value: it is failing. Drain and reset it.",
)
def test_readings(node: Facts) -> None:
    gpus = answering(node)
    # What no GPU of the node gives is the driver's way, not one GPU's fault.
    common_errors = set.intersection(*(set(gpu.errors) for gpu in gpus)) | UNSAID if len(gpus) > 1 else UNSAID
    wrong = {f"GPU {gpu.index}": [path for path in gpu.errors if path not in common_errors] for gpu in gpus}
    wrong = {name: paths for name, paths in wrong.items() if paths}
    saw(expected="a value wherever the other GPUs have one", actual=wrong or "as there")
    if wrong:
        fail("; ".join(f"{gpu}: {len(paths)} readings, {', '.join(paths[:3])}" for gpu, paths in wrong.items()))


@check(
    "gpu.mig_devices",
    severity="fatal",
    documented="NVIDIA MIG user guide: a GPU in MIG mode without instances runs no program",
    action="reconfigure",
    needs=("gpus",),
    vendor="nvidia",
    follows=("gpu.mig", "gpu.count"),
    applies=lambda e: e.mig,
    otherwise="cluster.yaml asks for whole GPUs",
    says="A GPU in MIG mode has no instances, or fewer than it has room for: jobs do not find it. `gpuprov up` makes "
    "them.",
)
def test_mig_devices(node: Facts, expected: Expected) -> None:
    counts = {f"GPU {gpu.index}": gpu.mig_devices for gpu in answering(node)}
    expected_count = max(*counts.values(), expected.mig_instances, 1)
    saw(expected=f"{expected_count} instances of {expected.mig} on each GPU", actual=counts)
    if fewer := [f"{gpu} has {count}" for gpu, count in counts.items() if count < expected_count]:
        fail(f"{'; '.join(fewer)}; {expected_count} of {expected.mig} are expected")


@check(
    "dcgm.memory",
    severity="fatal",
    documented="NVIDIA DCGM field identifiers: DCGM_FI_DEV_ROW_REMAP_FAILURE, DCGM_FI_DEV_ECC_DBE_VOL_TOTAL",
    action="replace",
    vendor="nvidia",
    follows=("gpu.remap", "gpu.ecc", "gpu.count"),
    says="DCGM has seen GPU memory that cannot be repaired, or errors that ended a job. Drain the node and test it.",
)
def test_dcgm_memory(node: Facts) -> None:
    if node.dcgm is None or not node.dcgm.memory:
        skip("the exporter has no reading of the GPUs' memory: see dcgm.exporter")
    faults = [
        f"GPU {gpu}: {WORDS[field]} ({field} is {value:g})"
        for field, readings in node.dcgm.memory.items()
        for gpu, value in readings.items()
        if value > 0
    ]
    saw(expected="no remap has failed, no double-bit error", actual=faults or "none")
    if faults:
        fail("; ".join(faults[:4]))


WORDS = {
    "DCGM_FI_DEV_ROW_REMAP_FAILURE": "a row could not be remapped",
    "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL": "uncorrectable errors since the driver was loaded",
}
