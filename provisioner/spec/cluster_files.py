"""Which files of a folder are a cluster.yaml, by the `name:` at their top; only their text is searched."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path

from provisioner.common import regular_file

USUAL = "cluster.yaml"
SIZE = 1 << 20
"""Bytes of a cluster.yaml."""
_NAME = re.compile(r"^name:\s*[\"']?([A-Za-z0-9-]+)[\"']?\s*(?:#.*)?$", re.M)
_GROUPS = re.compile(r"^groups:", re.M)


def cluster_names(folder: Path) -> dict[Path, str]:
    """File → the name of its cluster, the files in order."""
    return {file: match[1] for file, text in _texts(folder) if (match := _NAME.search(text))}


def cluster_files(folder: Path) -> list[str]:
    """Names of the files that are a cluster.yaml, one that is called so first, whatever is in it."""
    names = [file.name for file, text in _texts(folder) if _NAME.search(text) and _GROUPS.search(text)]
    usual = [USUAL] if (folder / USUAL).is_file() else []
    return [*usual, *(name for name in names if name not in usual)]


def what_to_type(command: str, more: str = "") -> str:
    """A command that lacks its FILE, with the files that may be meant, or with where to get one. `more`: arguments
    behind it."""
    if not (names := cluster_files(Path())):
        return f"there is no {USUAL} in this folder: `gpuprov init` writes one; then `{command} {USUAL}{more}`"
    others = f" (or {', '.join(names[1:4])}{' …' if names[4:] else ''})" if names[1:] else ""
    return f"type `{command} {names[0]}{more}`{others}"


def _texts(folder: Path) -> Iterator[tuple[Path, str]]:
    for file in sorted((*folder.glob("*.yaml"), *folder.glob("*.yml"))):
        with contextlib.suppress(OSError, ValueError):
            yield file, regular_file.read_text(file, SIZE)
