"""What a container image says of itself: versions in the environment of its configuration.

NVIDIA's images carry CUDA_VERSION (13.2.0.046), CUDA_DRIVER_VERSION, NCCL_VERSION, CUDNN_VERSION, PYTORCH_VERSION and
PYTORCH_BUILD_VERSION (2.11.0a0+a6c236b) or TENSORFLOW_VERSION, and NVIDIA_PYTORCH_VERSION (26.03, the tag). PyTorch's
own carry PYTORCH_VERSION (2.4.0), and with a compiler CUDA_VERSION and NCCL_VERSION (2.21.5-1). Seen in public logs of
`env` in images of 20.06 to 26.03, in NVIDIA's CUDA Dockerfiles and in pytorch/pytorch's Dockerfile.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from provisioner.stack.candidates import MINOR_COMPATIBLE, Candidate, Spec, known_gpus
from provisioner.stack.models import Image

NAMES = (
    "CUDA_VERSION", "CUDA_DRIVER_VERSION", "NCCL_VERSION", "CUDNN_VERSION", "PYTORCH_BUILD_VERSION", "PYTORCH_VERSION",
    "TENSORFLOW_VERSION", "NVIDIA_PYTORCH_VERSION", "NVIDIA_TENSORFLOW_VERSION",
)  # fmt: skip
"""Variables that are read."""

KEYS = ("cuda", "nccl", "cudnn", "pytorch", "tensorflow")
"""What a stack is solved with."""

_VERSION = re.compile(r"\d{1,4}(\.\d{1,6}){1,3}")
_BUILD = re.compile(r"\d{1,4}(\.\d{1,4}){1,3}((a|b|rc)\d+)?(\+[0-9A-Za-z.]{1,64})?")


@dataclass(frozen=True, slots=True, order=True)
class ImageFacts:
    """Versions that an image's configuration (`config`: its digest) names; "" where it names none. `driver` is the one
    that its CUDA came with, `release` NVIDIA's own number of the image."""

    config: str
    cuda: str = ""
    driver: str = ""
    nccl: str = ""
    cudnn: str = ""
    pytorch: str = ""
    tensorflow: str = ""
    release: str = ""

    @property
    def any(self) -> bool:
        """Whether it names a version that a stack is solved with."""
        return bool(self.cuda or self.pytorch or self.tensorflow)


def read(env: Iterable[object], config: str) -> ImageFacts:
    """Of an image's environment (NAME=value) what is a version; anything else counts as not named."""
    pairs = [line.partition("=") for line in env if isinstance(line, str)]
    variables = {name: value.strip() for name, _, value in pairs if name in NAMES}

    def plain(name: str) -> str:
        value = variables.get(name, "").partition("-")[0]  # a package's revision
        return value if _VERSION.fullmatch(value) else ""

    def build(*names: str) -> str:
        return next((v for name in names if _BUILD.fullmatch(v := variables.get(name, ""))), "")

    return ImageFacts(
        config,
        cuda=".".join(plain("CUDA_VERSION").split(".")[:3]),
        driver=plain("CUDA_DRIVER_VERSION"),
        nccl=".".join(plain("NCCL_VERSION").split(".")[:3]),
        cudnn=plain("CUDNN_VERSION"),
        pytorch=build("PYTORCH_BUILD_VERSION", "PYTORCH_VERSION"),
        tensorflow=build("TENSORFLOW_VERSION"),
        release=plain("NVIDIA_PYTORCH_VERSION") or plain("NVIDIA_TENSORFLOW_VERSION"),
    )


def said(image: Image) -> ImageFacts:
    """What an image said of itself when it was locked; the driver that its CUDA came with is not kept."""
    return ImageFacts(
        image.config, image.cuda or "", "", image.nccl or "", "", image.torch or "", image.tensorflow or ""
    )


def unknown(name: str, reference: str, facts: ImageFacts) -> tuple[Candidate, ...]:
    """Candidates for an image that no table has, of what it says itself; its name alone where it says nothing."""
    if not facts.any:
        return (Candidate(name, reference, facts={"config": facts.config}),)
    versions = {k: v for k in KEYS if (v := getattr(facts, k))}
    candidate_facts = {**versions, "config": facts.config, "maker": "NVIDIA" if facts.release else "image"}
    prefers = _prefers(facts)
    source = f"the image's own configuration, {facts.config[:19]}…"
    rows = [Candidate(name, reference, _needs(facts), prefers, (0,), candidate_facts, source)]
    if facts.driver and (floor := MINOR_COMPATIBLE.get(_major(facts.cuda))):
        # Data-centre GPUs run it with any driver of the same CUDA major too (CUDA compatibility guide).
        older: dict[str, Spec] = {**_needs(facts), "driver": floor, "gpu_class": ("datacenter",)}
        rows.append(Candidate(name, reference, older, prefers, (1,), candidate_facts, source))
    return tuple(rows)


def corrected(known: Candidate, facts: ImageFacts) -> Candidate:
    """A candidate of the tables with what the image itself says, which is right where they differ."""
    table_facts: dict[str, str] = {known.name: known.version, **known.facts}
    versions = {k: v for k in KEYS if (v := getattr(facts, k))}
    for key, image in versions.items():
        table = str(table_facts.get(key) or "")
        if table and _same(table, image) and len(table) >= len(image):
            versions[key] = table  # the same, told more exactly
    version = versions.pop(known.name, known.version)
    changed = replace(known, version=version, facts={**known.facts, **versions, "config": facts.config})
    wrong = differences(known, facts)
    if any(key in ("CUDA", "NCCL") for key, _, _ in wrong):
        changed = replace(changed, prefers={**known.prefers, **_prefers(facts)})
    if any(key == "CUDA" for key, _, _ in wrong):
        changed = replace(changed, needs={**known.needs, **_needs(facts)})
    return changed


def differences(known: Candidate, facts: ImageFacts) -> list[tuple[str, str, str]]:
    """(what, the table's version, the image's) where both name one and they are not the same."""
    table_facts = {known.name: known.version, **known.facts}
    differing = []
    for key, title in (("pytorch", "PyTorch"), ("tensorflow", "TensorFlow"), ("cuda", "CUDA"), ("nccl", "NCCL")):
        table, image = str(table_facts.get(key) or ""), str(getattr(facts, key))
        if table and image and not _same(table, image):
            differing.append((title, table, image))
    return differing


def _same(version: str, other: str) -> bool:
    """Whether two versions name the same as far as both go: 13.0 and 13.0.2, 2.9.0a0 and 2.9.0a0+145a3a7, and builds by
    commits of different length."""
    (first, _, build), (second, _, other_build) = version.partition("+"), other.partition("+")
    parts = list(zip(first.split("."), second.split("."), strict=False))
    if any(a != b for a, b in parts):
        return False
    return not build or not other_build or build.startswith(other_build) or other_build.startswith(build)


def _prefers(facts: ImageFacts) -> dict[str, Spec]:
    specs: dict[str, Spec] = {}
    if facts.cuda:
        specs["cuda"] = f"=={'.'.join(facts.cuda.split('.')[:2])}.*"
    if facts.nccl:
        specs["nccl"] = f"=={facts.nccl}"
    return specs


def _needs(facts: ImageFacts) -> dict[str, Spec]:
    """The driver that its CUDA came with, by its branch, or any of that CUDA's major; the GPUs that its CUDA serves."""
    specs: dict[str, Spec] = {}
    if facts.driver:
        specs["driver"] = f">={facts.driver.split('.', maxsplit=1)[0]}"
    elif floor := MINOR_COMPATIBLE.get(_major(facts.cuda)):
        specs["driver"] = floor
    if gpus := known_gpus(facts.cuda):
        specs["gpu"] = gpus
    return specs


def _major(cuda: str) -> int:
    return int(cuda.split(".", maxsplit=1)[0] or 0)


def say(reference: str, candidates: Iterable[Candidate], facts: ImageFacts, as_of: str) -> list[str]:
    """What a person is told of an image that was read: where tables and image differ, or that it says nothing."""
    known = [c for c in candidates if c.source]
    if known:
        wrong = dict.fromkeys(difference for c in known for difference in differences(c, facts))
        table_of = f"the table of this release (as of {as_of})"
        return [
            f"{reference} has {title} {image_version}; {table_of} says {old}: the image is right"
            for title, old, image_version in wrong
        ]
    if not facts.any:
        return [
            f"nothing is known of what {reference} holds: its configuration names no version (CUDA_VERSION, "
            "PYTORCH_VERSION, …), and no table has it; driver and CUDA are chosen without it"
        ]
    return []


Read = Mapping[str, ImageFacts]
"""Reference → what its image says."""
