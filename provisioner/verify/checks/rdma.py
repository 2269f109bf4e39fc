"""RDMA devices as the kernel has them: device nodes, addresses, partition keys, firmware, PCIe, counters."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from provisioner.verify.check import NO_LOCK, check, fail, saw, skip, unknown
from provisioner.verify.checks.network import non_training_devices
from provisioner.verify.checks.unread import end_unread, modules_are_whole
from provisioner.verify.expectations import Expected
from provisioner.verify.facts import Facts
from provisioner.verify.growth import DAY, HOUR, Growth, port_counter
from provisioner.verify.parsers.rdma_sysfs import Device, Port

RDMA = ("infiniband", "roce", "efa")
NO_RDMA = "this machine has no RDMA cards"
EXPLAINED = ("ib.ports", "efa.devices")


def used(node: Facts, expected: Expected) -> Iterator[tuple[Device, Port]]:
    """Ports that are up and can carry training traffic: those for training, of the right link layer, at full rate."""
    other = non_training_devices(node, expected.rdma_devices, expected.rdma_pci) if expected.rdma_pci else frozenset()
    layer = {"infiniband": "InfiniBand", "roce": "Ethernet"}.get(expected.network)
    for device in node.rdma or ():
        for port in device.ports:
            fast = port.rate_gbps is None or port.rate_gbps >= expected.rate_gbps
            if port.up and fast and layer in (None, port.link_layer) and device.name not in other:
                yield device, port


def some(node: Facts, expected: Expected) -> list[tuple[Device, Port]]:
    """The same, and unknown where there is none: then ib.ports or efa.devices says so."""
    ports = list(used(node, expected))
    if not ports:
        unknown("no RDMA port is up")
    return ports


@check(
    "rdma.uverbs",
    severity="fatal",
    documented="docs.kernel.org/infiniband/user_verbs.html; github aws-samples/awsome-distributed-training",
    action="reconfigure",
    needs=("rdma.json",),
    follows=EXPLAINED,
    applies=lambda e: e.network in RDMA,
    otherwise=NO_RDMA,
    says="An RDMA card has no /dev/infiniband/uverbs*: no program can open it, NCCL falls back to TCP. Load ib_uverbs.",
)
def test_uverbs(node: Facts) -> None:
    assert node.rdma is not None
    without = [device.name for device in node.rdma if not device.uverbs]
    saw(
        expected="a device file each", actual=f"none for {', '.join(without)}" if without else f"{len(node.rdma)} files"
    )
    if without:
        fail(f"no uverbs device for {', '.join(without)}")


@check(
    "rdma.lid",
    severity="fatal",
    documented="InfiniBand architecture, 4.1.3: the subnet manager gives each port its LID; sysfs ports/*/lid",
    action="vendor",
    needs=("rdma.json",),
    follows=EXPLAINED,
    applies=lambda e: e.network == "infiniband",
    otherwise="this machine has no InfiniBand",
    says="A port is up and has no address from a subnet manager: nothing reaches it. Ask the fabric's operator.",
)
def test_lid(node: Facts, expected: Expected) -> None:
    ports = some(node, expected)
    lids = {f"{d.name}/{p.number}": f"LID {p.lid}, SM {p.sm_lid}" for d, p in ports}
    wrong = [name for name, (_, p) in zip(lids, ports, strict=True) if p.lid == 0 or p.sm_lid == 0]
    saw(expected="a LID and a subnet manager each", actual=lids)
    if wrong:
        fail(f"{', '.join(wrong)}: no LID or no subnet manager")
    if any(p.lid is None for _, p in ports):
        unknown("the kernel reports no LIDs for the ports")


@check(
    "rdma.pkey",
    severity="fatal",
    documented="InfiniBand architecture, 10.9: limited members do not talk to each other; sysfs ports/*/pkeys",
    action="vendor",
    needs=("rdma.json",),
    follows=(*EXPLAINED, "rdma.lid"),
    applies=lambda e: e.network == "infiniband",
    otherwise="this machine has no InfiniBand",
    says="A port is not a full member of any partition, so it cannot talk to the others. Ask the fabric's operator.",
)
def test_pkey(node: Facts, expected: Expected) -> None:
    ports = some(node, expected)
    saw(expected="a full member's key", actual={f"{d.name}/{p.number}": ", ".join(p.pkeys) or "none" for d, p in ports})
    wrong = [f"{d.name}/{p.number}" for d, p in ports if p.pkeys and not p.full_member]
    if wrong:
        fail(f"{', '.join(wrong)}: no partition key of a full member")
    if silent := [f"{d.name}/{p.number}" for d, p in ports if not p.pkeys]:
        unknown(f"the kernel reports no partition keys for {', '.join(silent)}")


@check(
    "rdma.pkeys_alike",
    severity="warn",
    action="vendor",
    needs=("rdma.json",),
    follows=("rdma.pkey",),
    applies=lambda e: e.network == "infiniband",
    otherwise="this machine has no InfiniBand",
    says="The ports of this node are in different partitions: NCCL would use rails that do not reach each other.",
)
def test_pkeys_alike(node: Facts, expected: Expected) -> None:
    keys = {f"{d.name}/{p.number}": tuple(sorted(p.pkeys)) for d, p in some(node, expected)}
    saw(expected="the same keys on all ports", actual={name: ", ".join(port_keys) for name, port_keys in keys.items()})
    if len(set(keys.values())) > 1:
        fail("; ".join(f"{name}: {', '.join(port_keys) or 'none'}" for name, port_keys in keys.items()))


@check(
    "rdma.gids",
    severity="fatal",
    documented="NCCL environment variables, NCCL_IB_GID_INDEX; docs.kernel.org gid_attrs/types: RoCE v2",
    action="reconfigure",
    needs=("rdma.json",),
    follows=EXPLAINED,
    applies=lambda e: e.network == "roce",
    otherwise="this machine has no RoCE",
    says="A RoCE port has no address of version 2, so NCCL cannot use it. Give its network interface an IP address.",
)
def test_gids(node: Facts, expected: Expected) -> None:
    ports = some(node, expected)
    usable = {f"{d.name}/{p.number}": [g for g, kind in p.gids if kind == "RoCE v2"] for d, p in ports}
    saw(
        expected="an address of RoCE v2 each",
        actual={name: ", ".join(addresses) or "none" for name, addresses in usable.items()},
    )
    if wrong := [name for name, addresses in usable.items() if not addresses]:
        fail(f"{', '.join(wrong)}: no RoCE v2 address")


@check(
    "rdma.firmware",
    severity="warn",
    action="vendor",
    needs=("rdma.json",),
    applies=lambda e: e.network in RDMA,
    otherwise=NO_RDMA,
    says="Network cards of one kind have different firmware in this node. Bring them to one version before a long job.",
)
def test_firmware(node: Facts) -> None:
    kinds: dict[str, dict[str, list[str]]] = {}
    for device in node.rdma or ():
        if device.firmware:
            kinds.setdefault(f"{device.card} {device.board}", {}).setdefault(device.firmware, []).append(device.name)
    saw(expected="one version for a kind", actual={kind: sorted(versions) for kind, versions in kinds.items()})
    for kind, versions in kinds.items():
        if len(versions) > 1:
            versions_text = "; ".join(f"{version} on {', '.join(names)}" for version, names in sorted(versions.items()))
            fail(f"{kind.strip()}: {versions_text}")


@check(
    "rdma.board",
    severity="warn",
    action="vendor",
    needs=("rdma.json",),
    follows=EXPLAINED,
    applies=lambda e: e.network in RDMA,
    otherwise=NO_RDMA,
    says="A network card for training is of another make than its neighbours: firmware meant for them does not fit it.",
)
def test_board(node: Facts, expected: Expected) -> None:
    kinds: dict[str, dict[str, list[str]]] = {}
    for device in {device.name: device for device, _ in used(node, expected) if device.board}.values():
        kinds.setdefault(device.card or "", {}).setdefault(device.board or "", []).append(device.name)
    saw(expected="one make for a kind", actual={kind: sorted(boards) for kind, boards in kinds.items()})
    if not kinds:
        skip("the kernel reports no board of the network cards, as of virtual functions")
    for kind, boards in kinds.items():
        if len(boards) > 1:
            boards_text = "; ".join(f"{board} on {', '.join(names)}" for board, names in sorted(boards.items()))
            fail(f"{kind}: {boards_text}".removeprefix(": "))


@check(
    "rdma.pcie",
    severity="fatal",
    documented="PCI Express base specification: GT/s and lanes of a link; github facebookresearch/gcm, ROCm/cvs",
    action="reboot",
    needs=("rdma.json",),
    follows=EXPLAINED,
    applies=lambda e: e.network in RDMA,
    otherwise=NO_RDMA,
    says="A network card's PCIe link carries less than its port. Reboot; if it stays, have card and slot looked at.",
)
def test_pcie(node: Facts, expected: Expected) -> None:
    ports = [(d, p) for d, p in used(node, expected) if d.pcie_gbps is not None and p.rate_gbps is not None]
    if not ports:
        skip("the kernel reports no PCIe links for the network cards, as on virtual functions")
    saw(
        expected=f"more than {expected.rate_gbps:g} Gbit/s",
        actual={d.name: f"{d.pcie_gbps:.0f} Gbit/s" for d, _ in ports},
    )
    slow = [d for d, p in ports if (d.pcie_gbps or 0.0) < (p.rate_gbps or 0.0)]
    narrow = [d for d, _ in ports if d.pcie_width and d.pcie_width_max and d.pcie_width < d.pcie_width_max]
    # A card in a slot that is less than the card, or in a host of an older generation, was meant so, or not.
    if slow:
        sure = expected.pcie_gen is not None or any(device in narrow for device in slow)
        message = "; ".join(f"{d.name}: PCIe carries {d.pcie_gbps:.0f} Gbit/s (x{d.pcie_width})" for d in slow)
        fail(message, unverified=() if sure else ("the PCIe generation of the card's slot",))
    if narrow:
        message = "; ".join(f"{d.name}: x{d.pcie_width} of x{d.pcie_width_max} lanes" for d in narrow)
        fail(message, unverified=("the lanes of the card's slot",))


@check(
    "rdma.gpu_memory",
    severity="fatal",
    documented="github amzn/amzn-drivers kernel/linux/efa: sysfs file p2p",
    action="reconfigure",
    needs=("rdma.json", "gpus"),
    follows=("efa.devices", "driver.responds"),
    vendor="nvidia",
    applies=lambda e: e.network == "efa",
    otherwise="this machine has no EFA",
    says="EFA's driver does not reach the GPUs' memory: transfers go through the host at a fraction of the speed.",
)
def test_gpu_memory(node: Facts) -> None:
    # "NVIDIA" or "NVIDIA peermem"; an empty line where none of the driver's ways works (amzn-drivers, efa_p2p.c).
    reached = {device.name: device.p2p for device in node.rdma or () if device.p2p is not None}
    if not reached:
        skip("this EFA driver does not report GPUDirect RDMA (no file p2p), as that of the kernel does not")
    saw(expected="NVIDIA", actual=sorted({provider or "none" for provider in reached.values()}))
    if wrong := [name for name, provider in reached.items() if provider.upper().split(" ")[0] != "NVIDIA"]:
        fail(f"{', '.join(wrong)}: {reached[wrong[0]] or 'no provider'} instead of NVIDIA")
    if silent := [device.name for device in node.rdma or () if device.name not in reached]:
        unknown(f"{', '.join(silent)}: no file p2p, which {', '.join(sorted(reached)[:2])} and others have")


@check(
    "peermem.loaded",
    severity="fatal",
    documented="NVIDIA GPUDirect RDMA, nvidia-peermem; Linux dma-buf; github imbue-ai/cluster-health",
    action="reconfigure",
    reads=("modules.txt", "kernel.txt"),
    follows=("driver.responds",),
    vendor="nvidia",
    applies=lambda e: e.network in ("infiniband", "roce"),
    otherwise="its network cards need no module to reach GPU memory",
    lock="it says that jobs use GPUDirect",
    without_lock="warns, by the flavour of the modules that run",
    says="Network cards cannot reach GPU memory: neither dma-buf nor nvidia-peermem is there. `gpuprov up` loads it.",
)
def test_peermem(node: Facts, expected: Expected) -> None:
    locked = expected.packages is not None
    reason = "no lock says that jobs use GPUDirect, and its modules were not read"
    if node.modules is None:
        end_unread(node, "modules.txt", skips=None if locked else reason)
    if node.kernel is None:
        end_unread(node, "kernel.txt", skips=None if locked else reason)
    numbers = node.kernel.split("-")[0].split(".")
    if not (len(numbers) >= 2 and numbers[0].isdigit() and numbers[1].isdigit()):
        unknown(f"kernel {node.kernel}has no version number to compare")
    flavour = expected.kernel_modules or (node.module.flavour if node.module else None)
    dmabuf = flavour == "open" and (int(numbers[0]), int(numbers[1])) >= (5, 12)
    loaded = any(name in node.modules for name in PEERMEM)
    saw(expected="dma-buf or nvidia_peermem", actual="dma-buf" if dmabuf else "nvidia_peermem" if loaded else "neither")
    if dmabuf or loaded:
        return
    if flavour is None:
        skip("no lock, and no tool says which flavour of the driver's modules runs")
    if not modules_are_whole(node, expected):
        skip("no lock, and the list of modules may be a part")
    message = f"{flavour} kernel modules on kernel {node.kernel} need nvidia_peermem, which is not loaded"
    fail(message, unverified=() if locked else (NO_LOCK,))


PEERMEM = ("nvidia_peermem", "nv_peer_mem")
"""The driver's own module, and the one of Mellanox that came before it (github Mellanox/nv_peer_memory)."""


COUNTERS = (
    "local_link_integrity_errors", "excessive_buffer_overrun_errors", "symbol_error", "link_error_recovery",
    "link_downed", "port_rcv_errors",
)  # fmt: skip
"""Errors of a port, as the kernel counts them since the driver was loaded. They also count what happened while cables
were plugged in, the same on all ports of a node: so each is compared with the median of its neighbours."""


WITHIN_H = {"link_downed": DAY}
"""Hours in which a limit of COUNTERS allows its count; of all others it is one hour (health.yaml)."""


def beyond(
    ports: list[tuple[Device, Port]], counter: str, maximum: float, growth: Growth
) -> list[tuple[Device, Port, int]]:
    """The ports of which a counter grew by more than `maximum` in its time, above the median of all that have it; each
    with by how much."""
    grown = [
        (d, p, growth.by(port_counter(d.name, p.number, counter), p.counters[counter]))
        for d, p in ports
        if counter in p.counters
    ]
    typical_count = median(count for _, _, count in grown) if grown else 0
    allowed = growth.allowed(maximum, WITHIN_H.get(counter, HOUR))
    return [(d, p, count) for d, p, count in grown if count - typical_count > allowed]


INTEGRITY = ("local_link_integrity_errors", "excessive_buffer_overrun_errors")
"""Counters of which a port in order never counts one."""


@check(
    "rdma.integrity",
    severity="fatal",
    documented="github NVIDIA/NVSentinel nic-health-monitor (2026-07-14): any local_link_integrity_errors or "
    "excessive_buffer_overrun_errors is fatal",
    action="vendor",
    needs=("rdma.json",),
    follows=EXPLAINED,
    applies=lambda e: e.network in ("infiniband", "roce"),
    otherwise="this machine has neither InfiniBand nor RoCE",
    says="A port counts errors that only a failing link or card has. Replace cable and transceiver; then the card.",
)
def test_integrity(node: Facts, expected: Expected) -> None:
    growth, ports = Growth.of(node, HOUR), list(used(node, expected))
    if growth.earlier is None:
        skip("there is no earlier look at this boot: when its counters grew is unknown (rdma.errors has them)")
    grown = [(d, p, count, counter) for counter in INTEGRITY for d, p, count in beyond(ports, counter, 0, growth)]
    saw(expected="none since the last look", actual=[f"{d.name}/{p.number}: {n} {c}" for d, p, n, c in grown] or "none")
    if grown:
        fail("; ".join(f"{d.name}/{p.number}: {n} {c}" for d, p, n, c in grown) + f" ({growth.since})")


@check(
    "rdma.errors",
    severity="warn",
    action="vendor",
    needs=("rdma.json",),
    follows=(*EXPLAINED, "rdma.integrity"),
    applies=lambda e: e.network in ("infiniband", "roce"),
    otherwise="this machine has neither InfiniBand nor RoCE",
    says="A port counts link errors that its neighbours do not have. Clean or replace cable and transceiver.",
)
def test_errors(node: Facts, expected: Expected) -> None:
    ports = list(used(node, expected))
    wrong = []
    for counter in COUNTERS:
        growth = Growth.of(node, WITHIN_H.get(counter, HOUR))
        exceeding = beyond(ports, counter, expected.most[f"rdma.{counter}"], growth)
        wrong += [f"{d.name}/{p.number}: {count} {counter} {growth.since}" for d, p, count in exceeding]
    counting_ports = sum(any(counter in p.counters for counter in COUNTERS) for _, p in ports)
    if not counting_ports:
        skip("the ports give no error counters, as virtual functions do not")
    saw(expected="hardly more new ones than the other ports", actual=wrong or f"so on {counting_ports} ports")
    if wrong:
        fail("; ".join(wrong))


@check(
    "efa.drops",
    severity="warn",
    action="vendor",
    needs=("rdma.json",),
    follows=("efa.devices",),
    applies=lambda e: e.network == "efa",
    otherwise="this machine has no EFA",
    says="An EFA device dropped packets, and its neighbours did not. If it drops more under a job, replace the node.",
)
def test_drops(node: Facts, expected: Expected) -> None:
    ports, growth = list(used(node, expected)), Growth.of(node, HOUR)
    if not any("rx_drops" in p.counters for _, p in ports):
        skip("the devices give no counter of dropped packets")
    wrong = {d.name: count for d, _, count in beyond(ports, "rx_drops", expected.most["efa.rx_drops"], growth)}
    saw(expected="as on the other devices", actual=wrong or "as there")
    if wrong:
        fail("; ".join(f"{name} dropped {n} packets" for name, n in wrong.items()) + f" ({growth.since})")
