"""A GPU's product by what tools print: one function for bundles, hosts and descriptions."""

from __future__ import annotations

import pytest

from provisioner import catalog
from provisioner.verify.products import products

GPUS = catalog.load().gpus()


@pytest.mark.parametrize(
    ("names", "memory_mib", "models"),
    [
        (["NVIDIA L40S"], None, ["L40S"]),
        (["L40S"], 46068, ["L40S"]),
        (["NVIDIA L40S"], 16384, []),
        (["NVIDIA L40S", "NVIDIA L4"], None, []),
        (["NVIDIA A100-SXM4-40GB"], None, ["A100-SXM4-40GB"]),
        (["NVIDIA A100-SXM..."], 40960, ["A100-SXM4-40GB"]),
        (["NVIDIA A100-SXM..."], None, ["A100-SXM4-40GB", "A100-SXM4-80GB"]),
        (["NVIDIA RTX A5500"], None, []),
    ],
)
def test_a_printed_name_and_the_memory_beside_it(names: list[str], memory_mib: int | None, models: list[str]) -> None:
    assert [row.model for row in products(names, GPUS, memory_mib=memory_mib)] == models
