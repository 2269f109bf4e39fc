"""The folder of a job as an archive for the nodes: what its ignore file names stays here, and so do private keys."""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from pathspec import GitIgnoreSpec

from provisioner.common.errors import GpuprovError

IGNORE_FILE = ".gpuprovignore"
"""Beside the program, by the rules of .gitignore."""
ALWAYS = (".git/", ".gpuprov/", ".venv/", "__pycache__/", ".terraform/", IGNORE_FILE)
LIMIT = 256 << 20
"""Bytes of a folder: programs and settings. Data and checkpoints belong on /scratch or on shared storage."""
MOST_FILES = 20_000
KEY = b"PRIVATE KEY-----"
KEY_AT = 64
"""Bytes at the beginning of a file in which the line of a private key stands (RFC 7468)."""


@dataclass(frozen=True, slots=True)
class Packed:
    """How much was packed. `size`: bytes, not compressed; `links`: those that lead out of the folder."""

    files: int
    size: int
    links: tuple[str, ...] = ()


def pack(folder: Path, target: IO[bytes]) -> Packed:
    """Write a folder as a gzipped tar. The same files give the same names, modes and owners. Raises GpuprovError for a
    folder that is too large, and for a private key in it."""
    count, size, links = 0, 0, list[str]()
    with tarfile.open(fileobj=target, mode="w:gz", compresslevel=1, format=tarfile.PAX_FORMAT) as archive:
        for name, path in _files(folder):
            info = archive.gettarinfo(path, name)
            if info is None or not (info.isfile() or info.issym() or info.isdir()):
                continue
            info.uid = info.gid = 0
            info.uname = info.gname = "root"
            if not info.isfile():
                archive.addfile(info)
                if info.issym() and not _stays(folder, path):
                    links.append(name)
                continue
            count, size = count + 1, size + info.size
            if size > LIMIT or count > MOST_FILES:
                limit = f"{MOST_FILES} files" if count > MOST_FILES else f"{LIMIT >> 20} MiB, up to {name}"
                raise GpuprovError(
                    f"the folder has more than {limit}",
                    where=str(folder),
                    hint=f"name in {IGNORE_FILE} what the nodes do not need; data belongs on /scratch",
                )
            with path.open("rb") as stream:
                head = stream.read(KEY_AT)
                if KEY in head:
                    raise GpuprovError(
                        f"{name} is a private key, which would be copied to the nodes",
                        where=str(folder),
                        hint=f"name it in {IGNORE_FILE}, or pass --folder with the folder of the program alone",
                    )
                # tarfile takes exactly `info.size` bytes: a file that grows meanwhile is cut, one that shrinks fails.
                archive.addfile(info, _Again(head, stream))
    return Packed(count, size, tuple(links))


def _stays(folder: Path, link: Path) -> bool:
    """Whether a link leads to something in the folder, by a path that the nodes have as well."""
    target = link.readlink()
    return not target.is_absolute() and (link.parent / target).resolve().is_relative_to(folder.resolve())


class _Again(io.RawIOBase):
    """A stream whose first bytes were read already."""

    def __init__(self, head: bytes, stream: IO[bytes]) -> None:
        self._head, self._stream = head, stream

    def read(self, size: int = -1) -> bytes:
        if self._head:
            piece, self._head = self._head[:size], self._head[size:] if size >= 0 else b""
            return piece + (self._stream.read(size - len(piece)) if size > len(piece) else b"")
        return self._stream.read(size)


def _files(folder: Path) -> Iterator[tuple[str, Path]]:
    """Path below the folder and place of everything that goes to the nodes, in one order."""
    file = folder / IGNORE_FILE
    lines = file.read_text(encoding="utf-8", errors="replace").splitlines() if file.is_file() else []
    ignored = GitIgnoreSpec.from_lines([*ALWAYS, *lines])
    for base, folders, names in os.walk(folder):
        below = Path(base).relative_to(folder)
        folders[:] = sorted(name for name in folders if not ignored.match_file(f"{below / name}/"))
        for name in [*folders, *sorted(names)]:
            relative = str(below / name)
            if name in folders or not ignored.match_file(relative):
                yield relative, Path(base) / name
