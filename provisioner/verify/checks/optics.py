"""Transceivers against the alarm limits that they have stored themselves: light, laser current, heat, voltage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from provisioner.common.text import few
from provisioner.verify.check import check, fail, saw, skip
from provisioner.verify.checks.rdma import EXPLAINED, used
from provisioner.verify.checks.rdma_cable import NEEDS, VIRTUAL
from provisioner.verify.checks.rdma_setup import CARDS
from provisioner.verify.expectations import Expected
from provisioner.verify.facts import Facts
from provisioner.verify.parsers.optics import Reading

DOCUMENTED = (
    "SFF-8636, SFF-8472 and CMIS: a module's own alarm limits; github intel/ethernet-linux-ice#53: one that passes "
    "its limit of heat shuts down, and the kernel reports a lost link alone"
)
SAYS = (
    "A transceiver is beyond its own alarm limit: the link loses bits, and goes down later. Clean both ends of the "
    "fibre and look at the airflow; then replace the transceiver or the cable."
)


@check(
    "rdma.optics",
    severity="warn",
    documented=DOCUMENTED,
    action="vendor",
    level="standard",
    needs=(*NEEDS, "rdma.json"),
    follows=(*EXPLAINED, "ib.rate", "rdma.ber"),
    applies=lambda e: e.bare_metal and e.network in CARDS,
    otherwise=VIRTUAL,
    says=SAYS,
)
def test_optics(node: Facts, expected: Expected) -> None:
    assert node.cables is not None
    if node.cables.why:
        skip(f"{node.cables.why}: `apt install mstflint`")
    devices = {device.name for device, _ in used(node, expected)}
    judge({cable.device: cable.readings for cable in node.cables.cables if cable.device in devices})


@check(
    "net.optics",
    severity="warn",
    documented=DOCUMENTED,
    action="vendor",
    needs=("ethtool-modules.json",),
    follows=("rdma.optics",),
    applies=lambda e: e.bare_metal,
    otherwise="a virtual machine, whose cards do not show their transceivers",
    says=SAYS,
)
def test_ethernet(node: Facts) -> None:
    judge({module.port: module.readings for module in node.optics or ()})


def judge(ports: Mapping[str, Sequence[Reading]]) -> None:
    """Fails for ports that have a reading beyond its limits; skipped where none has any."""
    known = {port: readings for port, readings in ports.items() if readings}
    outside = {
        port: ", ".join(str(reading) for reading in readings if reading.outside)
        for port, readings in known.items()
        if any(reading.outside for reading in readings)
    }
    saw(expected="every reading within the module's own limits", actual=outside or f"{len(known)} ports")
    if outside:
        fail(few([f"{port}: {text}" for port, text in outside.items()], 4))
    if not known:
        skip("no port shows readings with limits, as with copper cables")
