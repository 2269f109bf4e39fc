"""Files and directories written by descriptors: below a directory that is open, nobody can put a link in the path.

With sudo gpuprov writes into folders of other people. Whoever owns a folder can rename what lies in it at any moment
and put a symbolic link in its place, so that a second look at the same path shows another file. As root each part of a
path is opened below the part above it; a link is followed where root or the person who called sudo made it.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path

from provisioner.common import ownership

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
MAX_LINKS = 40
"""Symbolic links in one path, as in the kernel (path_resolution(7))."""


@contextlib.contextmanager
def opened(path: Path, *, create: bool = False) -> Iterator[int]:
    """A descriptor of a directory. `create`: missing directories are made with mode 0700, for the person in whose
    directory they lie (ownership.py). Raises OSError, as root also for a link of an untrusted user (ELOOP)."""
    handle = _walk(path, create=create)
    try:
        yield handle
    finally:
        os.close(handle)


def append(path: Path) -> io.BufferedWriter:
    """Open a file for appending; a missing one is made with mode 0600. Raises OSError for what is not a
    regular file, and as root for one that has a second name."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with opened(path.parent) as folder:
        handle = os.open(path.name, flags, 0o600, dir_fd=folder)
        try:
            _refuse_unfit(handle, path)
            ownership.give_file(handle, folder)
        except BaseException:
            os.close(handle)
            raise
    return open(path, "ab", opener=lambda *_: handle)


@contextlib.contextmanager
def replacing(path: Path, *, mode: int = 0o600, durable: bool = True) -> Iterator[io.BufferedRandom]:
    """A new file that gets the name `path`, whole, when the block ends; where the block raises, what was there stays.
    `durable`: after fsync. Raises OSError."""
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    temporary = f".{path.name}.{secrets.token_hex(6)}"
    with opened(path.parent) as folder:
        handle = os.open(temporary, flags, 0o600, dir_fd=folder)
        try:
            with os.fdopen(handle, "w+b") as stream:
                yield stream
                stream.flush()
                os.fchmod(handle, mode)
                ownership.give_file(handle, folder)
                if durable:
                    os.fsync(handle)
                _rename(handle, temporary, folder, path, folder)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary, dir_fd=folder)
            raise


def move(source: Path, target: Path, *, mode: int = 0o600) -> None:
    """Give a file that another program has made its mode and its owner, and rename it to `target`, which is replaced.
    Raises OSError, also where `source` is not a regular file with one name."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with opened(source.parent) as origin, opened(target.parent) as folder:
        handle = os.open(source.name, flags, dir_fd=origin)
        try:
            _refuse_unfit(handle, source)
            os.fchmod(handle, mode)
            ownership.give_file(handle, folder)
            _rename(handle, source.name, origin, target, folder)
        finally:
            os.close(handle)


def _rename(handle: int, name: str, origin: int, target: Path, folder: int) -> None:
    """Rename the open file `name` of directory `origin` to `target`, whose directory is `folder`. Raises OSError where
    another file has its name meanwhile."""
    os.rename(name, target.name, src_dir_fd=origin, dst_dir_fd=folder)
    result, expected = os.stat(target.name, dir_fd=folder, follow_symlinks=False), os.fstat(handle)
    if (result.st_dev, result.st_ino) != (expected.st_dev, expected.st_ino):
        raise OSError(errno.EBUSY, "another process replaced the file while it was written", str(target))


def _refuse_unfit(handle: int, path: Path) -> None:
    status = os.fstat(handle)
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    if os.geteuid() == 0 and status.st_nlink > 1:
        raise OSError(errno.EMLINK, "a file with a second name (a hard link)", str(path))


def _walk(path: Path, *, create: bool) -> int:
    if os.geteuid() != 0 and not create:
        return os.open(path, _DIRECTORY)  # nobody's rights but the user's own are at stake
    parts, links = list(reversed(path.parts)), 0
    handle = os.open("/" if path.is_absolute() else ".", _DIRECTORY)
    try:
        while parts:
            part = parts.pop()
            try:
                below = _step(part, handle, create=create)
            except OSError as error:
                raise OSError(error.errno, error.strerror, str(path)) from None
            if isinstance(below, str):
                links += 1
                if links > MAX_LINKS:
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
                parts += reversed(Path(below).parts)
                continue
            os.close(handle)
            handle = below
    except BaseException:
        os.close(handle)
        raise
    return handle


def _step(part: str, folder: int, *, create: bool) -> int | str:
    """The directory `part` of a directory, open, or the text of a link in its place."""
    if part == "/":
        return os.open("/", _DIRECTORY)
    for _ in range(2):
        try:
            return os.open(part, _DIRECTORY | os.O_NOFOLLOW, dir_fd=folder)
        except FileNotFoundError:
            if not create:
                raise
            with contextlib.suppress(FileExistsError):
                os.mkdir(part, 0o700, dir_fd=folder)
                ownership.give_directory(part, folder)
        except OSError as error:
            if error.errno not in (errno.ELOOP, errno.ENOTDIR):
                raise
            link = _link(part, folder)
            if link is None:
                raise
            return link
    return os.open(part, _DIRECTORY | os.O_NOFOLLOW, dir_fd=folder)


def _link(part: str, folder: int) -> str | None:
    """The text of a trusted link; None where `part` is not a link."""
    handle = os.open(part, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    try:
        status = os.fstat(handle)
        if not stat.S_ISLNK(status.st_mode):
            return None
        if os.geteuid() == 0 and status.st_uid not in ownership.trusted():
            message = f"a symbolic link of another user (uid {status.st_uid}) is not followed: use the real path"
            raise OSError(errno.EACCES, message)
        return os.readlink("", dir_fd=handle)
    finally:
        os.close(handle)
