"""What watches the node: the DCGM exporter; DCGM's own tests and the bandwidth of all_reduce."""

from __future__ import annotations

import re

from provisioner.verify.check import ACTIONS, CUT_UP, check, fail, saw, skip, unknown
from provisioner.verify.checks.load import reached
from provisioner.verify.expectations import LEVELS, Expected
from provisioner.verify.facts import Facts
from provisioner.verify.parsers.dcgm_exporter import XIDS
from provisioner.verify.parsers.nccl_tests import Nccl

FRESH_S = 120.0
"""Oldest reading that counts as fresh, where the exporter writes time stamps at all: four scrapes of 30 s."""


@check(
    "dcgm.exporter",
    severity="fatal",
    measured="dcgm_exporter/h100-8gpu-580",
    action="reconfigure",
    vendor="nvidia",
    follows=("driver.responds",),
    applies=lambda e: e.dcgm_exporter,
    otherwise="no exporter is expected",
    says="The DCGM exporter does not answer, or has no readings of a GPU: the node would run unwatched.",
)
def test_exporter(node: Facts, expected: Expected) -> None:
    source, output = node.source("dcgm-exporter.prom"), node.outputs.get("dcgm-exporter.prom")
    present = node.gpus_present if node.gpus_present is not None else expected.gpu_count
    saw(expected=f"readings of {present} GPUs", actual=source.reason)
    if present == 0:
        unknown("no GPU answers, so there is nothing to export: see gpu.count")
    # A refused or hung connection is an answer about the exporter, unlike a file that nobody collected.
    if source.state == "hung" or (output is not None and output.rc not in (0, None)):
        fail(f"port 9400 does not answer: {output.error or source.reason}" if output else source.reason)
    if node.dcgm is None:
        unknown(source.reason)
    uuids = set(node.dcgm.gpus.values()) - {None}
    saw(expected=f"readings of {present} GPUs", actual=f"readings of {len(node.dcgm.gpus)} GPUs")
    have = {gpu.uuid for gpu in node.gpus or ()}
    named = have & uuids and len(have) == present and None not in have and len(uuids) == len(node.dcgm.gpus)
    # UUIDs are compared where both sides give one for each GPU (and mean the same: some tools mask them), else numbers.
    silent = len(have - uuids) if named else max(0, present - len(node.dcgm.gpus))
    if silent:
        fail(f"no reading of {silent} of {present} GPUs")
    if node.dcgm.newest is not None and node.collected is not None and node.collected - node.dcgm.newest > FRESH_S:
        fail(f"the newest reading is {node.collected - node.dcgm.newest:.0f} s old")


@check(
    "dcgm.xid",
    severity="fatal",
    documented="NVIDIA DCGM, field 230 DCGM_FI_DEV_XID_ERRORS: the last Xid of a GPU",
    action="reset",
    vendor="nvidia",
    follows=("gpu.xid", "gpu.xid_again", "gpu.count", "load.xid"),
    says="DCGM has seen an Xid of which the kernel log says nothing any more. Do what is said for its code.",
)
def test_xid(node: Facts, expected: Expected) -> None:
    if node.dcgm is None:
        skip("no readings of the exporter: see dcgm.exporter")
    if XIDS not in node.dcgm.metrics:
        skip(f"the exporter has no sample of {XIDS}")
    table, seen = expected.xids or {}, node.dcgm.xids
    saw(expected="no fatal Xid since DCGM was started", actual={f"GPU {gpu}": code for gpu, code in seen.items()})
    rows = {gpu: table.get(str(code), {}) for gpu, code in seen.items()}
    fatal = [gpu for gpu, row in rows.items() if row.get("severity") == "fatal"]
    if fatal:
        actions = [next(a for a in ACTIONS if a == rows[gpu].get("action", "reset")) for gpu in fatal]
        told = "; ".join(f"GPU {gpu}: Xid {seen[gpu]}: {rows[gpu].get('advice', '')}" for gpu in fatal)
        fail(told, action=max(actions, key=ACTIONS.index))
    if strange := [seen[gpu] for gpu, row in rows.items() if not row]:
        unknown(f"Xid {strange[0]} is not in the catalogue's Xid table")


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


@check(
    "dcgm.diag",
    severity="fatal",
    measured="dcgmi_diag/diag-r1-json-dcgm3-fail",
    action="vendor",
    level="standard",
    reads=("dcgmi-diag.json",),
    vendor="nvidia",
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
        fail(f"failed: {', '.join(diag.failed)}" + (f" ({diag.messages[0]})" if diag.messages else ""))
    ran = {re.sub(r"\W+", "_", name.lower()) for name in (*diag.passed, *diag.warned)}
    if not ran or len(diag.skipped) > len(ran):
        unknown(f"{len(diag.skipped)} of {len(diag.skipped) + len(ran)} tests were skipped, and skipped is not passed")
    if (
        expected.level == "stress"
        and not expected.mig
        and expected.ecc is not None
        and not all(ran & kind for kind in HARDWARE)
    ):
        lacking = [" or ".join(sorted(kind)) for kind in HARDWARE if not ran & kind]
        unknown(f"-r 3 did not run {'; '.join(lacking)}: tests of software alone prove no GPU")


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
    level="standard",
    reads=("all_reduce.txt", "load.json"),
    follows=("gpu.count", "nvlink.links", "nvlink.topology", "nvswitch.fabric", "load.completes"),
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
    said = node.source("all_reduce.txt")
    if said.state not in ("absent", "missing"):
        unknown(said.reason)
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
