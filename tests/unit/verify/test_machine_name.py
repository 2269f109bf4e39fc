"""A maker's name that several machine types share tells none of them: the GPUs do."""

from __future__ import annotations

import pytest

from provisioner.catalog import load
from provisioner.common.errors import GpuprovError
from provisioner.verify.bundle import Bundle, Output
from provisioner.verify.facts import read
from provisioner.verify.support_bundle.machine import identify


def listed(model: str, count: int = 8) -> Bundle:
    rows = (f"GPU {n}: {model} (UUID: GPU-0000000{n}-0000-0000-0000-00000000000{n})\n" for n in range(count))
    return Bundle({"nvidia-smi.xml": Output("".join(rows))})


@pytest.mark.parametrize(
    ("model", "machine"),
    [("NVIDIA A100-SXM4-40GB", "dgx-a100-40gb"), ("NVIDIA A100-SXM4-80GB", "dgx-a100-80gb")],
)
def test_a_name_of_two_machine_types_is_decided_by_the_gpus(model: str, machine: str) -> None:
    type_, reason = identify(read(listed(model)), "NVIDIA DGXA100 920-23687-2530-000", load())
    assert (type_.name, f"8 x {model}" in reason) == (machine, True)


def test_a_name_of_two_machine_types_without_gpus_tells_nothing() -> None:
    with pytest.raises(GpuprovError, match="which machine it is; pass --machine if it has no GPU"):
        identify(read(Bundle()), "NVIDIA DGXA100", load())


@pytest.mark.parametrize("machine", ["p4d.24xlarge", "m6i.large", "m6i.xlarge", "m7i.2xlarge"])
def test_a_name_of_one_machine_type_tells_it_without_gpus(machine: str) -> None:
    type_, reason = identify(read(Bundle()), f"Amazon EC2 {machine}", load())
    assert (type_.name, reason) == (machine, f"its firmware calls it {machine}")
