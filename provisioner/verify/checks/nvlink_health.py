"""NVLinks that are up and yet not well, the fabric behind them, and the switches on the bus."""

from __future__ import annotations

from collections.abc import Iterator

from provisioner.common.text import few
from provisioner.verify.check import check, fail, note, saw, skip, unknown
from provisioner.verify.checks.gpu import all_report, answering
from provisioner.verify.checks.looks import ONE_LOOK, may_train
from provisioner.verify.checks.unread import modules_are_whole
from provisioner.verify.expectations import Expected
from provisioner.verify.facts import Facts
from provisioner.verify.growth import Growth, link
from provisioner.verify.parsers.nvlink_errors import Counters
from provisioner.verify.peers import Spread

COUNTERS = {
    "replay": ("replay",),
    "recovery": ("recovery", "link recovery failed events", "link recovery successful events"),
    "crc": (
        "crc", "crc flit", "crc data", "effective", "symbol", "malformed packet", "buffer overrun", "rx", "rx remote",
        "rx general", "local link integrity",
    ),
}  # fmt: skip
"""Counters that matter, by what nvidia-smi calls them: NVLink 2 to 4 first, then those of NVLink 5 that DCGM watches
(modules/health/DcgmHealthWatch.cpp, MonitorNVLink5Fields and MonitorNVLinkErrorFields) and that stand at 0 on a healthy
B300 (driver 595.91). FEC errors, raw errors and raw bit error rates of NVLink 5 are mended on the way and count there
too; a symbol error is one that FEC did not mend."""
QUIET = dict.fromkeys(COUNTERS, 0)
"""A link that has counted nothing."""


@check(
    "nvlink.speed",
    severity="fatal",
    measured="nvlink/h100-1gpu-18links",
    action="reset",
    needs=("nvlink.txt",),
    vendor="nvidia",
    follows=("gpu.model", "nvlink.links", "nvswitch.fabric"),
    applies=lambda e: any(e.nvlinks_per_gpu or ()) and e.nvlink_gbps,
    otherwise="this machine has no NVLink whose rate is known",
    says="NVLinks run below the rate of their generation. Drain and reset the GPUs; if it stays, replace the node.",
)
def test_speed(node: Facts, expected: Expected) -> None:
    assert node.nvlinks is not None
    assert expected.nvlink_gbps is not None
    speeds = {f"GPU {i}": links.speeds for i, links in sorted(node.nvlinks.items()) if links.speeds}
    slow = {
        gpu: sorted({speed for speed in link_speeds if speed < expected.nvlink_gbps})
        for gpu, link_speeds in speeds.items()
    }
    speeds_shown = sorted({speed for link_speeds in speeds.values() for speed in link_speeds})
    saw(expected=f"{expected.nvlink_gbps:g} GB/s or more", actual=[f"{speed:g} GB/s" for speed in speeds_shown])
    if any(slow.values()):
        messages = (f"{gpu} has links of {', '.join(f'{s:g}' for s in s_)} GB/s" for gpu, s_ in slow.items() if s_)
        slowest = min(min(s_) for s_ in slow.values() if s_)
        fail("; ".join(messages), unverified=expected.unsupported_floor("nvlink", slowest, expected.nvlink_gbps))
    if expected.mig and any(links.note == "MIG mode" for links in node.nvlinks.values()):
        skip("NVLink is not visible in MIG mode, which cluster.yaml asks for")
    if not speeds:
        unknown("no link is active")


def errors_of(counters: Counters, kind: str) -> int:
    """The errors of one kind of COUNTERS on a link."""
    return sum(counters.get(name, 0) for name in COUNTERS[kind])


def _known(node: Facts, expected: Expected) -> dict[str, dict[str, int]]:
    """ "GPU 0 link 3" → the counters that matter."""
    assert node.nvlink_errors is not None
    counts = {
        f"GPU {gpu} link {link}": {kind: errors_of(counters, kind) for kind in COUNTERS}
        if any(counters.values())
        else QUIET
        for gpu, links in sorted(node.nvlink_errors.items())
        for link, counters in sorted(links.items())
    }
    if not counts and expected.mig:
        skip("NVLink is not visible in MIG mode, which cluster.yaml asks for")
    if not counts:
        unknown("no link has a counter")
    silent = [gpu.index for gpu in node.gpus or () if not gpu.lost and not node.nvlink_errors.get(gpu.index)]
    if silent and not expected.mig:
        unknown(f"no link has a counter of GPU {few(list(map(str, silent)), 8, ',')}")
    return counts


# A warning: the counters stand since the driver was loaded, and nobody knows when they grew. What grows under load
# condemns (load.nvlink), as do links that are down.
@check(
    "nvlink.errors",
    severity="warn",
    action="vendor",
    needs=("nvlink-errors.txt",),
    vendor="nvidia",
    follows=("nvlink.recoveries", "nvlink.asymmetry", "nvlink.links", "nvswitch.fabric"),
    applies=lambda e: any(e.nvlinks_per_gpu or ()),
    otherwise="this machine has no NVLink",
    says="NVLinks had to repeat or recover transfers. See whether the counters grow under load, then replace.",
)
def test_errors(node: Facts, expected: Expected) -> None:
    counted = _known(node, expected)
    limits = {kind: expected.most.get(f"nvlink.{kind}", float("inf")) for kind in COUNTERS}
    over = {
        (link, kind): count
        for link, counts in counted.items()
        for kind, count in counts.items()
        if count > limits[kind]
    }
    excesses = [f"{link}: {count} {kind}" for (link, kind), count in over.items()]
    saw(expected={kind: f"{limit:g} at most" for kind, limit in limits.items()}, actual=excesses[:16] or "none")
    growth = Growth.of(node)
    if growth.earlier is not None:
        new = {key: sum(growth.by(*pair) for pair in _raw(node, *key)) for key in over}
        if grown := [f"{link}: {new[link, kind]} {kind}" for link, kind in over if new[link, kind] > limits[kind]]:
            fail(f"{few(grown, 4)} ({growth.since})")
    if excesses:
        note(f"{few(excesses, 4)}, since the driver was loaded")


def _raw(node: Facts, name: str, kind: str) -> Iterator[tuple[str, int]]:
    """The counters of one link that count errors of one kind, as growth.py names them."""
    for gpu, links in (node.nvlink_errors or {}).items():
        for number, counters in links.items():
            if f"GPU {gpu} link {number}" == name:
                yield from (
                    (link(name, counter), counters[counter]) for counter in COUNTERS[kind] if counter in counters
                )


RECOVERIES = 100
"""Recoveries of one link, while all others have none, from which on it is failing (see `documented` below)."""


@check(
    "nvlink.recoveries",
    severity="fatal",
    documented="github marin-community/marin#8934, #9086: 505 recoveries of one link, none of 320 GPUs' others; Xid "
    "149 and a rack down five days later",
    action="vendor",
    needs=("nvlink-errors.txt",),
    vendor="nvidia",
    follows=("nvlink.links", "nvswitch.fabric"),
    applies=lambda e: any(e.nvlinks_per_gpu or ()),
    otherwise="this machine has no NVLink",
    says="One NVLink recovers again and again while all others never do: it is about to fail. Drain the node.",
)
def test_recoveries(node: Facts, expected: Expected) -> None:
    counted = {link: counts["recovery"] for link, counts in _known(node, expected).items()}
    busy = {link: count for link, count in counted.items() if count}
    saw(expected=f"fewer than {RECOVERIES}, or others too", actual=busy or "none")
    if len(busy) == 1 and len(counted) > 1 and max(busy.values()) >= RECOVERIES:
        fail("; ".join(f"{link}: {count} recoveries, no other link has any" for link, count in busy.items()))


@check(
    "nvlink.asymmetry",
    severity="warn",
    action="vendor",
    needs=("nvlink-errors.txt",),
    vendor="nvidia",
    follows=("nvlink.recoveries", "nvlink.links", "nvswitch.fabric"),
    applies=lambda e: any(e.nvlinks_per_gpu or ()),
    otherwise="this machine has no NVLink",
    says="One NVLink counts far more errors than its peers: it is on its way to fail. Have that GPU's board replaced.",
)
def test_asymmetry(node: Facts, expected: Expected) -> None:
    counted = _known(node, expected)
    floor, far = (expected.most.get(f"nvlink.{name}", float("inf")) for name in ("outlier", "outlier_mads"))
    outliers = []
    for kind in COUNTERS if any(counts is not QUIET for counts in counted.values()) else ():
        spread = Spread.of([counts[kind] for counts in counted.values()])
        limit = spread.median + max(far * spread.deviation, floor)
        over = {link: counts[kind] for link, counts in counted.items() if counts[kind] > limit}
        outliers += [f"{link}: {count} {kind}, median {spread.median:g}" for link, count in over.items()]
    saw(expected="all links alike", actual=outliers[:8] or "all links alike")
    if outliers:
        fail(few(outliers, 4))


@check(
    "gpu.fabric_state",
    severity="fatal",
    measured="nvidia_smi/b200-8gpu-580",
    action="reset",
    needs=("gpus",),
    vendor="nvidia",
    follows=("driver.version",),
    applies=lambda e: e.switched and not e.fabric_manager and e.nvlink_generation == 5,
    otherwise="no NVLink 5 switches outside the node (those inside are nvswitch.fabric's)",
    says="A GPU has not joined the NVLink domain of its rack. Look at the fabric manager of the switches; reset it.",
)
def test_fabric_state(node: Facts) -> None:
    answering(node)
    looks = node.looks("smi")
    joining = any(g.fabric_state == JOINING for g in looks[0].gpus)
    gpus = [g for g in looks[-1 if joining else 0].gpus if not g.lost]
    states = {f"GPU {g.index}": (g.fabric_state, g.fabric_status, g.fabric_health) for g in gpus}
    saw(expected="Completed, Success, Healthy", actual={gpu: list(state) for gpu, state in states.items()})
    wrong = [
        f"{gpu}: {', '.join(map(str, state))}"
        for gpu, state in states.items()
        if state[0] not in (None, "Completed") or state[1] not in (None, "Success") or state[2] not in (None, "Healthy")
    ]
    if wrong:
        unsure = (ONE_LOOK,) if joining and len(looks) == 1 and may_train(node) else ()
        fail("; ".join(wrong), unverified=unsure)
    all_report(node, {gpu.index: gpu.fabric_state for gpu in gpus}, "fabric state")


JOINING = "In Progress"
"""nvidia-smi(1), Fabric, State: the GPU registers with the fabric."""


@check(
    "gpu.fabric_health",
    severity="fatal",
    documented="nvidia-smi(1) Fabric, Health; NVIDIA Health Validation, NVLinkFabricHealth",
    action="reset",
    needs=("gpus",),
    vendor="nvidia",
    follows=("nvswitch.fabric", "gpu.fabric_state"),
    applies=lambda e: e.switched,
    otherwise="only GPUs from Hopper on behind NVSwitch report their fabric state",
    says="A GPU's way through the NVLink switches is degraded, or its GPUs are in different partitions. Reset them.",
)
def test_fabric_health(node: Facts) -> None:
    gpus = answering(node)
    wrong = [f"GPU {g.index}: {fault.replace('_', ' ')}" for g in gpus for fault in g.fabric_faults]
    wrong += [
        f"GPU {g.index}: bandwidth {g.fabric_bandwidth.lower()}"
        for g in gpus
        if g.fabric_bandwidth not in (None, "Full")
    ]
    cliques = sorted({f"{g.fabric_cluster or ''}/{g.fabric_clique}" for g in gpus if g.fabric_clique is not None})
    saw(expected="full bandwidth, one partition", actual=wrong or cliques)
    if wrong:
        fail("; ".join(wrong), observed=True)
    if len(cliques) > 1:
        fail(f"{len(cliques)} partitions in one node: {', '.join(cliques)}", observed=True)
    if all(g.fabric_state is None for g in gpus):
        skip("this driver reports no fabric state")


@check(
    "nvswitch.present",
    severity="fatal",
    measured="lspci/azure-a100-8gpu-6nvswitch",
    action="replace",
    needs=("lspci.txt",),
    vendor="nvidia",
    applies=lambda e: e.nvswitches,
    otherwise="no NVSwitch of this machine is on the node's PCI bus",
    says="An NVSwitch is missing on the PCI bus: fabric manager does not start. Reboot once, then replace the node.",
)
def test_present(node: Facts, expected: Expected) -> None:
    assert node.bus is not None
    saw(expected=expected.nvswitches, actual=node.bus.nvswitches)
    if node.bus.nvswitches < expected.nvswitches and node.bus.excerpt:
        switches_text = f"{node.bus.nvswitches} of {expected.nvswitches} NVSwitches"
        unknown(f"{switches_text} are in a part of what lspci prints", action="none")
    if node.bus.nvswitches < expected.nvswitches:
        fail(f"{node.bus.nvswitches} of {expected.nvswitches} NVSwitches are on the bus")


@check(
    "nvswitch.nvlsm",
    severity="warn",
    action="reconfigure",
    needs=("packages.txt", "modules.txt"),
    vendor="nvidia",
    follows=("packages.locked",),
    applies=lambda e: e.subnet_manager,
    otherwise="no switch of NVLink 5 on this node",
    lock="package nvlsm is one of its packages",
    without_lock="the process and module ib_umad",
    says="What fabric manager needs for NVLink 5 is missing: nvlsm, its process, or module ib_umad. Run `gpuprov up`.",
)
def test_nvlsm(node: Facts, expected: Expected) -> None:
    assert node.packages is not None
    # Without a lock it may have come in another way, and what has to be there is the process.
    missing = [] if "nvlsm" in node.packages or not expected.packages else ["package nvlsm"]
    listed = "ib_umad" in (node.modules or ()) or not modules_are_whole(node, expected)
    missing += [] if listed else ["module ib_umad"]
    running = node.host.processes.running if node.host and node.host.processes else None
    missing += ["process nvlsm"] if running is not None and "nvlsm" not in running and not expected.simulated else []
    saw(expected="nvlsm, installed and running, and ib_umad", actual=missing or "all")
    if missing:
        fail(f"missing: {', '.join(missing)}")


@check(
    "nvlink.peers",
    severity="fatal",
    documented="nvidia-smi(1) topo -p2p; NVIDIA Health Validation, NVLinkP2P",
    action="reset",
    reads=("p2p.txt",),
    vendor="nvidia",
    follows=(
        "gpu.count",
        "nvlink.links",
        "nvlink.topology",
        "nvswitch.fabric",
        "gpu.fabric_state",
        "gpu.fabric_health",
    ),
    applies=lambda e: e.large_bar and e.gpu_count > 1 and not e.mig,
    otherwise="only GPUs behind NVSwitch are known to reach each other's memory, and those of MIG do not",
    says="The driver does not let two GPUs reach each other's memory: NCCL goes round by the host, or fails. Reset all "
    "GPUs and start fabric manager again.",
)
def test_p2p(node: Facts) -> None:
    source = node.source("p2p.txt")
    if source.state == "absent":
        skip("older bundles do not have p2p.txt")
    if node.p2p is None:
        unknown(source.reason, "p2p.txt")
    cells = node.p2p
    order = sorted(cells)
    wrong = [f"GPU {a} to {b}: {cell}" for a in order for b, cell in zip(order, cells[a], strict=True)
             if cell != ("X" if a == b else "OK")]  # fmt: skip
    saw(expected=f"OK for each of {len(cells)} GPUs", actual=wrong[:16] or "OK")
    if wrong:
        fail(few(wrong, 4))
