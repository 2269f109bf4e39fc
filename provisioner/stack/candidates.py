"""Components and the versions that each may have: the solver's candidates, in the order in which they are preferred.

What is proven (stands in a set that a vendor ships) comes before what is new; for drivers first of all a branch in
long-term support, then production branches, and branches whose support has ended last.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache, lru_cache
from typing import Any

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from provisioner.stack.components import COMPONENTS, label
from provisioner.stack.facts import as_of, rows

Spec = str | tuple[str, ...]
"""A PEP 440 range (">=525.60.13"), or the values that are allowed (("turing", "ampere"))."""

TRAITS = ("gpu", "gpu_class", "network")
"""What the machine is: not chosen, but asked for like a version."""

ORDER = (*TRAITS, *COMPONENTS)
"""The order in which versions are chosen, after what the machine is."""


@dataclass(frozen=True, slots=True, eq=False)
class Candidate:
    """One version of a component. `facts` is what else its row says; `rank` sorts before others when it is smaller."""

    name: str
    version: str
    needs: Mapping[str, Spec] = field(default_factory=dict)
    prefers: Mapping[str, Spec] = field(default_factory=dict)
    rank: tuple[Any, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)
    source: str = ""

    @property
    def label(self) -> str:
        """How a sentence names it: CUDA 13.0.2, the image by its reference."""
        if self.name.startswith("image "):
            return self.version
        return label(self.name, self.version)


@lru_cache(maxsize=20_000)
def within(version: str, spec: Spec) -> bool:
    """Whether a version lies in a range, or a value in a list. Pre-releases count as what they are."""
    if isinstance(spec, tuple):
        return version in spec
    return SpecifierSet(spec).contains(Version(version), prereleases=True)


def readable(spec: Spec) -> str:
    """A range in words: >=525.60.13 → 525.60.13 or newer, ==12.* → 12.x, a list → its values."""
    parts = []
    for part in spec if isinstance(spec, tuple) else spec.split(","):
        text = re.sub(r"^>=(.+)", r"\1 or newer", part)
        text = re.sub(r"^<(.+)", r"before \1", text)
        text = re.sub(r"^==(.+)\.\*$", r"\1.x", text)
        parts.append(text.removeprefix("=="))
    return ", ".join(parts)


def starts(version: str, pin: str) -> bool:
    """Whether a pin names this version: "580" and "580.173" both name 580.173.02, "58" does not. NVIDIA's build 2.4.0a0
    is of the series 2.4, but is not the release 2.4.0."""
    return version == pin or version.startswith((pin + ".", pin + "+"))


def pinned(candidate: Candidate, pin: str) -> bool:
    """Whether what cluster.yaml pins names this candidate. A kernel's candidate is a series: 6.8 has 6.8.0-1066-aws."""
    if candidate.name == "kernel":
        return starts(candidate.version, pin) or starts(pin, candidate.version)
    release, plus, build = pin.partition("+")
    if plus:
        version, _, candidate_build = candidate.version.partition("+")
        return starts(version, release) and candidate_build == build
    return starts(candidate.version, pin)


def newest_first(version: str) -> tuple[int, ...]:
    """A sort key: newer versions first, a pre-release after its release."""
    parsed = Version(version)
    release = (*parsed.release, *(0,) * (5 - len(parsed.release)))
    return (*(-n for n in release), int(parsed.is_prerelease))


def proven(name: str, version: str) -> list[str]:
    """The vendor sets that hold this version."""
    return [s["name"] for s in rows("proven") if name in s and starts(version, s[name])]


def candidates(name: str) -> tuple[Candidate, ...]:
    """Every candidate of a component, best first."""
    return _BY_NAME[name]() if name in _BY_NAME else _plain(name)


def _spec(value: Any) -> Spec:
    return tuple(value) if isinstance(value, list) else value


def _specs(row: Mapping[str, Any], key: str) -> dict[str, Spec]:
    return {name: _spec(value) for name, value in row.get(key, {}).items()}


@cache
def _plain(name: str) -> tuple[Candidate, ...]:
    options = [
        Candidate(
            name, row["version"], _specs(row, "needs"), _specs(row, "prefers"),
            (not proven(name, row["version"]), newest_first(row["version"])), row, row["source"],
        )
        for row in rows(name)
        if not row.get("avoid")
    ]  # fmt: skip
    return tuple(sorted(options, key=lambda c: c.rank))


_SUPPORT = {"lts": 0, "production": 1, "new-feature": 2, "developer": 3}


def branch_of(driver: str) -> Mapping[str, Any] | None:
    """The row of a driver's branch; None for one that nobody knows."""
    return next((row for row in rows("driver") if row["branch"] == driver.split(".", maxsplit=1)[0]), None)


def driver(row: Mapping[str, Any], version: str) -> Candidate:
    """A release of a branch, known or not: what it needs is the branch's."""
    ended = row.get("eol") is not None and row["eol"] < as_of()[:7]
    unsupported = ended or row.get("eol") is None
    # Among branches that are out of support the newest is the least bad, whatever it was called.
    support = (unsupported, 0 if unsupported else _SUPPORT[row["kind"]])
    rank = (*support, not proven("driver", version), newest_first(version))
    return Candidate("driver", version, _specs(row, "needs"), {}, rank, row, row["source"])


@cache
def _drivers() -> tuple[Candidate, ...]:
    return tuple(sorted((driver(r, v) for r in rows("driver") for v in r["releases"]), key=lambda c: c.rank))


@cache
def _os() -> tuple[Candidate, ...]:
    return tuple(
        Candidate("os", r["version"], rank=(i,), facts=r, source=r["source"]) for i, r in enumerate(rows("os"))
    )


def trait(name: str) -> tuple[Candidate, ...]:
    """The values that a machine's trait may have."""
    return tuple(Candidate(name, value, rank=(i,)) for i, value in enumerate(TRAIT_VALUES[name]))


TRAIT_VALUES = {
    "gpu": ("hopper", "ampere", "blackwell", "ada", "turing", "volta", "cdna3", "cdna2", "none"),
    "gpu_class": ("datacenter", "geforce", "none"),
    "network": ("infiniband", "roce", "efa", "ethernet", "none"),
}


def cuda_of(build: str) -> str:
    """major.minor of a build's name: cu118 → 11.8, cu130 → 13.0."""
    digits = build.removeprefix("cu")
    return f"{digits[:-1]}.{digits[-1]}"


MINOR_COMPATIBLE = {11: ">=450.80.02", 12: ">=525.60.13", 13: ">=580.65.06"}
"""The oldest driver that runs any CUDA of a major (CUDA 13.1 release notes, minor-version compatibility)."""


@cache
def _toolkit_gpus() -> dict[str, tuple[str, ...]]:
    """CUDA major.minor → architectures that it compiles for."""
    return {".".join(r["version"].split(".")[:2]): tuple(r["needs"]["gpu"]) for r in rows("cuda")}


def known_gpus(cuda: str) -> tuple[str, ...]:
    """Architectures that a CUDA serves; of a minor release that no row has those of the newest of its major that one
    has; empty where nothing is known of the major."""
    known, minor = _toolkit_gpus(), ".".join(cuda.split(".")[:2])
    same = [v for v in known if v.split(".")[0] == minor.split(".")[0]]
    if minor in known or not same:
        return known.get(minor, ())
    return known[max(same, key=Version)]


def _build_gpus(version: str, build: str) -> tuple[str, ...]:
    for row in rows("pytorch_gpus"):
        if row["build"] == build and ("below" not in row or Version(version) < Version(row["below"])):
            return tuple(row["gpu"])
    return _toolkit_gpus().get(cuda_of(build), ("volta", "turing", "ampere", "ada"))  # before 11.7: no Hopper


def _ngc(row: Mapping[str, Any]) -> list[Candidate]:
    """An image of NVIDIA, and for data-centre GPUs once more for each older branch that its compatibility package
    takes."""
    reference = f"nvcr.io/nvidia/pytorch:{row['tag']}-py3"
    facts = {**row, "reference": reference, "maker": "NVIDIA"}
    needs, prefers = _specs(row, "needs"), _specs(row, "prefers")
    rank = (newest_first(row["torch"]), _tag_rank(row["tag"]))
    options = [Candidate("pytorch", row["torch"], needs, prefers, (0, 0, *rank), facts, row["source"])]
    for minimum in row.get("compat") or ():
        older: dict[str, Spec] = {
            "driver": f">={minimum},=={minimum.split('.', maxsplit=1)[0]}.*",
            "gpu_class": ("datacenter",),
        }
        options.append(
            Candidate("pytorch", row["torch"], {**needs, **older}, prefers, (0, 1, *rank), facts, row["source"])
        )
    return options


def _tag_rank(tag: str) -> tuple[int, ...]:
    return tuple(-int(part) for part in tag.split("."))


def _wheels(row: Mapping[str, Any]) -> list[Candidate]:
    options = []
    for build in row["cuda_builds"]:
        cuda = cuda_of(build)
        major = int(cuda.split(".", maxsplit=1)[0])
        tag = f"{row['version']}-cuda{cuda}-cudnn{row['cudnn'].split('.', maxsplit=1)[0]}-runtime"
        facts = {
            "build": build, "cuda": cuda, "nccl": row.get("nccl"), "cudnn": row["cudnn"], "maker": "PyTorch",
            "reference": f"docker.io/pytorch/pytorch:{tag}",
        }  # fmt: skip
        needs: dict[str, Spec] = {
            "driver": MINOR_COMPATIBLE[major], "gpu": _build_gpus(row["version"], build), "cuda": f"=={major}.*",
        }  # fmt: skip
        prefers: dict[str, Spec] = {"cuda": f"=={cuda}.*"}
        if row.get("nccl"):
            prefers["nccl"] = f"=={row['nccl']}"
        rank = (1, newest_first(row["version"]), cuda != row["default"], newest_first(cuda))
        options.append(Candidate("pytorch", f"{row['version']}+{build}", needs, prefers, rank, facts, row["source"]))
    for build in row["rocm_builds"]:
        major, minor = (int(part) for part in build.split(".")[:2])
        facts = {
            "build": f"rocm{build}", "maker": "AMD",
            "reference": f"docker.io/rocm/pytorch:rocm{build}_ubuntu24.04_py3.12_pytorch_release_{row['version']}",
        }  # fmt: skip
        # AMD's matrix: kernel driver and user space may be two minor releases apart. MI300 came with ROCm 6.
        needs = {
            "rocm": f">={major}.{max(0, minor - 2)},<{major}.{minor + 3}",
            "gpu": ("cdna2", "cdna3") if major >= 6 else ("cdna2",),
        }
        rank = (1, newest_first(row["version"]), False, newest_first(build))
        prefers = {"rocm": f"=={major}.{minor}.*"}
        options.append(
            Candidate("pytorch", f"{row['version']}+rocm{build}", needs, prefers, rank, facts, row["source"])
        )
    return options


@cache
def _pytorch() -> tuple[Candidate, ...]:
    options = [c for row in rows("ngc_pytorch") for c in _ngc(row)] + [
        c for row in rows("pytorch") for c in _wheels(row)
    ]
    return tuple(sorted(options, key=lambda c: c.rank))


@cache
def _tensorflow() -> tuple[Candidate, ...]:
    options = []
    for row in rows("tensorflow"):
        facts = {**row, "reference": f"docker.io/tensorflow/tensorflow:{row['version']}-gpu", "maker": "TensorFlow"}
        options.append(
            Candidate(
                "tensorflow", row["version"], _specs(row, "needs"), _specs(row, "prefers"),
                (newest_first(row["version"]),), facts, row["source"],
            )
        )  # fmt: skip
    return tuple(sorted(options, key=lambda c: c.rank))


def image(reference: str) -> tuple[Candidate, ...]:
    """What is known of a container image that cluster.yaml names: all of an image whose maker's table has it, nothing
    of anybody else's."""
    name = f"image {reference}"
    plain = reference.split("@", 1)[0]
    of = [c for c in (*_pytorch(), *_tensorflow()) if _same_image(plain, c.facts["reference"])]
    if of:
        return tuple(
            Candidate(name, reference, {k: v for k, v in c.needs.items() if k != "cuda"}, c.prefers, (i,),
                      {**c.facts, c.name: c.version}, c.source)
            for i, c in enumerate(of)
        )  # fmt: skip
    return (Candidate(name, reference),)


def _same_image(reference: str, known: str) -> bool:
    """nvcr.io/nvidia/pytorch:25.10-py3-igpu is still 25.10; Docker's own registry may be left out."""
    plain = re.sub(r"^(index\.)?docker\.io/", "", reference)
    known_plain = known.removeprefix("docker.io/")
    return plain == known_plain or (known.startswith("nvcr.io/") and plain.startswith(f"{known_plain}-"))


_BY_NAME = {"driver": _drivers, "os": _os, "pytorch": _pytorch, "tensorflow": _tensorflow}
