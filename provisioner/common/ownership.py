"""Whose files they are: with sudo, what gpuprov makes in a person's folder belongs to that person.

Only what is root's and lies in a folder of theirs is handed over, by open descriptors: no symbolic link is followed,
and a file that has a second name (a hard link) stays as it is.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import stat
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from provisioner.common import regular_file
from provisioner.common.errors import GpuprovError

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class Person:
    """Who called sudo."""

    uid: int
    gid: int


_watched: set[Path] = set()


def person() -> Person | None:
    """Who called sudo, by SUDO_UID and SUDO_GID (sudo(8)); None where nobody did, or this process is not root."""
    if os.geteuid() != 0:
        return None
    try:
        caller = Person(int(os.environ["SUDO_UID"]), int(os.environ["SUDO_GID"]))
    except (KeyError, ValueError):
        return None
    return caller if caller.uid > 0 and caller.gid >= 0 else None


def program() -> str:
    """gpuprov as it was called: sudo does not look into a virtual environment."""
    return sys.argv[0] if Path(sys.argv[0]).name == "gpuprov" else "gpuprov"


def trusted() -> set[int]:
    """User ids whose files and links decide where this process writes: root's, its own, and of who called sudo."""
    owner = person()
    return {0, os.geteuid(), *([owner.uid] if owner else [])}


def give_file(descriptor: int, folder: int) -> None:
    """Hand over an open file of root's in the open directory `folder`, if that is the person's."""
    owner = person()
    if owner and os.fstat(folder).st_uid == owner.uid:
        _give(descriptor, owner)


def give_directory(name: str, folder: int) -> None:
    """Hand over the directory `name`, just made in the open directory `folder`, if that is the person's."""
    owner = person()
    if owner and os.fstat(folder).st_uid == owner.uid:
        with _opened(name, _DIRECTORY | os.O_NOFOLLOW, folder) as created:
            _give(created, owner)


def refuse_foreign(root: Path) -> None:
    """Raise GpuprovError for a run directory (FOLDER/.gpuprov/<cluster>) that somebody else may have filled: what lies
    in it decides where ssh goes, and what runs."""
    for path, writable_bits in ((root.parent, stat.S_IWOTH), (root, stat.S_IWGRP | stat.S_IWOTH)):
        try:
            status = path.lstat()
        except OSError:
            return
        reason = ""
        if stat.S_ISLNK(status.st_mode):
            reason = "it is a symbolic link"
        elif status.st_uid not in trusted():
            reason = f"it belongs to another user (uid {status.st_uid})"
        elif status.st_mode & writable_bits:
            reason = f"others may write to it (mode {stat.S_IMODE(status.st_mode):04o})"
        if reason:
            raise GpuprovError(
                f"the run directory is not trusted: {reason}",
                where=str(path),
                hint="check who created it; `chown` and `chmod 700` your own, or move it away",
            )
    _refuse_links(root)


def refuse_foreign_output(folder: Path, noun: str) -> None:
    """Raise GpuprovError for a folder in which another user can change what root writes there. `noun`: that. A sticky
    one (/tmp) keeps each user's files."""
    if os.geteuid() != 0:
        return
    status = folder.stat()
    reason = ""
    if status.st_uid not in trusted():
        reason = f"uid {status.st_uid}, whose folder it is, can change it there"
    elif status.st_mode & stat.S_IWOTH and not status.st_mode & stat.S_ISVTX:
        reason = f"others may write to the folder (mode {stat.S_IMODE(status.st_mode):04o})"
    if reason:
        raise GpuprovError(f"the {noun} is not written here: {reason}", where=str(folder), hint="pass a new directory")


def _refuse_links(root: Path) -> None:
    """Raise GpuprovError where gpuprov's own files in a run directory are something else: one that came with a checkout
    can have links to a device without an end, or to a file of this machine."""
    for folder in (root, root / "ssh", root / "locks", root / "sites", *root.glob("sites/*")):
        try:
            entries = list(os.scandir(folder))
        except OSError:
            continue
        for entry in entries:
            mode = entry.stat(follow_symlinks=False).st_mode
            if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
                raise GpuprovError(
                    f"the run directory is not trusted: this is {regular_file.kind(mode)}, not a regular file",
                    where=entry.path,
                    hint="check who created it, and remove it",
                )


def watch(root: Path) -> None:
    """Hand over this run directory when the command ends, however it ends."""
    _watched.add(root)


def settle() -> None:
    """Hand over the run directories that this command has worked on."""
    while _watched:
        settle_one(_watched.pop())


def settle_one(root: Path) -> None:
    """Hand over a run directory (FOLDER/.gpuprov/<cluster>) with everything in it that is root's, whoever wrote it:
    Terraform and Ansible know nothing of sudo. Nothing is done where FOLDER is not the person's, or where one of the
    two directories is a symbolic link or is not there."""
    owner = person()
    if owner is None:
        return
    with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
        folder = stack.enter_context(_opened(root.parent.parent, _DIRECTORY))
        if os.fstat(folder).st_uid != owner.uid:
            return
        for name in (root.parent.name, root.name):
            folder = stack.enter_context(_opened(name, _DIRECTORY | os.O_NOFOLLOW, folder))
            _give(folder, owner)
        for _, folders, files, inside in os.fwalk(".", dir_fd=folder, follow_symlinks=False):
            for name in (*folders, *files):
                with contextlib.suppress(OSError):  # gone meanwhile
                    _give_entry(name, inside, owner)


def remove_flat(path: Path, uid: int) -> None:
    """Remove a directory of this user's with the files in it; one that is somebody else's stays."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        with _opened(path, _DIRECTORY | os.O_NOFOLLOW) as folder:
            if os.fstat(folder).st_uid != uid:
                return
            for name in os.listdir(folder):  # noqa: PTH208 - a descriptor, no path
                os.unlink(name, dir_fd=folder)
        path.rmdir()


def barrier(path: str) -> tuple[Path, int] | None:
    """The first part of a path that this process may not enter or read and that is somebody else's, with the uid of its
    owner; None where there is none."""
    absolute = Path(os.path.abspath(path))  # noqa: PTH100 - Path.resolve would follow what can't be read
    for part in (*reversed(absolute.parents), absolute):
        try:
            status = part.stat()
        except OSError:
            return None
        if status.st_uid != os.geteuid() and not os.access(part, os.X_OK if stat.S_ISDIR(status.st_mode) else os.R_OK):
            return part, status.st_uid
    return None


def _give(descriptor: int, owner: Person) -> None:
    if os.fstat(descriptor).st_uid == 0:
        os.fchown(descriptor, owner.uid, owner.gid)


def _give_entry(name: str, folder: int, owner: Person) -> None:
    with _opened(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, folder) as entry:
        status = os.fstat(entry)
        if status.st_uid != 0:
            return
        if stat.S_ISLNK(status.st_mode):
            os.chown(name, owner.uid, owner.gid, dir_fd=folder, follow_symlinks=False)
        elif stat.S_ISDIR(status.st_mode) or status.st_nlink == 1:
            os.chown(f"/proc/self/fd/{entry}", owner.uid, owner.gid)  # of exactly the one that was looked at


@contextlib.contextmanager
def _opened(path: str | Path, flags: int, folder: int | None = None) -> Iterator[int]:
    descriptor = os.open(path, flags, 0o600, dir_fd=folder)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def person_name() -> str:
    """Who is at the keyboard: the one behind sudo where there is one."""
    return os.environ.get("SUDO_USER") or os.environ.get("USER") or account_name()


def account_name() -> str:
    """The account that this process runs by."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # an id without a name, as in many containers
        return f"uid {os.getuid()}"
