"""cluster.lock: what exactly is installed on the nodes of each group.

Versions are strings as their makers write them ("580.173.02", "13.0", "2.27.7"); package versions are apt's
("2.27.7-1+cuda13.0"). A value of None means that the machine has no such part.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from provisioner.stack.texts import (
    Address,
    ArchiveFolder,
    Build,
    Chosen,
    ComponentName,
    Components,
    Digest,
    Fingerprint,
    FolderOnNodes,
    GroupName,
    Key,
    MachineImage,
    PackageName,
    PackageVersion,
    Pull,
    Reference,
    RepositoryName,
    Sentence,
    Sha256,
    StackName,
    Suite,
    System,
    Version,
)

LOCK_VERSION: Final = 3
ARCHIVE_LIMIT: Final = 4 << 30
"""Bytes that an archive may have; the EFA installer has 0.7 GB."""
LOCAL: Final = "file:/var/lib/gpuprov/repositories/{name}/"
"""Where a node makes a repository of vendors' archives; the role base writes it."""


def _part(name: str) -> str:
    from provisioner.stack.components import PARTS

    if name not in PARTS:
        raise ValueError(f"unknown part; known: {', '.join(sorted(PARTS))}")
    return name


Part = Annotated[str, AfterValidator(_part)]
"""The component that a package belongs to (data/components.yaml); each role installs the packages of its parts."""


class Locked(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Package(Locked):
    """One apt package at one exact version, from the repository of that name (None: the distribution's own)."""

    name: PackageName
    version: PackageVersion
    repository: RepositoryName | None = None
    part: Part
    asked: bool = True
    """Asked for by name; False: another package of the same repository pulls it in."""
    sha256: Sha256 = ""
    """Of the .deb file, where it comes out of an archive; of an apt repository its signed list says it."""


class Archive(Locked):
    """A vendor's file with packages in it: a tar archive, a .deb that holds others, or one .deb alone.

    `folder`: where in it the packages lie, with all that is below; empty: the file is the package. `size` (bytes) and
    `sha256` are of the file as it came when it was locked (0 and "" before that). `signature`: the address of its
    detached OpenPGP signature by the repository's key; "" where the vendor signs nothing. `basis`: why it counts."""

    url: Address
    folder: ArchiveFolder = ""
    sha256: Sha256 = ""
    size: int = Field(default=0, ge=0, le=ARCHIVE_LIMIT)
    signature: Address = ""
    basis: Sentence = ""


class Repository(Locked):
    """Where packages come from: a signed apt repository, or vendors' `archives` of which each node makes a local one.

    `fingerprint` is the full OpenPGP fingerprint (40 hex digits) that the key at `key_url` must have; of archives that
    nobody signs there is none. `uri` is what apt reads on a node."""

    name: RepositoryName
    uri: FolderOnNodes
    suite: Suite
    components: Components
    key_url: Key
    fingerprint: Fingerprint
    archives: tuple[Archive, ...] = ()


class Image(Locked):
    """A container image by digest. `reference` is what people write (nvcr.io/nvidia/pytorch:25.10-py3), `pull`
    the name that is really pulled (registry/repository@sha256:…)."""

    reference: Reference
    digest: Digest
    pull: Pull
    torch: Version | None = None
    tensorflow: Version | None = None
    cuda: Version | None = None
    nccl: Version | None = None
    python: Version | None = None
    basis: Literal["", "measured", "documented"] = ""
    """Of the versions: the image itself was asked, a table of this release has them, or nothing is known of it."""
    config: Digest = ""
    """The configuration that was read."""


class Component(Locked):
    """The version that was chosen, why, and where the facts for it were read."""

    version: Chosen
    why: Sentence


class BaseImage(Locked):
    """What machines boot. `id` is the provider's (an AMI, a URN); None where the provider could not be
    asked, which `why` says."""

    id: MachineImage | None
    why: Sentence


class VendorImage(Locked):
    """The cloud's own GPU image that a group's machines boot (`base: vendor-hpc`), and what of the stack it brings.

    `name`: as the cloud calls it; `base`: its id there; `parts`: part of the stack → version, as the image has it;
    `packages`: the packages of those parts as apt would install them: nothing of that name is installed or held."""

    name: Sentence
    base: BaseImage | None = None
    parts: dict[ComponentName, Version]
    packages: tuple[Package, ...] = ()


class GoldenImage(Locked):
    """The image that a group's machines start from (docs/guides/images.md). `name` and `build` are of its recipe,
    `id` is the provider's."""

    name: Sentence
    build: Build
    id: MachineImage


class Stack(Locked):
    """Everything that is installed on one group's nodes."""

    os: System
    """The distribution that the roles expect, as cluster.yaml writes it: ubuntu-24.04."""
    kernel: Version | None = None
    """`uname -r` that the driver's modules are built for; None where the base image's kernel is not known."""
    driver: Version | None
    driver_branch: Version | None
    kernel_modules: Literal["open", "proprietary"] | None
    fabric_manager: Version | None
    cuda_driver: Version | None
    """The CUDA version that the driver reports (nvidia-smi's "CUDA Version"), major.minor."""
    cuda_toolkit: Version | None
    cudnn: Version | None = None
    nccl: Version | None
    efa: Version | None = None
    """Release of the EFA installer, whose parts are installed."""
    ofi_nccl: Version | None = None
    """The aws-ofi-nccl plugin that goes with `efa` and `nccl`."""
    ofed: Version | None = None
    """Release of DOCA-Host; None where the kernel's own RDMA drivers serve (or the machine has no RDMA)."""
    gdrcopy: Version | None = None
    rocm: Version | None = None
    pytorch: Version | None = None
    """The PyTorch that the framework image holds, as its maker writes it (2.9.0a0+145a3a7bda, 2.9.1+cu130)."""
    tensorflow: Version | None = None
    dcgm: Version | None
    dcgm_exporter: Version | None
    container_toolkit: Version | None
    packages: tuple[Package, ...] = ()
    repositories: tuple[Repository, ...] = ()
    images: tuple[Image, ...] = ()
    components: dict[ComponentName, Component] = {}
    """Everything that was chosen (driver, cuda, nccl …), whatever of it the fields above name for the roles."""
    vendor: VendorImage | None = None
    """None where the machines boot the distribution's own image."""

    def has(self, part: str) -> bool:
        """Whether a node has that part, installed by a role or brought by the cloud's image."""
        in_vendor_image = self.vendor is not None and part in self.vendor.parts
        return in_vendor_image or any(package.part == part for package in self.packages)

    def package(self, name: str) -> Package | None:
        return next((p for p in self.packages if p.name == name), None)

    def version_of(self, component: str) -> str | None:
        """The version of a component; None where the stack does not have it."""
        from provisioner.stack.components import COMPONENTS

        field = COMPONENTS[component].field or component
        if field in type(self).model_fields:
            version: str | None = getattr(self, field)
            return version
        return self.components[component].version if component in self.components else None


def on_node(stack: Stack) -> dict[str, Any]:
    """What a stack puts on a node, as JSON has it: without why it was chosen. A repository of archives names its
    packages with their hashes. Fields that came later are there where they say something, so that an older lock remains
    what it was: the same release, nothing to do on its nodes."""
    document = stack.model_dump(
        mode="json",
        exclude={
            "components": True,
            "packages": {"__all__": {"asked": True, "sha256": True}},
            "images": {"__all__": {"basis": True, "config": True}},
        },
    )
    if document["vendor"] is None:
        del document["vendor"]
    else:
        document["vendor"] = {"name": document["vendor"]["name"], "parts": document["vendor"]["parts"]}
    for row in document["repositories"]:
        if not row["archives"]:
            del row["archives"]
        else:
            row["packages"] = [
                {"name": p.name, "version": p.version, "sha256": p.sha256}
                for p in stack.packages
                if p.repository == row["name"]
            ]
    return document


class Lock(Locked):
    """cluster.lock. `request` is what it was solved from, flat (groups.train.machine: p4d.24xlarge), so that a later
    difference can be named."""

    version: Literal[3] = LOCK_VERSION
    request: dict[Sentence, Sentence]
    simulated: bool
    bases: dict[GroupName, dict[System, BaseImage]] = {}
    """Site → distribution → what its machines boot."""
    images: dict[GroupName, GoldenImage] = {}
    groups: dict[StackName, Stack]
    """Of a group whose machine type depends on its site there is one for each site: train@west."""

    def at(self, sites: Mapping[str, str]) -> Lock:
        """The lock of a fleet whose groups are at these sites (group → site): each group has the stack of its site."""
        if not any("@" in name for name in self.groups):
            return self
        groups = {}
        for name, stack in self.groups.items():
            group, _, site = name.partition("@")
            if site in ("", sites.get(group)):
                groups[group] = stack
        return self.model_copy(update={"groups": groups})
