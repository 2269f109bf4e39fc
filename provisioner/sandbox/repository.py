"""Signed apt repositories written as plain files: pools, indexes, Release."""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from email.utils import formatdate
from pathlib import Path

from provisioner.common.paths import below
from provisioner.sandbox import packages
from provisioner.sandbox.deb import EPOCH, Deb, File, tar_gz
from provisioner.sandbox.keys import Keys, clearsign
from provisioner.stack.models import Package, Repository, Stack


def folder(name: str, os: str) -> str:
    """Where the mirror has a repository for a distribution. Vendors have one for each too: a package of the same name
    and version needs other packages there."""
    return f"apt/{name}/{os}"


def write_repositories(root: Path, stacks: Iterable[Stack], keys: Keys, architecture: str) -> int:
    """Every repository of the stacks below `root` (`folder`), its key at `root`/keys/<name>.asc. Returns how many
    packages.

    A package of several stacks is one file; a repository that two stacks lay out in two ways is served in both.
    """
    layouts: dict[tuple[str, str], set[tuple[str, str]]] = {}
    debs_of: dict[tuple[str, str], dict[tuple[str, str], Deb]] = {}
    archived = 0
    for stack in stacks:
        archives = [repository for repository in stack.repositories if repository.archives]
        for repository in archives:
            built = archive(repository, stack, architecture)
            (root / ARCHIVES).mkdir(parents=True, exist_ok=True)
            (root / ARCHIVES / f"{built.sha256}.tar.gz").write_bytes(built.content)
            archived += len(built.hashes)
        for repository in stack.repositories:
            if not repository.archives:
                layouts.setdefault((repository.name, stack.os), set()).update(_layouts(repository))
        for package in stack.packages:
            if package.repository is not None and package.repository not in {
                archived_repository.name for archived_repository in archives
            }:
                deb = packages.build(package, _same_repository(package, stack), architecture)
                debs_of.setdefault((package.repository, stack.os), {})[package.name, package.version] = deb
    (root / "keys").mkdir(parents=True, exist_ok=True)
    for (name, os), suites in sorted(layouts.items()):
        below(root / "keys", f"{name}.asc").write_text(keys.public, encoding="utf-8")
        _write(below(root, folder(name, os)), suites, debs_of.get((name, os), {}).values(), keys, architecture)
    return sum(len(debs) for debs in debs_of.values()) + archived


ARCHIVES = "archives"
"""Where the mirror has vendors' archives, each under its SHA-256."""
FOLDER = "simulated/packages/"
"""Where the packages lie in a simulated archive."""


@dataclass(frozen=True, slots=True)
class Made:
    """A vendor's archive as the mirror has it. `hashes`: (package, version) → SHA-256 of its .deb."""

    content: bytes
    sha256: str
    hashes: Mapping[tuple[str, str], str]


def archive(repository: Repository, stack: Stack, architecture: str) -> Made:
    """The archive that a sandbox has in place of a vendor's: one, with the stack's packages of that repository, and
    something beside them as vendors have it."""
    own_packages = [package for package in stack.packages if package.repository == repository.name]
    debs = {p: packages.build(p, own_packages, architecture) for p in own_packages}
    built = {p: deb.build() for p, deb in debs.items()}
    files = {f"{FOLDER}{debs[p].filename}": File(content) for p, content in built.items()}
    files["simulated/install.sh"] = File(b"#!/bin/sh\nexit 1\n", 0o755)
    content = tar_gz(files)
    hashes = {(p.name, p.version): hashlib.sha256(data).hexdigest() for p, data in built.items()}
    return Made(content, hashlib.sha256(content).hexdigest(), hashes)


def _same_repository(package: Package, stack: Stack) -> list[Package]:
    # A dependency is named only where apt finds it: nodes that install one repository's packages have that repository.
    return [other for other in stack.packages if other.repository == package.repository]


def _layouts(repository: Repository) -> set[tuple[str, str]]:
    return {(suite, repository.components.strip()) for suite in repository.suite.split()}


def _write(base: Path, suites: Iterable[tuple[str, str]], debs: Iterable[Deb], keys: Keys, architecture: str) -> None:
    pool = base / "pool"
    pool.mkdir(parents=True)
    paragraphs = []
    for deb in sorted(debs, key=lambda d: (d.name, d.version)):
        content = deb.build()
        below(pool, deb.filename).write_bytes(content)
        index = f"Filename: pool/{deb.filename}\nSize: {len(content)}\nSHA256: {hashlib.sha256(content).hexdigest()}\n"
        head, description = deb.control().split("Description: ", 1)
        paragraphs.append(f"{head}{index}Description: {description}")
    listing = "\n".join(paragraphs).encode()
    for suite, components in suites:
        flat = suite.endswith("/")
        suite_folder = below(base if flat else base / "dists", suite.strip("/"))
        folders = [""] if flat else [f"{c}/binary-{architecture}/" for c in (components or "main").split()]
        files = {
            f"{f}{name}": data for f in folders for name, data in (("Packages", listing), ("Packages.gz", _gz(listing)))
        }
        for name, data in files.items():
            file = below(suite_folder, name)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(data)
        release = _release(files, suite, components, architecture)
        inline, detached = clearsign(keys, release)
        for name, text in (("Release", release), ("InRelease", inline), ("Release.gpg", detached)):
            (suite_folder / name).write_text(text, encoding="utf-8")


def _gz(content: bytes) -> bytes:
    return gzip.compress(content, mtime=0)


def _release(files: Mapping[str, bytes], suite: str, components: str, architecture: str) -> str:
    hashes = "".join(
        f" {hashlib.sha256(data).hexdigest()} {len(data)} {name}\n" for name, data in sorted(files.items())
    )
    return (
        "Origin: gpuprov sandbox\nLabel: gpuprov sandbox (simulated packages)\n"
        f"Suite: {suite}\nCodename: {suite}\nDate: {formatdate(EPOCH, usegmt=True)}\n"
        f"Architectures: {architecture}\nComponents: {components or 'main'}\n"
        f"Description: simulated by gpuprov\nSHA256:\n{hashes}"
    )
