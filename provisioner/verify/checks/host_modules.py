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
    found, wanted = node.dimms, expected.memory_gib or 0.0
    slots = f"{len(found.installed)} of {len(found.slots)} slots"
    saw(expected=f"{wanted:g} GiB", actual=f"{found.gib:g} GiB in {slots}" if found.gib is not None else slots)
    if found.gib is None:
        unknown("the firmware does not know the size of a module")
    if found.gib < wanted:
        empty = f", empty: {', '.join(found.empty[:8])}" if found.empty else ""
        fail(f"modules of {found.gib:g} GiB in {slots}{empty}; {wanted:g} GiB are expected")
