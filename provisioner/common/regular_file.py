"""Regular files, read within bounds: what somebody else wrote or named may be a pipe, a device, a link, or endless."""

from __future__ import annotations

import errno
import io
import os
import stat
from pathlib import Path

KINDS = {
    stat.S_IFLNK: "a symbolic link, which is not followed",
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
}


class UnfitFileError(OSError):
    """Not a regular file, or too large. `strerror` says which: "this is a pipe, not a regular file"; `file_kind`: what
    it is."""

    file_kind = ""


def kind(mode: int) -> str:
    """What a mode of stat(2) is, other than a regular file.

    >>> kind(stat.S_IFIFO | 0o644), kind(stat.S_IFCHR)
    ('a pipe', 'a device')
    """
    return KINDS.get(stat.S_IFMT(mode), "a device")


def opened(path: Path, *, follow_links: bool = True, folder: int | None = None) -> io.BufferedReader:
    """Open a regular file for reading; what else lies at the path is not opened (a device may act on being opened) or
    not read. `folder`: descriptor of the directory that a relative path begins at. Raises OSError."""
    _refuse(os.stat(path, dir_fd=folder, follow_symlinks=follow_links).st_mode, path)
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if follow_links else os.O_NOFOLLOW)
    stream = os.fdopen(os.open(path, flags, dir_fd=folder), "rb")
    try:
        _refuse(os.fstat(stream.fileno()).st_mode, path)
    except BaseException:
        stream.close()
        raise
    return stream


def read(path: Path, limit: int, *, follow_links: bool = True) -> bytes:
    """All of a regular file. Raises OSError (UnfitFileError for one of more than `limit` bytes)."""
    with opened(path, follow_links=follow_links) as stream:
        content = stream.read(limit + 1)
    if len(content) > limit:
        size = f"{limit >> 20} MiB" if limit >= 1 << 20 else f"{limit} bytes"
        raise UnfitFileError(errno.EFBIG, f"larger than {size}", str(path))
    return content


def read_text(path: Path, limit: int, *, follow_links: bool = True) -> str:
    """As `read`, of UTF-8. Raises UnicodeDecodeError too, which is a ValueError."""
    return read(path, limit, follow_links=follow_links).decode("utf-8")


def _refuse(mode: int, path: Path) -> None:
    if not stat.S_ISREG(mode):
        error = UnfitFileError(errno.EINVAL, f"this is {kind(mode)}, not a regular file", str(path))
        error.file_kind = kind(mode)
        raise error
