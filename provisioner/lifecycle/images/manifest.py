"""What one build of a recipe is: written when all of its images were proven, never changed afterwards."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from provisioner.output.image import Difference
from provisioner.stack.models import Stack


class Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class RoleOnImage(Part):
    """Digests, as the stamp of a node has them (configure/stamps.py)."""

    digest: str
    installed: str


class Proof(Part):
    """One boot of a machine that was made of the image. `report` is relative to the build's folder."""

    machine: str
    node: str
    level: str
    report: str
    passed: int
    warned: int
    unknown: int


class DiskFile(Part):
    """One file of a disk image: its name in the folder of disks, and its size in bytes."""

    file: str
    sha256: str
    bytes: int


class Disk(Part):
    """The disk image of a group. `files`: format → file; `root`: UUID of its root file system; `kernel`: what it boots;
    `proofs`: a boot of a virtual machine each."""

    files: dict[str, DiskFile]
    root: str
    kernel: str
    proofs: tuple[Proof, ...]


class Vulnerabilities(Part):
    """What a scanner found, by severity: pairs of a vulnerability and a package. `fixable`: those of them that a newer
    version does not have. `database`: when it was built; "" where the scanner does not say."""

    scanner: str
    database: str
    counts: dict[str, int]
    fixable: int


class Target(Part):
    """The image of one group of the recipe. `ids`: region → the provider's id; a provider without regions has the empty
    one. `packages`: name → version of every package on it. `base`: what it was built on."""

    site: str
    provider: str
    machine: str
    builder: str
    ids: dict[str, str]
    base: str
    kernel: str
    stack: Stack
    roles: dict[str, RoleOnImage]
    packages: dict[str, str]
    sources: dict[str, str] = Field(default_factory=dict)
    """Package → "source version", for packages whose source package has another name or version."""
    proofs: tuple[Proof, ...]
    residue: tuple[str, ...] = ()
    """What generalising removed, one line each."""
    disk: Disk | None = None
    """For machines of one's own."""
    vulnerabilities: Vulnerabilities | None = None
    """When it was built. None: not scanned, which is not the same as none."""
    not_scanned: str = ""
    """Why it was not, where the recipe wanted it."""

    @property
    def proven_by(self) -> tuple[Proof, ...]:
        """On machines of its type; where there was none to be had, by its disk."""
        return self.proofs or (self.disk.proofs if self.disk is not None else ())


class Inputs(Part):
    """What a build was made of, as digests: two builds of the same inputs differ in times and identities alone."""

    recipe: str
    stacks: dict[str, str]
    bases: dict[str, str]
    roles: dict[str, str]


class Manifest(Part):
    version: Literal[1] = 1
    name: str
    build: str
    made: str
    """When it was proven, UTC: 2026-01-31T03:15:00Z."""
    simulated: bool
    gpuprov: str
    inputs: Inputs
    targets: dict[str, Target]
    files: dict[str, str] = Field(default_factory=dict)
    """SHA-256 of the other files of the build, by their names: SBOMs, reports."""

    def target(self, provider: str, region: str) -> list[str]:
        """The targets whose image a site of that provider and region can boot."""
        return [name for name, target in self.targets.items() if target.provider == provider and region in target.ids]


def differences(previous: Manifest, current: Manifest) -> list[Difference]:
    """What differs between two builds, target by target."""
    changes: list[Difference] = []

    def row(target: str, kind: str, name: str, old: str | None, new: str | None) -> None:
        if old != new:
            changes.append(Difference(target=target, what=kind, name=name, before=old, after=new))

    for name in dict.fromkeys([*previous.targets, *current.targets]):
        old, new = previous.targets.get(name), current.targets.get(name)
        if old is None or new is None:
            row(name, "target", name, old.machine if old else None, new.machine if new else None)
            continue
        row(name, "base", "base image", old.base, new.base)
        row(name, "kernel", "kernel", old.kernel, new.kernel)
        versions = [{key: component.version for key, component in side.stack.components.items()} for side in (old, new)]
        packages, roles = (old.packages, new.packages), [{k: r.digest for k, r in s.roles.items()} for s in (old, new)]
        for kind, (a, b) in (("version", versions), ("package", packages), ("role", roles)):
            for key in sorted({*a, *b}):
                row(name, kind, key, a.get(key), b.get(key))
    return changes
