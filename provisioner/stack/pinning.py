"""A solved stack → what is really there: every package of every repository, every image by its digest.

Repositories and registries are read side by side; a repository that several groups have is read once, and groups that
ask for the same are closed once. What a lock holds already stays where it fits and nobody asks for newer.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from provisioner.common import regular_file
from provisioner.common.errors import GpuprovError
from provisioner.common.events import Events
from provisioner.common.image_reference import Name, parse
from provisioner.common.text import counted
from provisioner.stack import archives, index, registry
from provisioner.stack.assemble import belongs_to
from provisioner.stack.closure import close
from provisioner.stack.components import component_of
from provisioner.stack.conflict import Place
from provisioner.stack.facts import rows
from provisioner.stack.fetch import Fetch
from provisioner.stack.image_facts import ImageFacts
from provisioner.stack.index import Origin
from provisioner.stack.models import Image, Package, Repository, Stack
from provisioner.stack.package_index import PackageIndex

ARCHIVES_DEADLINE = 3600.0
"""Seconds for all archives of one lock: the EFA installer has 0.7 GB."""
READERS = 8
"""Repositories and images that are read at once."""

KeyT = TypeVar("KeyT")
ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")


@dataclass(frozen=True, slots=True)
class Sources:
    """Where cluster.yaml lies (`folder`: keys may lie beside it) and where its keys stand, which repositories are its
    own, and what is locked already: group → stack, and group → component → version of what stays."""

    folder: Path
    place: Place
    own: frozenset[str] = frozenset()
    confirmed: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Repository → hashes of its vendor's files that cluster.yaml states."""
    before: Mapping[str, Stack] = field(default_factory=dict)
    sites: Mapping[str, str] = field(default_factory=dict)
    """Group → its site."""
    keep: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


def pin(stacks: Mapping[str, Stack], sources: Sources, events: Events) -> dict[str, Stack]:
    """Group → its stack with exact packages, repositories with their keys, images with digests.

    Raises GpuprovError for a repository that is missing, not to be had or not to be trusted, for packages that are not
    there or in each other's way, and for images that no registry gives.
    """
    for group, stack in stacks.items():
        _refuse_missing(group, stack, sources)
    fetch = Fetch(lambda message: events("stack", "progress", message))
    repositories = {r: _origin(r, sources) for stack in stacks.values() for r in stack.repositories}
    locked = {(g, i.reference): _locked_digest(g, i, sources) for g, stack in stacks.items() for i in stack.images}
    known = {reference: digest for (_, reference), digest in locked.items() if digest}
    names = {reference: parse(reference) for _, reference in locked}
    registries = registry.Registries(fetch)
    # An archive may have a gigabyte: it has a deadline of its own.
    large = Fetch(lambda message: events("stack", "progress", message), deadline_s=ARCHIVES_DEADLINE)
    trust = {r: _trust(r, stacks, sources, events) for r in repositories if r.archives}
    events("stack", "progress", f"reading {counted(len(repositories), 'repository')}, {counted(len(names), 'image')}")
    with ThreadPoolExecutor(READERS, thread_name_prefix="gpuprov-lock") as pool:
        try:
            # Images wait for tokens, repositories for lists: neither has to wait for the other.
            digests = _all(pool, lambda name: registries.digest(name, known.get(name.written, "")), names)
            opened = _all(pool, lambda r: archives.read(repositories[r], large, trust[r]), {r: r for r in trust})
            apt = {r: origin for r, origin in repositories.items() if not r.archives}
            lists = _all(pool, lambda origin: index.read(origin, fetch), apt)
            read = {r: result() for r, result in lists.items()}
            unpacked = {r: result() for r, result in opened.items()}
            read |= {r: (opened_archive.listing,) for r, opened_archive in unpacked.items()}
            image_digests = {reference: result() for reference, result in digests.items()}
        except BaseException:
            fetch.stop()
            large.stop()
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    fetch.stop()
    large.stop()
    done: dict[object, tuple[Package, ...]] = {}
    pinned = {}
    for group, stack in stacks.items():
        requested = tuple(p for p in stack.packages if p.asked and p.repository is not None)
        stays = _staying(group, stack, sources)
        key = (requested, stack.repositories, tuple(sorted(stays.items())), stack.vendor)
        if key not in done:
            closed = close(requested, PackageIndex({r.name: read[r] for r in stack.repositories}), keep=stays)
            vendor_names = {package.name for package in stack.vendor.packages} if stack.vendor else set()
            closed = tuple(package for package in closed if package.name not in vendor_names)
            hashes = {r.name: unpacked[r].hashes for r in stack.repositories if r in unpacked}
            done[key] = tuple(_hashed(package, hashes) for package in closed)
        pinned[group] = stack.model_copy(
            update={
                "packages": (*(p for p in stack.packages if p.repository is None), *done[key]),
                "repositories": tuple(
                    unpacked[r].repository if r in unpacked else _with_key(repositories[r]) for r in stack.repositories
                ),
                "images": tuple(
                    _image(i, names[i.reference], image_digests[i.reference], locked[group, i.reference], events)
                    for i in stack.images
                ),
            }
        )
    events("stack", "progress", _summary(pinned.values()))
    return pinned


def read_images(
    references: Collection[str], sources: Sources, events: Events
) -> dict[str, ImageFacts]:  # fmt: skip
    """What images say of themselves: of the locked digest where it stays, else of what the tag is now. Raises
    GpuprovError for an image that no registry gives."""
    fetch = Fetch(lambda message: events("stack", "progress", message))
    registries = registry.Registries(fetch)

    def read_facts(reference: str) -> ImageFacts:
        name, image = parse(reference), Image(reference=reference, digest="", pull="")
        locked = next((d for group in sources.before if (d := _locked_digest(group, image, sources))), "")
        return registries.facts(name, locked or registries.digest(name))

    with ThreadPoolExecutor(READERS, thread_name_prefix="gpuprov-images") as pool:
        try:
            return {key: result() for key, result in _all(pool, read_facts, {r: r for r in references}).items()}
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
        finally:
            fetch.stop()


def _all(
    pool: ThreadPoolExecutor, work: Callable[[ItemT], ResultT], items: Mapping[KeyT, ItemT]
) -> dict[KeyT, Callable[[], ResultT]]:
    return {key: pool.submit(work, item).result for key, item in items.items()}


def _refuse_missing(group: str, stack: Stack, sources: Sources) -> None:
    """A repository whose key nobody vouches for: say what to write, and where."""
    for repository in stack.repositories:
        if not repository.fingerprint and not repository.archives:
            _refuse_unknown_key(group, repository, sources)


def _trust(repository: Repository, stacks: Mapping[str, Stack], sources: Sources, events: Events) -> archives.Trust:
    """What vouches for the archives of a repository."""
    row = rows("repositories")[repository.name]
    groups = [group for group, stack in stacks.items() if repository in stack.repositories]
    component = belongs_to(repository.name)
    locked_hashes = {
        archive.url: archive.sha256
        for group in groups
        if group in sources.before and component in sources.keep.get(group, {})
        for old in sources.before[group].repositories
        if old.name == repository.name
        for archive in old.archives
    }
    return archives.Trust(
        known={entry["url"]: (entry["sha256"], tuple(entry["sources"])) for entry in row["hashes"]},
        confirmed=sources.confirmed.get(repository.name, ()),
        locked=locked_hashes,
        where=_needed_by(row, groups[0], sources),
        component=component,
        skip=tuple(row.get("skip", ())),
        say=lambda message: events("stack", "progress", message),
    )


def _hashed(package: Package, hashes: Mapping[str, Mapping[tuple[str, str], str]]) -> Package:
    """A package of an archive with the hash of its .deb, which no signed list tells the nodes."""
    if package.repository is None or package.repository not in hashes:
        return package
    return package.model_copy(update={"sha256": hashes[package.repository][package.name, package.version]})


def _needed_by(row: Mapping[str, Any], group: str, sources: Sources) -> str:
    """Where the key of cluster.yaml stands that asks for a repository's packages."""
    return sources.place(row["needed_by"].format(group=group, site=sources.sites.get(group, "")))


def _refuse_unknown_key(group: str, repository: Repository, sources: Sources) -> None:
    """The vendor publishes no fingerprint of its key: cluster.yaml has to state it."""
    row = rows("repositories")[repository.name]
    raise GpuprovError(
        f"group {group} needs {row['holds']}, and no two sources confirm the fingerprint of its repository's key",
        where=_needed_by(row, group, sources),
        hint=f"look at {repository.key_url} with `gpg --show-keys`, compare it with what the vendor or a machine of "
        f"yours has, and write\n    stack:\n      repositories:\n        {repository.name}: {{ fingerprint: … }}   "
        "# 40 hex digits",
    )


def _origin(repository: Repository, sources: Sources) -> Origin:
    if repository.name not in sources.own or repository.archives:
        return Origin(repository)
    path = f"stack.repositories.{repository.name}"
    key = None
    if not re.match(r"https?://", repository.key_url):
        try:
            key = regular_file.read(sources.folder / Path(repository.key_url).expanduser(), index.KEY_LIMIT)
        except OSError as error:
            raise GpuprovError(
                f"cannot read signing key {repository.key_url}: {error.strerror}",
                where=sources.place(f"{path}.key"),
                hint=f"paths are relative to the folder of cluster.yaml, {sources.folder}",
            ) from None
        if b"PRIVATE KEY BLOCK" in key:
            raise GpuprovError(f"{repository.key_url} is not an OpenPGP public key", where=sources.place(f"{path}.key"),
                               hint="write it with `gpg --armor --export FINGERPRINT`")  # fmt: skip
    return Origin(repository, sources.place(path), key)


def _with_key(origin: Origin) -> Repository:
    """The repository as the nodes see it: a key that lies beside cluster.yaml travels in the lock."""
    if origin.key is None:
        return origin.repository
    text = base64.b64encode(origin.key).decode()
    return origin.repository.model_copy(update={"key_url": f"data:application/pgp-keys;base64,{text}"})


def _staying(group: str, stack: Stack, sources: Sources) -> dict[str, str]:
    """Packages of the lock before whose component may stay and has stayed: name → version."""
    previous, keep = sources.before.get(group), sources.keep.get(group, {})
    if previous is None:
        return {}
    same = {name for name, c in stack.components.items() if keep.get(name) == c.version}
    return {p.name: p.version for p in previous.packages if component_of(p.part) in same}


def _locked_digest(group: str, image: Image, sources: Sources) -> str:
    """The digest that an image has in the lock before, where it may stay; "" where it is asked for anew."""
    previous, keep = sources.before.get(group), sources.keep.get(group, {})
    if previous is None:
        return ""
    image_component = f"image {image.reference}"
    framework = "tensorflow" if image.tensorflow and not image.torch else "pytorch"
    component = image_component if image_component in previous.components else framework
    return next((i.digest for i in previous.images if i.reference == image.reference and component in keep), "")


def _image(image: Image, name: Name, current_digest: str, locked: str, events: Events) -> Image:
    """An image with its digest: the locked one where there is one, which is said where its tag has moved."""
    if locked and locked != current_digest:
        events(
            "stack",
            "warning",
            f"the tag of {image.reference} has moved to {current_digest[:19]}…; the lock keeps {locked[:19]}…, "
            "`gpuprov lock --upgrade` takes the new one",
        )
    digest = locked or current_digest
    return image.model_copy(update={"digest": digest, "pull": name.pull(digest)})


def _summary(stacks: Iterable[Stack]) -> str:
    some = list(stacks)
    packages = {(p.repository, p.name, p.version) for s in some for p in s.packages}
    images = {i.digest for s in some for i in s.images}
    return f"{counted(len(packages), 'package')} at exact versions, {counted(len(images), 'image')} by digest"
