"""NVLink and NVSwitch: how the GPUs of a node reach each other."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, islice

from provisioner.common.text import few
from provisioner.verify.check import NO_TYPE, check, fail, saw, skip, unknown
from provisioner.verify.checks.looks import ONE_LOOK, may_train
from provisioner.verify.expectations import Expected
from provisioner.verify.facts import Facts
from provisioner.verify.parsers.dmesg import Xid

LAYOUTS = 20_000
"""Ways to place the GPUs that are left into the slots of the machine that are tried; 16 GPUs with 4 lost are 1820."""


@check(
    "nvlink.topology",
    severity="fatal",
    measured="topo/h100-8gpu-8nic-legend",
    action="replace",
    needs=("topo.txt",),
    vendor="nvidia",
    follows=("nvlink.links", "nvswitch.fabric"),
    applies=lambda e: e.gpu_count > 1 and e.topology,
    otherwise="needs at least two GPUs",
    says="Two GPUs reach each other by another path than they should. Reset the GPUs; if it stays, replace the node.",
)
def test_topology(node: Facts, expected: Expected) -> None:
    assert node.topo is not None
    cells = node.topo.cells
    names = list(cells)
    # A GPU that nvidia-smi lists and the matrix does not hold is a pair nobody has seen.
    known = node.gpus_present if node.gpus_present is not None else expected.gpu_count
    best = min(_layouts(cells, names, expected), key=len, default=None)
    saw(
        expected={pair: "/".join(allowed) for pair, allowed in (expected.topology or {}).items()},
        actual={f"{a}-{b}": cells[a][b] for a, b in combinations(names, 2)},
        note=f"judged on {len(names)} of {expected.gpu_count} GPUs" if len(names) != expected.gpu_count else "",
    )
    if len(names) < known and node.gpus_present is not None:
        fail(f"the matrix holds {len(names)} GPUs, nvidia-smi lists {known}")
    if best is None:
        unknown(f"the matrix holds {len(names)} GPUs, the machine has {expected.gpu_count}")
    silent = [pair for pair in best if pair[2] is None]
    wrong = [f"{a}-{b} is {cell}, not {'/'.join(allowed)}" for a, b, cell, allowed in best if cell is not None]
    if wrong:
        fail(few(wrong, 6))
    if len(names) < known:
        unknown(f"the matrix holds {len(names)} GPUs, the machine has {expected.gpu_count}")
    if silent:
        unknown(f"no entry for {silent[0][0]}-{silent[0][1]}")
    if len(names) < 2 and known < 2:
        unknown("fewer than two GPUs to compare")


Wrong = tuple[str, str, str | None, tuple[str, ...]]


def _layouts(cells: dict[str, dict[str, str | None]], names: list[str], expected: Expected) -> Iterator[list[Wrong]]:
    """What is wrong for each way in which the listed GPUs can be the machine's: those that are left are renumbered."""
    allowed = expected.topology or {}
    for slots in islice(combinations(range(expected.gpu_count), len(names)), LAYOUTS):
        wrong = []
        for (a, i), (b, j) in combinations(zip(names, slots, strict=True), 2):
            cell = cells[a][b]
            if cell not in allowed[f"{i}-{j}"]:
                wrong.append((a, b, cell, tuple(allowed[f"{i}-{j}"])))
        yield wrong
        if not wrong:
            return


@check(
    "nvlink.links",
    severity="fatal",
    measured="nvlink/a100-8gpu-ok",
    action="reset",
    needs=("nvlink.txt",),
    vendor="nvidia",
    follows=("nvswitch.fabric",),
    applies=lambda e: e.gpu_nvlinks or any(e.nvlinks_per_gpu or ()),
    otherwise="this machine has no NVLink",
    says="NVLinks are down. Drain and reset the GPUs; links that stay down mean a new board, so replace the node.",
)
def test_links(node: Facts, expected: Expected) -> None:
    assert node.nvlinks is not None
    if not expected.knows("nvlinks_per_gpu"):
        _links_of_no_machine(node, expected.gpu_nvlinks)
        return
    expected_links, looks = expected.nvlinks_per_gpu or (), node.looks("nvlinks")
    current = looks[-1] if {*looks[-1]} == {*node.nvlinks} else node.nvlinks  # links that trained may have come up
    active = {index: links.active for index, links in sorted(current.items())}
    present = node.gpus_present if node.gpus_present is not None else expected.gpu_count
    saw(
        expected=f"{min(expected_links)} active on every GPU"
        if len(set(expected_links)) == 1
        else list(expected_links),
        actual={f"GPU {index}": count for index, count in active.items()},
        note=f"judged on {len(active)} of {expected.gpu_count} GPUs" if len(active) != expected.gpu_count else "",
    )
    if expected.mig and any(links.note == "MIG mode" for links in node.nvlinks.values()):
        skip("NVLink is not visible in MIG mode, which cluster.yaml asks for")
    short, few = [], dict[str, bool]()
    for index, count in active.items():
        # Where GPUs are missing the others are renumbered: the least of all slots is asked for then.
        minimum = (
            expected_links[index]
            if len(active) == len(expected_links) and index < len(expected_links)
            else min(expected_links)
        )
        if count is not None and count < minimum:
            short.append(f"GPU {index} has {count} of {minimum}")
    if not expected.large_bar and (missing_gpus := max(0, expected.gpu_count - len(active))):
        # Without a switch between, the links to a GPU that is not listed are down on its neighbours too.
        minimum = min(expected_links) - missing_gpus * max(
            map(_bonded, (c for cells in (expected.topology or {}).values() for c in cells))
        )
        few = {
            f"GPU {i} has {n} of {min(expected_links)}": n < minimum
            for i, n in active.items()
            if n is not None and n < min(expected_links)
        }
        short = [message for message, too_few in few.items() if too_few]
    if short:
        unsure = (ONE_LOOK,) if len(looks) == 1 and may_train(node) else ()
        fail("; ".join(short), unverified=unsure)
    if few:
        unknown(f"{'; '.join(few)}: the others may be those to GPUs that are not listed", action="none")
    if len(active) < present:
        unknown(f"nvlink -s lists {len(active)} of {present} GPUs")
    silent = [index for index, count in active.items() if count is None]
    if silent:
        unknown(f"GPU {silent[0]}: {node.nvlinks[silent[0]].note or 'the tool reported no value'}")


def _links_of_no_machine(node: Facts, of_gpu: int | None) -> None:
    """Where nobody named a machine type: a GPU with links up and down is odd on every machine; one with all down may
    stand in a machine without a bridge or a switch, and is no fault where no other GPU is there that the links could
    lead to. `of_gpu`: links that such a GPU has; what lists fewer was cut."""
    links = node.nvlinks or {}
    half = [f"GPU {i} has {x.inactive} of {x.active + x.inactive} links down" for i, x in sorted(links.items())
            if x.active and x.inactive]  # fmt: skip
    dead = [index for index, x in sorted(links.items()) if x.active == 0 and x.note != "no NVLink"]
    saw(expected=f"all {of_gpu} links of a GPU alike" if of_gpu else "all links of a GPU alike", actual=half or "alike")
    if dead and not half and node.gpus_present == len(node.bus.gpus if node.bus else links) == 1:
        skip("the only GPU of this machine, whose links lead nowhere")
    if half or dead:
        down = [f"no link of GPU {', '.join(map(str, dead))} is up"] if dead else []
        fail("; ".join([*half, *down]), observed=True, unverified=(NO_TYPE,))
    for index, x in sorted(links.items()):
        if of_gpu and x.active and x.active < of_gpu:
            unknown(f"{x.active} links of GPU {index} are listed, it has {of_gpu}")


def _bonded(cell: str) -> int:
    """Links between two GPUs, by their cell in the matrix."""
    return int(cell[2:]) if cell.startswith("NV") else 0


@check(
    "nvswitch.fabric",
    severity="fatal",
    measured="systemd/failed-version-mismatch-journal",
    action="reconfigure",
    needs=("fabricmanager.txt",),
    vendor="nvidia",
    follows=("driver.version",),
    applies=lambda e: e.fabric_manager,
    otherwise="this machine needs no fabric manager",
    says="The NVSwitch fabric is not up: CUDA says 'system not yet initialized'. Start nvidia-fabricmanager in the "
    "driver's own version.",
)
def test_fabric(node: Facts, expected: Expected) -> None:
    service, switches = node.fabric_manager, node.bus.nvswitches if node.bus else None
    assert service is not None
    if switches == 0 and not expected.verified("fabric_manager"):
        skip("no NVSwitch is on this node's PCI bus, and no source says that the machine needs fabric manager")
    has_switches = bool(switches)  # whoever sees NVSwitches has to run fabric manager for them
    # From Hopper on the GPU says how its registration with the fabric ended; older GPUs print N/A.
    states = {f"GPU {g.index}": (g.fabric_state, g.fabric_status, g.fabric_health) for g in node.gpus or ()}
    saw(
        expected={"service": "active (running)", "fabric": "Completed, Success"},
        actual={
            "service": f"{service.state} ({service.sub})",
            "fabric": {k: list(v) for k, v in states.items() if any(v)},
        },
    )
    if service.state != "active" or service.sub not in ("running", None):
        reason = f": {service.reason}" if service.reason else ""
        message = f"nvidia-fabricmanager is {service.state}{reason}"
        if not expected.knows("fabric_manager") and service.state == "failed":
            fail(message, observed=True, unverified=() if has_switches else (NO_TYPE,))
        fail(message, observed=has_switches)
    for gpu, (state, status, health) in states.items():
        if state not in (None, "Completed") or status not in (None, "Success"):
            fail(f"{gpu}: fabric {state}, {status}", action="reset", observed=has_switches)
        if health not in (None, "Healthy"):
            fail(f"{gpu}: fabric health is {health}", action="reset", observed=has_switches)
    if node.gpus is None:
        source_reason = node.source(expected.gpu_file).reason
        unknown(f"the service runs, but the GPUs' fabric state is unknown: {source_reason}", expected.gpu_file)


@check(
    "nvswitch.fabric_log",
    severity="warn",
    action="reset",
    needs=("fabricmanager.log",),
    vendor="nvidia",
    follows=("nvswitch.fabric", "nvswitch.sxid", "gpu.count"),
    applies=lambda e: e.fabric_manager,
    otherwise="this machine needs no fabric manager",
    says="Fabric manager has logged errors since it was started: of a switch, a link or a GPU's registration.",
)
def test_fabric_log(node: Facts) -> None:
    assert node.fabric_log is not None
    log = node.fabric_log
    saw(expected="no error", actual=list(log.errors) or "no error")
    if not log.entries:
        skip("fabric manager has written no log")
    if log.count:
        fail(f"{log.count} errors: {'; '.join(log.errors[:3])}", observed=True)


@check(
    "nvswitch.sxid",
    severity="fatal",
    measured="dmesg/h100-xid79-with-nvswitch-sxid20034",
    action="reset",
    needs=("dmesg.txt",),
    vendor="nvidia",
    follows=("gpu.count", "gpu.xid"),
    applies=lambda e: e.fabric_manager,
    otherwise="this machine has no NVSwitch of its own",
    says="An NVSwitch logged a fatal error. Drain, reset all GPUs and restart fabric manager; if it returns, replace.",
)
def test_sxid(node: Facts) -> None:
    assert node.log is not None
    fatal = [x for x in node.log.sxids if x.fatal]
    open_severity = [x for x in node.log.sxids if x.fatal is None]
    saw(expected="no fatal SXid since boot", actual=[x.summary for x in fatal])
    if fatal:
        fail("; ".join(map(_described, fatal)), observed=True)
    if open_severity:
        unverified = ("whether it is fatal: the line that says so is missing",)
        fail(few([*map(_described, open_severity)], 3), observed=True, unverified=unverified)


@check(
    "nvswitch.sxid_nonfatal",
    severity="info",
    action="none",
    needs=("dmesg.txt",),
    vendor="nvidia",
    follows=("nvswitch.sxid", "gpu.count", "gpu.xid"),
    says="An NVSwitch logged errors that it calls non-fatal. Where jobs slow down or fail, look at the link named.",
)
def test_sxid_nonfatal(node: Facts) -> None:
    assert node.log is not None
    mild = [x for x in node.log.sxids if x.fatal is False]
    saw(expected="none", actual=[x.summary for x in mild] or "none")
    if mild:
        fail(few([*map(_described, mild)], 3))


def _described(error: Xid) -> str:
    lines = f" ({error.count} lines)" if error.count > 1 else ""
    return f"SXid {error.code}{lines} on {error.pci}: {error.text}"
