"""What wears out in a GPU's memory, and what the driver itself wants done with the GPU."""

from __future__ import annotations

from provisioner.verify.check import check, fail, saw, skip, unknown
from provisioner.verify.checks.gpu import answering
from provisioner.verify.checks.gpu_errors import STRONGEST, recovery_action
from provisioner.verify.expectations import Expected
from provisioner.verify.facts import Facts


@check(
    "gpu.reset_required",
    severity="fatal",
    documented="nvidia-smi(1) GPU Reset Status and GPU Recovery Action",
    action="reset",
    needs=("gpus",),
    vendor="nvidia",
    follows=("gpu.xid", "gpu.ecc", "gpu.remap", "nvswitch.fabric", "nvlink.links"),
    says="The driver itself wants a GPU reset or the node rebooted before it is used again. Drain it and do so.",
)
def test_reset(node: Facts) -> None:
    gpus = answering(node)
    requests = {f"GPU {gpu.index}": gpu.wants for gpu in gpus if gpu.wants}
    saw(expected="nothing", actual=requests or "nothing")
    if requests:
        actions = {recovery_action(str(request)) for request in requests.values()}
        message = "; ".join(f"{gpu}: the driver asks for: {request}" for gpu, request in requests.items())
        fail(message, action=next(action for action in STRONGEST if action in actions))
    if all(gpu.recovery_action is None and gpu.reset_required is None for gpu in gpus):
        skip("this driver reports no recovery action")


@check(
    "gpu.retired_pages",
    severity="fatal",
    documented="NVIDIA Dynamic Page Retirement: RMA at 60 pages",
    action="replace",
    needs=("gpus",),
    vendor="nvidia",
    follows=("gpu.remap",),
    says="A GPU has retired more memory pages than its maker accepts: replace it.",
)
def test_retired(node: Facts, expected: Expected) -> None:
    counts = {
        f"GPU {gpu.index}": (gpu.retired_sbe or 0) + (gpu.retired_dbe or 0)
        for gpu in answering(node)
        if gpu.retired_sbe is not None or gpu.retired_dbe is not None
    }
    maximum = expected.most.get("ecc.retired_pages", float("inf"))
    saw(expected=f"{maximum:g} pages at most", actual={gpu: count for gpu, count in counts.items() if count} or "none")
    if not counts:
        skip("these GPUs remap rows and retire no pages")
    worn = [f"{gpu}: {count} pages retired" for gpu, count in counts.items() if count > maximum]
    if worn:
        fail("; ".join(worn))


@check(
    "gpu.remap_bank",
    severity="warn",
    action="replace",
    needs=("gpus",),
    vendor="nvidia",
    follows=("gpu.remap", "gpu.ecc"),
    says="A bank of GPU memory has few or no spare rows: the next error there cannot be mended. Plan to replace it.",
)
def test_banks(node: Facts, expected: Expected) -> None:
    gpus = answering(node)
    maximum = expected.most.get("ecc.remapped_uncorrectable", float("inf"))
    worn = [f"GPU {g.index}: {g.banks_none} banks without a spare row" for g in gpus if g.banks_none]
    worn += [f"GPU {g.index}: {g.banks_low} banks with few spare rows" for g in gpus if g.banks_low]
    worn += [
        f"GPU {g.index}: {g.remap_uncorrectable} rows remapped after uncorrectable errors"
        for g in gpus
        if (g.remap_uncorrectable or 0) > maximum
    ]
    saw(expected="spare rows in every bank", actual=worn or "spare rows in every bank")
    if worn:
        fail("; ".join(worn))
    if all(g.banks_none is None and g.remap_uncorrectable is None for g in gpus):
        skip("these GPUs, in this mode, report no number of spare rows")


@check(
    "gpu.sram_threshold",
    severity="fatal",
    documented="nvidia-smi(1) SRAM Threshold Exceeded; NVIDIA GPU Memory Error Management",
    action="replace",
    needs=("gpus",),
    vendor="nvidia",
    follows=("gpu.ecc",),
    says="A GPU had more uncorrectable SRAM errors than its maker accepts: replace it.",
)
def test_sram(node: Facts) -> None:
    over = [gpu.index for gpu in answering(node) if gpu.sram_threshold]
    saw(expected="not exceeded", actual=[f"GPU {index}" for index in over] or "not exceeded")
    if over:
        fail(f"SRAM threshold exceeded on GPU {', '.join(map(str, over))}")
    if all(gpu.sram_threshold is None for gpu in answering(node)):
        skip("these GPUs, or this driver, count no SRAM threshold")


@check(
    "gpu.repair_pending",
    severity="fatal",
    documented="nvidia-smi(1) Channel and TPC repair pending",
    action="reset",
    needs=("gpus",),
    vendor="nvidia",
    follows=("gpu.ecc", "gpu.remap"),
    says="A GPU has found a broken memory channel or processor and repairs it at its next reset. Drain and reset it.",
)
def test_repair(node: Facts) -> None:
    gpus = answering(node)
    pending = [f"GPU {g.index}: memory channel" for g in gpus if g.channel_repair]
    pending += [f"GPU {g.index}: TPC" for g in gpus if g.tpc_repair]
    saw(expected="none pending", actual=pending or "none pending")
    if pending:
        fail(f"repair pending: {'; '.join(pending)}")
    if all(g.channel_repair is None and g.tpc_repair is None for g in gpus):
        skip("these GPUs, or this driver, report no such repair")


@check(
    "gpu.ecc_corrected",
    severity="warn",
    action="vendor",
    needs=("gpus",),
    vendor="nvidia",
    applies=lambda e: e.ecc,
    otherwise="ECC is not expected on this GPU",
    follows=("gpu.ecc",),
    says="A GPU corrects far more memory errors than healthy ones do: uncorrectable ones follow. Test it under load.",
)
def test_corrected(node: Facts, expected: Expected) -> None:
    gpus = [g for g in answering(node) if g.ecc_correctable is not None]
    sram, dram = (expected.most.get(f"ecc.{part}_correctable", float("inf")) for part in ("sram", "dram"))
    saw(
        expected={"SRAM": f"{sram:g} at most", "DRAM": f"{dram:g} at most"},
        actual={f"GPU {g.index}": g.ecc_correctable for g in gpus if g.ecc_correctable} or "none",
    )
    if not gpus:
        unknown("no GPU reports corrected errors")
    many = [f"GPU {g.index}: {g.ecc_sram_correctable} in SRAM" for g in gpus if (g.ecc_sram_correctable or 0) > sram]
    many += [f"GPU {g.index}: {g.ecc_dram_correctable} in DRAM" for g in gpus if (g.ecc_dram_correctable or 0) > dram]
    if many:
        fail(f"corrected errors: {'; '.join(many)}")
