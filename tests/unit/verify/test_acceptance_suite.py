"""The exported suite of plain testinfra agrees with gpuprov's verdict, on healthy machines and on broken ones."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

import pytest

from provisioner.catalog import load
from provisioner.catalog.models import Machine
from provisioner.verify.bundle import Output
from provisioner.verify.row_basis import basis_of
from provisioner.verify.testinfra_export import FACTS
from tests.support.acceptance_suite import condemning, run_suite, with_outcome
from tests.support.healthy_bundle import edit, expected, healthy, nvlink, topo, without_gpu

Texts = dict[str, str | Output]
MACHINES = [machine.name for machine in load().machines()]


@pytest.mark.parametrize("machine", MACHINES)
def test_a_healthy_machine_passes(machine: str) -> None:
    outcomes = run_suite(healthy(machine), expected(machine))
    assert (with_outcome(outcomes, "failed"), with_outcome(outcomes, "xfailed")) == ({}, {})
    of_gpus, passed = {"test_gpu_count", "test_gpu_model", "test_gpu_memory"}, with_outcome(outcomes, "passed").keys()
    assert "test_packages" in passed
    assert of_gpus <= passed if load().machine(machine).gpu_count else not of_gpus & passed


def _lose_gpu(texts: Texts, row: Machine) -> None:
    slots = list(range(1, row.gpu_count))
    texts["nvidia-smi.xml"] = without_gpu(str(texts["nvidia-smi.xml"]), 0)
    texts["topo.txt"], texts["nvlink.txt"] = topo(row, slots), nvlink(row, remaining=slots)


def _smi(**values: str) -> Callable[[Texts, Machine], None]:
    def change(texts: Texts, row: Machine) -> None:
        texts["nvidia-smi.xml"] = edit(str(texts["nvidia-smi.xml"]), row.gpu_count - 1, **values)

    return change


def _replaced(name: str, pattern: str, text: str, count: int = 0) -> Callable[[Texts, Machine], None]:
    def change(texts: Texts, _: Machine) -> None:
        if name in texts:
            texts[name] = re.sub(pattern, text, str(texts[name]), count=count)

    return change


def _missing(texts: Texts, _: Machine) -> None:
    for name in ("nvidia-smi.xml", "nvlink.txt", "topo.txt", "ibstat.txt", "fi_info.txt", "lspci.txt"):
        if name in texts:
            texts[name] = Output("", rc=None, missing=True, error="not installed")


def _link_down(texts: Texts, row: Machine) -> None:
    links = load().nvlinks_per_gpu(row)
    texts["nvlink.txt"] = nvlink(row, active={0: max(0, (links or (0,))[0] - 1)})


BREAKS: dict[str, Callable[[Texts, Machine], None]] = {
    "a GPU is gone": _lose_gpu,
    "another model": _smi(product_name="NVIDIA GeForce GT 710"),
    "half the memory": _smi(fb_memory_usage__total="1024 MiB"),
    "MIG": _smi(mig_mode__current_mig="Enabled"),
    "not joined": _smi(fabric__state="In Progress"),
    "a link is down": _link_down,
    "another path": _replaced("topo.txt", r"NV\d+|PIX|PXB|PHB|NODE|SYS", "PSB"),
    "no fabric manager": _replaced("fabricmanager.txt", "Active: active", "Active: failed"),
    "no NVSwitch": _replaced("lspci.txt", r"(?m)^.*\[0680\]: .*10de.*\n", ""),
    "an NVSwitch is lost": _replaced("lspci.txt", r"(?m)^.*\[0680\]: .*10de.*\n", "", count=1),
    "a port is down": _replaced("ibstat.txt", "State: Active", "State: Down", count=1),
    "a port is slow": _replaced("ibstat.txt", r"Rate: \d+", "Rate: 10", count=1),
    "no EFA": _replaced("fi_info.txt", r"(?s).+", "fi_getinfo: -61"),
    "an EFA device is lost": _replaced("fi_info.txt", "rdmap47s0", "rdmap48s0"),
    "another driver": _replaced("nvidia-smi.xml", "<driver_version>580", "<driver_version>570"),
    "another CUDA": _replaced("nvidia-smi.xml", "<cuda_version>13.0", "<cuda_version>12.8"),
    "another NCCL": _replaced("packages.txt", r"libnccl2\t2", r"libnccl2\t3"),
    "no package": _replaced("packages.txt", "pciutils.*\n", ""),
    "another image": _replaced("container-images.json", "sha256:ab", "sha256:cd"),
    "another torch": _replaced("framework.json", "2.9.0", "2.8.0"),
    "few devices": _replaced("framework.json", r'(gpus\\": )\d+', r"\g<1>99"),
    "no exporter": _replaced("dcgm-exporter.prom", r"(?s).+", ""),
    "no reading": _replaced("dcgm-exporter.prom", r'(?m)^.*gpu="0".*\n', ""),
    "tools are missing": _missing,
}


def _amd(change: Callable[[dict[str, dict[str, str]]], object]) -> Callable[[Texts, Machine], None]:
    def changed(texts: Texts, _: Machine) -> None:
        cards = json.loads(str(texts["rocm-smi.json"]))
        change(cards)
        texts["rocm-smi.json"] = json.dumps(cards)

    return changed


AMD_BREAKS: dict[str, Callable[[Texts, Machine], None]] = {
    "a GPU is gone": _amd(lambda cards: cards.pop("card0")),
    "another model": _amd(lambda cards: cards["card1"].update({"Card series": "AMD Radeon VII"})),
    "half the memory": _amd(lambda cards: cards["card1"].update({"VRAM Total Memory (B)": "1073741824"})),
    "tools are missing": lambda texts, _: texts.update(
        {"rocm-smi.json": Output("", rc=None, missing=True, error="not installed")}
    ),
}


def _kinds() -> list[str]:
    """One machine with GPUs of each kind: GPU maker, links, network, and what nobody has verified."""
    kinds: dict[object, str] = {}
    exported = {key for keys in FACTS.values() for key in keys}
    for row in (row for row in load().machines() if row.gpu_count):
        gpu = load().gpu(row.gpu_model)
        unverified = frozenset(key for key, basis in basis_of(row, gpu).items() if basis == "unverified") & exported
        shape = gpu.vendor, row.gpu_count > 1, row.nvlink.topology, row.nvlink.generation, row.network.kind
        kinds.setdefault((shape, unverified), row.name)
    return list(kinds.values())


@pytest.mark.parametrize("machine", _kinds())
def test_the_suite_agrees_with_gpuprov_on_a_broken_machine(machine: str) -> None:
    row, desired, intact, disagreeing = load().machine(machine), expected(machine), healthy(machine), []
    noticed = 0
    for name, change in (BREAKS if desired.vendor == "nvidia" else AMD_BREAKS).items():
        texts = dict(intact)
        change(texts, row)
        failed, condemned = with_outcome(run_suite(texts, desired), "failed"), condemning(texts, desired)
        noticed += bool(condemned)
        if bool(failed) != bool(condemned):
            disagreeing.append(f"{name}: gpuprov {condemned}, suite {failed}")
    assert not disagreeing, "\n".join(disagreeing)
    assert noticed >= (10 if desired.vendor == "nvidia" else 2)
