"""What watches the node: the DCGM exporter; DCGM's own tests and the bandwidth of all_reduce."""

from __future__ import annotations

from provisioner.verify.check import CUT_UP, check, fail, saw, skip, unknown
from provisioner.verify.checks.load import reached
from provisioner.verify.expectations import LEVELS, Expected
from provisioner.verify.facts import Facts
from provisioner.verify.parsers.nccl_tests import Nccl

FRESH_S = 120.0
"""Oldest reading that counts as fresh, where the exporter writes time stamps at all: four scrapes of 30 s."""


@check(
    "dcgm.exporter",
    severity="fatal",
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


PERSISTENCE = "Persistence mode for GPU"
"""DCGM's own words (DCGM_FR_PERSISTENCE_MODE in dcgm_errors.c)."""


@check(
    "dcgm.diag",
    severity="fatal",
    action="vendor",
    level="standard",
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
    saw(expected="no test failed", actual={"failed": list(diag.failed), "passed": len(diag.passed)})
    off = any(gpu.persistence is False for gpu in node.gpus or ())
    if off and diag.failed == ("software",) and diag.messages and all(PERSISTENCE in m for m in diag.messages):
        skip("nothing failed but that persistence mode is off, which gpu.persistence tells")
    if diag.failed:
        fail(f"failed: {', '.join(diag.failed)}" + (f" ({diag.messages[0]})" if diag.messages else ""))
    if not diag.passed:
        unknown("no test passed: skipped is not passed")


@check(
    "nccl.bandwidth",
    severity="fatal",
    action="vendor",
    level="standard",
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
        unknown("no bandwidth was measured" if nccl.max_busbw_gbps is None else "the run did not come to its end")
    if expected.min_busbw_gbps is None:
        skip("nobody has published what this machine reaches")
    if nccl.ranks != expected.gpu_count:
        unknown(f"measured with {nccl.ranks} ranks, the limit is for {expected.gpu_count} on one node")
    if nccl.max_busbw_gbps < expected.min_busbw_gbps:
        fail(f"{nccl.max_busbw_gbps:g} GB/s at most")


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
            skip("nobody measured it")
        unknown(node.source("load.json").reason)
    if expected.gpu_count == 1:
        skip("one GPU has nobody to reduce with")
    load = reached(node, expected)
    best = max((rate for _, rate in load.busbw), default=None)
    return Nccl(None, best, load.ranks, load.wrong, load.wrong == 0 if load.wrong is not None else None)
