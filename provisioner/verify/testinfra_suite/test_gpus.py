"""The GPUs: how many answer, which model they are, their memory and modes."""

from __future__ import annotations

import pytest
from gpu_node import Node

MEMORY_TOLERANCE = 0.03
"""nvidia-smi prints less memory with an older driver, or with ECC on."""


def test_gpu_count(node: Node) -> None:
    count = len(node.gpus())
    node.require(
        count == node.expected["gpu_count"], f"{count} of {node.expected['gpu_count']} GPUs answer", "gpu_count"
    )
    if node.expected["vendor"] == "nvidia":
        attached = node.nvidia_smi().findtext("attached_gpus")
        node.require(attached in (None, str(count)), f"{attached} GPUs are attached, {count} answer", "gpu_count")


def test_gpu_model(node: Node) -> None:
    wrong = sorted({gpu["name"] for gpu in node.gpus() if not is_expected(node, gpu["name"])})
    node.require(not wrong, f"not {node.expected['gpu_model']}: {', '.join(wrong)}", "gpu_model", "gpu_names")


def is_expected(node: Node, name: str) -> bool:
    """Whether that is one of the product's names. Old drivers leave "NVIDIA" out, rocm-smi adds the chip."""
    plain = name.lower().removeprefix("nvidia ")
    products = [product.lower().removeprefix("nvidia ") for product in node.expected["gpu_names"]]
    if node.expected["vendor"] == "amd":
        return any(product.removeprefix("amd ") in plain for product in products)
    return plain in products


def test_gpu_memory(node: Node) -> None:
    size = node.expected["gpu_memory_mib"]
    wrong = {
        f"GPU {number} has {gpu['memory_mib']} MiB"
        for number, gpu in enumerate(node.gpus())
        if gpu["memory_mib"] is None or abs(gpu["memory_mib"] - size) > size * MEMORY_TOLERANCE
    }
    node.require(not wrong, f"{', '.join(sorted(wrong))}, expected {size}", "gpu_memory_mib", "gpu_names")


def test_ecc_mode(node: Node) -> None:
    if node.expected["ecc"] is None:
        pytest.skip("no ECC mode is expected")
    mode = "Enabled" if node.expected["ecc"] else "Disabled"
    wrong = [f"GPU {number}: {gpu['ecc']}" for number, gpu in enumerate(node.gpus()) if gpu["ecc"] != mode]
    node.require(not wrong, f"ECC is not {mode.lower()}: {', '.join(wrong)}", "ecc")


def test_mig_mode(node: Node) -> None:
    if node.expected["vendor"] != "nvidia":
        pytest.skip("no MIG on GPUs of this vendor")
    allowed = ("Enabled",) if node.expected["mig"] else ("Disabled", "N/A", None)
    wrong = [f"GPU {number}: {gpu['mig']}" for number, gpu in enumerate(node.gpus()) if gpu["mig"] not in allowed]
    node.require(not wrong, f"MIG is not {allowed[0].lower()}: {', '.join(wrong)}")
