"""What GPUs show that do nothing, and what of their memory is worn and not yet worn out."""

from __future__ import annotations

from collections import Counter

from provisioner.verify.check import check, fail, saw, skip
from provisioner.verify.checks.gpu import answering
from provisioner.verify.expectations import Expected
from provisioner.verify.facts import Facts
from provisioner.verify.parsers import pci


@check(
    "gpu.vbios",
    severity="warn",
    action="vendor",
    needs=("gpus",),
    vendor="nvidia",
    applies=lambda e: e.gpu_count > 1,
    otherwise="needs at least two GPUs",
    says="GPUs of one node have different VBIOS versions: power and clocks may differ. Have them brought to one.",
)
def test_vbios(node: Facts) -> None:
    # A model may have several boards, each with a VBIOS of its own.
    known = [gpu for gpu in answering(node) if gpu.vbios]
    versions = {board: Counter(g.vbios for g in known if (g.model, g.board_part) == board)
                for board in {(g.model, g.board_part) for g in known}}  # fmt: skip
    mixed = [counts for counts in versions.values() if len(counts) > 1]
    saw(expected="one for each kind of board", actual=[dict(counts) for counts in versions.values()])
    if not known:
        skip("the GPUs report no VBIOS version")
    if mixed:
        fail("; ".join(", ".join(f"{version} on {count}" for version, count in counts.items()) for counts in mixed))


@check(
    "gpu.page_retirements",
    severity="warn",
    action="vendor",
    needs=("gpus",),
    vendor="nvidia",
    follows=("gpu.retired_pages", "gpu.remap", "gpu.ecc"),
    says="A GPU has retired memory pages, if fewer than its maker takes it back for. Test its memory under load.",
)
def test_pages(node: Facts, expected: Expected) -> None:
    maximum = expected.most.get("ecc.retired_pages_noted", float("inf"))
    pages = {f"GPU {g.index}": (g.retired_sbe or 0, g.retired_dbe or 0) for g in answering(node)
             if g.retired_sbe is not None or g.retired_dbe is not None}  # fmt: skip
    saw(
        expected=f"none after a double-bit error, {maximum:g} in all at most",
        actual={gpu: sum(counts) for gpu, counts in pages.items() if any(counts)} or "none",
    )
    if not pages:
        skip("these GPUs remap rows and retire no pages")
    if worn := [f"{gpu}: {single} pages retired after single-bit errors, {double} after double-bit ones"
                for gpu, (single, double) in pages.items() if double or single + double > maximum]:  # fmt: skip
        fail("; ".join(worn))


@check(
    "gpu.utilization",
    severity="info",
    action="none",
    needs=("gpus",),
    vendor="nvidia",
    follows=("gpu.processes",),
    says="A GPU is busy although nvidia-smi shows no process on it: look in containers and other users' sessions.",
)
def test_utilization(node: Facts, expected: Expected) -> None:
    maximum = expected.most.get("gpu.idle_utilization", float("inf"))
    idle = [gpu for gpu in answering(node) if not gpu.processes and gpu.utilization is not None]
    busy = {f"GPU {gpu.index}": gpu.utilization for gpu in idle if (gpu.utilization or 0) > maximum}
    saw(expected=f"{maximum:g} % at most", actual={gpu: f"{share} %" for gpu, share in busy.items()} or "idle")
    if not idle:
        skip("a job has the GPUs, or they report no utilization")
    if busy:
        fail("; ".join(f"{gpu}: {share} % without a process" for gpu, share in busy.items()))


ENDS_PROGRAMS = (13, 31, 43, 45, 94)
"""Xids that end a program alone: its own mistake causes them most often, or an error of memory that went no further
(94; NVIDIA Xid catalogue)."""


@check(
    "gpu.xid_repeats",
    severity="warn",
    action="vendor",
    needs=("dmesg.txt",),
    vendor="nvidia",
    applies=lambda e: e.gpu_count > 1,
    otherwise="needs at least two GPUs",
    follows=("gpu.xid", "gpu.count"),
    says="One GPU repeatedly logs an Xid that ends programs. If the other GPUs do the same work without it, the "
    "GPU is bad. Test it under load.",
)
def test_repeats(node: Facts, expected: Expected) -> None:
    assert node.log is not None
    maximum = expected.most.get("xid.repeats", float("inf"))
    counts: dict[int, Counter[str]] = {}
    for xid in node.log.xids:
        if xid.code in ENDS_PROGRAMS:
            counts.setdefault(xid.code, Counter())[pci(xid.pci)] += xid.minutes
    # A program that fails does so on all the GPUs that it has.
    alone = [f"Xid {code} on {address} in {n} minutes, and on no other GPU" for code, by_gpu in counts.items()
             for address, n in by_gpu.items() if len(by_gpu) == 1 and n > maximum]  # fmt: skip
    saw(
        expected=f"{maximum:g} on one GPU alone at most",
        actual={f"Xid {code}": dict(by_gpu) for code, by_gpu in counts.items()} or "none",
    )
    if alone:
        fail("; ".join(alone), unverified=expected.unsupported("xid.repeats"))
