"""The memory modules of a host, slot by slot."""

from __future__ import annotations

from provisioner.verify.check import check, fail, saw, unknown
from provisioner.verify.expectations import Expected
from provisioner.verify.facts import Facts


@check(
    "host.dimms",
    severity="warn",
    action="vendor",
    needs=("dmidecode.txt",),
    follows=("host.memory",),
    applies=lambda e: e.bare_metal and not e.simulated and e.memory_gib is not None,
    otherwise="a virtual machine has no modules, or the catalogue has no memory size for this machine",
    says="The firmware has found less memory in its slots than the machine is sold with: a module is dead or loose.",
)
def test_dimms(node: Facts, expected: Expected) -> None:
    assert node.dimms is not None
    dimms, expected_gib = node.dimms, expected.memory_gib or 0.0
    slots = f"{len(dimms.installed)} of {len(dimms.slots)} slots"
    saw(expected=f"{expected_gib:g} GiB", actual=f"{dimms.gib:g} GiB in {slots}" if dimms.gib is not None else slots)
    if dimms.gib is None:
        unknown("the firmware does not know the size of a module")
    if dimms.gib < expected_gib:
        empty = f", empty: {', '.join(dimms.empty[:8])}" if dimms.empty else ""
        fail(f"modules of {dimms.gib:g} GiB in {slots}{empty}; {expected_gib:g} GiB are expected")
