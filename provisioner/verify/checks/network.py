"""RDMA: InfiniBand and RoCE ports, EFA devices."""

from __future__ import annotations

from collections.abc import Iterable

from provisioner.common.text import few
from provisioner.verify.check import NO_TYPE, check, fail, saw, unknown
from provisioner.verify.checks.looks import ONE_LOOK, may_train
from provisioner.verify.expectations import Expected
from provisioner.verify.facts import Facts
from provisioner.verify.parsers.ibstat import Ibstat
from provisioner.verify.parsers.rdma_port import Port

LAYER = {"infiniband": "InfiniBand", "roce": "Ethernet"}


def non_training_devices(node: Facts, names: tuple[str, ...], pci: tuple[str, ...]) -> frozenset[str]:
    """RDMA devices that are for storage and management: those at other PCI addresses than the machine's ports for
    training (`names` at `pci`); of other names, where nobody tells the addresses and all of those names are there. None
    is told apart on machines of which no source says the addresses, and where cards stand at less than half of them."""
    at = {device.name: device.pci for device in node.rdma or () if device.pci}
    if at:
        training = {name for name, address in at.items() if address in pci}
        return frozenset(at) - training if pci and 2 * len(training) >= len(pci) else frozenset()
    devices = {device.name for device in node.rdma or ()} | {port.device for port in (node.ib.ports if node.ib else ())}
    return frozenset(devices.difference(names)) if pci and devices.issuperset(names) else frozenset()


def by_place(node: Facts, expected: Expected) -> dict[str, str]:
    """PCI address of each port for training → the RDMA device there now; empty where too few cards are there."""
    name_by_address = {device.pci: device.name for device in node.rdma or () if device.pci in expected.rdma_pci}
    return {
        at: name for at, name in name_by_address.items() if at and 2 * len(name_by_address) >= len(expected.rdma_pci)
    }


def training_ports(node: Facts, expected: Expected) -> tuple[Port, ...]:
    """The ports that can carry training traffic: all of the right link layer that are not known to be for storage, or
    those that the catalogue names where all of them are there (names differ between installations)."""
    assert node.ib is not None
    other = non_training_devices(node, expected.rdma_devices, expected.rdma_pci)
    layers = (LAYER[expected.network], None)
    ports = tuple(port for port in node.ib.ports if port.link_layer in layers and port.device not in other)
    catalogued = tuple(port for port in ports if port.device in expected.rdma_devices)
    return catalogued if len(catalogued) >= expected.ports else ports


def port_states(ports: tuple[Port, ...]) -> dict[str, str]:
    return {f"{p.device}/{p.port}": f"{p.state}, {p.physical_state}, {p.rate_gbps or '?'} Gbit/s" for p in ports}


@check(
    "ib.ports",
    severity="fatal",
    measured="ibstat/h20-2-eth-ports-down",
    action="vendor",
    needs=("ibstat.txt",),
    applies=lambda e: e.network in LAYER,
    otherwise="this machine has neither InfiniBand nor RoCE",
    says="A port for training traffic is down or missing. Look at cable and switch port, on a cloud replace the node.",
)
def test_ports(node: Facts, expected: Expected) -> None:
    assert node.ib is not None
    if not expected.knows("network"):
        _ports_of_no_machine(node.ib)
    ports = _settled(node, training_ports(node, expected))
    saw(expected=f"{expected.ports} active", actual=port_states(ports))
    if node.ib.panic:
        fail(f"ibstat broke off: {node.ib.panic}")
    up = [port for port in ports if port.up]
    at_rate = [port for port in up if port.rate_gbps is not None and port.rate_gbps >= expected.rate_gbps]
    # More ports than expected (storage, switches inside the box) may be down only while enough full ones are up.
    if len(at_rate) >= expected.ports:
        return
    down = _down(ports)
    trains = bool(down) and may_train(node) and any(port.trains for port in ports)
    unsure = (ONE_LOOK,) if trains and len(node.looks("ib")) == 1 else ()
    device_at = by_place(node, expected)
    lost = [
        f"no card at {at}{_gpu_suffix(at, expected)}" for at in expected.rdma_pci if device_at and at not in device_at
    ]
    if down or (lost and len(up) < expected.ports):
        fail("; ".join((*down, *lost)), unverified=() if lost else unsure)
    if len(up) < expected.ports and node.ib.excerpt:
        unknown(node.ib.excerpt, action="none")
    if len(up) < expected.ports and node.collected is None and len(node.ib.ports) == 1:
        unknown("ibstat shows one card alone, as `ibstat CARD` does: give all that `ibstat` prints", action="none")
    if len(up) < expected.ports:
        layer, storage = LAYER[expected.network], non_training_devices(node, expected.rdma_devices, expected.rdma_pci)
        other_ports = [
            p for p in node.ib.ports if p.up and p.link_layer not in (layer, None) and p.device not in storage
        ]
        others_text = (
            f"; {len(other_ports)} active ports are {', '.join(sorted({str(p.link_layer) for p in other_ports}))}"
        )
        fail(f"{len(up)} of {expected.ports} {layer} ports are active" + (others_text if other_ports else ""))


def _settled(node: Facts, ports: tuple[Port, ...]) -> tuple[Port, ...]:
    """The ports with what the last look shows of those that trained when they were looked at first."""
    last = {(port.device, port.port): port for look in node.looks("ib")[1:] for port in look.ports}
    return tuple(last.get((p.device, p.port), p) if p.trains else p for p in ports)


def _down(ports: Iterable[Port]) -> list[str]:
    return [
        f"{p.device} port {p.port} is {p.state}" + (f" ({p.physical_state})" if p.physical_state else "")
        for p in ports
        if not p.up
    ]


def _ports_of_no_machine(ib: Ibstat) -> None:
    """Where nobody named a machine type: which ports carry training traffic is not known, nor whether one that is down
    has a cable."""
    saw(expected="all ports up", actual=port_states(ib.ports))
    if ib.panic:
        fail(f"ibstat broke off: {ib.panic}", observed=True)
    if down := _down(ib.ports):
        fail(few(down, 8), observed=True, unverified=(NO_TYPE,))


def _gpu_suffix(address: str, expected: Expected) -> str:
    return f" (GPU {expected.rdma_pci.index(address)})" if expected.rails else ""


@check(
    "ib.rate",
    severity="fatal",
    measured="ibstat/a100-9ca-active",
    action="vendor",
    needs=("ibstat.txt",),
    follows=("ib.ports",),
    applies=lambda e: e.network in LAYER,
    otherwise="this machine has neither InfiniBand nor RoCE",
    says="A port runs below its rate: a bad cable, transceiver or lane. Reseat or replace it.",
)
def test_rate(node: Facts, expected: Expected) -> None:
    ports = tuple(port for port in training_ports(node, expected) if port.up)
    saw(
        expected=f"{expected.rate_gbps:g} Gbit/s",
        actual=port_states(ports),
        note=f"judged on {len(ports)} active ports" if len(ports) != expected.ports else "",
    )
    if not ports:
        unknown("no port is active")
    slow = [port for port in ports if port.rate_gbps is not None and port.rate_gbps < expected.rate_gbps]
    if slow and len(ports) - len(slow) < expected.ports:
        fail("; ".join(f"{p.device} port {p.port} runs at {p.rate_gbps:g} Gbit/s" for p in slow))
    if silent := [f"{port.device} port {port.port}" for port in ports if port.rate_gbps is None]:
        unknown(f"{', '.join(silent)}: no rate reported")


@check(
    "efa.devices",
    severity="fatal",
    measured="fi_info/fi_info-g6-1nic",
    action="replace",
    needs=("fi_info.txt",),
    applies=lambda e: e.efa,
    otherwise="no EFA is expected on this machine",
    says="EFA devices are missing: NCCL falls back to TCP. Check how the machine was launched, then replace it.",
)
def test_efa(node: Facts, expected: Expected) -> None:
    assert node.efa is not None
    device_count = len(node.efa.devices)
    saw(expected=expected.ports, actual=device_count)
    if device_count != expected.ports:
        fail(f"{device_count} EFA devices of {expected.ports}")
