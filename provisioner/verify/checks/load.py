"""A node at work: what the load program reached, and what its GPUs showed meanwhile and afterwards."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median

from provisioner.verify.check import check, fail, saw, skip, unknown
from provisioner.verify.checks.nvlink_health import COUNTERS, errors_of
from provisioner.verify.expectations import Expected
from provisioner.verify.facts import Facts
from provisioner.verify.parsers import pci
from provisioner.verify.parsers.load import Load
from provisioner.verify.parsers.nvidia_smi import THROTTLE, Gpu

NEEDS = ("load.json",)
LOAD = "load.completes"


def worked(node: Facts, expected: Expected) -> Load:
    """The load program's run, whatever came of it; skipped where nothing was started on purpose."""
    assert node.load is not None
    load = node.load
    if load.state == "busy":
        skip(f"not tested, because a job has the GPUs: {', '.join(load.busy[:3])}")
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


def _fastest(node: Facts, expected: Expected, of: str) -> dict[str, float]:
    """ "GPU 0" → what it reached of one measure; unknown where a GPU has none."""
    load = reached(node, expected)
    found = {f"GPU {gpu.index}": getattr(gpu, of) for gpu in load.gpus}
    if None in found.values():
        unknown(f"no {of} of {', '.join(gpu for gpu, value in found.items() if value is None)}")
    return found


def _lag(found: Mapping[str, float], share: float) -> list[str]:
    """The GPUs that are behind the node's median by more than a share."""
    middle = median(found.values())
    return [f"{gpu}: {value:.4g}, median {middle:.4g}" for gpu, value in found.items() if value < middle * (1 - share)]


@check(
    LOAD,
    severity="fatal",
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
    part = f" in its part {load.phase!r}" if load.phase else " before its first part"
    if load.timed_out:
        fail(f"no end after {load.seconds or 0:.0f} s{part}: killed")
    if not load.finished or load.rc not in (0, None):
        fail(f"exit status {load.rc}{part}: {load.error or 'nothing was said'}")
    if load.device != "cuda" and not load.simulated:
        fail(f"PyTorch sees no GPU and ran on {load.device}", action="reconfigure")
    present = node.gpus_present if node.gpus_present is not None else expected.gpu_count
    saw(expected=f"{present} GPUs", actual=f"{len(load.gpus)} GPUs, {load.launcher}")
    if len(load.gpus) != present:
        fail(f"{len(load.gpus)} GPUs took part, {present} answer")


@check(
    "load.stray_process",
    severity="fatal",
    action="reconfigure",
    level="standard",
    needs=NEEDS,
    says="A process that belongs to no job has the GPUs: nothing can be tested beside it. Find whose it is and end it.",
)
def test_stray(node: Facts) -> None:
    assert node.load is not None
    if node.load.state == "absent":
        skip(node.load.why)
    saw(expected="none", actual=list(node.load.stray[:8]) or "none")
    if node.load.stray:
        fail(f"of no job, container, service or login: {', '.join(node.load.stray[:3])}")


@check(
    "load.results",
    severity="fatal",
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
    if None in digests or any(gpu.wrong_products is None for gpu in load.gpus):
        unknown("a GPU gave no product to compare")
    if len(set(digests)) > 1:
        common = max(set(digests), key=digests.count)
        other = [f"GPU {gpu.index}" for gpu in load.gpus if gpu.digest != common]
        fail(f"the same product has other bits on {', '.join(other)}")


@check(
    "load.compute",
    severity="warn",
    action="vendor",
    level="standard",
    needs=NEEDS,
    follows=(LOAD, "load.throttle", "gpu.clocks", "gpu.power_limit", "gpu.throttle"),
    applies=lambda e: e.gpu_count > 1,
    otherwise="one GPU has no peer to be compared with",
    says="A GPU multiplies matrices slower than its neighbours: all of them wait for it in every step.",
)
def test_compute(node: Facts, expected: Expected) -> None:
    _alike(node, expected, "tflops_last", "TFLOP/s")


@check(
    "load.memory",
    severity="warn",
    action="vendor",
    level="standard",
    needs=NEEDS,
    follows=(LOAD, "load.throttle", "gpu.ecc"),
    applies=lambda e: e.gpu_count > 1,
    otherwise="one GPU has no peer to be compared with",
    says="A GPU's memory is slower than its neighbours'. Look at its remapped rows and temperature, then the vendor.",
)
def test_memory(node: Facts, expected: Expected) -> None:
    _alike(node, expected, "memory_gbps", "GB/s")


def _alike(node: Facts, expected: Expected, of: str, unit: str) -> None:
    share = expected.most.get("load.gpu_spread", 0.0)
    found = _fastest(node, expected, of)
    saw(
        expected=f"within {share:.0%} of {median(found.values()):.4g} {unit}, the node's median",
        actual={gpu: round(value, 1) for gpu, value in found.items()},
    )
    if behind := _lag(found, share):
        fail(f"{'; '.join(behind)} {unit}")


@check(
    "load.sustained",
    severity="warn",
    action="vendor",
    level="standard",
    needs=NEEDS,
    follows=(LOAD, "load.throttle", "load.compute"),
    says="GPUs start fast and fall back under load: cooling or power does not hold what the machine is sold for.",
)
def test_sustained(node: Facts, expected: Expected) -> None:
    first, last = _fastest(node, expected, "tflops"), _fastest(node, expected, "tflops_last")
    share = expected.most.get("load.fall_back", 0.0)
    fell = [f"{gpu}: {last[gpu]:.4g} after {first[gpu]:.4g}" for gpu in first if last[gpu] < first[gpu] * (1 - share)]
    saw(
        expected=f"at most {share:.0%} below the start",
        actual={gpu: round(last[gpu] / first[gpu], 2) if first[gpu] else None for gpu in first},
    )
    if fell:
        fail(f"{'; '.join(fell)} TFLOP/s")


@check(
    "load.host_copy",
    severity="fatal",
    action="vendor",
    level="standard",
    needs=NEEDS,
    follows=(LOAD, "gpu.pcie", "gpu.pcie_gen", "load.pcie_link"),
    says="Copies between host and GPU are too slow: the PCIe link, the slot or the processor's side of it is bad.",
)
def test_host_copy(node: Facts, expected: Expected) -> None:
    to, back = _fastest(node, expected, "h2d_gbps"), _fastest(node, expected, "d2h_gbps")
    least = expected.least.get("host_copy")
    saw(
        expected=f"{least:g} GB/s or more" if least else "alike on all GPUs",
        actual={gpu: f"{to[gpu]:.1f} to, {back[gpu]:.1f} from the GPU" for gpu in to},
    )
    if least is not None:
        low = [f"{gpu}: {min(to[gpu], back[gpu]):.1f}" for gpu in to if min(to[gpu], back[gpu]) < least]
    else:
        # Nobody has published this machine's: half of what its neighbours reach is a link of half its lanes.
        low = [*_lag(to, 0.4), *_lag(back, 0.4)]
    if low:
        fail(f"{'; '.join(low)} GB/s")


@check(
    "load.peer_copy",
    severity="fatal",
    action="vendor",
    level="standard",
    needs=NEEDS,
    follows=(LOAD, "nvlink.links", "nvlink.speed", "nvlink.topology", "nvswitch.fabric", "load.host_copy"),
    applies=lambda e: e.gpu_count > 1,
    otherwise="one GPU has no peer to copy to",
    says="Copies from a GPU to its neighbour are too slow: a bad NVLink, or they go through the host.",
)
def test_peer_copy(node: Facts, expected: Expected) -> None:
    found = _fastest(node, expected, "peer_gbps")
    least = expected.least.get("peer_copy")
    saw(
        expected=f"{least:g} GB/s or more" if least else "alike on all GPUs",
        actual={gpu: round(value, 1) for gpu, value in found.items()},
    )
    low = (
        [f"{gpu}: {value:.1f}" for gpu, value in found.items() if value < least]
        if least is not None
        else _lag(found, 0.4)
    )
    if low:
        fail(f"{'; '.join(low)} GB/s")


@check(
    "nccl.transport",
    severity="fatal",
    action="reconfigure",
    level="standard",
    needs=NEEDS,
    follows=(LOAD, "gpu.count", "nvlink.links", "nvlink.topology", "nvswitch.fabric", "peermem.loaded"),
    applies=lambda e: e.gpu_count > 1 and e.vendor == "nvidia",
    otherwise="one GPU sends nothing, or it is RCCL that sends",
    says="NCCL has fallen back from NVLink to host memory or sockets: jobs run at a tenth of the node's speed.",
)
def test_transport(node: Facts, expected: Expected) -> None:
    ways = dict(reached(node, expected).transports)
    joined = all(expected.nvlinks_per_gpu or (0,)) and not any(
        cell in ("PHB", "NODE", "SYS", "PXB", "PIX") for cells in (expected.topology or {}).values() for cell in cells
    )
    allowed = ("P2P", "NVLS") if joined else ("P2P", "NVLS", "SHM")
    other = {way: count for way, count in ways.items() if way not in allowed}
    saw(expected=f"{' or '.join(allowed)} alone", actual=ways)
    if other:
        fail("; ".join(f"{count} channels via {way}" for way, count in other.items()))
    if not ways:
        unknown("NCCL did not say which way its channels go")


@check(
    "load.training",
    severity="fatal",
    action="vendor",
    level="standard",
    needs=NEEDS,
    follows=(LOAD, "load.results", "nccl.bandwidth", "nccl.transport"),
    says="A small reference model does not train on this node: its loss does not fall, or is no number.",
)
def test_training(node: Facts, expected: Expected) -> None:
    load = reached(node, expected)
    rate = f"{load.samples_per_s:.4g} samples/s" if load.samples_per_s is not None else None
    saw(expected="a loss that falls", actual=f"{load.loss_first} to {load.loss_last}, {rate}")
    if load.loss_first is None or load.loss_last is None:
        fail("the loss is no number")
    if load.loss_last >= load.loss_first:
        fail(f"the loss went from {load.loss_first:.3f} to {load.loss_last:.3f}")
    if load.samples_per_s is None:
        unknown("no rate was measured")


def _working(node: Facts, expected: Expected) -> tuple[Gpu, ...]:
    """The GPUs as nvidia-smi saw them under load."""
    load = reached(node, expected)
    if node.under_load is None:
        unknown(node.source("nvidia-smi-load.xml").reason, "nvidia-smi-load.xml")
    if load.simulated and not node.under_load.gpus:
        unknown("no GPU answered under load")
    return tuple(gpu for gpu in node.under_load.gpus if not gpu.lost)


@check(
    "load.throttle",
    severity="fatal",
    action="vendor",
    level="standard",
    needs=NEEDS,
    vendor="nvidia",
    follows=(LOAD, "gpu.throttle", "gpu.power_brake"),
    says="GPUs slow down under load because of heat or the power supply. Look at fans, air flow, coolant and feeds.",
)
def test_throttle(node: Facts, expected: Expected) -> None:
    gpus = _working(node, expected)
    slowed = {f"GPU {g.index}": [r for r in g.throttle if r in THROTTLE] for g in gpus}
    saw(expected="no slowdown", actual={gpu: reasons for gpu, reasons in slowed.items() if reasons} or "none")
    if told := [f"{gpu}: {', '.join(reasons)}" for gpu, reasons in slowed.items() if reasons]:
        fail("; ".join(told))


@check(
    "load.pcie_link",
    severity="fatal",
    action="vendor",
    level="standard",
    needs=NEEDS,
    vendor="nvidia",
    follows=(LOAD, "gpu.pcie", "gpu.pcie_gen"),
    says="A GPU's PCIe link stays below what GPU and host can do even under load. Reseat the board, change the slot.",
)
def test_pcie_link(node: Facts, expected: Expected) -> None:
    low, seen = [], {}
    for gpu in _working(node, expected):
        name, now, best = f"GPU {gpu.index}", gpu.pcie_gen, gpu.pcie_gen_max
        seen[name] = f"generation {now} x{gpu.pcie_width}"
        if now is not None and best is not None and now < best:
            low.append(f"{name}: generation {now}, could be {best}")
        if gpu.pcie_width is not None and expected.pcie_width is not None and gpu.pcie_width < expected.pcie_width:
            low.append(f"{name}: x{gpu.pcie_width} instead of x{expected.pcie_width}")
    saw(expected="the generation and width that both sides can do", actual=seen)
    if low:
        fail("; ".join(low))


def _pairs(node: Facts, expected: Expected) -> list[tuple[str, Gpu, Gpu]]:
    """Each GPU before and after the load."""
    worked(node, expected)
    assert node.after is not None
    if node.after.smi is None or node.smi is None:
        why = node.source("nvidia-smi-after.xml").reason
        unknown(why or "nvidia-smi did not answer before the load", "nvidia-smi-after.xml" if why else "nvidia-smi.xml")
    before = {gpu.pci or gpu.index: gpu for gpu in node.smi.gpus}
    return [
        (f"GPU {gpu.index}", before[key], gpu) for gpu in node.after.smi.gpus if (key := gpu.pci or gpu.index) in before
    ]


def _grown(old: int | None, new: int | None) -> int:
    return new - old if old is not None and new is not None else 0


@check(
    "load.survives",
    severity="fatal",
    action="replace",
    level="standard",
    needs=NEEDS,
    vendor="nvidia",
    follows=("load.xid",),
    says="A GPU was there before the load and is not there after it. Reboot once; if it goes again, replace the node.",
)
def test_survives(node: Facts, expected: Expected) -> None:
    pairs = _pairs(node, expected)
    alive = [name for name, _, gpu in pairs if not gpu.lost]
    assert node.gpus is not None
    saw(expected=f"{len(node.gpus)} GPUs", actual=f"{len(alive)} GPUs")
    if len(alive) < len(node.gpus):
        fail(f"{len(node.gpus)} GPUs before the load, {len(alive)} after it")


@check(
    "load.ecc",
    severity="fatal",
    action="replace",
    level="standard",
    needs=NEEDS,
    vendor="nvidia",
    follows=("load.xid", "load.survives"),
    says="A GPU's memory had errors while it worked. Uncorrectable ones end a job; a flood of corrected ones will.",
)
def test_ecc(node: Facts, expected: Expected) -> None:
    most = expected.most.get("load.ecc_correctable", 0.0)
    told = []
    for name, before, after in _pairs(node, expected):
        lost = max(_grown(before.ecc_volatile, after.ecc_volatile), _grown(before.ecc_aggregate, after.ecc_aggregate))
        mended = _grown(before.ecc_correctable, after.ecc_correctable)
        told += [f"{name}: {lost} uncorrectable errors under load"] if lost > 0 else []
        told += [f"{name}: {mended} corrected errors under load"] if mended > most else []
    saw(expected=f"no uncorrectable and at most {most:g} corrected ones", actual=told or "none")
    if told:
        fail("; ".join(told))


@check(
    "load.nvlink",
    severity="fatal",
    action="vendor",
    level="standard",
    needs=NEEDS,
    vendor="nvidia",
    follows=("load.xid", "load.survives", "nvlink.links"),
    applies=lambda e: any(e.nvlinks_per_gpu or ()),
    otherwise="this machine has no NVLink",
    says="NVLinks had errors while data went over them: a link, a bridge or a switch is failing. Keep it out of jobs.",
)
def test_nvlink(node: Facts, expected: Expected) -> None:
    worked(node, expected)
    assert node.after is not None
    before, after = node.nvlink_errors, node.after.nvlink_errors
    if before is None or after is None:
        file = "nvlink-errors-after.txt" if after is None else "nvlink-errors.txt"
        unknown(node.source(file).reason, file)
    told = []
    for gpu, links in sorted(after.items()):
        for link, counters in sorted(links.items()):
            old = before.get(gpu, {}).get(link, {})
            for what in COUNTERS if counters != old else ():
                grown = errors_of(counters, what) - errors_of(old, what)
                told += [f"GPU {gpu} link {link}: {grown} {what}"] if grown > 0 else []
    saw(expected="no counter grows", actual=told[:16] or "none grew")
    if told:
        fail("; ".join(told[:4]) + (f"; and {len(told) - 4} more" if len(told) > 4 else ""))


@check(
    "load.pcie_replay",
    severity="warn",
    action="vendor",
    level="standard",
    needs=NEEDS,
    vendor="nvidia",
    follows=("load.xid", "load.survives", "load.pcie_link"),
    says="A GPU's PCIe link repeats transfers under load: a bad slot, riser or cable. Copies get slow and then fail.",
)
def test_pcie_replay(node: Facts, expected: Expected) -> None:
    most = expected.most.get("load.pcie_replays", 0.0)
    grown = {name: _grown(old.pcie_replays, new.pcie_replays) for name, old, new in _pairs(node, expected)}
    saw(expected=f"{most:g} at most", actual=grown)
    if told := [f"{gpu}: {count} replays" for gpu, count in grown.items() if count > most]:
        fail("; ".join(told))


@check(
    "load.xid",
    severity="fatal",
    action="vendor",
    level="standard",
    needs=NEEDS,
    vendor="nvidia",
    says="The driver reported GPU errors (Xid) while the node worked: what an idle GPU hides. Keep the log, drain it.",
)
def test_xid(node: Facts, expected: Expected) -> None:
    worked(node, expected)
    assert node.after is not None
    if node.log is None or node.after.log is None:
        unknown(node.source("dmesg-after.txt" if node.log else "dmesg.txt").reason)
    table = expected.xids or {}
    had = {(x.code, pci(x.pci)): x.count for x in (*node.log.xids, *node.log.sxids)}
    new = [
        x
        for x in (*node.after.log.xids, *node.after.log.sxids)
        if x.count > had.get((x.code, pci(x.pci)), 0)
        and (x in node.after.log.sxids or table.get(str(x.code), {}).get("severity") != "info")
    ]
    saw(expected="none", actual=[f"Xid {x.code} on {x.pci}" for x in new] or "none")
    if new:
        told = [f"Xid {x.code} on {x.pci}: {table.get(str(x.code), {}).get('advice', x.text)}" for x in new]
        fail("; ".join(told[:3]))
