"""Which GPUs these are and how they are set: identity, place on the bus, modes, who holds them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from provisioner.common.text import counted, few
from provisioner.verify.check import check, fail, saw, skip, unknown
from provisioner.verify.checks.gpu import all_report, answering, is_model
from provisioner.verify.expectations import Expected
from provisioner.verify.facts import Facts

MASKED = frozenset("0-GPUN/AxX")
"""What a UUID or serial number is made of that says nothing: zeros only, N/A."""


def _repeated(values: Iterable[str | None], often: int = 1) -> list[str]:
    known = [value for value in values if value and not set(value) <= MASKED]
    return [f"{value} {count} times" for value, count in Counter(known).items() if count > often]


@check(
    "gpu.uuids_unique",
    severity="warn",
    action="vendor",
    needs=("gpus",),
    listing=True,
    vendor="nvidia",
    applies=lambda e: e.gpu_count > 1,
    otherwise="needs at least two GPUs",
    says="Two GPUs have one UUID: what picks GPUs by UUID (containers, DCGM, Kubernetes) takes the wrong one.",
)
def test_uuids(node: Facts) -> None:
    gpus = answering(node)
    repeated = _repeated(gpu.uuid for gpu in gpus)
    saw(expected="one for each GPU", actual=repeated or "one for each GPU")
    if repeated:
        fail("; ".join(repeated))
    all_report(node, {gpu.index: gpu.uuid for gpu in gpus}, "UUID")


@check(
    "gpu.serials_unique",
    severity="warn",
    action="vendor",
    needs=("gpus",),
    vendor="nvidia",
    applies=lambda e: e.gpu_count > 1,
    otherwise="needs at least two GPUs",
    says="More GPUs show one serial number than stand on one board: an InfoROM was copied. Tell the vendor.",
)
def test_serials(node: Facts, expected: Expected) -> None:
    gpus = answering(node)
    repeated = _repeated((gpu.serial for gpu in gpus), expected.gpus_per_serial)
    saw(expected=f"{expected.gpus_per_serial} GPU for each", actual=repeated or "as expected")
    if repeated:
        fail("; ".join(repeated))
    if all(gpu.serial is None for gpu in gpus):
        skip("these GPUs have no serial number")


@check(
    "gpu.minor_numbers",
    severity="warn",
    action="reboot",
    needs=("gpus",),
    vendor="nvidia",
    applies=lambda e: e.gpu_count > 1,
    otherwise="needs at least two GPUs",
    follows=("gpu.count",),
    says="The driver's numbers of the GPUs have a gap or stand twice: /dev/nvidia<n> is not the n-th GPU. Reboot.",
)
def test_minors(node: Facts) -> None:
    gpus = answering(node)
    minors = [gpu.minor_number for gpu in gpus]
    known = sorted(n for n in minors if n is not None)
    saw(expected=f"0 to {len(minors) - 1}", actual=known)
    if not known:
        skip("the driver reports no minor numbers for these GPUs")
    # Of those that are known none may be there twice, or lie beyond the number of GPUs.
    if len(set(known)) < len(known) or not set(known) <= set(range(len(minors))):
        fail(f"minor numbers are {', '.join(map(str, known))}")
    all_report(node, {gpu.index: gpu.minor_number for gpu in gpus}, "minor number")


@check(
    "gpu.bus_present",
    severity="fatal",
    measured="lspci/h100-vm-8gpu-4nvswitch",
    action="replace",
    vendor="any",
    needs=("lspci.txt",),
    follows=("gpu.count",),
    says="The PCI bus does not show the GPUs as the driver does, or one of them answers no more (registers read ff).",
)
def test_bus(node: Facts, expected: Expected) -> None:
    assert node.bus is not None
    on_bus = node.bus.gpus
    saw(expected=f"{expected.gpu_count} on the bus", actual=len(on_bus))
    if node.bus.dead:
        fail(f"no answer from {', '.join(node.bus.dead)} (registers read ff)", action="reboot")
    known = {gpu.pci for gpu in node.gpus or ()} - {None}
    strange = sorted(str(address) for address in known - set(on_bus)) if len(known) == expected.gpu_count else []
    if len(on_bus) < expected.gpu_count and strange:
        fail(f"not on the bus and yet answering: {', '.join(strange)}", action="reboot")
    if len(on_bus) < expected.gpu_count and node.bus.excerpt:
        unknown(
            f"{len(on_bus)} of {counted(expected.gpu_count, 'GPU')} are in a part of what lspci prints", action="none"
        )
    if len(on_bus) < expected.gpu_count:
        fail(f"{len(on_bus)} of {counted(expected.gpu_count, 'GPU')} are on the bus")


@check(
    "gpu.compute_mode",
    severity="warn",
    action="reconfigure",
    needs=("gpus",),
    listing=True,
    vendor="nvidia",
    says="A GPU does not take several processes: jobs that share it fail. `nvidia-smi -c 0` sets it back.",
)
def test_compute_mode(node: Facts) -> None:
    modes = {gpu.index: gpu.compute_mode for gpu in answering(node)}
    saw(expected="Default", actual=sorted({str(mode) for mode in modes.values()}))
    other = [f"GPU {gpu} is {mode}" for gpu, mode in modes.items() if mode not in (None, "Default")]
    if other:
        fail("; ".join(other))
    all_report(node, modes, "compute mode")


@check(
    "gpu.pending_modes",
    severity="warn",
    action="reset",
    needs=("gpus",),
    vendor="nvidia",
    follows=("gpu.ecc", "gpu.mig"),
    says="ECC or MIG was switched and waits for a reset: the GPU will come back another one than it is now.",
)
def test_pending_modes(node: Facts) -> None:
    pending = []
    for gpu in answering(node):
        for mode, current, then in (("ECC", gpu.ecc_mode, gpu.ecc_pending), ("MIG", gpu.mig_mode, gpu.mig_pending)):
            if current is not None and then is not None and current != then:
                pending.append(f"GPU {gpu.index}: {mode} is {current.lower()}, {then.lower()} after a reset")
    saw(expected="nothing pending", actual=pending or "nothing pending")
    if pending:
        fail("; ".join(pending))


@check(
    "gpu.bar_size",
    severity="warn",
    action="vendor",
    needs=("gpus",),
    vendor="nvidia",
    applies=lambda e: e.large_bar,
    otherwise="only boards with NVSwitch are known to map their whole memory",
    says="A GPU's BAR1 is smaller than its memory, so GPUDirect cannot reach all of it. Turn Above 4G Decoding on.",
)
def test_bar(node: Facts, expected: Expected) -> None:
    gpus = [
        gpu for gpu in answering(node) if gpu.model and is_model(gpu.model, expected.product_names, expected.vendor)
    ]
    if not gpus:
        unknown("no GPU of the expected model answers")
    saw(expected="as large as the memory", actual=sorted({f"{gpu.bar1_mib} MiB" for gpu in gpus}))
    small = [g for g in gpus if g.bar1_mib is not None and g.memory_mib is not None and g.bar1_mib < g.memory_mib]
    if small:
        fail("; ".join(f"GPU {gpu.index}: {gpu.bar1_mib} of {gpu.memory_mib} MiB" for gpu in small))
    all_report(node, {gpu.index: gpu.bar1_mib for gpu in gpus}, "BAR1 size")


@check(
    "gpu.processes",
    severity="info",
    action="none",
    needs=("gpus",),
    vendor="nvidia",
    says="GPU memory is in use: by a job that runs, or by a process that a job left behind.",
)
def test_processes(node: Facts, expected: Expected) -> None:
    holders = []
    lists_processes = not (node.listed_by and node.smi and node.smi.excerpt) and "query-gpu" not in node.listed_by
    for gpu in answering(node):
        compute = [p for p in gpu.processes if p.kind and "C" in p.kind]
        holders += [f"GPU {gpu.index}: {p.name or 'a process'} ({p.pid})" for p in compute]
        used, limit_mib = gpu.memory_used_mib or 0, expected.most.get("memory.idle_mib", float("inf"))
        if lists_processes and not gpu.processes and gpu.mig_mode != "Enabled" and used > limit_mib:
            holders.append(f"GPU {gpu.index}: {used} MiB held by a process that nvidia-smi does not show")
    saw(expected="nobody", actual=holders[:8] or "nobody")
    if holders:
        fail(few(holders, 6))
