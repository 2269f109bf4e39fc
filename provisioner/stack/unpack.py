"""What is in a vendor's archive: its packages one by one, with bounds on what an archive may unpack to."""

from __future__ import annotations

import hashlib
import re
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Self

from provisioner.common.errors import GpuprovError
from provisioner.stack.index import Origin
from provisioner.stack.models import Archive

PACKAGES_LIMIT = 4 << 30
"""Bytes that its packages for one distribution may have together."""
CHUNK = 1 << 20
"""Bytes of a package that are in memory at once."""
HEADER_LIMIT = 1 << 20
"""Bytes that the name or the attributes of a file in an archive may have; tarfile reads them at once."""
MOST_PACKAGES = 2000
TOOL_DEADLINE = 120.0
"""Seconds for one call of dpkg-deb."""


def paragraphs(origin: Origin, archive: Archive, file: Path) -> Iterator[tuple[str, str]]:
    """Each package of an archive in `file` for its distribution: its control paragraph, and the SHA-256 of its .deb.
    Raises GpuprovError for an archive that can't be opened, has no packages for it, or too many."""
    package_count, size, folders = 0, 0, set()
    with tempfile.TemporaryDirectory(prefix="gpuprov-archive-") as scratch:
        at = Path(scratch) / "package.deb"
        try:
            for name, stream in _members(file, archive):
                folder = name.removeprefix("./")
                folders.add(f"{folder.rpartition('/')[0]}/")
                if not folder.startswith(archive.folder) or "/debug/" in f"/{folder}":
                    continue
                package_count += 1
                if package_count > MOST_PACKAGES:
                    raise origin.refuse(f"{archive.url} has more than {MOST_PACKAGES} packages", "compare its address")
                digest = hashlib.sha256()
                with at.open("wb") as out:
                    while chunk := stream.read(CHUNK):
                        size += len(chunk)
                        if size > PACKAGES_LIMIT:
                            raise origin.refuse(
                                f"{archive.url} has more than {PACKAGES_LIMIT >> 20} MiB of packages",
                                "possible tampering; compare its address with the vendor's documentation",
                            )
                        digest.update(chunk)
                        out.write(chunk)
                yield _run("dpkg-deb", "--field", str(at)).strip(), digest.hexdigest()
        except (OSError, EOFError, tarfile.TarError) as error:
            raise origin.refuse(f"{archive.url} cannot be opened: {error}",
                                "possible corrupt download: run `gpuprov lock` again") from None  # fmt: skip
    if not package_count:
        folder_names = ", ".join(sorted({f for f in folders if f.count("/") > 1})[:6]) or "no packages at all"
        raise origin.refuse(
            f"{archive.url} has no packages in {archive.folder or 'it'}; there: {folder_names}",
            "the vendor has no packages for this distribution in that release: choose another stack.os or version",
        )


def _members(file: Path, archive: Archive) -> Iterator[tuple[str, IO[bytes]]]:
    """The .deb files of an archive, each with its path; of one that is a single package that one."""
    if not archive.folder:
        with file.open("rb") as stream:
            yield "/package.deb", stream
        return
    with _opened(file, archive.url) as tar:
        for member in tar:
            content = tar.extractfile(member) if member.isreg() and member.name.endswith(".deb") else None
            if content is not None:
                yield member.name.removeprefix("./"), content


LONG_HEADERS = frozenset({b"L", b"K", b"x", b"X", b"g"})
"""Types of a tar header (GNU's and pax') that are followed by a name or attributes."""


class _Header(tarfile.TarInfo):
    """A file's header in a tar archive; one that says that gigabytes of names follow is refused."""

    @classmethod
    def frombuf(cls, *arguments: Any, **options: Any) -> Self:
        header = super().frombuf(*arguments, **options)
        if header.type in LONG_HEADERS and header.size > HEADER_LIMIT:
            raise tarfile.ReadError(f"the header of a file has {header.size >> 20} MiB")
        return header


@contextmanager
def _opened(file: Path, url: str) -> Iterator[tarfile.TarFile]:
    """An archive as a tar: it is one, or a .deb whose files are unpacked on the way."""
    if not re.search(r"\.deb$", url):
        with tarfile.open(file, "r|*", tarinfo=_Header) as tar:
            yield tar
        return
    with (
        _process("dpkg-deb", "--fsys-tarfile", str(file)) as stream,
        tarfile.open(fileobj=stream, mode="r|", tarinfo=_Header) as tar,
    ):
        yield tar


@contextmanager
def _process(*command: str) -> Iterator[IO[bytes]]:
    try:
        running = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    except FileNotFoundError:
        raise _no_tool(command[0]) from None
    try:
        assert running.stdout is not None
        yield running.stdout
    finally:
        running.kill()
        running.wait(TOOL_DEADLINE)


def _run(*command: str) -> str:
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=TOOL_DEADLINE, check=False
        )
    except FileNotFoundError:
        raise _no_tool(command[0]) from None
    except subprocess.TimeoutExpired:
        raise GpuprovError(f"{command[0]} did not finish in {TOOL_DEADLINE:.0f} s") from None
    if done.returncode:
        raise OSError(done.stderr.decode(errors="replace").strip()[:200] or f"{command[0]} failed")
    return done.stdout.decode("utf-8", errors="replace")


def _no_tool(name: str) -> GpuprovError:
    return GpuprovError(f"{name} is not installed", hint="sudo apt-get install -y dpkg")


def field(paragraph: str, key: str) -> str:
    match = re.search(rf"^{key}:[ \t]*(\S+)", paragraph, re.MULTILINE | re.IGNORECASE)
    return match[1] if match else ""
