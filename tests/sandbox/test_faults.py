"""Every fault on machines that can have it: exactly its check fails, on exactly that node; cleared, all is well again.

Each node of a fleet has another fault at the same time, so that one verdict proves as many as there are nodes.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import combinations

import pytest

from provisioner.sandbox import containers, faults
from provisioner.verify.catalogue import declared
from tests.support.rehearsal import Rehearsal, failing, wrongs

pytestmark = pytest.mark.sandbox

P4D = "p4d.24xlarge"
EVERYWHERE = ("gpu-lost", "nvlink-down", "xid-79", "ecc-uncorrectable", "row-remap-pending", "wrong-driver")
"""Faults that look different on each generation, so that every example has them too."""
CHECKS = {check.id: check for check in declared()}
ALONE = {"nvidia-smi-hangs", "docker-dead", "load-hang"}
"""Faults beside which others can't be seen."""
UNLOADED = {"driver-mismatch", "wrong-image", "load-crash"}
"""Faults that keep the load program from its end: what shows under load alone can't be seen beside them."""


def machines(rehearsal: Rehearsal) -> dict[str, str]:
    """Node → machine type."""
    return {
        n["name"]: n["machine"] for n in rehearsal.run("status", rehearsal.file, "--offline", "--json").json["nodes"]
    }


def possible(machine: str) -> list[str]:
    """Faults of one node; those between nodes are test_fabric.py's."""
    return [fault.name for fault in faults.list_faults(machine) if not fault.check.startswith("fabric.")]


def check_of(fault: str) -> str:
    return faults.find_fault(fault).check


def containers_of(rehearsal: Rehearsal) -> dict[str, str]:
    return {name: containers.find_node(rehearsal.root, name).name for name in machines(rehearsal)}


def batches(given: Sequence[tuple[str, ...]], size: int) -> Iterator[Sequence[tuple[str, ...]]]:
    for start in range(0, len(given), size):
        yield given[start : start + size]


def level_of(injected: Iterable[str]) -> str:
    """The lowest level at which they can be found."""
    levels = {CHECKS[check_of(fault)].level for fault in injected}
    return max(levels, key=("quick", "standard", "stress").index)


def visible(injected: Iterable[str]) -> set[str]:
    """The checks that fail with these faults on one node: those that no other one explains."""
    found = {check_of(fault) for fault in injected}
    return {check for check in found if not found & set(CHECKS[check].follows)}


def on_all(do: Callable[[str], object], nodes: Iterable[str]) -> None:
    """On all nodes at once; each takes a second, most of it waiting."""
    with ThreadPoolExecutor() as pool:
        list(pool.map(do, nodes))


def tried(rehearsal: Rehearsal, where: dict[str, str], given: dict[str, tuple[str, ...]]) -> list[str]:
    """What a verdict says otherwise than it should with these faults on these nodes."""

    def inject(node: str) -> None:
        for fault, gpu in zip(given[node], (3, 6), strict=False):
            faults.inject(where[node], fault, gpu=gpu if len(given[node]) > 1 else None)

    on_all(inject, given)
    level = level_of(fault for injected in given.values() for fault in injected)
    verdict, wrong = rehearsal.verify("--level", level), []
    found = failing(verdict.json)
    for node, injected in given.items():
        mine = found.pop(node, set())
        if mine != visible(injected):
            wrong.append(f"{'+'.join(injected)} on {node}: {sorted(mine)}, not {sorted(visible(injected))}")
    wrong += [f"{given}: {node} failed {sorted(ids)} too" for node, ids in found.items()]
    fatal = any(CHECKS[check].severity == "fatal" for injected in given.values() for check in visible(injected))
    if verdict.status != int(fatal):
        wrong.append(f"{given}: exit status {verdict.status}")
    return wrong


def try_faults(rehearsal: Rehearsal, wanted: Sequence[tuple[str, ...]], nodes: Sequence[str]) -> None:
    assert rehearsal.first is not None
    assert rehearsal.first.status == 0, (rehearsal.first.stderr, wrongs(rehearsal.first))
    where, wrong = containers_of(rehearsal), []
    try:
        for batch in batches(sorted(wanted, key=level_of), len(nodes)):
            given = dict(zip(nodes, batch, strict=False))
            wrong += tried(rehearsal, where, given)
            on_all(lambda node: faults.clear(where[node]), given)
    finally:
        on_all(lambda node: faults.clear(where[node]), nodes)
    assert wrong == []
    well = rehearsal.verify("--level", "quick")
    assert well.status == 0, wrongs(well)
    assert failing(well.json) == {}


def test_every_fault_of_a_p4d(p4d: Rehearsal) -> None:
    try_faults(p4d, [(name,) for name in possible(P4D)], list(machines(p4d)))


def test_two_faults_at_once(p4d: Rehearsal) -> None:
    pairs = list(combinations([name for name in possible(P4D) if name not in ALONE], 2))
    # Two faults of one part are one fault to whoever looks: which of them is told is that check's own matter.
    apart = [pair for pair in pairs if len({check_of(fault) for fault in pair}) == 2]
    apart = [pair for pair in apart if not UNLOADED & {*pair} or level_of(pair) == "quick"]
    try_faults(p4d, random.Random(4).sample(apart, 12), list(machines(p4d)))


def test_example_is_healthy_and_its_faults_are_found(example: Rehearsal) -> None:
    nodes = machines(example)
    victim = list(nodes)[-1]
    alike = [node for node, machine in nodes.items() if machine == nodes[victim]]
    mine = possible(nodes[victim])
    wanted = [name for name in mine if name not in possible(P4D) or name in EVERYWHERE]
    try_faults(example, [(name,) for name in wanted], alike)


def test_a_fault_from_the_command_line(p4d: Rehearsal) -> None:
    done = p4d.run("sandbox", "fault", p4d.file, "train-1", "gpu-lost")
    assert done.status == 0, done.stderr
    assert failing(p4d.verify().json) == {"train-1": {"gpu.count"}}
    cleared = p4d.run("sandbox", "clear", p4d.file, "train-1", "gpu-lost")
    assert cleared.status == 0, cleared.stderr


def test_a_fault_that_the_machine_can_not_have_is_refused(p4d: Rehearsal) -> None:
    said = p4d.run("sandbox", "fault", p4d.file, "train-0", "ib-port-down")
    assert said.status == 2
    assert "InfiniBand" in said.stderr


def test_a_misspelled_fault_gets_the_nearest_word(p4d: Rehearsal) -> None:
    said = p4d.run("sandbox", "fault", p4d.file, "train-0", "gpu-lots")
    assert said.status == 2
    assert "gpu-lost" in said.stderr
