"""The container images of the lock: there, by digest, with the locked versions inside, and they see the GPUs."""

from __future__ import annotations

import contextlib
import json
import shlex
from typing import Any
from uuid import uuid4

import pytest
from gpu_node import Node

GPUS = {"nvidia": "--gpus=all", "amd": "--device=/dev/kfd --device=/dev/dri"}
VERSIONS = """
import json, sys, torch
nccl = torch.cuda.nccl.version()
print(json.dumps({
    "python": "%d.%d.%d" % sys.version_info[:3], "torch": torch.__version__, "cuda": torch.version.cuda,
    "nccl": ".".join(map(str, nccl)) if isinstance(nccl, tuple) else str(nccl), "gpus": torch.cuda.device_count(),
}))
"""


def test_images_are_there(node: Node) -> None:
    if not node.expected["images"]:
        pytest.skip("the lock has no image")
    for image in node.expected["images"]:
        by_digest, by_name = (digests(node, image[key]) for key in ("pull", "reference"))
        present = by_digest is not None and image["digest"] in by_digest
        node.require(present, f"{image['reference']} ({image['digest']}) is not on the node")
        same = by_name is None or image["digest"] in by_name
        node.require(same, f"{image['reference']} is {by_name}, locked {image['digest']}")


def digests(node: Node, name: str) -> list[str] | None:
    """The digests of an image on the node; None where it has no such image."""
    status, stdout, stderr = node.run(f"docker image inspect --format '{{{{json .RepoDigests}}}}' {shlex.quote(name)}")
    if status and "no such image" in stderr.lower():
        return None
    node.require(status == 0, f"docker does not answer: {stderr.strip()[-300:]}")
    return [reference.rpartition("@")[2] for reference in json.loads(stdout) or []]


def test_framework_versions(node: Node) -> None:
    if not any(locked_versions(image) for image in node.expected["images"]):
        pytest.skip("no locked image has a framework with a known version")
    for image in node.expected["images"]:
        if locked := locked_versions(image):
            versions = versions_in(node, image["pull"])
            wrong = [f"{part} {versions.get(part)}, locked {version}" for part, version in locked.items()
                     if not is_same(version, versions.get(part))]  # fmt: skip
            node.require(not wrong, f"{image['reference']}: {'; '.join(wrong)}")
            count = len(node.gpus())
            node.require(versions.get("gpus") == count, f"torch sees {versions.get('gpus')} of {count} GPUs")


def locked_versions(image: dict[str, Any]) -> dict[str, str]:
    return {part: image[part] for part in ("torch", "cuda", "nccl", "python") if image[part]}


def versions_in(node: Node, image: str) -> dict[str, Any]:
    """What python3 in the image says. Nothing is pulled, and no container stays."""
    container = f"gpu-acceptance-{uuid4().hex[:12]}"
    options = f"--rm --name {container} --pull=never --network=none {GPUS[node.expected['vendor']]}"
    command = f"docker run {options} --entrypoint python3 {shlex.quote(image)} -c {shlex.quote(VERSIONS)}"
    try:
        lines = [line for line in node.output(command, seconds=120).splitlines() if line.startswith("{")]
    finally:
        with contextlib.suppress(pytest.fail.Exception):  # the reason why the versions are missing counts
            node.run(f"docker rm --force {container}")
    node.require(bool(lines), f"python3 in {image} printed no versions")
    versions: dict[str, Any] = json.loads(lines[-1])
    return versions


def is_same(locked: str, version: str | None) -> bool:
    """2.9 is 2.9.0 and 2.9.0+cu130, and 2.9.0a0+50eac811a6 of NVIDIA's images."""
    parts = locked.split("+", maxsplit=1)[0].split(".")
    return version is not None and (version == locked or version.split("+")[0].split(".")[: len(parts)] == parts)
