"""cluster.yaml → cluster.lock: solved once, honoured ever after."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, NoReturn

from provisioner import spec as cluster_yaml
from provisioner import stack
from provisioner.common.errors import GpuprovError
from provisioner.common.events import Events
from provisioner.common.suggest import did_you_mean
from provisioner.lifecycle import accounts
from provisioner.lifecycle.images.use import Chosen, choose
from provisioner.lifecycle.session import Cluster
from provisioner.stack import facts, image_facts, lockfile
from provisioner.stack.candidates import image as named
from provisioner.stack.models import BaseImage, Lock, Stack

if TYPE_CHECKING:
    from provisioner.stack.pinning import Sources

Kept = Mapping[str, Mapping[str, str]]
"""Group → component → the version that stays where that is possible."""


def current(cluster: Cluster, events: Events, *, write: bool = True) -> Lock:
    """`_current`, if it can be installed: a scheduler may need what no version of a component says."""
    lock = _current(cluster, events, write=write)
    if cluster.spec.scheduler.slurm is not None:
        from provisioner.scheduler import slurm_files

        slurm_files.refuse_stacks(cluster.spec, cluster.place_lock(lock).groups)
    return lock


def _current(cluster: Cluster, events: Events, *, write: bool) -> Lock:
    """The lock to work by: the one beside cluster.yaml if it still fits, a new one where there is none. Without `write`
    what is new of it is known to the caller alone.

    Raises GpuprovError naming what has changed where a lock no longer fits. A sandbox takes its versions from that
    same lock where there is one; packages and images it has from its own mirror, and the lock that says so lies in
    the run directory. Without one beside cluster.yaml that lock is the sandbox's: it stays as it is while it fits
    cluster.yaml, and where it does not, what is no longer asked for moves and nothing else.
    """
    lock = lockfile.read(cluster.paths.user_lock)
    if lock is None and cluster.sandbox:
        lock = lockfile.read(cluster.paths.lock_file)
        if lock is not None and lockfile.differences(lock, stack.request(cluster.spec)):
            return _moved(cluster, events, lock, write=write)
    if lock is None:
        return renew(cluster, events, write=write, refuse=True)
    changed = lockfile.differences(lock, stack.request(cluster.spec))
    if changed:
        raise GpuprovError(
            "the lock no longer fits cluster.yaml:\n  " + "\n  ".join(changed),
            where=str(cluster.paths.user_lock),
            hint=f"`gpuprov lock {cluster.file}{' --no-sandbox' if cluster.sandbox else ''}` resolves the versions "
            "again and shows what changes",
        )
    if cluster.sandbox:
        golden = _golden(cluster, lock) | _proving(cluster, lock)
        return _pinned(cluster, _of_images(cluster, lock.groups, golden), events, write=write, golden=golden)
    if lock.simulated and not _simulated(cluster):
        raise GpuprovError(
            "this lock was created in the sandbox: its packages are simulated",
            where=str(cluster.paths.user_lock),
            hint=f"`gpuprov lock {cluster.file}` creates a real one",
        )
    return lock


def write(cluster: Cluster, lock: Lock) -> None:
    """Write a lock that `current` gave with `write=False`."""
    if cluster.sandbox or not cluster.paths.lock_file.exists():
        lockfile.write(cluster.paths.lock_file, lock)


def _moved(cluster: Cluster, events: Events, previous: Lock, *, write: bool) -> Lock:
    """The sandbox's lock after an edit of cluster.yaml, and what it moves, as `gpuprov lock --sandbox` says it."""
    lock = renew(cluster, events, lockfile.versions(previous), write=write, refuse=True)
    for change in lockfile.changes(previous, lock):
        events("stack", "warning", change)
    return lock


def renew(
    cluster: Cluster, events: Events, keep: Kept | None = None, *, write: bool = True, refuse: bool = False
) -> Lock:
    """Solve, pin packages and images, write the lock where that is wanted. Versions of `keep` stay where they still go
    together with the rest. `refuse`: raise GpuprovError where no site's cloud knows who asks."""
    events("stack", "started", "choosing compatible versions")
    if old := facts.old():
        message = f"what is known of versions is more than {facts.OLD_DAYS} days old: {', '.join(old)}"
        events("stack", "warning", f"{message}; a newer release of gpuprov knows newer ones")
    golden = _golden(cluster, lockfile.read(cluster.paths.lock_file) if keep else None)
    stacks = _of_images(cluster, _solved(cluster, events, _with_images(keep, golden), refuse=refuse), golden)
    return _pinned(cluster, stacks, events, keep, write=write, golden=golden)


def _golden(cluster: Cluster, previous: Lock | None) -> dict[str, Chosen]:
    """Group → the golden image that it asks for: the build that is locked, where the reference is the same."""
    locate, known = cluster_yaml.placer(cluster.file), previous.images if previous is not None else {}
    chosen = {}
    for name, group in cluster.spec.groups.items():
        if group.image is not None:
            build = known[name].build if name in known and known[name].name == group.image else None
            chosen[name] = choose(
                cluster.spec, name, cluster.file, sandbox=cluster.sandbox, where=locate(f"groups.{name}.image"),
                build=build,
            )  # fmt: skip
    return chosen


def _proving(cluster: Cluster, lock: Lock) -> dict[str, Chosen]:
    """Of the clusters that prove an image (lifecycle/images): their lock names one that is in no channel yet."""
    with_image = {name for name, group in cluster.spec.groups.items() if group.image is not None}
    return {name: Chosen(golden, lock.groups[name]) for name, golden in lock.images.items() if name not in with_image}


def _with_images(keep: Kept | None, golden: Mapping[str, Chosen]) -> Kept | None:
    """What stays: of groups with an image the versions that it has."""
    if not golden:
        return keep
    of_images = {
        name: {k: component.version for k, component in image.stack.components.items()}
        for name, image in golden.items()
    }
    return {**(keep or {}), **of_images}


def _of_images(cluster: Cluster, solved: Mapping[str, Stack], golden: Mapping[str, Chosen]) -> dict[str, Stack]:
    """The stacks, those of groups with an image as their image has them. Raises GpuprovError where cluster.yaml asks
    for other versions than are on it."""
    locate = cluster_yaml.placer(cluster.file)
    for name, image in golden.items():
        requested, has = solved[name].components, image.stack.components
        other = [key for key in requested if key not in has or has[key].version != requested[key].version]
        if other:
            present_versions = ", ".join(f"{key} {has[key].version if key in has else 'none'}" for key in other)
            requested_versions = ", ".join(f"{key} {requested[key].version}" for key in other)
            raise GpuprovError(
                f"image {image.golden.name}, build {image.golden.build}, has {present_versions}; "
                f"cluster.yaml asks for {requested_versions}",
                where=locate(f"groups.{name}.image"),
                hint="leave the versions to the image, or build one with these",
            )
        theirs = {(repository.name, repository.fingerprint) for repository in image.stack.repositories}
        known = {(repository.name, repository.fingerprint) for repository in solved[name].repositories}
        if not cluster.sandbox and (foreign := sorted(name for name, _ in theirs - known)):
            raise GpuprovError(
                f"image {image.golden.name} takes packages from {', '.join(foreign)}, which nothing asks for",
                where=locate(f"groups.{name}.image"), hint="find out who changed the build's manifest",
            )  # fmt: skip
    return {name: golden[name].stack if name in golden else stack for name, stack in solved.items()}


ROUNDS = 4
"""How often versions are chosen again because an image holds others than its table says."""


def _solved(cluster: Cluster, events: Events, keep: Kept | None, *, refuse: bool) -> dict[str, Stack]:
    """Group, as `ClusterSpec.by_machine` has it, → its stack. Real images are asked what they hold: what an image says
    of itself counts, whatever the tables of this release say."""
    locate = cluster_yaml.placer(cluster.file)
    simulated, sites = _simulated(cluster), cluster.spec.by_machine().group_sites()
    real = [name for name in sites if sites[name] not in simulated]
    if not real:
        return stack.solve(cluster.spec, place=locate, keep=keep)
    _refuse_architecture(cluster)
    accounts.ask(cluster, sorted({sites[name] for name in real}), events, refuse=refuse)
    from provisioner.stack import pinning

    sources, read = _sources(cluster, keep), {}
    references = list(dict.fromkeys(cluster.spec.stack.containers))
    for _ in range(ROUNDS):
        for reference, facts_of_image in pinning.read_images(references, sources, events).items():
            read[reference] = facts_of_image
            for message in image_facts.say(reference, named(reference), facts_of_image, facts.as_of()):
                events("stack", "warning", message)
        solved = stack.solve(cluster.spec, place=locate, keep=keep, read=read)
        references = list(dict.fromkeys(i.reference for n in real for i in solved[n].images if i.reference not in read))
        if not references:
            break
    return solved


def kept(previous: Lock | None, *, upgrade: bool, names: Sequence[str]) -> Kept:
    """What of a lock stays: all of it, or with `upgrade` all but the components named, or nothing where none is named.

    Raises GpuprovError for a name that is no component of the lock.
    """
    if names and not upgrade:
        raise GpuprovError(f"{names[0]}: components are named with --upgrade", hint="gpuprov lock FILE --upgrade NAME")
    versions = lockfile.versions(previous)
    known = list(dict.fromkeys(key for components in versions.values() for key in components))
    # An image's component is called after it; people name the image.
    names = [name if name in known or f"image {name}" not in known else f"image {name}" for name in names]
    for name in names:
        if name not in known:
            _refuse_component(name, known)
    if upgrade and not names:
        return {}
    return {group: {k: v for k, v in components.items() if k not in names} for group, components in versions.items()}


def explain(cluster: Cluster, name: str) -> list[str]:
    """Why a component has its version, group by group: who asked, what speaks for it, and why not the others."""
    lock = lockfile.read(cluster.paths.lock_file) or lockfile.read(cluster.paths.user_lock)
    locate, spec = cluster_yaml.placer(cluster.file), cluster.spec.by_machine()
    solved = lock.groups if lock else stack.solve(cluster.spec, place=locate)
    known = list(dict.fromkeys(key for group_stack in solved.values() for key in group_stack.components))
    if name not in known:
        _refuse_component(name, known)
    lines = []
    for group, group_stack in solved.items():
        if lock is not None and group in lock.images and name in group_stack.components:
            golden = lock.images[group]
            lines.append(
                f"{group}: {name} {group_stack.components[name].version}: in {golden.name}, build {golden.build}"
            )
        elif name in group_stack.components:
            chosen = group_stack.components[name]
            lines.append(f"{group}: {name} {chosen.version}: {chosen.why}")
            lines += [
                f"  {line}"
                for line in stack.alternatives(spec, group, name, chosen.version, locate, group_stack.images)
            ]
    return lines


def _refuse_component(name: str, known: Sequence[str]) -> NoReturn:
    hint = did_you_mean(name, known, limit=2) or f"components: {', '.join(known) or 'none, before it is locked'}"
    raise GpuprovError(f"the lock has no component {name}", hint=hint)


def _pinned(
    cluster: Cluster, stacks: Mapping[str, Stack], events: Events, keep: Kept | None = None, *, write: bool = True,
    golden: Mapping[str, Chosen] = MappingProxyType({}),
) -> Lock:  # fmt: skip
    """The lock of these stacks, written where that is wanted. The sandbox's packages and images are its mirror's;
    all others are read from the vendors' repositories and registries, but those of a golden image (`golden`): they were
    when it was built."""
    pinned: dict[str, Stack] = {}
    simulated, sites = _simulated(cluster), cluster.spec.by_machine().group_sites()
    for site in simulated:
        mirror = cluster.providers.at(site).sandbox_mirror
        assert mirror is not None
        pinned |= mirror.pin({n: s for n, s in stacks.items() if sites[n] == site}, events)
    real = {name: stack for name, stack in stacks.items() if sites[name] not in simulated}
    pinned |= {name: real.pop(name) for name in golden if name in real}
    if real:
        _refuse_architecture(cluster)
        from provisioner.stack import pinning  # it brings an HTTP client along, which a sandbox does not need

        pinned |= pinning.pin(real, _sources(cluster, keep), events)
    pinned = {name: _with_vendor_image(cluster, name, stack, keep) for name, stack in pinned.items()}
    lock = Lock(
        request=stack.request(cluster.spec),
        simulated=bool(simulated),
        bases={name: _bases(cluster, name, stacks, keep, golden) for name in cluster.spec.sites},
        images={name: image.golden for name, image in golden.items()},
        groups={name: pinned[name] for name in sites},
    )
    if write:
        lockfile.write(cluster.paths.lock_file, lock)
    drivers = sorted({s.driver for s in pinned.values() if s.driver})
    events("stack", "done", f"{'locked' if write else 'solved'}{': driver ' + ', '.join(drivers) if drivers else ''}")
    return lock


def _simulated(cluster: Cluster) -> list[str]:
    """The sites whose machines are simulated."""
    sites = []
    for name in cluster.spec.sites:
        with contextlib.suppress(GpuprovError):  # a cloud that gpuprov makes no machines in yet
            if cluster.providers.at(name).sandbox_mirror is not None:
                sites.append(name)
    return sites


def _refuse_architecture(cluster: Cluster) -> None:
    """Raise GpuprovError for a machine whose processors are not those that the repositories and images are read for."""
    locate, spec = cluster_yaml.placer(cluster.file), cluster.spec.by_machine()
    for name in spec.groups:
        machine = spec.machine(name)
        if machine.cpu != "amd64":
            raise GpuprovError(
                f"{machine.name} has {machine.cpu} processors, but packages can be locked for amd64 only",
                where=locate(f"groups.{name}.machine"),
                hint="run it with --sandbox, or leave the group out of this file",
            )


def _sources(cluster: Cluster, keep: Kept | None) -> Sources:
    from provisioner.stack.pinning import Sources

    previous = lockfile.read(cluster.paths.lock_file)
    return Sources(
        folder=cluster.file.absolute().parent,
        place=cluster_yaml.placer(cluster.file),
        own=frozenset(cluster.spec.stack.repositories),
        confirmed={name: repository.sha256 or () for name, repository in cluster.spec.stack.repositories.items()},
        before=previous.groups if previous is not None and not previous.simulated else {},
        sites=cluster.spec.by_machine().group_sites(),
        keep=keep or {},
    )


def _bases(
    cluster: Cluster, site: str, stacks: Mapping[str, Stack], keep: Kept | None, golden: Collection[str]
) -> dict[str, BaseImage]:
    """What the machines of a site boot, but those of groups with a golden image or the cloud's own, where its provider
    can say; else why it can't. An image that was locked stays unless everything is upgraded."""
    spec = cluster.spec.by_machine()
    groups = [name for name in stacks if site in spec.sites_of(name) and name not in golden]
    groups = [name for name in groups if stacks[name].vendor is None]
    systems = sorted({stacks[name].os for name in groups})
    try:
        provider = cluster.providers.at(site)
    except GpuprovError:
        name = cluster.spec.sites[site].provider
        reason = f"gpuprov cannot query the images of {name} yet; the kernel is the image's"
        return {system: BaseImage(id=None, why=f"{reason}, unless stack.kernel pins one") for system in systems}
    previous = lockfile.read(cluster.paths.lock_file)
    known = previous.bases.get(site, {}) if previous is not None and not previous.simulated and keep else {}
    images = {}
    for system in systems:
        try:
            images[system] = known[system] if system in known and known[system].id else provider.base_image(system)
        except GpuprovError as error:
            images[system] = BaseImage(id=None, why=f"{error.message}; {error.hint}" if error.hint else error.message)
    return images


def _with_vendor_image(cluster: Cluster, group: str, stack: Stack, keep: Kept | None) -> Stack:
    """A group's stack with the id of the cloud's own GPU image, where it boots one; else the stack as it is."""
    if stack.vendor is None:
        return stack
    previous = lockfile.read(cluster.paths.lock_file)
    old = previous.groups[group].vendor if previous is not None and keep and group in previous.groups else None
    if old is not None and old.name == stack.vendor.name and old.base is not None and old.base.id is not None:
        base = old.base
    else:
        try:
            base = cluster.providers.at(cluster.spec.site_of(group)).vendor_image(stack.vendor.name)
        except GpuprovError as error:
            base = BaseImage(id=None, why=f"{error.message}; {error.hint}" if error.hint else error.message)
    return stack.model_copy(update={"vendor": stack.vendor.model_copy(update={"base": base})})
