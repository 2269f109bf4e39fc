"""One build: for each target a machine is made, installed, proven, generalised and captured; machines of the new image
are booted and proven; then it is published. All targets, or none: a build that fails leaves evidence and no machine.

Each step is written down when it has ended (journal.py). A build that was killed goes on where it was; a builder that
had begun to be generalised is of no more use and is made anew.
"""

from __future__ import annotations

import contextlib
import json
import secrets
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from provisioner import __version__
from provisioner.errors import GpuprovError, Interrupted
from provisioner.events import Kind
from provisioner.images import bill, signing
from provisioner.images.book import now, sha256
from provisioner.images.manifest import Inputs, Manifest, Proof, RoleOnImage, Target
from provisioner.lifecycle import locking
from provisioner.lifecycle.down import down
from provisioner.lifecycle.image import boot_test
from provisioner.lifecycle.image.builder import Builder, Installed, images_of
from provisioner.lifecycle.image.journal import Journal
from provisioner.lifecycle.image.recipe import Recipe, digest, opened, workplace, written
from provisioner.lifecycle.image.use import region_of
from provisioner.paths import ClusterPaths, private_dir, remove_tree, write_whole
from provisioner.session import Cluster
from provisioner.stack import lockfile
from provisioner.stack.models import GoldenImage, Lock
from provisioner.workspace.binary import Binary

BUILD, BOOT = "build", "boot"
"""The two clusters of a target."""


@dataclass(slots=True)
class Build:
    """One build of a recipe in the making. `id`: when it was begun, UTC."""

    recipe: Recipe
    binary: Binary
    id: str
    lock: Lock
    journal: Journal = field(init=False)

    def __post_init__(self) -> None:
        self.journal = Journal(self.folder)

    @property
    def folder(self) -> Path:
        """Where it is made; evidence of one that failed stays there."""
        return self.recipe.folder / self.id

    @property
    def targets(self) -> list[str]:
        """Those that it was begun with, whatever the recipe says by now."""
        return list(self.lock.groups)

    def name(self, target: str) -> str:
        """Of the image of a target, in its cloud: no other build's, whoever else builds in this second. At most 128
        characters (https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_CreateImage.html)."""
        token = self.journal.of("", "token") or self.journal.done("", "token", secrets.token_hex(4))
        return f"gpuprov-{self.recipe.name}-{target}-{self.id}-{token}"

    def tell(self, text: str, kind: Kind = "progress", **data: Any) -> None:
        self.recipe.cluster.events("image", kind, text, data={"build": self.id, **data})


def new_id() -> str:
    return datetime.now(UTC).strftime("%Y%m%d-%H%M%S")


def unfinished(recipe: Recipe) -> list[str]:
    """Builds that were begun and neither ended nor failed, oldest first."""
    return [one.build for one in journals(recipe) if one.failed is None]


def unclean(recipe: Recipe) -> list[str]:
    """Builds that failed and of which something could not be removed then."""
    return [one.build for one in journals(recipe) if one.failed is not None and one.of("", "cleaned") is None]


def journals(recipe: Recipe) -> list[Journal]:
    """Of all builds that have one, oldest first."""
    return [Journal(file.parent) for file in sorted(recipe.folder.glob("*/journal.json"))]


def inputs(recipe: Recipe, lock: Lock) -> Inputs:
    """What a build of this lock would be made of."""
    from provisioner.configure import playbook, stamps
    from provisioner.release import content

    spec = recipe.cluster.spec
    return Inputs(
        recipe=digest(spec.model_dump_json(exclude={"image": {"keep", "failed"}})),
        stacks={name: digest(content(stack, simulated=lock.simulated)) for name, stack in lock.groups.items()},
        bases={f"{site} {name}": base.id or "" for site, mine in lock.bases.items() for name, base in mine.items()},
        roles={entry.role: stamps.text_digest(entry.role) for entry in playbook.load().entries},
    )


def solved(recipe: Recipe, *, anew: bool) -> Lock:
    """The lock of a recipe: the one beside it where it still fits, or with `anew` the newest versions that its pins
    allow. Raises GpuprovError for a site at which no images are made, before anybody is asked."""
    cluster = recipe.cluster
    for group in recipe.targets:
        images_of(cluster, group)
    private_dir(cluster.paths.root)
    if anew:
        return locking.renew(cluster, cluster.events, keep={}, write=cluster.sandbox)
    return locking.current(cluster, cluster.events)


def build(work: Build) -> Manifest:
    """Make all images of the recipe, prove them, publish them, and move channel nightly. The caller holds the recipe's
    lock. Raises GpuprovError of the step that failed; no machine is left then."""
    recipe, journal = work.recipe, work.journal
    recipe.book.channels()  # a book that is damaged is said before anything is made
    if recipe.settings.signed_by is not None:
        signing.ready(recipe.settings.signed_by)
    private_dir(work.folder)
    lockfile.write(work.folder / "recipe.lock", work.lock)
    if journal.of("", "inputs") is None:
        journal.done("", "inputs", inputs(recipe, work.lock).model_dump())
    targets: dict[str, Target] = {}
    for name in work.targets:
        with _failing(work, name):
            settings = recipe.target(name)
            _builder(work, name).images.check(settings.copy_to, settings.share_with)
    for name in work.targets:
        with _failing(work, name):
            targets[name] = _target(work, name)
    with _failing(work, ""):
        text = _written(work, targets)
    return _published(work, text)  # from here on it is one, and nothing of it is removed


def same_inputs(recipe: Recipe, build_id: str, lock: Lock) -> bool:
    """Whether a build that was begun would be begun in the same way now."""
    known = Journal(recipe.folder / build_id).of("", "inputs")
    return known is None or known == inputs(recipe, lock).model_dump()


def _target(work: Build, name: str) -> Target:
    """One target, through all its steps."""
    journal, recipe = work.journal, work.recipe
    settings, site = recipe.target(name), recipe.cluster.spec.site_of(name)
    builder = _builder(work, name)
    if journal.of(name, "captured") is None:
        _captured(work, name, builder)
    installed, image = Installed(**journal.of(name, "installed")), str(journal.of(name, "captured"))
    if journal.of(name, "builder removed") is None:
        _removed(work, name, BUILD)
        journal.done(name, "builder removed")
    if journal.of(name, "proven") is None:
        proofs = _proven(work, name, image)
        journal.done(name, "proven", [proof.model_dump() for proof in proofs])
    if journal.of(name, "boot removed") is None:
        _removed(work, name, BOOT)
        journal.done(name, "boot removed")
    if journal.of(name, "published") is None:
        ids = builder.images.publish(
            image, work.name(name), settings.copy_to, settings.share_with, _tags(work, name), _teller(work, name)
        )
        journal.done(name, "published", ids)
    base = work.lock.bases.get(site, {}).get(work.lock.groups[name].os)
    group = recipe.cluster.spec.groups[name]
    return Target(
        site=site, provider=recipe.cluster.spec.sites[site].provider, machine=group.machine,
        builder=str(journal.of(name, "builder")), ids=journal.of(name, "published"),
        base=(base.id if base else None) or "", kernel=installed.kernel, stack=work.lock.groups[name],
        roles={role: RoleOnImage(**one) for role, one in installed.roles.items()}, packages=installed.packages,
        sources=installed.sources,
        proofs=tuple(Proof(**one) for one in journal.of(name, "proven")),
        residue=tuple(journal.of(name, "generalised")),
    )  # fmt: skip


def _builder(work: Build, name: str) -> Builder:
    file = written(work.recipe, work.id, name, BUILD)
    cluster = opened(work.recipe, file)
    return Builder(cluster, name, _of_group(work.lock, cluster, name), work.recipe.target(name).builder)


def _of_group(lock: Lock, cluster: Cluster, name: str) -> Lock:
    """The recipe's lock for one of its groups."""
    from provisioner.stack import request

    site = cluster.spec.site_of(name)
    bases = {site: lock.bases[site]} if site in lock.bases else {}
    return lock.model_copy(
        update={"request": request(cluster.spec), "groups": {name: lock.groups[name]}, "bases": bases}
    )


def _captured(work: Build, name: str, builder: Builder) -> None:
    """The builder's disk as an image that machines can start from."""
    journal, tell = work.journal, _teller(work, name)
    there = builder.images.find(work.name(name))
    if there is not None and there.ready and journal.of(name, "generalised") is not None:
        journal.done(name, "captured", there.id)
        return
    if there is not None:
        tell(f"removing {there.id}, which was not finished")
        builder.images.delete({_region(work, name): there.id}, _tags(work, name))
    if journal.of(name, "generalising") is not None:
        tell("the builder was taken apart already: it is made anew")
        _removed(work, name, BUILD)
        journal.undo(name)
        builder = _builder(work, name)
    journal.done(name, "builder", builder.type)
    tell(f"making a {builder.type} to build on")
    node = builder.make(work.binary)
    tell("installing")
    installed = builder.install(node)
    journal.done(name, "installed", asdict(installed))
    tell("taking away what belongs to the builder alone, and looking for secrets")
    journal.done(name, "generalising")
    removed = builder.generalise(node, {"image": work.recipe.name, "build": work.id, "target": name})
    journal.done(name, "generalised", removed)
    tell("capturing the disk")
    journal.done(name, "captured", builder.images.capture(node, work.name(name), _tags(work, name), tell))


def _proven(work: Build, name: str, image: str) -> list[Proof]:
    """Machines of the type that the image is for boot it and pass."""
    recipe = work.recipe
    cluster = opened(recipe, written(recipe, work.id, name, BOOT))
    if recipe.sandbox:
        _same_faults(recipe, cluster)
    golden = GoldenImage(name=recipe.name, build=work.id, id=image)
    boot_test.lock_for(cluster, name, _of_group(work.lock, cluster, name), golden)
    work.tell(f"{name}: booting it on a {recipe.cluster.spec.groups[name].machine}, {recipe.settings.boots} times")
    return boot_test.prove(cluster, work.binary, private_dir(work.folder / "proofs"), recipe.settings.boots)


def _same_faults(recipe: Recipe, cluster: Cluster) -> None:
    """What a rehearsal's vendor has released badly is bad on the machine that proves the image, too."""
    from provisioner.sandbox import site_faults

    told = ClusterPaths(recipe.cluster.file, recipe.name, sandbox=True)  # where `gpuprov sandbox fault` keeps them
    for site in cluster.spec.sites:
        for fault in site_faults.active(told.site(site)):
            site_faults.inject(cluster.paths.site(site), fault)


def _removed(work: Build, name: str, what: str) -> None:
    """Remove a target's cluster, where one was begun."""
    file = workplace(work.recipe, work.id, name, what)
    if not file.exists():
        return
    cluster = opened(work.recipe, file)
    if cluster.paths.exists():
        down(cluster, work.binary)
    if work.recipe.sandbox:
        from provisioner.sandbox import site_faults

        for site in cluster.spec.sites:
            site_faults.clear(cluster.paths.site(site))


def _written(work: Build, targets: Mapping[str, Target]) -> str:
    """Write everything of a build but its manifest, whose text this gives."""
    recipe, book = work.recipe, work.recipe.book
    folder = private_dir(book.build(work.id))
    for file in sorted((work.folder / "proofs").iterdir()):
        write_whole(folder / file.name, file.read_bytes(), mode=0o644)
    for name, target in targets.items():
        bill.write(folder / f"{name}.cdx.json", work.name(name), target, made=work.id)
    files = {file.name: sha256(file) for file in sorted(folder.iterdir()) if not file.name.startswith("manifest.json")}
    manifest = Manifest(
        name=recipe.name, build=work.id, made=now(), simulated=work.lock.simulated, gpuprov=__version__,
        inputs=Inputs(**work.journal.of("", "inputs")), targets=dict(targets), files=files,
    )  # fmt: skip
    text = json.dumps(manifest.model_dump(mode="json"), indent=1) + "\n"
    if recipe.settings.signed_by is not None:
        signing.sign(folder, text, recipe.settings.signed_by)
    return text


def _published(work: Build, text: str) -> Manifest:
    """Write the manifest, last of all: a build without one never was."""
    recipe, book = work.recipe, work.recipe.book
    write_whole(book.build(work.id) / "manifest.json", text, mode=0o644)
    manifest = book.manifest(work.id)
    if book.channels().get("nightly") != work.id:
        book.move("nightly", work.id, "built")
    remove_tree(work.folder)
    work.tell(f"{recipe.name} {work.id} is built and proven; channel nightly has it", "done")
    return manifest


@contextlib.contextmanager
def _failing(work: Build, target: str) -> Iterator[None]:
    """A step that fails leaves no machine and no image, but its evidence. What was interrupted goes on with the next
    call."""
    try:
        yield
    except Interrupted:
        raise
    except Exception as error:
        known = error if isinstance(error, GpuprovError) else GpuprovError(f"{type(error).__name__}: {error}")
        work.tell(f"{target or work.recipe.name}: {known.message}", "failed")
        left = list[str]()
        with _noting(left, "why it failed"):  # a disk that is full keeps no machine running
            work.journal.fail(_last(work, target), target, str(known))
        left += clean(work)
        if left:
            known.hint = "; ".join(filter(None, (known.hint, "not removed: " + "; ".join(left))))
        if isinstance(error, (GpuprovError, OSError)):
            raise known from None
        raise


STEPS = ("builder", "installed", "generalised", "captured", "builder removed", "proven", "boot removed", "published")


def _last(work: Build, target: str) -> str:
    """The step that did not end."""
    return next((step for step in STEPS if work.journal.of(target, step) is None), "manifest")


def clean(work: Build) -> list[str]:
    """Remove every machine and image of a build that will not be; gives what could not be removed, one sentence
    each. Reports and logs stay."""
    left: list[str] = []
    for name in work.targets:
        for what in (BUILD, BOOT):
            with _noting([], "evidence"):
                _keep_evidence(work, name, what)
            with _noting(left, f"{name}'s machine ({what})"):
                _removed(work, name, what)
        if not workplace(work.recipe, work.id, name, BUILD).exists():
            continue
        with _noting(left, f"{name}'s image"):
            images = _begun(work, name).images
            regions = work.recipe.target(name).copy_to
            ids = images.copies(work.name(name), regions) | dict(work.journal.of(name, "published") or {})
            if ids:
                images.delete(ids, _tags(work, name))
    if not left and work.journal.failed is not None:
        with _noting(left, "the journal"):
            work.journal.done("", "cleaned")
        folder = work.recipe.book.build(work.id)
        if folder.is_dir() and not (folder / "manifest.json").exists():
            remove_tree(folder)
    return left


def cleaned(recipe: Recipe, binary: Binary, build_id: str) -> list[str]:
    """`clean` of a build by its id; nothing where it was never begun."""
    lock = lockfile.read(recipe.folder / build_id / "recipe.lock")
    return clean(Build(recipe, binary, build_id, lock)) if lock is not None else []


def _begun(work: Build, name: str) -> Builder:
    """The builder of a target as it was begun, whatever the recipe says by now."""
    cluster = opened(work.recipe, workplace(work.recipe, work.id, name, BUILD))
    return Builder(cluster, name, _of_group(work.lock, cluster, name), None)


def _keep_evidence(work: Build, name: str, what: str) -> None:
    """Reports, logs and consoles of a target's cluster, which goes."""
    file = workplace(work.recipe, work.id, name, what)
    if not file.exists():
        return
    cluster = opened(work.recipe, file)
    for source in sorted(cluster.paths.runs.glob("*/*")):
        if source.is_file() and source.suffix in (".json", ".html", ".log", ".txt", ".jsonl", ".xml"):
            target = private_dir(work.folder / "evidence" / name / what / source.parent.name) / source.name
            write_whole(target, source.read_bytes())


@contextlib.contextmanager
def _noting(left: list[str], what: str) -> Iterator[None]:
    try:
        yield
    except Interrupted:
        raise
    except Exception as error:
        left.append(f"{what}: {error.message if isinstance(error, GpuprovError) else error}")


def _tags(work: Build, name: str) -> dict[str, str]:
    return {
        "gpuprov-image": work.recipe.name, "gpuprov-build": work.id, "gpuprov-target": name,
        "gpuprov-driver": work.lock.groups[name].driver or "none",
    }  # fmt: skip


def _teller(work: Build, name: str) -> Callable[[str], None]:
    return lambda text: work.tell(f"{name}: {text}")


def _region(work: Build, name: str) -> str:
    spec = work.recipe.cluster.spec
    return region_of(spec.sites[spec.site_of(name)])
