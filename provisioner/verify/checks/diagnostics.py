"""DCGM's own tests and the bandwidth of all_reduce: what works a node before jobs do."""

from __future__ import annotations

import re

from provisioner.common.levels import LEVELS
from provisioner.common.text import few
from provisioner.verify.check import CUT_UP, NO_TYPE, check, fail, saw, skip, unknown
from provisioner.verify.checks.load import reached
from provisioner.verify.expectations import Expected
from provisioner.verify.facts import Facts
from provisioner.verify.parsers.dcgmi_diag import Diag
from provisioner.verify.parsers.nccl_tests import Nccl

PERSISTENCE = "Persistence mode for GPU"
"""DCGM's own words (DCGM_FR_PERSISTENCE_MODE in dcgm_errors.c)."""
HARDWARE = (
    {"pcie"},
    {"memory", "gpu_memory", "memtest"},
    {"diagnostic", "targeted_stress", "targeted_power", "sm_stress"},
)
"""What -r 3 has to have run: one test of each kind, as DCGM 3 ("Targeted Power") and 4 ("targeted_power") name them
(GetTestIndex in its DcgmDiagResponseWrapper.cpp). What a node need not have (eud, pulse_test, nvbandwidth,
memory_bandwidth) may be skipped; so may all on boards that are not for data centres, which DCGM supports in part."""

LONGEST = ({"memtest"}, {"pulse_test"})
"""What -r 4 has to have run beside them: all memory by patterns, and sudden power."""


@check(
    "dcgm.diag",
    severity="fatal",
    measured="dcgmi_diag/diag-r1-json-dcgm3-fail",
    action="vendor",
    level="standard",
    reads=("dcgmi-diag.json",),
    vendor="nvidia",
    lock="only it says that DCGM has to be there",
    without_lock="DCGM's tests, where it is installed",
    says="A test of DCGM failed. Its message says which GPU; keep it for the vendor.",
)
def test_diag(node: Facts, expected: Expected) -> None:
    source, diag = node.source("dcgmi-diag.json"), node.diag
    if diag is None:
        if expected.packages is None and source.state in ("absent", "missing"):
            skip("no lock says that DCGM is on this machine")
        if LEVELS.index(expected.level) < LEVELS.index("standard") and source.state == "absent":
            skip("only from level standard on")
        unknown(source.reason)
    saw(
        expected="no test failed",
        actual={"failed": list(diag.failed), "passed": len(diag.passed), "skipped": len(diag.skipped)},
    )
    off = any(gpu.persistence is False for gpu in node.gpus or ())
    if off and diag.failed == ("software",) and diag.messages and all(PERSISTENCE in m for m in diag.messages):
        skip("only persistence mode failed: see gpu.persistence")
    if diag.failed:
        message = f"failed: {', '.join(diag.failed)}" + (f" ({diag.messages[0]})" if diag.messages else "")
        resets = bool(diag.messages) and all("reset the gpu" in text.lower() for text in diag.messages)
        fail(message, action="reset" if resets else None, unverified=_unused_links(diag, expected))
    ran = {re.sub(r"\W+", "_", name.lower()) for name in (*diag.passed, *diag.warned)}
    if not ran or len(diag.skipped) > len(ran):
        unknown(f"{len(diag.skipped)} of {len(diag.skipped) + len(ran)} tests were skipped, and skipped is not passed")
    level = expected.diag or (3 if expected.level == "stress" else 1)
    kinds = (*HARDWARE, *(LONGEST if level == 4 else ())) if level > 2 else ()
    lacking = [" or ".join(sorted(kind)) for kind in kinds if not ran & kind]
    if lacking and not expected.mig and expected.ecc is not None:
        unknown(f"-r {level} did not run {'; '.join(lacking)}: tests of software alone prove no GPU")


def has_nvlink(expected: Expected) -> bool:
    """Whether the machine type is known, and has NVLink."""
    return expected.knows("nvlinks_per_gpu") and any(expected.nvlinks_per_gpu or ())


def _unused_links(diag: Diag, expected: Expected) -> tuple[str, ...]:
    """DCGM calls each NVLink without a bridge a failure (github NVIDIA/DCGM#49, NVIDIA/NVSentinel#1481): where nothing
    else failed, only a machine type that has NVLink tells that it is one."""
    links_alone = bool(diag.messages) and all("NvLink link" in message for message in diag.messages)
    return (NO_TYPE,) if links_alone and not has_nvlink(expected) else ()


@check(
    "dcgm.diag_warning",
    severity="warn",
    action="vendor",
    level="standard",
    needs=("dcgmi-diag.json",),
    follows=("dcgm.diag",),
    vendor="nvidia",
    says="A test of DCGM ended with a warning: something is near its limit, or not as DCGM wants it. Read its message.",
)
def test_diag_warning(node: Facts) -> None:
    assert node.diag is not None
    saw(expected="no warning", actual=list(node.diag.warned) or "no warning")
    if node.diag.warned:
        fail(f"warned: {', '.join(node.diag.warned)}" + (f" ({node.diag.messages[0]})" if node.diag.messages else ""))


@check(
    "nccl.bandwidth",
    severity="fatal",
    measured="nccl_tests/a100-8gpu-1node",
    action="vendor",
    vendor="any",
    level="standard",
    reads=("all_reduce.txt", "load.json"),
    follows=("gpu.count", "nvlink.links", "nvlink.topology", "nvswitch.fabric", "load.completes", "load.copies"),
    says="all_reduce is slower than healthy nodes of this kind, or gives wrong values.",
)
def test_bandwidth(node: Facts, expected: Expected) -> None:
    nccl = node.nccl or _of_load(node, expected)
    saw(
        expected=f"{expected.min_busbw_gbps:g} GB/s or more" if expected.min_busbw_gbps else "right values",
        actual={"max_busbw_gbps": nccl.max_busbw_gbps, "wrong": nccl.wrong},
    )
    if nccl.wrong or nccl.out_of_bounds_ok is False:
        fail(f"{nccl.wrong or 'some'} values were wrong", action="replace")
    if nccl.failure and "out of memory" in nccl.failure.lower():
        unknown(f"{nccl.failure}: other programs have the memory, or a limit is too low", action="none")
    if nccl.failure:
        fail(nccl.failure)
    if nccl.max_busbw_gbps is None or nccl.out_of_bounds_ok is None:
        unknown("no bandwidth was measured" if nccl.max_busbw_gbps is None else "the run did not complete")
    if expected.min_busbw_gbps is None:
        saw(expected="right values", actual=nccl.max_busbw_gbps, note="right; nobody has published the bandwidth")
        return
    if nccl.ranks != expected.gpu_count:
        unknown(f"measured with {nccl.ranks} ranks, the limit is for {expected.gpu_count} on one node")
    if nccl.max_busbw_gbps < expected.min_busbw_gbps:
        limits = expected.unsupported_floor("busbw", nccl.max_busbw_gbps, expected.min_busbw_gbps)
        fail(f"{nccl.max_busbw_gbps:g} GB/s at most, {expected.min_busbw_gbps:g} expected", unverified=limits)


def _of_load(node: Facts, expected: Expected) -> Nccl:
    """The load program's all_reduce as nccl-tests would have told it."""
    source = node.source("all_reduce.txt")
    if source.state not in ("absent", "missing"):
        unknown(source.reason)
    if node.load is None:
        if expected.mig:
            skip(CUT_UP)
        if LEVELS.index(expected.level) < LEVELS.index("standard"):
            skip("only from level standard on")
        if expected.gpu_count == 1 or (node.source("load.json").state == "absent" and node.collected is None):
            skip("no bandwidth was measured")
        unknown(node.source("load.json").reason)
    if expected.gpu_count == 1:
        skip("needs at least two GPUs")
    load = reached(node, expected)
    best = max((rate for _, rate in load.busbw), default=None)
    return Nccl(None, best, load.ranks, load.wrong, load.wrong == 0 if load.wrong is not None else None)


# A warning: both ends of a broken connection complain, and most causes are not on the node that wrote the log.
@check(
    "nccl.log",
    severity="warn",
    action="none",
    vendor="any",
    reads=("nccl.log",),
    says="NCCL warned in a job's log. What it names is where to look; both ends of a broken connection complain.",
)
def test_nccl_log(node: Facts) -> None:
    if node.nccl_log is None:
        skip("no log of a job was given")
    warnings = [f"{text}{f' ({count} times)' if count > 1 else ''}" for text, count in node.nccl_log.warnings]
    saw(expected="no warning", actual=warnings[:8] or "no warning")
    if warnings:
        fail(few(warnings, 3))
