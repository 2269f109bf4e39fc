"""What has gone wrong on the GPUs: memory errors, row remaps, Xids, throttling, InfoROM warnings."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from provisioner.common.text import few
from provisioner.verify.check import ACTIONS, Action, check, fail, note, saw, skip, unknown
from provisioner.verify.checks.gpu import all_report, answering, gpu_numbers
from provisioner.verify.checks.looks import Looks
from provisioner.verify.expectations import Expected
from provisioner.verify.facts import Facts
from provisioner.verify.parsers import nvlink_registers, pci
from provisioner.verify.parsers.dmesg import KernelLog, Xid
from provisioner.verify.parsers.nvidia_smi import Smi


@check(
    "gpu.ecc",
    severity="fatal",
    measured="nvidia_smi/h100-sxm-8gpu-580",
    action="reset",
    needs=("gpus",),
    vendor="nvidia",
    applies=lambda e: e.ecc is not None,
    otherwise="this GPU is not shipped with ECC on",
    says="Uncorrectable memory errors, or ECC in the wrong mode. Drain, reset the GPU, test; then replace it.",
)
def test_ecc(node: Facts, expected: Expected) -> None:
    gpus = answering(node)
    desired = "Enabled" if expected.ecc else "Disabled"
    saw(
        expected={"mode": desired, "uncorrectable": 0},
        actual={
            "mode": sorted({str(g.ecc_mode) for g in gpus}),
            "uncorrectable": {f"GPU {g.index}": g.ecc_uncorrectable for g in gpus if g.ecc_uncorrectable},
        },
    )
    # All GPUs are looked at before the check ends: one fault, or a GPU that cannot be read, hides no other.
    past: list[str] = []
    faults: list[str] = []
    actions: list[Action] = []
    if wrong := [gpu.index for gpu in gpus if gpu.ecc_mode not in (desired, None)]:
        faults.append(f"ECC is not {desired.lower()} on {gpu_numbers(wrong)}")
        actions.append("reconfigure")
    for gpu in gpus if expected.ecc else ():
        if gpu.ecc_volatile:
            faults.append(f"GPU {gpu.index}: {gpu.ecc_volatile} uncorrectable errors since the driver was loaded")
            actions.append("reset")
        if gpu.ecc_sram:
            faults.append(f"GPU {gpu.index}: {gpu.ecc_sram} uncorrectable SRAM errors in its life")
            actions.append("replace")
        # DRAM errors of the past are mended once their rows are remapped, or their pages retired before Ampere, and
        # nothing is pending. In MIG mode the driver does not say.
        remapped = gpu.remap_uncorrectable and gpu.remap_pending is False and gpu.remap_failure is False
        retired = gpu.retired_dbe and gpu.retired_pending is False
        if gpu.ecc_aggregate and gpu.remap_pending is None and gpu.retired_pending is None:
            past.append(f"GPU {gpu.index}: {gpu.ecc_aggregate} uncorrectable errors in its life")
        elif gpu.ecc_aggregate and not (gpu.ecc_volatile == 0 and (remapped or retired)) and not gpu.remap_failure:
            repair = "row remapped" if gpu.remap_pending is not None else "page retired"
            faults.append(
                f"GPU {gpu.index}: {gpu.ecc_aggregate} uncorrectable errors in its life and no {repair} for them"
            )
            actions.append("reset")
    if faults:
        # The errors are there whatever the GPU is; only the mode is compared.
        fail("; ".join(faults), action=max(actions, key=ACTIONS.index), observed=len(faults) > bool(wrong))
    if past:
        unknown(f"{'; '.join(past)}; nvidia-smi does not report whether they were remapped or retired")
    all_report(node, {gpu.index: gpu.ecc_mode for gpu in gpus}, "ECC mode")
    if expected.ecc:
        all_report(node, {gpu.index: gpu.ecc_uncorrectable for gpu in gpus}, "ECC error counters")


@check(
    "gpu.remap",
    severity="fatal",
    documented="NVIDIA GPU Memory Error Management, Row Remapping: RMA policy of remapping failures; NVIDIA/DCGM "
    "DcgmHealthWatch.cpp (unrepairable memory is a failure)",
    action="reset",
    needs=("gpus",),
    vendor="nvidia",
    applies=lambda e: e.ecc is not None,
    otherwise="this GPU has no ECC, so neither row remapping nor page retirement",
    says="A reset must remap rows of GPU memory; or no rows are left, or memory is beyond repair (then replace it).",
)
def test_remap(node: Facts) -> None:
    gpus = answering(node)
    state = {
        f"GPU {g.index}": "failed" if g.remap_failure else "pending"
        for g in gpus
        if g.remap_failure or g.remap_pending or g.retired_pending
    }
    unrepairable = [f"GPU {g.index}: memory that cannot be repaired" for g in gpus if g.unrepairable]
    saw(
        expected="none pending, none failed",
        actual=[state, *unrepairable] if unrepairable else state or "none pending, none failed",
    )
    if unrepairable:
        fail("; ".join(unrepairable), action="replace", observed=True)
    if "failed" in state.values():
        fail(
            "; ".join(f"{gpu}: remapping {condition}" for gpu, condition in state.items()),
            action="replace",
            observed=True,
        )
    if state:
        fail("; ".join(f"{gpu}: a remap or retirement is pending" for gpu in state), observed=True)
    pending = {g.index: g.retired_pending if g.remap_pending is None else g.remap_pending for g in gpus}
    # In MIG mode the driver does not say.
    cut_up = {g.index for g in gpus if g.mig_mode == "Enabled"}
    pending_whole = {index: value for index, value in pending.items() if index not in cut_up}
    all_report(node, pending_whole, "state of row remapping or page retirement")


@check(
    "gpu.xid",
    severity="fatal",
    measured="dmesg/a100-xid48-63-94-dbe",
    action="reset",
    needs=("dmesg.txt",),
    vendor="nvidia",
    follows=("gpu.xid_again",),
    says="The driver logged an error that the GPU does not recover from by itself. Follow the steps for its code.",
)
def test_xid(node: Facts, expected: Expected) -> None:
    assert node.log is not None
    table, absent = expected.xids or {}, node.gone(expected)
    # Lines of a GPU that is gone belong to gpu.count, which names them.
    logged = [x for x in node.log.xids if pci(x.pci) not in absent]
    off = [address for address in node.log.fallen_off if pci(address) not in absent]
    saw(
        expected="no fatal Xid since boot",
        actual=[x.summary for x in logged] + [{"fallen_off": a} for a in off],
        note=f"not fatal: Xid {', '.join(str(x.code) for x in logged)}" if logged else "",
    )
    # NVLink 5 calls an error nonfatal that it mended by itself: log.nvlink tells of those.
    fatal = [x for x in logged if table.get(str(x.code), {}).get("severity") == "fatal" and x.fatal is not False]
    # 154 only repeats, in words, what the driver wants done: those words decide.
    fatal += [x for x in logged if x.code == RECOVERY and x not in fatal and recovery(x) is not None]
    hopper = expected.knows("nvlink_generation") and expected.nvlink_generation == 4
    if fatal or off:
        actions: list[Action] = ["reboot"] * len(off)
        messages = []
        for x in fatal:
            row = table.get(str(x.code), {})
            requested_action: Action | None = recovery(x) if x.code == RECOVERY else None
            actions.append(
                requested_action
                if requested_action is not None
                else next(a for a in ACTIONS if a == row.get("action", "reset"))
            )
            registers_read = nvlink_registers.read(x.text) if x.code == 74 and hopper else None
            actions += ["vendor"] if registers_read is not None and registers_read.vendor else []
            registers = (
                f" (link {registers_read.link}: {', '.join(registers_read.words)})"
                if registers_read is not None and registers_read.words
                else ""
            )
            messages.append(f"{_xid_text(x)}: {x.text if requested_action else row.get('advice', x.text)}{registers}")
        messages += [f"{', '.join(address or 'a GPU' for address in off)} has fallen off the bus"] if off else []
        fail("; ".join(messages), action=max(actions, key=ACTIONS.index), observed=True)
    if any(x.code == 0 for x in logged):
        unknown("the kernel log ends in the middle of an Xid line")
    strange = sorted({x.code for x in logged if str(x.code) not in table})
    if strange:
        unknown(f"Xid {strange[0]} is not in the catalogue's Xid table")
    log = node.outputs.get("dmesg.txt")
    if log is not None and log.partial and node.log.xids:
        xids_text = ", ".join(_xid_text(x) for x in logged)
        gone_text = "those of GPUs that are gone are gpu.count's"
        seen_text = "; ".join([*([f"seen, and none of it fatal by itself: {xids_text}"] if xids_text else []),
                          *([gone_text] if len(logged) < len(node.log.xids) else [])])  # fmt: skip
        unknown(f"{seen_text}; {log.partial}", action="none")


def _faults(log: KernelLog, expected: Expected) -> set[tuple[str, int]]:
    """(PCI address, code) of what a GPU does not recover from by itself; a GPU that fell off the bus without an Xid
    counts as its Xid 79."""
    table = expected.xids or {}
    fatal = {x for x in log.xids if table.get(str(x.code), {}).get("severity") == "fatal" and x.fatal is not False}
    return {(pci(x.pci), x.code) for x in fatal} | {(pci(address), 79) for address in log.fallen_off}


def _earlier(log: KernelLog | None, expected: Expected) -> set[tuple[str, int]]:
    """The same of what stands in a log before the driver's last load, or before its last boot."""
    table = expected.xids or {}
    entries = log.earlier if log is not None else ()
    return {(pci(address), code) for code, address in entries if table.get(str(code), {}).get("severity") == "fatal"}


def _describe(faults: set[tuple[str, int]]) -> str:
    """The faults in words. A GPU can fall off the bus without an Xid 79."""
    descriptions = (
        f"{address or 'a GPU'} fell off the bus" if code == 79 else f"Xid {code} on {address}"
        for address, code in sorted(faults)
    )
    return ", ".join(islice(descriptions, 4))


@check(
    "gpu.xid_program",
    severity="info",
    action="none",
    needs=("dmesg.txt",),
    vendor="nvidia",
    follows=("gpu.xid", "gpu.count", "gpu.xid_repeats"),
    says="Errors that ended a program and no more, a contained memory error among them. Restart the program; where one "
    "GPU has them again and again, test it.",
)
def test_xid_program(node: Facts, expected: Expected) -> None:
    assert node.log is not None
    table = expected.xids or {}
    mild = [x for x in node.log.xids if table.get(str(x.code), {}).get("severity") == "warn" and x.code != RECOVERY]
    saw(expected="none", actual=[x.summary for x in mild] or "none")
    if mild:
        fail(few([f"{_xid_text(x)}: {table[str(x.code)].get('advice', x.text)}" for x in mild], 3))


@check(
    "gpu.xid_again",
    severity="fatal",
    documented="NVIDIA Xid catalogue (docs.nvidia.com/deploy/xid-errors): an error that returns after a reset "
    "or reboot goes to support",
    action="replace",
    needs=("dmesg.txt",),
    vendor="nvidia",
    follows=("gpu.count",),
    says="A GPU has the fault again that it had before the last boot, or before the driver was loaded again: that did "
    "not mend it. Replace the GPU.",
)
def test_xid_again(node: Facts, expected: Expected) -> None:
    assert node.log is not None
    current, source = _faults(node.log, expected), node.source("dmesg-before.txt")
    saw(expected="no fault of the boot before", actual="none" if not current else _describe(current))
    if node.before is not None and (repeated := _faults(node.before, expected) & _earlier(node.before, expected)):
        fail(f"in several of the boots before: {_describe(repeated)}", observed=True)
    if not current:
        return
    if repeated_here := current & _earlier(node.log, expected):
        fail(f"before the driver was loaded again and after it: {_describe(repeated_here)}")
    if source.state == "hung":
        unknown(source.reason)
    if node.before is None:
        skip(f"no kernel log of the previous boot: {source.reason}")
    if repeated_here := current & _faults(node.before, expected):
        fail(f"in the previous boot and again in this one: {_describe(repeated_here)}")


@check(
    "gpu.xid_before",
    severity="warn",
    action="none",
    vendor="nvidia",
    follows=("gpu.xid_again", "gpu.count"),
    says="Before the last boot, or before the driver was loaded again, a GPU had a fault. That took its traces, not "
    "its cause: prove it at work (standard).",
)
def test_xid_before(node: Facts, expected: Expected) -> None:
    source = node.source("dmesg-before.txt")
    if old := _earlier(node.log, expected):
        saw(expected="no fatal Xid before", actual=_describe(old))
        fail(f"before the driver was loaded again: {_describe(old)}")
    if source.state == "hung":
        unknown(source.reason)
    if node.before is None:
        skip(f"no kernel log of the previous boot: {source.reason}")
    previous = _faults(node.before, expected)
    saw(expected="no fatal Xid in the boot before", actual=_describe(previous) or "none")
    if previous:
        fail(f"in the previous boot: {_describe(previous)}")


RECOVERY = 154
WORDS: tuple[tuple[str, Action], ...] = (
    ("reboot", "reboot"),  # "Node Reboot Required", "OS Reboot" since branch 610, "System Reboot" since 615
    ("bus", "reboot"),  # "Bus Reset" since branch 615: a reset of the GPU alone does not reach its bus
    ("imex", "reconfigure"),  # "Recover IMEX Domain" since branch 610
    ("drain", "reset"),  # "Drain and Reset", "Drain P2P": a reset once what runs on it has ended
    ("reset", "reset"),  # "GPU Reset Required"
    ("flr", "reset"),  # "PF FLR", a reset of the function, since branch 610
)
"""The words of Xid 154 and of nvidia-smi for what the driver wants done (nvml.h, nvmlDeviceGpuRecoveryAction_t), and
what that is here."""
STRONGEST: tuple[Action, ...] = ("reboot", "reset", "reconfigure")
"""Of several requests the first of these is done: it does the others' work too."""


def recovery(xid: Xid) -> Action | None:
    """What the last Xid 154 of a GPU asks for; None where that is nothing."""
    request = xid.text.split(" to ")[-1]
    return None if "(none)" in request.lower() else recovery_action(request)


def recovery_action(request: str) -> Action:
    """What the driver's words ask for. Words that nobody knows ask for a reboot: the driver wants something, and that
    is the most that a node can do by itself."""
    return next((action for phrase, action in WORDS if phrase in request.lower()), "reboot")


def _xid_text(xid: Xid) -> str:
    return f"Xid {xid.code}{f' ({xid.count} times)' if xid.count > 1 else ''} on {xid.pci}"


@check(
    "gpu.throttle",
    severity="fatal",
    documented="nvidia-smi(1) Clocks Event Reasons: HW Slowdown and HW Thermal Slowdown halve the clocks or more; "
    "github Azure/azurehpc-health-checks, leptonai/gpud take the node out for them",
    action="vendor",
    needs=("gpus",),
    vendor="nvidia",
    says="A GPU is slowed down by heat, or by its hardware for a reason it does not give. Look at fans and air flow.",
)
def test_throttle(node: Facts) -> None:
    answering(node)
    looks = Looks(node, "smi", _slowed)
    saw(expected="none", actual=[_by_gpu(look) for look in looks.each] if any(looks.each) else "none")
    if looks.lasting:
        # Software's own reason is a limit that is kept to, and no fault of the hardware's.
        hard = any(reason.startswith("hw_") for _, reason in looks.lasting)
        unsure = looks.unsure if hard else ("software slows it down",)
        fail(f"{_by_gpu(looks.lasting)}{looks.words}", unverified=unsure)
    if looks.over:
        note(f"{_by_gpu(looks.over)} for a moment: a later look does not show it")


def _slowed(smi: Smi) -> set[tuple[int, str]]:
    """GPU and reason. The power brake raises the general slowdown beside itself, and has a check of its own."""
    brake = "hw_power_brake_slowdown"
    return {
        (gpu.index, reason)
        for gpu in smi.gpus
        for reason in gpu.throttle
        if reason != brake and not (reason == "hw_slowdown" and brake in gpu.throttle)
    }


def _by_gpu(slowed: Iterable[tuple[int, str]]) -> str:
    """GPU 0: hw_slowdown; GPU 1: hw_slowdown, hw_thermal_slowdown."""
    reasons: dict[int, list[str]] = {}
    for gpu, reason in sorted(slowed):
        reasons.setdefault(gpu, []).append(reason)
    return "; ".join(f"GPU {gpu}: {', '.join(names)}" for gpu, names in reasons.items())


CORRUPTED = 14
"""Exit status of nvidia-smi where an InfoROM is corrupted (nvidia-smi(1), Return Value)."""


@check(
    "gpu.inforom",
    severity="fatal",
    documented="nvidia-smi(1), exit status 14: infoROM is corrupted; github Azure/azurehpc-health-checks (NHC2008) and "
    "NVIDIA/NVSentinel take the node out, DCGM's diagnostics fail its test Inforom",
    action="vendor",
    needs=("gpus",),
    vendor="nvidia",
    says="nvidia-smi warns beside its answer, most often of a corrupted InfoROM. Ask the vendor for a replacement.",
)
def test_inforom(node: Facts) -> None:
    warnings = list(node.smi.warnings) if node.smi else []
    output = node.outputs.get("nvidia-smi.xml")
    if output is not None and output.rc == CORRUPTED and not any("inforom" in line.lower() for line in warnings):
        warnings.append(f"exit status {CORRUPTED}: an InfoROM is corrupted")
    saw(expected="no warning", actual=warnings or "no warning")
    if warnings:
        corrupted = any("inforom" in line.lower() for line in warnings)
        fail("; ".join(warnings)[:300], unverified=() if corrupted else ("what nvidia-smi warns of",))
    answering(node)
