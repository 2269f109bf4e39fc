"""Files out of a folder, an archive or one compressed file: (name, text), within bounds. Nothing is written to disk, so
that no name can lead anywhere; links are not followed."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, cast

from provisioner.common import regular_file
from provisioner.common.errors import GpuprovError
from provisioner.common.text import one_line
from provisioner.verify.support_bundle.budget import Budget

FILE = 64 * 1024 * 1024
"""Bytes of one file. Of longer ones the last are kept: the newest lines of a log."""
HEADER = 1024 * 1024
"""Bytes of what a tar says of a member's name."""
DEEP = 12
NAME = 500
"""Characters of a name that are shown: with the command that a part of a session was printed by."""
CUT = (tarfile.TarError, zipfile.BadZipFile, EOFError, lzma.LZMAError, zlib.error, gzip.BadGzipFile)
"""What reading ends with where a file was cut or damaged: what came before it counts."""
BINARY = 0.02
"""Share of bytes that no text has, from which on a file is none."""


@dataclass(frozen=True, slots=True)
class Piece:
    """One text and where it lies; `why` says why it was not read, where it was not."""

    name: str
    text: str = ""
    why: str = ""
    cut: str = ""
    """Why its end is missing, where that is."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", one_line(self.name, NAME))


class _Counted(io.RawIOBase):
    """A stream whose bytes are spent. One that is cut or damaged ends there, and `cut` says why."""

    def __init__(self, stream: IO[bytes], budget: Budget) -> None:
        self.stream, self.budget, self.cut = stream, budget, ""

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        size = 1 << 20 if size < 0 or size > 1 << 20 else size
        try:
            got: bytes = getattr(self.stream, "read1", self.stream.read)(size)  # of what can be read nothing is lost
        except CUT as error:
            self.cut = str(error) or type(error).__name__
            return b""
        self.budget.spend(len(got))
        return got


class _Timed:
    """A compressed file: what it holds is counted where it comes out, and here the clock is read, because a file of
    empty parts gives nothing for as long as it is."""

    def __init__(self, stream: IO[bytes], budget: Budget) -> None:
        self._stream, self._budget = stream, budget
        self.seek, self.tell, self.seekable = stream.seek, stream.tell, stream.seekable

    def read(self, size: int = -1) -> bytes:
        self._budget.spend(0)
        return self._stream.read(size)


class _Member(tarfile.TarInfo):
    """A member whose long name or further headers are no longer than a name can be."""

    def _proc_member(self, archive: tarfile.TarFile) -> tarfile.TarInfo:
        if not self.isreg() and self.size > HEADER:
            raise tarfile.ReadError("a header of more than 1 MiB")
        return cast(tarfile.TarInfo, super()._proc_member(archive))  # type: ignore[misc]


BROKEN = (tarfile.TarError, zipfile.BadZipFile, EOFError, lzma.LZMAError, zlib.error, OSError, ValueError,
          NotImplementedError, RuntimeError, LookupError, ArithmeticError)  # fmt: skip
"""What a damaged archive makes tarfile, zipfile and the decompressors raise."""


def pieces(path: Path, budget: Budget) -> Iterator[Piece]:
    """Everything below a path. Raises GpuprovError where it cannot be read at all, or takes more than the budget."""
    try:
        if path.is_dir():
            yield from _folder(path, budget)
        else:
            with regular_file.opened(path) as stream:
                yield from _opened(path.name, stream, budget, archives=True)
    except BROKEN as error:
        error_text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise GpuprovError(f"cannot be read: {error_text or type(error).__name__}", where=str(path)) from error


def _folder(top: Path, budget: Budget) -> Iterator[Piece]:
    for folder, folders, names in os.walk(top, followlinks=False):
        folders.sort()
        budget.count_member()
        if len(Path(folder).relative_to(top).parts) >= DEEP:
            folders.clear()
        for name in sorted(names):
            file = Path(folder, name)
            relative_name = str(file.relative_to(top))
            budget.count_member()
            try:
                stream = regular_file.opened(file, follow_links=False)
            except regular_file.UnfitFileError:
                yield Piece(relative_name, why="a link is not followed" if file.is_symlink() else "no plain file")
                continue
            with stream:
                yield from _opened(relative_name, stream, budget, archives=False)


def _opened(name: str, stream: IO[bytes], budget: Budget, *, archives: bool) -> Iterator[Piece]:
    """What a file holds: itself, or what it is compressed of. An archive is opened where `archives` says so: one within
    an archive is not."""
    head = stream.read(512)
    stream.seek(0)
    packed = cast(IO[bytes], _Timed(stream, budget))
    if head.startswith(b"\x1f\x8b"):
        yield from _unpacked(name.removesuffix(".gz"), gzip.GzipFile(fileobj=packed), budget, archives)
    elif head.startswith(b"\xfd7zXZ\x00"):
        yield from _unpacked(name.removesuffix(".xz"), lzma.LZMAFile(packed), budget, archives)  # noqa: SIM115
    elif head.startswith(b"BZh"):
        yield from _unpacked(name.removesuffix(".bz2"), bz2.BZ2File(packed), budget, archives)
    elif head.startswith(b"\x28\xb5\x2f\xfd"):
        yield Piece(name, why="compressed by zstd: unpack it first (`unzstd`)")
    elif head.startswith(b"PK\x03\x04") and archives:
        yield from _zip(stream, budget)
    else:
        yield from _unpacked(name, stream, budget, archives)


def _counted(stream: Any, budget: Budget) -> tuple[io.BufferedReader, _Counted]:
    """A stream within bounds, and what knows afterwards whether it was cut."""
    source = _Counted(stream, budget)
    return io.BufferedReader(cast(io.RawIOBase, _Reader(source)), 1 << 16), source


def _complete(name: str, counted: io.BufferedReader, source: _Counted) -> Piece:
    """All of a stream as one piece, with a word where its end is missing."""
    piece = _piece(name, counted)
    return replace(piece, cut=source.cut) if piece.text else replace(piece, why=piece.why or source.cut)


def _unpacked(name: str, stream: Any, budget: Budget, archives: bool) -> Iterator[Piece]:
    counted, source = _counted(stream, budget)
    head = counted.peek(512)[:512]
    if head[257:262] != b"ustar":
        yield _complete(name, counted, source)
    elif not archives:
        yield Piece(name, why="an archive within another: unpack it first")
    else:
        with tarfile.open(fileobj=counted, mode="r|", tarinfo=_Member) as archive:
            broken = ""
            try:
                for member in archive:
                    budget.count_member()
                    budget.refuse_size(archive.offset)  # tarfile skips block by block to that place
                    yield from _member(archive, member, budget)
            except CUT as error:
                broken = str(error)
            if broken := broken or source.cut:  # one that is cut between two members looks whole to tarfile
                yield Piece(name, why=f"the archive is cut or damaged, what came before is read: {broken}")


def _member(archive: tarfile.TarFile, member: tarfile.TarInfo, budget: Budget) -> Iterator[Piece]:
    parts = member.name.split("/")
    if ".." in parts or member.name.startswith("/"):
        yield Piece(member.name, why="its name leads out of the archive")
    elif member.issym() or member.islnk():
        yield Piece(member.name, why="a link is not followed")
    elif member.issparse():
        yield Piece(member.name, why="a sparse file: its holes have no end (`tar` without --sparse)")
    elif member.isreg():
        content = archive.extractfile(member)
        if content is not None:
            head = content.read(6)
            # A compressed log within the archive counts twice against the bound: packed and unpacked.
            if head.startswith((b"\x1f\x8b", b"BZh", b"\xfd7zXZ")) and member.size <= FILE:
                packed = io.BytesIO(head + content.read(FILE))
                yield from _opened(member.name, packed, budget, archives=False)
            else:
                yield _piece(member.name, content, head)


def _zip(stream: IO[bytes], budget: Budget) -> Iterator[Piece]:
    with zipfile.ZipFile(stream) as archive:
        for info in archive.infolist():
            budget.count_member()
            if info.is_dir():
                continue
            if stat.S_ISLNK(info.external_attr >> 16):
                yield Piece(info.filename, why="a link is not followed")
            elif ".." in info.filename.split("/") or info.filename.startswith("/"):
                yield Piece(info.filename, why="its name leads out of the archive")
            else:
                with archive.open(info) as content:
                    yield _complete(info.filename, *_counted(content, budget))


class _Reader(io.RawIOBase):
    """BufferedReader asks for readinto."""

    def __init__(self, stream: _Counted) -> None:
        self.stream = stream

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        got = self.stream.read(len(buffer))
        buffer[: len(got)] = got
        return len(got)


def _piece(name: str, content: IO[bytes], head: bytes = b"") -> Piece:
    blocks, size, cut = [head], len(head), ""
    try:
        while block := content.read(1 << 16):
            blocks.append(block)
            size += len(block)
            while size - len(blocks[0]) >= FILE:
                size -= len(blocks.pop(0))
    except CUT as error:
        cut = str(error) or type(error).__name__
        if size == len(head):
            return Piece(name, why=f"cannot be read: {cut}")
    raw = b"".join(blocks)
    if raw.startswith((b"\xff\xfe", b"\xfe\xff")):
        return Piece(name, raw.decode("utf-16", "replace"), cut=cut)
    sample = raw[:65536]
    odd = sum(sample.count(bytes((code,))) for code in (*range(1, 9), *range(14, 27), 127)) + sample.count(b"\x00") * 2
    if sample and odd > len(sample) * BINARY:
        return Piece(name, why="no text")
    return Piece(name, raw.removeprefix(b"\xef\xbb\xbf").decode("utf-8", "replace"), cut=cut)
