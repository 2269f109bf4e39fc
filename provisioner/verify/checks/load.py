"""A node at work: whether the load program ran to its end, computed right, and trained a small model."""

from __future__ import annotations

from provisioner.common.text import counted
from provisioner.verify.check import check, fail, saw, skip, unknown
from provisioner.verify.expectations import Expected
from provisioner.verify.facts import Facts
from provisioner.verify.parsers.load import Load

NEEDS = ("load.json",)
LOAD = "load.completes"


def worked(node: Facts, expected: Expected) -> Load:
    """The load program's run, whatever came of it; skipped where nothing was started on purpose."""
    assert node.load is not None
    load = node.load
    if load.state == "busy":
        skip(f"not tested: a job is using the GPUs: {', '.join(load.busy[:3])}")
    if load.state == "absent":
        if any(image.get("torch") for image in expected.images or ()):
            unknown(load.why)
        skip(load.why)
    return load


def reached(node: Facts, expected: Expected) -> Load:
    """What the load program reached; unknown where it gave nothing."""
    load = worked(node, expected)
    if not load.finished:
        unknown(f"the load program gave no result: see {LOAD}")
    if load.device != "cuda" and not load.simulated:
        unknown(f"the load program ran on {load.device}, not on the GPUs: see {LOAD}")
    return load


@check(
    LOAD,
    severity="fatal",
    documented="github CoreWeave HPC verification, oci-hpc active_healthcheck: a node that does not end its "
    "test leaves the pool",
    action="vendor",
    level="standard",
    needs=NEEDS,
    follows=(
        "gpu.count",
        "driver.responds",
        "driver.version",
        "nvswitch.fabric",
        "container.image",
        "dcgm.diag",
        "load.xid",
        "load.survives",
        "load.ecc",
    ),
    says="The node did not get through minutes of real work (copies, matrix products, all_reduce, a small training).",
)
def test_completes(node: Facts, expected: Expected) -> None:
    assert node.load is not None
    load = node.load
    saw(expected="a result of every GPU", actual=load.phase and f"{load.phase}, exit status {load.rc}")
    worked(node, expected)
    part = f" in phase {load.phase!r}" if load.phase else " before its first phase"
    if load.timed_out:
        fail(f"timed out after {load.seconds or 0:.0f} s{part}, and was killed")
    if not load.finished or load.rc not in (0, None):
        fail(f"exit status {load.rc}{part}: {load.error or 'no error output'}")
    if load.device != "cuda" and not load.simulated:
        fail(f"PyTorch sees no GPU and ran on {load.device}", action="reconfigure")
    present = node.gpus_present if node.gpus_present is not None else expected.gpu_count
    saw(expected=f"{present} GPUs", actual=f"{len(load.gpus)} GPUs, {load.launcher}")
    took = len({gpu.index for gpu in load.gpus})
    if took != len(load.gpus):
        fail(f"its result has {counted(took, 'GPU')} in {counted(len(load.gpus), 'row')}")
    if took != present:
        fail(f"{counted(took, 'GPU')} took part, {present} answer")


@check(
    "load.stray_process",
    severity="fatal",
    documented="nvidia-smi(1) Processes; github mej/nhc check_ps_unauth_users",
    action="reconfigure",
    level="standard",
    needs=NEEDS,
    says="A process without a job uses the GPUs, so they cannot be tested. Find its owner and end it.",
)
def test_stray(node: Facts) -> None:
    assert node.load is not None
    if node.load.state == "absent":
        skip(node.load.why)
    saw(expected="none", actual=list(node.load.stray[:8]) or "none")
    if node.load.stray:
        fail(f"GPU processes of no job, container, service or login: {', '.join(node.load.stray[:3])}")


@check(
    "load.results",
    severity="fatal",
    documented="github imbue-ai/cluster-health gpu_stress_test: the same product twice must be the same",
    action="replace",
    level="standard",
    needs=NEEDS,
    follows=(LOAD,),
    says="A GPU computes wrong values without an error: it corrupts a training silently. Take it out at once.",
)
def test_results(node: Facts, expected: Expected) -> None:
    load = reached(node, expected)
    wrong = [f"GPU {g.index}: {g.wrong_products} wrong products" for g in load.gpus if g.wrong_products]
    digests = [gpu.digest for gpu in load.gpus]
    saw(expected="the same product on all GPUs, each time", actual=wrong or f"{len(set(digests))} different")
    if wrong:
        fail("; ".join(wrong))
    known = [digest for digest in digests if digest is not None]
    if len(set(known)) > 1:
        common = max(set(known), key=known.count)
        other = [f"GPU {gpu.index}" for gpu in load.gpus if gpu.digest not in (common, None)]
        fail(f"the same product has other bits on {', '.join(other)}")
    if silent := [f"GPU {g.index}" for g in load.gpus if g.digest is None or g.wrong_products is None]:
        unknown(f"{', '.join(silent)} gave no product to compare")


@check(
    "nccl.transport",
    severity="fatal",
    documented="NCCL environment variables, NCCL_DEBUG=INFO names P2P, SHM or NET of each channel",
    action="reconfigure",
    level="standard",
    needs=NEEDS,
    follows=(LOAD, "gpu.count", "nvlink.links", "nvlink.topology", "nvswitch.fabric", "peermem.loaded"),
    applies=lambda e: e.gpu_count > 1 and e.vendor == "nvidia",
    otherwise="one GPU sends nothing, or it is RCCL that sends",
    says="NCCL has fallen back from NVLink to host memory or sockets: jobs run at a tenth of the node's speed.",
)
def test_transport(node: Facts, expected: Expected) -> None:
    transports = dict(reached(node, expected).transports)
    joined = all(expected.nvlinks_per_gpu or (0,)) and not any(
        cell in ("PHB", "NODE", "SYS", "PXB", "PIX") for cells in (expected.topology or {}).values() for cell in cells
    )
    allowed = ("P2P", "NVLS") if joined else ("P2P", "NVLS", "SHM")
    other = {transport: count for transport, count in transports.items() if transport not in allowed}
    saw(expected=f"{' or '.join(allowed)} alone", actual=transports)
    if other:
        fail("; ".join(f"{count} channels via {transport}" for transport, count in other.items()))
    if not transports:
        unknown("NCCL logged no transport for its channels")


@check(
    "load.training",
    severity="fatal",
    documented="github GoogleCloudPlatform/cluster-health-scanner tinymax: a small training must converge",
    action="vendor",
    level="standard",
    needs=NEEDS,
    follows=(LOAD, "load.results", "load.copies", "nccl.bandwidth", "nccl.transport"),
    says="A small reference model does not train on this node: its loss does not fall, or is not a number.",
)
def test_training(node: Facts, expected: Expected) -> None:
    load = reached(node, expected)
    rate = f"{load.samples_per_s:.4g} samples/s" if load.samples_per_s is not None else None
    saw(expected="a loss that falls", actual=f"{load.loss_first} to {load.loss_last}, {rate}")
    if load.loss_first is None or load.loss_last is None:
        fail("the loss is not a number")
    if load.loss_last >= load.loss_first:
        fail(f"the loss went from {load.loss_first:.3f} to {load.loss_last:.3f}")
    if load.samples_per_s is None:
        unknown("no rate was measured")
