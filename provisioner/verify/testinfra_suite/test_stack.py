"""The software of the lock: driver, CUDA, NCCL and packages, exactly."""

from __future__ import annotations

import re

import pytest
from gpu_node import Node


def test_driver_version(node: Node) -> None:
    compare(node, "driver", "driver_version", "kmd_version")


def test_cuda_version(node: Node) -> None:
    compare(node, "cuda", "cuda_version", "cuda_umd_version")


def compare(node: Node, part: str, *elements: str) -> None:
    """Compare a version of nvidia-smi's, whose element has another name in newer branches, with the lock's."""
    locked = node.expected[part]
    if locked is None:
        pytest.skip(f"the lock has no {part}")
    text = next((text for name in elements if (text := node.nvidia_smi().findtext(name))), "no version")
    match = re.match(r"\d+(\.\d+)*", text)
    version = match[0] if match else text
    node.require(version == locked, f"{part} is {version}, locked {locked}")


def test_nccl_version(node: Node) -> None:
    locked = node.expected["nccl"]
    if locked is None:
        pytest.skip("the lock has no NCCL")
    installed = node.packages().get("libnccl2", "not installed")
    version = installed.split(":")[-1].split("-")[0]
    node.require(version == locked, f"libnccl2 is {installed}, locked {locked}")


def test_packages(node: Node) -> None:
    installed = node.packages()
    wrong = [
        f"{name} is {installed.get(name, 'not installed')}, locked {version}"
        for name, version in node.expected["packages"].items()
        if installed.get(name) != version
    ]
    node.require(not wrong, "; ".join(wrong[:5]))
