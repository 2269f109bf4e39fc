"""cluster.lock: what exactly is installed on the nodes of each group.

Versions are strings as their makers write them ("580.173.02", "13.0", "2.27.7"); package versions are apt's
("2.27.7-1+cuda13.0"). A value of None means that the machine has no such part.
"""

from __future__ import annotations

from typing import Final, Literal

from pydantic import BaseModel, ConfigDict

LOCK_VERSION: Final = 3

Part = Literal[
    "driver", "fabric_manager", "imex", "cuda", "cudnn", "nccl", "dcgm", "dcgm_exporter", "container_toolkit",
    "efa", "ofed", "gdrcopy", "rocm", "lustre", "mount_s3",
]  # fmt: skip
"""What a package belongs to; each role installs the packages of its parts."""


class Locked(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Package(Locked):
    """One apt package at one exact version, from the repository of that name (None: the distribution's own)."""

    name: str
    version: str
    repository: str | None = None
    part: Part
    asked: bool = True
    """Asked for by name; False: another package of the same repository pulls it in."""


class Repository(Locked):
    """A signed apt repository. `line` is everything of the deb822 source but the key; `fingerprint` is the
    full OpenPGP fingerprint (40 hex digits) that the key at `key_url` must have."""

    name: str
    uri: str
    suite: str
    components: str
    key_url: str
    fingerprint: str


class Image(Locked):
    """A container image by digest. `reference` is what people write (nvcr.io/nvidia/pytorch:25.10-py3), `pull`
    the name that is really pulled (registry/repository@sha256:…)."""

    reference: str
    digest: str
    pull: str
    torch: str | None = None
    tensorflow: str | None = None
    cuda: str | None = None
    nccl: str | None = None
    python: str | None = None


class Component(Locked):
    """The version that was chosen, why, and where the facts for it were read."""

    version: str
    why: str


class BaseImage(Locked):
    """What machines boot. `id` is the provider's (an AMI, a URN); None where the provider could not be
    asked, which `why` says."""

    id: str | None
    why: str


class Stack(Locked):
    """Everything that is installed on one group's nodes."""

    os: str
    """The distribution that the roles expect, as cluster.yaml writes it: ubuntu-24.04."""
    kernel: str | None = None
    """`uname -r` that the driver's modules are built for; None where the base image's kernel is not known."""
    driver: str | None
    driver_branch: str | None
    kernel_modules: Literal["open", "proprietary"] | None
    fabric_manager: str | None
    cuda_driver: str | None
    """The CUDA version that the driver reports (nvidia-smi's "CUDA Version"), major.minor."""
    cuda_toolkit: str | None
    cudnn: str | None = None
    nccl: str | None
    efa: str | None = None
    """Release of the EFA installer, whose parts are installed."""
    ofi_nccl: str | None = None
    """The aws-ofi-nccl plugin that goes with `efa` and `nccl`."""
    ofed: str | None = None
    """Release of DOCA-Host; None where the kernel's own RDMA drivers serve (or the machine has no RDMA)."""
    gdrcopy: str | None = None
    rocm: str | None = None
    pytorch: str | None = None
    """The PyTorch that the framework image holds, as its maker writes it (2.9.0a0+145a3a7bda, 2.9.1+cu130)."""
    tensorflow: str | None = None
    dcgm: str | None
    dcgm_exporter: str | None
    container_toolkit: str | None
    packages: tuple[Package, ...] = ()
    repositories: tuple[Repository, ...] = ()
    images: tuple[Image, ...] = ()
    components: dict[str, Component] = {}
    """Everything that was chosen (driver, cuda, nccl …), whatever of it the fields above name for the roles."""

    def package(self, name: str) -> Package | None:
        return next((p for p in self.packages if p.name == name), None)


class Lock(Locked):
    """cluster.lock. `request` is what it was solved from, flat (groups.train.machine: p4d.24xlarge), so that a later
    difference can be named."""

    version: Literal[3] = LOCK_VERSION
    request: dict[str, str]
    simulated: bool
    bases: dict[str, dict[str, BaseImage]] = {}
    """Site → distribution → what its machines boot."""
    """Site → the image that its machines boot."""
    groups: dict[str, Stack]
