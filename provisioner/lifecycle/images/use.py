"""`groups.*.image` of a cluster.yaml: which build's image its machines start from, and what that has installed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from provisioner.catalog import Catalog
from provisioner.catalog.models import Machine
from provisioner.common import regular_file, stored
from provisioner.common.errors import GpuprovError
from provisioner.common.paths import ClusterPaths, below
from provisioner.lifecycle.images import signing
from provisioner.lifecycle.images.book import MANIFEST, Book, sha256
from provisioner.lifecycle.images.manifest import Manifest, Target
from provisioner.spec import image as recipes
from provisioner.spec import load
from provisioner.spec.models import ClusterSpec
from provisioner.spec.site import CloudSite, Site
from provisioner.stack.models import GoldenImage, Stack


@dataclass(frozen=True, slots=True)
class Chosen:
    """The image of a group, with what is installed on it."""

    golden: GoldenImage
    stack: Stack


def region_of(site: Site) -> str:
    """The region of a site; empty for one that has none."""
    return site.region if isinstance(site, CloudSite) else ""


def recipe_file(cluster_file: Path, name: str) -> Path:
    """The recipe of a reference's name, in a cluster.yaml."""
    return recipes.recipe_file(cluster_file.absolute().parent, name)


def paths_of(recipe: Path, name: str, *, sandbox: bool) -> ClusterPaths:
    """The run directory of a recipe: no cluster's, whatever that is called."""
    return ClusterPaths(recipe, f"{name}.image", sandbox=sandbox)


def book_of(recipe: Path, name: str, *, sandbox: bool) -> Book:
    """The builds of a recipe: beside it, or in its run directory for a sandbox."""
    paths = paths_of(recipe, name, sandbox=sandbox)
    return Book(name, paths.root / "book" if sandbox else recipe.absolute().parent / name)


def choose(
    spec: ClusterSpec, group: str, file: Path, *, sandbox: bool, where: str = "", build: str | None = None
) -> Chosen:
    """The image that a group's machines start from. `where`: the key's place in cluster.yaml, for errors; `build`: the
    one that is locked already. Raises GpuprovError where the reference leads to none, or to one for other machines."""
    reference = spec.groups[group].image or ""
    path, _, channel = reference.partition("@")
    recipe = recipe_file(file, path)
    book = book_of(recipe, recipe.stem, sandbox=sandbox)
    if not book.builds():
        command = f"gpuprov image build {recipe}{' --sandbox' if sandbox else ''}"
        raise GpuprovError(f"there is no image {path} yet", where=where, hint=f"`{command}` makes one")
    manifest = book.manifest(build or book.resolve(channel or "stable"))
    _refuse_unsigned(recipe, book, manifest.build)
    name = _fitting(manifest, spec, group, where)
    site = spec.sites[spec.site_of(group)]
    target = manifest.targets[name]
    has_gpus = spec.machine(group).gpu_count > 0
    _refuse_unproven(manifest, target, book.build(manifest.build), sandbox=sandbox, has_gpus=has_gpus)
    try:
        image = GoldenImage(name=reference, build=manifest.build, id=target.ids[region_of(site)])
    except ValidationError as error:
        message = error.errors()[0]["msg"]
        raise GpuprovError(f"its manifest names no image: {message}", where=str(book.build(manifest.build))) from None
    return Chosen(image, target.stack)


def _refuse_unproven(manifest: Manifest, target: Target, folder: Path, *, sandbox: bool, has_gpus: bool) -> None:
    """Raise GpuprovError for a build that a fleet must not start from: a manifest comes out of git as any file.
    `has_gpus`: of its machines; a lock pins no packages of others."""
    if manifest.simulated and not sandbox:
        raise GpuprovError("this build is of simulated machines", where=str(folder), hint="build it without --sandbox")
    if not target.proven_by or (has_gpus and not target.stack.packages):
        raise GpuprovError("its manifest has no proof of this image", where=str(folder), hint="build it again")
    for name, digest in manifest.files.items():
        file = below(folder, name)
        if not file.is_file() or sha256(file) != digest:
            hint = "restore it from git, or build again; find out who changed it"
            raise GpuprovError("is not the file that was proven", where=str(file), hint=hint)


def _refuse_unsigned(recipe: Path, book: Book, build: str) -> None:
    """Raise GpuprovError for a build that is not signed by the key that its recipe names."""
    loaded = load(recipe)
    if loaded.image is not None and loaded.image.signed_by is not None:
        folder = book.build(build)
        text = regular_file.read(folder / MANIFEST, stored.LIMIT)
        signing.verify(folder, text, loaded.image.signed_by)


def _fitting(manifest: Manifest, spec: ClusterSpec, group: str, key: str) -> str:
    """The target whose image such a machine can start from: of its own type, else of one that is the same to the
    roles."""
    site, machine, known = spec.sites[spec.site_of(group)], spec.machine(group), spec.catalog
    region = region_of(site)
    targets = manifest.target(site.provider, region)
    subject = f"image {manifest.name}, build {manifest.build}"
    if not targets:
        elsewhere = sorted({f"{t.provider} {r}".strip() for t in manifest.targets.values() for r in t.ids})
        region_name = f"{site.provider} {region}".strip()
        hint = f"it is in {', '.join(elsewhere)}; image.targets.*.copy_to of the recipe names further regions"
        raise GpuprovError(f"{subject} is not in {region_name}", where=key, hint=hint)
    fits = [name for name in targets if _alike(manifest.targets[name], machine, known)]
    exact = [name for name in fits if manifest.targets[name].machine == machine.name]
    if not fits:
        elsewhere = sorted({manifest.targets[name].machine for name in targets})
        hint = f"it is for {', '.join(elsewhere)}; add a group with {machine.name} to its recipe"
        raise GpuprovError(f"{subject} does not fit {machine.name}", where=key, hint=hint)
    return (exact or fits)[0]


def _alike(target: Target, machine: Machine, known: Catalog) -> bool:
    if target.machine not in known.names():  # a type of the recipe's own
        return False
    other = known.machine(target.machine)
    own_gpu, other_gpu = known.gpu(machine.gpu_model), known.gpu(other.gpu_model)
    return (
        (own_gpu.vendor, own_gpu.arch, machine.cpu) == (other_gpu.vendor, other_gpu.arch, other.cpu)
        and machine.network.kind == other.network.kind
        and machine.fabric_manager_required == other.fabric_manager_required
    )
