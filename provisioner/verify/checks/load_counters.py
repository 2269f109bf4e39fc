"""What a node's GPUs showed under load, and every counter of errors that grew meanwhile."""

from __future__ import annotations

from provisioner.common.text import counted, few
from provisioner.verify.check import check, fail, saw, skip, unknown
from provisioner.verify.checks.gpu_power import degrees_left
from provisioner.verify.checks.load import LOAD, NEEDS, reached, worked
from provisioner.verify.checks.nvlink_health import COUNTERS, errors_of
from provisioner.verify.expectations import Expected
from provisioner.verify.facts import Facts
from provisioner.verify.parsers import pci
from provisioner.verify.parsers.nvidia_smi import THROTTLE, Gpu


def working(node: Facts, expected: Expected) -> tuple[Gpu, ...]:
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
    documented="nvidia-smi(1) Clocks Event Reasons: HW Thermal and HW Slowdown; github Azure/azurehpc-health-checks",
    action="vendor",
    level="standard",
    needs=NEEDS,
    vendor="nvidia",
    follows=(LOAD, "gpu.throttle", "gpu.power_brake"),
    says="GPUs slow down under load because of heat or the power supply. Look at fans, air flow, coolant and feeds.",
)
def test_throttle(node: Facts, expected: Expected) -> None:
    gpus = working(node, expected)
    slowed = {f"GPU {g.index}": [r for r in g.throttle if r in THROTTLE] for g in gpus}
    saw(expected="no slowdown", actual={gpu: reasons for gpu, reasons in slowed.items() if reasons} or "none")
    if messages := [f"{gpu}: {', '.join(reasons)}" for gpu, reasons in slowed.items() if reasons]:
        fail("; ".join(messages))


# A warning: no source says for how long a healthy GPU may be slowed down. Where it still is when looked at,
# load.throttle condemns; what it costs is in load.compute_rate and load.sustained.
@check(
    "load.slowed",
    severity="info",
    action="vendor",
    level="standard",
    needs=NEEDS,
    vendor="nvidia",
    follows=(LOAD, "load.throttle", "gpu.throttle", "gpu.power_brake"),
    says="GPUs were slowed down by heat or the power supply at some time of the load, if not when it was looked at.",
)
def test_slowed(node: Facts, expected: Expected) -> None:
    maximum = expected.most.get("load.slowed_s", 0.0)
    grown = {
        name: {reason: (us - dict(old.slowed_us).get(reason, us)) / 1e6 for reason, us in new.slowed_us}
        for name, old, new in _pairs(node, expected)
    }
    if not any(grown.values()):
        skip("this driver does not count how long it slowed the GPUs down (branch 580 and later do)")
    excessive = {gpu: {r: f"{s:.1f} s" for r, s in reasons.items() if s > maximum} for gpu, reasons in grown.items()}
    saw(
        expected=f"{maximum:g} s at most",
        actual={gpu: reasons for gpu, reasons in excessive.items() if reasons} or "none",
    )
    if wrong := [f"{gpu}: {reason} for {s}" for gpu, reasons in excessive.items() for reason, s in reasons.items()]:
        fail("; ".join(wrong), unverified=expected.unsupported("load.slowed_s"))


@check(
    "load.temperature",
    severity="warn",
    action="vendor",
    level="standard",
    needs=NEEDS,
    vendor="nvidia",
    follows=(LOAD, "load.throttle", "load.slowed", "gpu.throttle", "gpu.temperature", "gpu.memory_temperature"),
    says="GPUs came close to the temperature at which they slow down while they worked: a warm day or a longer job is "
    "enough. Look at fans, air flow and liquid cooling.",
)
def test_temperature(node: Facts, expected: Expected) -> None:
    minimum = expected.most.get("temperature.margin", 0.0)
    sampled = {sample.index: sample for sample in node.samples or ()}
    margins: dict[str, float] = {}
    for gpu in working(node, expected):
        sample = sampled.get(gpu.index)
        degrees = degrees_left(gpu)
        if degrees is not None:
            hotter = (sample.temperature or 0) - gpu.temperature if sample and gpu.temperature is not None else 0
            margins[f"GPU {gpu.index}"] = degrees - max(hotter, 0)
        if gpu.memory_temperature is not None and gpu.memory_temperature_max is not None:
            hottest = max(gpu.memory_temperature, (sample.memory_temperature if sample else None) or 0)
            margins[f"memory of GPU {gpu.index}"] = gpu.memory_temperature_max - hottest
    looks = max((sample.count for sample in sampled.values()), default=0) + 1
    saw(
        expected=f"more than {minimum:g} °C below the limit",
        actual={part: f"{degrees:g} °C" for part, degrees in margins.items()},
        note=f"{looks} looks in the course of the load",
    )
    if not margins:
        skip("these GPUs report no temperature at which they slow down")
    if hot := [f"{part}: {degrees:g} °C left" for part, degrees in margins.items() if degrees <= minimum]:
        fail("; ".join(hot), unverified=expected.unsupported("temperature.margin"))


@check(
    "load.pcie_link",
    severity="fatal",
    measured="nvidia_smi/h100-8gpu-570-pcie-gen4-vm",
    action="vendor",
    level="standard",
    needs=NEEDS,
    vendor="nvidia",
    follows=(LOAD, "gpu.pcie", "gpu.pcie_gen"),
    says="A GPU's PCIe link stays below what GPU and host can do even under load. Reseat the board, change the slot.",
)
def test_pcie_link(node: Facts, expected: Expected) -> None:
    low, narrow, links = [], [], {}
    for gpu in working(node, expected):
        name, generation, best = f"GPU {gpu.index}", gpu.pcie_gen, gpu.pcie_gen_max
        links[name] = f"generation {generation} x{gpu.pcie_width}"
        if generation is not None and best is not None and generation < best:
            low.append(f"{name}: generation {generation}, could be {best}")
        if gpu.pcie_width is not None and expected.pcie_width is not None and gpu.pcie_width < expected.pcie_width:
            narrow.append(f"{name}: x{gpu.pcie_width} instead of x{expected.pcie_width}")
    saw(expected="the generation and width that both sides can do", actual=links)
    if low or narrow:
        # A virtual machine does not show the bridge above its GPU: what the GPU calls possible may not be, there.
        alone = () if narrow or expected.bare_metal else ("the PCIe generation in a virtual machine",)
        fail("; ".join([*low, *narrow]), unverified=alone)


def _pairs(node: Facts, expected: Expected) -> list[tuple[str, Gpu, Gpu]]:
    """Each GPU before and after the load."""
    worked(node, expected)
    assert node.after is not None
    if node.after.smi is None or node.smi is None:
        reason = node.source("nvidia-smi-after.xml").reason
        unknown(
            reason or "nvidia-smi did not answer before the load",
            "nvidia-smi-after.xml" if reason else "nvidia-smi.xml",
        )
    previous = {gpu.pci or gpu.index: gpu for gpu in node.smi.gpus}
    return [
        (f"GPU {gpu.index}", previous[key], gpu)
        for gpu in node.after.smi.gpus
        if (key := gpu.pci or gpu.index) in previous
    ]


def _grown(old: int | None, new: int | None) -> int:
    return new - old if old is not None and new is not None else 0


@check(
    "load.survives",
    severity="fatal",
    measured="dmesg/gpu-fallen-off-three-lines",
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
        fail(f"{counted(len(node.gpus), 'GPU')} before the load, {len(alive)} after it")


@check(
    "load.ecc",
    severity="fatal",
    documented="NVIDIA GPU Memory Error Management: uncorrectable errors end the application",
    action="replace",
    level="standard",
    needs=NEEDS,
    vendor="nvidia",
    follows=("load.xid", "load.survives"),
    says="A GPU's memory had errors while it worked. Uncorrectable ones end a job; a flood of corrected ones will.",
)
def test_ecc(node: Facts, expected: Expected) -> None:
    maximum = expected.most.get("load.ecc_correctable", 0.0)
    faults, flood = [], []
    for name, previous, after in _pairs(node, expected):
        lost = max(
            _grown(previous.ecc_volatile, after.ecc_volatile), _grown(previous.ecc_aggregate, after.ecc_aggregate)
        )
        corrected = _grown(previous.ecc_correctable, after.ecc_correctable)
        faults += [f"{name}: {lost} uncorrectable errors under load"] if lost > 0 else []
        ever = expected.most.get("ecc.dram_correctable", float("inf"))  # what a GPU may have in its life, documented
        faults += [f"{name}: {corrected} corrected errors under load"] if corrected > ever else []
        flood += [f"{name}: {corrected} corrected errors under load"] if maximum < corrected <= ever else []
    saw(expected=f"no uncorrectable and at most {maximum:g} corrected ones", actual=[*faults, *flood] or "none")
    if faults or flood:
        alone = () if faults else expected.unsupported("load.ecc_correctable")
        fail("; ".join([*faults, *flood]), unverified=alone)


@check(
    "load.nvlink",
    severity="fatal",
    documented="github facebookresearch/gcm, aws-samples/awsome-distributed-training: NVLink counters that grow",
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
    previous, after = node.nvlink_errors, node.after.nvlink_errors
    if previous is None or after is None:
        file = "nvlink-errors-after.txt" if after is None else "nvlink-errors.txt"
        unknown(node.source(file).reason, file, condemns=not node.never_asked(file))
    growths = []
    for gpu, links in sorted(after.items()):
        for link, counters in sorted(links.items()):
            old = previous.get(gpu, {}).get(link, {})
            for counter in COUNTERS if counters != old else ():
                grown = errors_of(counters, counter) - errors_of(old, counter)
                growths += [f"GPU {gpu} link {link}: {grown} {counter}"] if grown > 0 else []
    saw(expected="no counter grows", actual=growths[:16] or "none grew")
    if growths:
        fail(few(growths, 4), observed=True)


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
    maximum = expected.most.get("load.pcie_replays", 0.0)
    grown = {name: _grown(old.pcie_replays, new.pcie_replays) for name, old, new in _pairs(node, expected)}
    saw(expected=f"{maximum:g} at most", actual=grown)
    if messages := [f"{gpu}: {count} replays" for gpu, count in grown.items() if count > maximum]:
        fail("; ".join(messages))


@check(
    "load.xid",
    severity="fatal",
    measured="dmesg/dcgm-xid119-43-79",
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
        messages = [f"Xid {x.code} on {x.pci}: {table.get(str(x.code), {}).get('advice', x.text)}" for x in new]
        fail("; ".join(messages[:3]))
