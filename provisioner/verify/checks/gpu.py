"""The GPUs of a node: number, kind, memory, modes, PCIe."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from provisioner.common.text import counted
from provisioner.verify.baseline import Baseline, gpu_identities, hardware_changes
from provisioner.verify.check import check, compare, fail, saw, skip, unknown
from provisioner.verify.expectations import MEMORY_TOLERANCE, Expected
from provisioner.verify.facts import Facts
from provisioner.verify.parsers import pci
from provisioner.verify.parsers.nvidia_smi import Gpu


def answering(node: Facts) -> tuple[Gpu, ...]:
    """GPUs that answer; unknown where there is none, because nothing can be said of no GPU."""
    if not node.gpus:
        unknown("no GPU answers")
    return node.gpus


def gpu_numbers(indexes: Iterable[int]) -> str:
    """GPUs by their numbers: "GPU 2, 5"."""
    return f"GPU {', '.join(map(str, indexes))}"


def all_report(node: Facts, values: Mapping[int, object], noun: str) -> None:
    """Unknown where the value of a GPU (by number) is None. A check judges what the others report first: a GPU that
    does not answer hides no fault of another."""
    silent = [index for index, value in values.items() if value is None]
    if len(silent) == len(values) and node.listed_by:
        unknown(node.listed_alone, action="none")
    if silent:
        unknown(f"{gpu_numbers(silent)}: no {noun} reported")


@check(
    "gpu.count",
    severity="fatal",
    measured="nvidia_smi/h100-sxm-8gpu-580",
    action="replace",
    needs=("gpus",),
    listing=True,
    says="A GPU is missing or has fallen off the bus. Replace the node; on bare metal, power-cycle it first.",
)
def test_count(node: Facts, expected: Expected, baseline: Baseline | None) -> None:
    present = node.gpus_present
    lost = [*(str(gpu.pci) for gpu in node.smi.gpus if gpu.lost), *node.smi.unreachable] if node.smi else []
    absent = node.gone(expected)
    on_bus = f"; {len(node.bus.gpus)} on the PCI bus" if node.bus else ""
    # What is on the bus and does not answer is the one to look at; without addresses of the rest that is a guess.
    known = {gpu.pci for gpu in node.gpus or ()}
    if node.bus and known and None not in known and (silent := [a for a in node.bus.gpus if a not in known]):
        on_bus += f", {', '.join(silent)} without an answer"
    kernel = [f"Xid {x.code} on {x.pci}" for x in node.log.xids if pci(x.pci) in absent] if node.log else []
    recorded = hardware_changes(baseline.gpus, gpu_identities(node), present) if baseline and baseline.gpus else []
    details = "".join(
        [
            f"; lost: {', '.join(map(str, lost))}" if lost else "",
            on_bus,
            *(f"; {line}" for line in kernel),
            f"; since {baseline.whose}: {', '.join(recorded[:8])}" if baseline and recorded else "",
        ]
    )
    if lost and not expected.knows("gpu_count"):
        fail(f"no answer of {counted(len(lost), 'GPU')}{details}", observed=True)
    if present is None and lost:
        saw(expected=expected.gpu_count, actual=f"{len(lost)} without an answer")
        gpus = counted(expected.gpu_count, "GPU")
        fail(f"{len(lost)} of {gpus} cannot be opened, and the others are unknown{details}")
    attached = node.smi.attached_gpus if node.smi else None
    if node.smi and attached is not None and attached != len(node.smi.gpus):
        saw(expected=expected.gpu_count, actual=present)
        fail(f"nvidia-smi reports {attached} attached GPUs and lists {len(node.smi.gpus)}{details}")
    compare(expected.gpu_count, present, f"{present} of {counted(expected.gpu_count, 'GPU')} answer{details}")


@check(
    "gpu.model",
    severity="fatal",
    measured="nvidia_smi/h100-sxm-8gpu-580",
    action="replace",
    needs=("gpus",),
    listing=True,
    says="The machine has another GPU than was asked for. Give it back to the provider.",
)
def test_model(node: Facts, expected: Expected) -> None:
    models = {gpu.index: gpu.model for gpu in (node.gpus or (node.rocm.gpus if node.rocm else ()))}
    saw(expected=expected.gpu_model, actual=sorted({str(model) for model in models.values()}))
    if not models:
        unknown("no GPU answers")
    silent = [index for index, model in models.items() if model is None]
    other = {
        index: model
        for index, model in models.items()
        if model is not None and not is_model(model, expected.product_names, expected.vendor)
    }
    if other:
        fail("; ".join(f"GPU {index} is {model}" for index, model in other.items()))
    if silent:
        unknown(f"GPU {silent[0]}: no product name reported")


def is_model(model: str, product_names: Sequence[str], vendor: str) -> bool:
    """Whether a printed name is one of the product's; old drivers leave "NVIDIA " away, rocm-smi adds the chip, tables
    cut them."""
    name = model.removeprefix("NVIDIA ").lower()
    if name.endswith("..."):  # the table cuts long names
        products = (product.removeprefix("NVIDIA ").lower() for product in product_names)
        return any(product.startswith(name[:-3].rstrip()) for product in products)
    for known in product_names:
        plain = known.removeprefix("NVIDIA ").lower()
        if name == plain or (vendor == "amd" and plain.removeprefix("amd ") in name):
            return True
    return False


@check(
    "gpu.memory",
    severity="fatal",
    measured="nvidia_smi/h100-sxm-8gpu-580",
    action="replace",
    needs=("gpus",),
    listing=True,
    says="A GPU shows less (or more) memory than its kind has. Replace the node.",
)
def test_memory(node: Facts, expected: Expected) -> None:
    # Only GPUs of the expected model: what another model has is gpu.model's to say.
    listed = node.gpus or (node.rocm.gpus if node.rocm else ())
    named_alike = expected.verified("product_names")  # else nobody knows how they spell it
    memory = {
        gpu.index: gpu.memory_mib
        for gpu in listed
        if gpu.model and (not named_alike or is_model(gpu.model, expected.product_names, expected.vendor))
    }
    saw(
        expected=f"{expected.memory_mib} MiB ± {MEMORY_TOLERANCE:.0%}",
        actual=sorted({f"{m} MiB" for m in memory.values() if m is not None}),
        note=f"judged on {len(memory)} of {counted(expected.gpu_count, 'GPU')}"
        if expected.knows("gpu_count") and len(memory) != expected.gpu_count
        else "",
    )
    margin = expected.memory_mib * MEMORY_TOLERANCE
    wrong = {i: m for i, m in memory.items() if m is not None and abs(m - expected.memory_mib) > margin}
    if wrong:
        fail("; ".join(f"GPU {index} has {size} MiB" for index, size in wrong.items()))
    if not memory:
        unknown("no GPU of the expected model answers")
    all_report(node, memory, "memory size")


@check(
    "gpu.persistence",
    severity="warn",
    action="reconfigure",
    needs=("gpus",),
    listing=True,
    vendor="nvidia",
    lock="whether the mode has to be on is its cluster.yaml's to say",
    without_lock="off on some of the GPUs warns",
    says="Persistence mode is not as asked, or differs between GPUs: without it the driver unloads between jobs. "
    "Start nvidia-persistenced.",
)
def test_persistence(node: Facts, expected: Expected) -> None:
    modes = {gpu.index: gpu.persistence for gpu in answering(node)}
    labels, desired = {True: "on", False: "off", None: "?"}, expected.persistence is not False
    saw(expected=labels[desired], actual=sorted({labels[mode] for mode in modes.values()}))
    wrong = [index for index, mode in modes.items() if mode is (not desired)]
    if wrong and expected.persistence is None and len(wrong) == len(modes):
        skip("persistence mode is off, and no cluster.yaml says that it should be on")
    if wrong:
        fail(f"persistence mode is {'off' if desired else 'on'} on {gpu_numbers(wrong)}")
    all_report(node, modes, "persistence mode")


@check(
    "gpu.mig",
    severity="fatal",
    measured="nvidia_smi/a100-sxm-80gb-mig-535",
    action="reconfigure",
    needs=("gpus",),
    vendor="nvidia",
    says="MIG is not as asked: jobs would see slices in place of whole GPUs, or the reverse. Set the mode and reset.",
)
def test_mig(node: Facts, expected: Expected) -> None:
    desired = "Enabled" if expected.mig else "Disabled"
    modes = {gpu.index: gpu.mig_mode for gpu in answering(node)}
    saw(expected=desired, actual=sorted({str(mode) for mode in modes.values()}))
    # GPUs that have no MIG print N/A: whole GPUs, as asked.
    if wrong := [index for index, mode in modes.items() if mode not in (desired, None)]:
        modes_seen = ", ".join(sorted({str(modes[index]) for index in wrong})).lower()
        fail(f"MIG is {modes_seen} on {gpu_numbers(wrong)}, asked for {expected.mig or 'none'}")
    if expected.mig:
        all_report(node, modes, "MIG mode")


@check(
    "gpu.lanes",
    severity="fatal",
    documented="github oracle-quickstart/oci-hpc GpuPcie, facebookresearch/gcm check_pci: a narrow link takes a node "
    "out. Unlike its generation, a link's width stays when a GPU is idle (PCI Express Base Specification, L1)",
    action="reboot",
    needs=("gpus",),
    vendor="nvidia",
    applies=lambda e: e.bare_metal and e.pcie_width,
    otherwise="a virtual machine shows the link that its hypervisor made, or the board's width is unknown",
    says="A GPU has lost lanes of its PCIe link. Reboot; if it stays, have card and riser reseated.",
)
def test_lanes(node: Facts, expected: Expected) -> None:
    widths = {gpu.index: gpu.pcie_width for gpu in answering(node) if gpu.pcie_width is not None}
    if not widths:
        skip("no GPU reports the width of its link")
    saw(expected=f"x{expected.pcie_width} or wider", actual=sorted({f"x{width}" for width in widths.values()}))
    if narrow := [
        f"GPU {index} is at x{width}" for index, width in widths.items() if width < (expected.pcie_width or 0)
    ]:
        fail("; ".join(narrow))


@check(
    "gpu.pcie",
    severity="warn",
    action="reboot",
    needs=("gpus",),
    follows=("gpu.lanes",),
    vendor="nvidia",
    says="A GPU's PCIe link is narrower than its board's. Reboot; if it stays, have card and riser reseated.",
)
def test_pcie(node: Facts, expected: Expected) -> None:
    # The generation is left alone: idle GPUs stand at 1, and many hosts offer less than the GPU could do.
    widths = {gpu.index: gpu.pcie_width for gpu in answering(node)}
    minimum = expected.pcie_width or 8
    saw(expected=f"x{minimum} or wider", actual=sorted({f"x{w}" for w in widths.values() if w}))
    narrow = [f"GPU {index} is at x{width}" for index, width in widths.items() if width is not None and width < minimum]
    if narrow:
        fail("; ".join(narrow))
    all_report(node, widths, "PCIe link width")
