"""How fast the GPUs of a node were at work, beside each other and beside what the machine can do."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median

from provisioner.verify.check import check, fail, saw, unknown
from provisioner.verify.checks.load import LOAD, NEEDS, reached
from provisioner.verify.expectations import Expected, far_below
from provisioner.verify.facts import Facts


def _fastest(node: Facts, expected: Expected, of: str) -> dict[str, float]:
    """ "GPU 0" → what it reached of one measure, of the GPUs that have one; unknown where none has."""
    values = {
        f"GPU {gpu.index}": value for gpu in reached(node, expected).gpus if (value := getattr(gpu, of)) is not None
    }
    if not values:
        unknown(f"no GPU has a value of {of}")
    return values


def _all_measured(node: Facts, expected: Expected, *measures: str) -> None:
    """The end of a check that has found nothing wrong: unknown where a GPU lacks a measure."""
    for of in measures:
        if silent := [f"GPU {gpu.index}" for gpu in reached(node, expected).gpus if getattr(gpu, of) is None]:
            unknown(f"no {of} of {', '.join(silent)}")


def _lag(values: Mapping[str, float], share: float) -> list[str]:
    """The GPUs that are behind the node's median by more than a share."""
    middle = median(values.values())
    return [f"{gpu}: {value:.4g}, median {middle:.4g}" for gpu, value in values.items() if value < middle * (1 - share)]


def _expected_text(minimum: float | None) -> str:
    return f", at least {minimum:g} expected" if minimum is not None else ""


def _floor(expected: Expected, limit: str, rates: Mapping[str, float]) -> tuple[str, ...]:
    """The unverified limit that the slowest GPU fails at, that of this machine type or its neighbours' rate."""
    minimum, slowest = expected.least.get(limit), min(rates.values())
    if minimum is not None:
        return expected.unsupported_floor(limit, slowest, minimum)
    return expected.unsupported_floor("load.copy_spread", slowest, median(rates.values()))


OUTLIER = 0.20
"""Share below the node's median from which on a GPU is broken, whatever the limit of its type is."""


@check(
    "load.outlier",
    severity="fatal",
    documented="github microsoft/superbenchmark data-diagnosis (5 % below its baseline fails a node), "
    "imbue-ai/cluster-health (5 %); the node's own other GPUs are measured in the same moment",
    action="vendor",
    level="standard",
    needs=NEEDS,
    follows=(LOAD, "load.compute_rate", "load.memory_rate", "load.throttle", "gpu.clocks", "gpu.power_limit",
             "gpu.throttle", "gpu.ecc"),
    applies=lambda e: e.gpu_count > 2,
    otherwise="needs at least three GPUs",
    says="A GPU computes or copies a fifth slower than the node's others: every step of a job waits for it.",
)  # fmt: skip
def test_outlier(node: Facts, expected: Expected) -> None:
    slow = []
    for of, unit in (("tflops_last", "TFLOP/s"), ("memory_gbps", "GB/s")):
        rates = {f"GPU {g.index}": value for g in reached(node, expected).gpus if (value := getattr(g, of)) is not None}
        slow += [f"{text} {unit}" for text in (_lag(rates, OUTLIER) if len(rates) > 2 else [])]
    saw(expected=f"within {OUTLIER:.0%} of the node's median", actual=slow or "all are")
    if slow:
        fail("; ".join(slow))


@check(
    "load.compute",
    severity="warn",
    action="vendor",
    level="standard",
    needs=NEEDS,
    follows=(
        "load.outlier",
        LOAD,
        "load.compute_rate",
        "load.throttle",
        "gpu.clocks",
        "gpu.power_limit",
        "gpu.throttle",
    ),
    applies=lambda e: e.gpu_count > 1,
    otherwise="needs at least two GPUs",
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
    follows=("load.outlier", LOAD, "load.memory_rate", "load.throttle", "gpu.ecc"),
    applies=lambda e: e.gpu_count > 1,
    otherwise="needs at least two GPUs",
    says="A GPU's memory is slower than its neighbours'. Look at its remapped rows and temperature, then the vendor.",
)
def test_memory(node: Facts, expected: Expected) -> None:
    _alike(node, expected, "memory_gbps", "GB/s")


def _alike(node: Facts, expected: Expected, of: str, unit: str) -> None:
    share = expected.most.get("load.gpu_spread", 0.0)
    values = _fastest(node, expected, of)
    saw(
        expected=f"within {share:.0%} of {median(values.values()):.4g} {unit}, the node's median",
        actual={gpu: round(value, 1) for gpu, value in values.items()},
    )
    if slow := _lag(values, share):
        fail(f"{'; '.join(slow)} {unit}")
    _all_measured(node, expected, of)


PUBLISHED = "nobody has published what such a GPU reaches"


@check(
    "load.compute_rate",
    severity="fatal",
    documented="github stas00/ml-engineering compute/accelerator: what GPUs reach of their data sheet; limits.yaml",
    action="vendor",
    level="standard",
    needs=NEEDS,
    follows=(LOAD, "load.throttle", "load.slowed", "load.sustained", "gpu.clocks", "gpu.power_limit", "gpu.throttle",
             "gpu.power_brake"),
    applies=lambda e: "gpu_compute" in e.least,
    otherwise=PUBLISHED,
    says="GPUs multiply matrices far slower than their model does, be it all of them alike: clocks, power or cooling.",
)  # fmt: skip
def test_compute_rate(node: Facts, expected: Expected) -> None:
    _at_least(node, expected, "tflops_last", "gpu_compute", "TFLOP/s")


@check(
    "load.memory_rate",
    severity="fatal",
    documented="github NVIDIA/nccl#1264, NVIDIA/cuda-samples#392: copies within a healthy GPU's memory; limits.yaml",
    action="vendor",
    level="standard",
    needs=NEEDS,
    follows=(LOAD, "load.throttle", "gpu.ecc"),
    applies=lambda e: "gpu_memory" in e.least,
    otherwise=PUBLISHED,
    says="The memory of GPUs is far slower than their model's, be it of all alike. Look at its clock, then the vendor.",
)
def test_memory_rate(node: Facts, expected: Expected) -> None:
    _at_least(node, expected, "memory_gbps", "gpu_memory", "GB/s")


def _at_least(node: Facts, expected: Expected, of: str, limit: str, unit: str) -> None:
    minimum, values = expected.least[limit], _fastest(node, expected, of)
    saw(expected=f"{minimum:g} {unit} or more", actual={gpu: round(value, 1) for gpu, value in values.items()})
    if low := [f"{gpu}: {value:.4g}" for gpu, value in values.items() if value < minimum]:
        limits = expected.unsupported_floor(limit, min(values.values()), minimum)
        fail(f"{'; '.join(low)} {unit}{_expected_text(minimum)}", unverified=limits)
    _all_measured(node, expected, of)


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
    gpus = [gpu for gpu in first if gpu in last]
    fell = [f"{gpu}: {last[gpu]:.4g} after {first[gpu]:.4g}" for gpu in gpus if last[gpu] < first[gpu] * (1 - share)]
    saw(
        expected=f"at most {share:.0%} below the start",
        actual={gpu: round(last[gpu] / first[gpu], 2) if first[gpu] else None for gpu in gpus},
    )
    if fell:
        fail(f"{'; '.join(fell)} TFLOP/s")
    _all_measured(node, expected, "tflops", "tflops_last")


@check(
    "load.host_copy",
    severity="fatal",
    documented="github Azure/azurehpc-health-checks conf/*.conf (nvbandwidth); limits.yaml says of which machines",
    action="vendor",
    level="standard",
    needs=NEEDS,
    follows=(LOAD, "gpu.pcie", "gpu.pcie_gen", "load.pcie_link"),
    says="Copies between host and GPU are too slow: the PCIe link, the slot or the processor's side of it is bad.",
)
def test_host_copy(node: Facts, expected: Expected) -> None:
    to, back = _fastest(node, expected, "h2d_gbps"), _fastest(node, expected, "d2h_gbps")
    minimum = expected.least.get("host_copy")
    saw(
        expected=f"{minimum:g} GB/s or more" if minimum else "alike on all GPUs",
        actual={gpu: f"{to[gpu]:.1f} to, {back[gpu]:.1f} from the GPU" for gpu in to if gpu in back},
    )
    slower = {gpu: min(rates[gpu] for rates in (to, back) if gpu in rates) for gpu in {**to, **back}}
    if minimum is not None:
        low = [f"{gpu}: {rate:.1f}" for gpu, rate in slower.items() if rate < minimum]
    else:
        # Nobody has published this machine's: half of what its neighbours reach is a link of half its lanes.
        share = expected.most["load.copy_spread"]
        low = [*_lag(to, share), *_lag(back, share)]
    if low:
        limits = _floor(expected, "host_copy", slower)
        unbound = {f"GPU {gpu.index}" for gpu in reached(node, expected).gpus if gpu.numa_node is None}
        if (
            not (expected.verified("numa_nodes") and expected.numa_nodes == 1)
            and minimum is not None
            and all(gpu in unbound and not far_below(rate, minimum) for gpu, rate in slower.items() if rate < minimum)
        ):
            limits = (*limits, "host memory of no known NUMA node")
        fail(f"{'; '.join(low)} GB/s{_expected_text(minimum)}", unverified=limits)
    _all_measured(node, expected, "h2d_gbps", "d2h_gbps")


@check(
    "load.peer_copy",
    severity="fatal",
    documented="github Azure/azurehpc-health-checks conf/*.conf (nvbandwidth); limits.yaml says of which machines",
    action="vendor",
    level="standard",
    needs=NEEDS,
    follows=(LOAD, "nvlink.links", "nvlink.speed", "nvlink.topology", "nvswitch.fabric", "load.host_copy"),
    applies=lambda e: e.gpu_count > 1,
    otherwise="needs at least two GPUs",
    says="Copies from a GPU to its neighbour are too slow: a bad NVLink, or they go through the host.",
)
def test_peer_copy(node: Facts, expected: Expected) -> None:
    values = _fastest(node, expected, "peer_gbps")
    minimum = expected.least.get("peer_copy")
    saw(
        expected=f"{minimum:g} GB/s or more" if minimum else "alike on all GPUs",
        actual={gpu: round(value, 1) for gpu, value in values.items()},
    )
    low = (
        [f"{gpu}: {value:.1f}" for gpu, value in values.items() if value < minimum]
        if minimum is not None
        else _lag(values, expected.most["load.copy_spread"])
    )
    if low:
        fail(f"{'; '.join(low)} GB/s{_expected_text(minimum)}", unverified=_floor(expected, "peer_copy", values))
    _all_measured(node, expected, "peer_gbps")
