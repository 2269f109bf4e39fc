"""Every machine with every framework release of the data, and every driver with every CUDA: each answer is judged by
rules that share nothing with the solver, each refusal by trying everything."""

from __future__ import annotations

import pytest

from provisioner import catalog, stack
from provisioner.catalog.models import Machine
from provisioner.stack.models import Stack
from tests.support import rules
from tests.support.plans import cluster_spec

pytestmark = pytest.mark.heavy

CATALOG = catalog.load()
FRAMEWORKS = [
    *(("pytorch", row["version"]) for row in rules.FACTS["pytorch"]),
    *(("tensorflow", row["version"]) for row in rules.FACTS["tensorflow"]),
]
ONE_OF_EACH = list(
    {
        m.gpu_arch: m
        for m in CATALOG.listed.values()
        if CATALOG.gpu(m.gpu_model).vendor == "nvidia" and m.network.kind != "efa"
    }.values()
)


def solved(machine: Machine, **pins: object) -> Stack | stack.StackConflict:
    try:
        return stack.solve(cluster_spec(machine.name, stack=pins))["train"]
    except stack.StackConflict as error:
        return error


@pytest.mark.parametrize("machine", CATALOG.listed.values(), ids=lambda m: m.name)
def test_every_machine_has_a_stack_by_default(machine: Machine) -> None:
    answer = solved(machine)
    assert isinstance(answer, Stack), answer
    assert rules.violations(answer, machine, CATALOG.gpu(machine.gpu_model)) == []


@pytest.mark.parametrize("framework", FRAMEWORKS, ids="-".join)
def test_every_machine_with_every_framework_release(framework: tuple[str, str]) -> None:
    name, version = framework
    for machine in CATALOG.listed.values():
        gpu = CATALOG.gpu(machine.gpu_model)
        answer = solved(machine, **{name: version})
        if isinstance(answer, Stack):
            assert rules.violations(answer, machine, gpu) == [], (machine.name, answer.components)
            framework_version = answer.pytorch if name == "pytorch" else answer.tensorflow
            assert (framework_version or "").startswith(version)
        elif name == "tensorflow" and gpu.vendor == "amd":
            assert "no TensorFlow" in answer.message or "NVIDIA software" in answer.message
        else:
            assert not rules.possible(machine, gpu, **{name: version}), (machine.name, str(answer))
            assert len(str(answer).splitlines()) <= 5
            assert "stack." in str(answer)


@pytest.mark.parametrize("machine", ONE_OF_EACH, ids=lambda m: m.gpu_arch)
def test_every_driver_with_every_cuda(machine: Machine) -> None:
    gpu = CATALOG.gpu(machine.gpu_model)
    sets = {(d.split(".")[0], ".".join(c.split(".")[:2])) for d, c, _ in rules.base_sets(gpu.arch)}
    for branch in (row["branch"] for row in rules.FACTS["drivers"] if row["branch"] not in ("565",)):
        for cuda in sorted({".".join(row["version"].split(".")[:2]) for row in rules.FACTS["cuda"]}):
            pins = {"driver": branch, "cuda": cuda, "containers": ("ghcr.io/acme/train:1",)}
            answer = solved(machine, **pins)
            assert isinstance(answer, Stack) == ((branch, cuda) in sets), (branch, cuda, answer)
            if isinstance(answer, Stack):
                wrong = rules.violations(answer.model_copy(update={"images": ()}), machine, gpu)
                assert wrong == [], (branch, cuda)
            else:
                assert len(str(answer).splitlines()) <= 5


def test_the_judge_sees_what_is_wrong() -> None:
    """Each rule, broken on purpose in a stack that holds together."""
    machine = CATALOG.machine("p4d.24xlarge")
    gpu = CATALOG.gpu(machine.gpu_model)
    valid_stack = stack.solve(cluster_spec("p4d.24xlarge"))["train"]
    assert rules.violations(valid_stack, machine, gpu) == []
    manager = tuple(
        p.model_copy(update={"version": "580.126.16-1"}) if p.name == "nvidia-fabricmanager" else p
        for p in valid_stack.packages
    )
    broken = [
        {"driver": "470.256.02"}, {"kernel_modules": "proprietary"}, {"nccl": "2.99.0"}, {"dcgm": "4.7.0"},
        {"efa": "1.28.0"}, {"efa": None}, {"packages": manager}, {"os": "debian-12", "driver": "535.247.01"},
    ]  # fmt: skip
    for change in broken:
        assert rules.violations(valid_stack.model_copy(update=change), machine, gpu), change
    assert rules.violations(valid_stack, machine, CATALOG.gpu("V100-SXM2-16GB"))
    assert rules.violations(valid_stack, CATALOG.machine("dgx-h100"), CATALOG.gpu("H100-SXM5-80GB"))
