"""cluster.lock: what exactly is installed on the nodes of each group.

Versions are strings as their makers write them ("580.173.02", "13.0", "2.27.7"); package versions are apt's
("2.27.7-1+cuda13.0"). A value of None means that the machine has no such part.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

LOCK_VERSION = 1


class Locked(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Package(Locked):
    """One apt package at one exact version, from the repository of that name (None: the distribution's own)."""

    name: str
    version: str
    repository: str | None = None


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
    cuda: str | None = None
    nccl: str | None = None
    python: str | None = None


class Stack(Locked):
    """Everything that is installed on one group's nodes."""

    driver: str | None
    driver_branch: str | None
    kernel_modules: Literal["open", "proprietary"] | None
    fabric_manager: str | None
    cuda_driver: str | None
    """The CUDA version that the driver reports (nvidia-smi's "CUDA Version"), major.minor."""
    cuda_toolkit: str | None
    nccl: str | None
    dcgm: str | None
    dcgm_exporter: str | None
    container_toolkit: str | None
    packages: tuple[Package, ...] = ()
    repositories: tuple[Repository, ...] = ()
    images: tuple[Image, ...] = ()
    why: dict[str, str] = {}

    def package(self, name: str) -> Package | None:
        return next((p for p in self.packages if p.name == name), None)


class Lock(Locked):
    """cluster.lock. `request` is what it was solved from, flat (groups.train.machine: p4d.24xlarge), so that a later
    difference can be named."""

    version: Literal[1] = 1
    request: dict[str, str]
    simulated: bool
    groups: dict[str, Stack]
