"""Which packages, at which versions: what is asked for and all that it needs of the vendors' own repositories.

resolvelib chooses (dependencies.py says what from); a package that only the distribution has is left to apt.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from resolvelib import BaseReporter, ResolutionImpossible, Resolver
from resolvelib.resolvers import ResolutionTooDeep

from provisioner.common.errors import GpuprovError
from provisioner.common.suggest import nearest
from provisioner.stack.assemble import floating, least, upper_bound
from provisioner.stack.components import COMPONENTS
from provisioner.stack.dependencies import Against, Dependencies, Either, Want, Way
from provisioner.stack.models import Package
from provisioner.stack.package_index import Entry, PackageIndex, Relation, is_version, release

ROUNDS = 50_000
FEW = 5
"""Versions that an error names."""

_BUILD = re.compile(r"(.+)\+cuda(\d+)\.(\d+)")


def close(requested: Sequence[Package], available: PackageIndex, *, keep: Mapping[str, str]) -> tuple[Package, ...]:
    """The packages to lock: those asked for, and all that they pull in, each with its version there. `keep`: name →
    the version that stays where it fits.

    Raises GpuprovError for a package or version that its repository does not have, and for conflicting dependencies.
    """
    # A driver's parts are released together: of what they pull in, the versions that are asked for come first.
    releases = {release(p.version) for p in requested if is_version(p.version) and not floating(p)}
    provider = Dependencies(available, keep, releases)
    requirements = [_requirement(package, available, keep) for package in requested]
    resolver: Any = Resolver(provider, BaseReporter())
    try:
        chosen = resolver.resolve(requirements, max_rounds=ROUNDS).mapping
    except ResolutionImpossible as error:
        raise _conflict(error, provider, requested) from None
    except ResolutionTooDeep:
        names = ", ".join(sorted({p.name for p in requested})[:FEW])
        raise GpuprovError(
            f"dependencies of {names} not resolved after {ROUNDS} steps", hint="pin more versions"
        ) from None
    return tuple(_locked(requested, {k: v for k, v in chosen.items() if isinstance(v, Entry)}, chosen, provider))


def _requirement(package: Package, available: PackageIndex, keep: Mapping[str, str]) -> Want:
    """What is asked for as a requirement at one version, or at any of the repository where any will do."""
    entries = [e for e in available.entries(package.name) if e.repository == package.repository]
    if not entries:
        names = available.names(package.repository or "")
        similar = nearest(package.name, names, 3, alike=75)
        raise GpuprovError(
            f"repository {package.repository} has no package {package.name}",
            hint=f"similar names there: {', '.join(similar)}{_chooser(package)}"
            if similar
            else _other_version(package),
        )
    versions = [e.version for e in entries]
    if floating(package):
        relation = Relation(package.name, ">=", oldest) if (oldest := least(package)) else Relation(package.name)
        below = Relation(package.name, "<<", limit) if (limit := upper_bound(package)) else Relation(package.name)
        fitting = [version for version in versions if relation.holds(version) and below.holds(version)]
        if not fitting:
            raise GpuprovError(
                f"repository {package.repository} has no {package.name} {oldest} or newer"
                f"{f', older than {limit}' if limit else ''}; newest there: "
                f"{', '.join(dict.fromkeys(versions[:FEW]))}",
                hint=f"add {'such a' if limit else 'a newer'} version to the repository",
            )
        return Want(package.name, relation, package.repository, tuple(fitting) if limit else ())
    if package.version in versions:
        fitting = [package.version]
    else:
        fitting = [v for v in versions if is_version(package.version) and release(v) == release(package.version)]
        fitting = fitting or _built_for_the_same_cuda(package.version, versions)
    if not fitting:
        raise GpuprovError(
            f"repository {package.repository} has no {package.name} {package.version}; newest there: "
            f"{', '.join(dict.fromkeys(versions[:FEW]))}",
            hint=_other_version(package),
        )
    best = keep[package.name] if keep.get(package.name) in fitting else fitting[0]
    return Want(package.name, Relation(package.name), package.repository, (best,))


def _built_for_the_same_cuda(version: str, versions: Sequence[str]) -> list[str]:
    """The same release built for another minor release of the same CUDA, the nearest older one first, then newer ones:
    the vendor builds NCCL and cuDNN for few, and each runs on all of its major release (CUDA minor version
    compatibility, CUDA compatibility guide)."""
    build = _BUILD.fullmatch(version)
    if build is None:
        return []
    minor = int(build[3])
    candidates = [(b, v) for v in versions if (b := _BUILD.fullmatch(v)) and (b[1], b[2]) == (build[1], build[2])]
    return [v for b, v in sorted(candidates, key=lambda pair: (int(pair[0][3]) > minor, abs(int(pair[0][3]) - minor)))]


def _chooser(package: Package) -> str:
    key = COMPONENTS[package.part].key
    return f"; {key} chooses the version" if key else ""


def _other_version(package: Package) -> str:
    """What moves a package's version."""
    if (key := COMPONENTS[package.part].key) is not None:
        return f"pin another version in {key}, or run `gpuprov lock` again when the repository has this one"
    mirror = f"a repository of your own that has it (stack.repositories.{package.repository})"
    return f"use {mirror}, or a newer gpuprov: the version is chosen by its data"


def _locked(
    requested: Sequence[Package], entries: Mapping[str, Entry], chosen: Mapping[str, Any], provider: Dependencies
) -> Iterator[Package]:
    """The chosen packages, part by part: what is asked for as it was asked, then what it pulls in by name. A package
    belongs to the first part that reaches it."""
    visited = {package.name for package in requested}
    for part in dict.fromkeys(package.part for package in requested):
        part_packages = [package for package in requested if package.part == part]
        for package in part_packages:
            yield package.model_copy(update={"version": entries[package.name].version})
        reached: dict[str, Entry] = {}
        todo = [entries[package.name] for package in part_packages]
        while todo:
            for entry in _pulled(todo.pop(), chosen, provider):
                if entry.name not in visited and entry.name in entries:
                    visited.add(entry.name)
                    reached[entry.name] = entry
                    todo.append(entry)
        for name, entry in sorted(reached.items()):
            yield Package(name=name, version=entry.version, repository=entry.repository, part=part, asked=False)


def _pulled(entry: Entry, chosen: Mapping[str, Any], provider: Dependencies) -> Iterator[Entry]:
    for group in entry.needs:
        need: Any = provider.need(group, entry)
        if isinstance(need, Either):
            need = chosen[provider.identify(need)].want
        if isinstance(need, Want):
            yield chosen[need.name]


def _conflict(error: Any, provider: Dependencies, requested: Sequence[Package]) -> GpuprovError:
    """What resolvelib failed on last: which package depends on what, and the versions of that which exist."""
    statements: dict[str, None] = {}
    needed_names: dict[str, None] = {}
    for cause in error.causes:
        need, parent = cause.requirement, cause.parent
        if isinstance(parent, Way):
            parent = provider.owners.get(parent.group)
        text = need.group if isinstance(need, Either) else str(need.relation)
        if isinstance(parent, Entry):
            verb = "conflicts with" if isinstance(need, Against) else "depends on"
            statements[f"{parent} ({_origin(parent, provider, requested)}) {verb} {text}"] = None
        elif isinstance(need, Want):
            statements[f"the stack asks for {need.name} {' '.join(need.versions)} (repository {need.repository})"] = (
                None
            )
        if not isinstance(need, Either):
            needed_names[need.name] = None
    available_lines = []
    for name in needed_names:
        versions = dict.fromkeys(entry.version for entry in provider.available.entries(name))
        available_lines.append(f"available versions of {name}: {', '.join(list(versions)[:FEW])}")
    return GpuprovError(
        "conflicting package dependencies:\n  " + "\n  ".join([*list(statements)[:3], *available_lines[:1]]),
        hint="pin other versions, or run `gpuprov lock` again once the repositories are consistent",
    )


def _origin(entry: Entry, provider: Dependencies, requested: Sequence[Package]) -> str:
    """Where a package comes from, and the package that was asked for which leads to it."""
    root, visited, requested_names = entry, {entry.name}, {package.name for package in requested}
    while root.name not in requested_names and root.name in provider.because:
        root = provider.because[root.name]
        if root.name in visited:
            break
        visited.add(root.name)
    return f"repository {entry.repository}" + (f", for {root.name}" if root.name != entry.name else "")
