"""One build: for each target a machine is made, installed, proven, generalised and captured; machines of the new image
are booted and proven; then it is published. All targets, or none: a build that fails leaves evidence and no machine.

Each step is written down when it has ended (journal.py). A build that was killed goes on where it was; a builder that
had begun to be generalised is of no more use and is made anew.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from provisioner import __version__
from provisioner.common.paths import ClusterPaths, private_dir, remove_tree, write_whole
from provisioner.lifecycle import locking
from provisioner.lifecycle.images import bill, boot_test, signing, virtual, vulnerabilities
from provisioner.lifecycle.images import disk_images as disk
from provisioner.lifecycle.images.book import MANIFEST, sha256, utc_timestamp
from provisioner.lifecycle.images.builder import Builder, Installed, images_of
from provisioner.lifecycle.images.failure import failing
from provisioner.lifecycle.images.journal import Journal
from provisioner.lifecycle.images.manifest import Inputs, Manifest, Proof, RoleOnImage, Target
from provisioner.lifecycle.images.prepare import prepare
from provisioner.lifecycle.images.recipe import Recipe, digest, opened, written
from provisioner.lifecycle.images.work import (
    BOOT,
    BUILD,
    Build,
    builder_of,
    delete_images,
    of_group,
    region,
    removed,
    tags_of,
    teller,
)
from provisioner.lifecycle.session import Cluster
from provisioner.stack import lockfile
from provisioner.stack.models import GoldenImage, Lock


def inputs(recipe: Recipe, lock: Lock) -> Inputs:
    """What a build of this lock would be made of."""
    from provisioner.configure import playbook, stamps
    from provisioner.rundir.release import content

    spec = recipe.cluster.spec
    return Inputs(
        recipe=digest(spec.model_dump_json(exclude={"image": {"keep", "failed", "scan"}})),
        stacks={name: digest(content(stack, simulated=lock.simulated)) for name, stack in lock.groups.items()},
        bases={
            f"{site} {name}": base.id or ""
            for site, site_bases in lock.bases.items()
            for name, base in site_bases.items()
        },
        roles={entry.role: stamps.text_digest(entry.role) for entry in playbook.load().entries},
    )


def solved(recipe: Recipe, *, renew: bool) -> Lock:
    """The lock of a recipe: the one beside it where it still fits, or with `renew` the newest versions that its pins
    allow. Raises GpuprovError for a site at which no images are made, before anybody is asked."""
    cluster = recipe.cluster
    for group in recipe.targets:
        images_of(cluster, group)
    private_dir(cluster.paths.root)
    if renew:
        lock = locking.renew(cluster, cluster.events, keep={}, write=cluster.sandbox)
    else:
        lock = locking.current(cluster, cluster.events)
    return virtual.with_bases(recipe, lock)


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
        with failing(work, name):
            settings = recipe.target(name)
            builder_of(work, name).images.check(settings.copy_to, settings.share_with)
            disk.check(work, name)
    for name in work.targets:
        with failing(work, name):
            targets[name] = _target(work, name)
    with failing(work, ""):
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
    builder, alone = builder_of(work, name), virtual.is_virtual(recipe, name)
    if journal.of(name, "captured") is None:
        virtual.captured(work, name) if alone else _captured(work, name, builder)
    installed, image = Installed(**journal.of(name, "installed")), str(journal.of(name, "captured"))
    if journal.of(name, "builder removed") is None and not alone:
        removed(work, name, BUILD)
        journal.done(name, "builder removed")
    if alone:  # there is no machine of that type to be had: what proves it is its disk
        journal.done(name, "proven", [])
    if journal.of(name, "proven") is None:
        proofs = _proven(work, name, image)
        journal.done(name, "proven", [proof.model_dump() for proof in proofs])
    if journal.of(name, "boot removed") is None and not alone:
        removed(work, name, BOOT)
        journal.done(name, "boot removed")
    on_disk = disk.steps(work, name, image)
    if journal.of(name, "published") is None:
        journal.done(name, "regions", list(settings.copy_to))
        ids = builder.images.publish(
            image, work.name(name), settings.copy_to, settings.share_with, tags_of(work, name), teller(work, name)
        )
        journal.done(name, "published", ids)
    base = work.lock.bases.get(site, {}).get(work.lock.groups[name].os)
    group = recipe.cluster.spec.groups[name]
    return Target(
        site=site, provider=recipe.cluster.spec.sites[site].provider, machine=group.machine_type(),
        builder=str(journal.of(name, "builder")), ids=journal.of(name, "published"),
        base=(base.id if base else None) or "", kernel=installed.kernel, stack=work.lock.groups[name],
        roles={role: RoleOnImage(**fields) for role, fields in installed.roles.items()}, packages=installed.packages,
        sources=installed.sources,
        proofs=tuple(Proof(**fields) for fields in journal.of(name, "proven")),
        residue=tuple(journal.of(name, "generalised")), disk=on_disk,
    )  # fmt: skip


def _captured(work: Build, name: str, builder: Builder) -> None:
    """The builder's disk as an image that machines can start from."""
    journal, report = work.journal, teller(work, name)
    unfinished = builder.images.find(work.name(name))
    if unfinished is not None and unfinished.ready and journal.of(name, "generalised") is not None:
        journal.done(name, "captured", unfinished.id)
        return
    if unfinished is not None:
        report(f"removing {unfinished.id}, which was not finished")
    unusable = {region(work, name): unfinished.id} if unfinished is not None else {}
    delete_images(work, name, builder.images, unusable)
    if journal.of(name, "generalising") is not None:
        report("the builder was taken apart already: it is made anew")
        removed(work, name, BUILD)
        journal.undo(name)
        builder = builder_of(work, name)
    journal.done(name, "builder", builder.type)
    report(f"making a {builder.type} to build on")
    node = builder.make(work.binary)
    prepare(work, name, builder, node)
    report("capturing the disk")
    journal.done(name, "captured", builder.images.capture(node, work.name(name), tags_of(work, name), report))


def _proven(work: Build, name: str, image: str) -> list[Proof]:
    """Machines of the type that the image is for boot it and pass."""
    recipe = work.recipe
    cluster = opened(recipe, written(recipe, work.id, name, BOOT))
    if recipe.sandbox:
        _same_faults(recipe, cluster)
    golden = GoldenImage(name=recipe.name, build=work.id, id=image)
    boot_test.lock_for(cluster, name, of_group(work.lock, cluster, name), golden)
    work.report_event(
        f"{name}: booting it on a {recipe.cluster.spec.groups[name].machine_type()}, {recipe.settings.boots} times"
    )
    return boot_test.prove(cluster, work.binary, private_dir(work.folder / "proofs"), recipe.settings.boots)


def _same_faults(recipe: Recipe, cluster: Cluster) -> None:
    """What the sandbox's vendor has released badly is bad on the machine that proves the image, too."""
    from provisioner.sandbox import site_faults

    fault_paths = ClusterPaths(
        recipe.cluster.file, recipe.name, sandbox=True
    )  # where `gpuprov sandbox fault` keeps them
    for site in cluster.spec.sites:
        for fault in site_faults.active(fault_paths.site(site)):
            site_faults.inject(cluster.paths.site(site), fault)


def _written(work: Build, targets: Mapping[str, Target]) -> str:
    """Write everything of a build but its manifest, whose text this gives."""
    recipe, book = work.recipe, work.recipe.book
    folder = private_dir(book.build(work.id))
    for file in sorted((work.folder / "proofs").iterdir()):
        write_whole(folder / file.name, file.read_bytes(), mode=0o644)
    scanned = {name: _scanned(work, name, target, folder) for name, target in targets.items()}
    files = {file.name: sha256(file) for file in sorted(folder.iterdir()) if not file.name.startswith("manifest.json")}
    manifest = Manifest(
        name=recipe.name, build=work.id, made=utc_timestamp(), simulated=work.lock.simulated, gpuprov=__version__,
        inputs=Inputs(**work.journal.of("", "inputs")), targets=scanned, files=files,
    )  # fmt: skip
    text = json.dumps(manifest.model_dump(mode="json"), indent=1) + "\n"
    if recipe.settings.signed_by is not None:
        signing.sign(folder, text, recipe.settings.signed_by)
    return text


def _scanned(work: Build, name: str, target: Target, folder: Path) -> Target:
    """Write the bill of a target, and what a scanner says of it; a scan that fails is told and fails no build."""
    file, settings = folder / f"{name}.cdx.json", work.recipe.settings.scan
    bill.write(file, work.name(name), target, build=work.id)
    if settings is None:
        return target
    database = work.recipe.cluster.file.absolute().parent / Path(settings.database).expanduser()
    try:
        scan = vulnerabilities.scan(file, settings.scanner, database, target.stack.os)
    except vulnerabilities.NotScannedError as reason:
        work.report_event(f"{name}: not scanned for vulnerabilities: {reason}", "warning")
        return target.model_copy(update={"not_scanned": str(reason)})
    write_whole(folder / f"{name}.vulnerabilities.json", scan.text, mode=0o644)
    work.report_event(f"{name}: known vulnerabilities: {vulnerabilities.summary_line(scan.found, '')}")
    return target.model_copy(update={"vulnerabilities": scan.found})


def _published(work: Build, text: str) -> Manifest:
    """Write the manifest, last of all: a build without one never was."""
    write_whole(work.recipe.book.build(work.id) / MANIFEST, text, mode=0o644)
    return end_published(work.recipe, work.id)


def end_published(recipe: Recipe, build_id: str) -> Manifest:
    """Bring a build that has its manifest to its end, also one that was killed since: channel nightly has it, unless it
    had it before, and the folder in which it was made goes."""
    book, folder = recipe.book, recipe.folder / build_id
    manifest = book.manifest(build_id)
    if not any((move.channel, move.build) == ("nightly", build_id) for move in book.history()):
        book.move("nightly", build_id, "built")
    if folder.exists():
        remove_tree(folder)
    text = f"{recipe.name} {build_id} is built and proven; channel nightly has it"
    recipe.cluster.events("image", "done", text, data={"build": build_id})
    return manifest
