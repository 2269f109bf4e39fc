"""What every machine's simulated tools say, judged by the checks of GPUs, links and kernel log: nothing is wrong."""

from __future__ import annotations

import inspect
from importlib import import_module

import pytest

from provisioner.catalog import load
from provisioner.verify.bundle import Bundle, Output
from provisioner.verify.check import Check, Failed, Skipped, Unknown
from provisioner.verify.expectations import expect
from provisioner.verify.facts import Facts, read
from tests.support.healthy_gpu import AREA
from tests.support.sandbox_node import MakeNode

CATALOG = load()
SHAPES = {(machine.gpu_model, machine.gpu_count): machine.name for machine in CATALOG.machines() if not machine.retired}
MACHINES = [
    machine.name
    for machine in CATALOG.machines()
    if not machine.retired
    and (machine.name in CATALOG.listed or SHAPES[machine.gpu_model, machine.gpu_count] == machine.name)
]
"""Those that somebody has looked at, and of the clouds' other sizes one for each number of each GPU."""
TOOLS = {
    "nvidia-smi.xml": ("nvidia-smi", "-q", "-x"),
    "topo.txt": ("nvidia-smi", "topo", "-m"),
    "nvlink.txt": ("nvidia-smi", "nvlink", "-s"),
    "nvlink-errors.txt": ("nvidia-smi", "nvlink", "-e"),
    "dmesg.txt": ("dmesg",),
    "lspci.txt": ("lspci", "-Dnnx"),
    "rocm-smi.json": ("rocm-smi", "--json"),
}
MODULES = (*AREA, *(import_module(f"provisioner.verify.checks.{name}") for name in ("gpu", "gpu_errors", "nvlink")))


@pytest.mark.parametrize("machine", MACHINES)
def test_a_simulated_node_is_healthy(make_node: MakeNode, machine: str) -> None:
    row = CATALOG.machine(machine)
    gpu = CATALOG.gpu(row.gpu_model)
    driver = "580.173.02" if gpu.vendor == "nvidia" else None
    node = make_node(machine, driver)
    of_other_vendors = {"nvidia": {"rocm-smi.json"}, "amd": {*TOOLS} - {"dmesg.txt", "lspci.txt", "rocm-smi.json"}}
    without = of_other_vendors.get(gpu.vendor, {*TOOLS} - {"dmesg.txt", "lspci.txt"})
    tools = {name: tool for name, tool in TOOLS.items() if name not in without}
    facts = read(Bundle({name: Output(node.says(*tool), rc=0) for name, tool in tools.items()}))
    assert wrong(facts, expect(row, gpu, None, None, CATALOG)) == {}


def wrong(facts: Facts, expected: object) -> dict[str, str]:
    """Check id → what fails or could not be answered, for checks whose files are there."""
    messages = {}
    for function in (f for module in MODULES for f in vars(module).values()):
        declared = getattr(function, "__check__", None)
        if not isinstance(declared, Check) or declared.inapplicable(expected):  # type: ignore[arg-type]
            continue
        needs = [expected.gpu_file if need == "gpus" else need for need in declared.needs]  # type: ignore[attr-defined]
        if any(facts.source(need).state == "absent" for need in needs):
            continue
        values = {"node": facts, "expected": expected, "baseline": None}
        try:
            assert all(facts.source(need).state == "read" for need in needs), needs
            function(**{name: values[name] for name in inspect.signature(function).parameters})
        except Skipped:
            continue
        except (Failed, Unknown) as verdict:
            messages[declared.id] = str(verdict)
    return messages
