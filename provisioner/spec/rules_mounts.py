"""Refusals of mount points: what a file system may not be mounted at."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from provisioner.spec.groups import Group
from provisioner.spec.site import Site
from provisioner.spec.source_map import Finding, Loc

SYSTEM = re.compile(r"/(bin|boot|dev|etc|lib\w*|proc|root|run|sbin|sys|usr|var)?(/.*)?")
"""Directories that are the system's own."""


def mount_points(at: Loc, site: Site, groups: Mapping[str, Group]) -> Iterator[Finding]:
    """Of the file systems that the nodes of one site share. `groups`: those at this site."""
    taken: dict[str, str] = {}
    for file_system in sorted(site.file_systems(), key=lambda file_system: file_system.key):
        yield from _mount_point((*at, *file_system.key, "path"), file_system.title, file_system.path, taken, groups)
        taken.setdefault(file_system.path, file_system.title)


def _mount_point(
    at: Loc, kind: str, path: str, taken: Mapping[str, str], groups: Mapping[str, Group]
) -> Iterator[Finding]:
    """Nothing of the system's, of those who log in, of scratch's, and of another file system's."""
    advice = f"take a directory of its own, such as /{kind if kind.isidentifier() else 'data'}"
    if {".", ".."} & set(path.split("/")) or SYSTEM.fullmatch(path):
        yield Finding(at, f"{path} is a system directory", advice)
    elif _within(path, "/home"):
        yield Finding(at, f"{path} would hide the home directories of the login users", advice)
    for name, group in groups.items():
        scratch = group.storage.scratch.rstrip("/") if group.storage.scratch else None
        if scratch and (_within(path, scratch) or _within(scratch, path)):
            message = f"mount points overlap: {path} and groups.{name}.storage.scratch ({scratch})"
            yield Finding(at, message, "take another directory")
    for other, owner in taken.items():
        if _within(path, other) or _within(other, path):
            same = f"{path} is the mount point of {owner} already"
            message = same if path == other else f"mount points overlap: {path} and {owner} ({other})"
            yield Finding(at, message, "take another directory")


def _within(path: str, folder: str) -> bool:
    return path == folder or path.startswith(f"{folder}/")
