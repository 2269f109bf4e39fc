"""Packages out of vendors' archives: fetched once, verified by the vendor's signature or a known SHA-256, listed like a
repository.

An archive is kept in the cache under its address. Each lock hashes it again and verifies its signature again: a vendor
that puts another file under the same address is noticed.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from provisioner.errors import GpuprovError
from provisioner.paths import cache, private_dir
from provisioner.stack import openpgp
from provisioner.stack.fetch import Fetch
from provisioner.stack.index import KEY_LIMIT, Origin, sweep
from provisioner.stack.models import Archive, Repository

ARCHIVE_LIMIT = 4 << 30
"""Bytes that an archive may have; the EFA installer has 0.7 GB."""
PACKAGES_LIMIT = 4 << 30
"""Bytes that its packages for one distribution may have together."""
MOST_PACKAGES = 2000
TOOL_DEADLINE = 120.0
"""Seconds for one call of dpkg-deb."""


@dataclass(frozen=True, slots=True)
class Opened:
    """What archives hold: the repository with each archive's hash, size and basis, and a list of packages like apt's.
    `hashes`: (package, version) → SHA-256 of its .deb."""

    repository: Repository
    listing: str
    hashes: Mapping[tuple[str, str], str]


@dataclass(frozen=True, slots=True)
class Trust:
    """What vouches for an archive beside a signature. `known`: address → SHA-256 and the sources that tell it.
    `confirmed`: hashes that cluster.yaml states. `locked`: address → SHA-256 of the lock before, where it may stay.
    `where`: the key of cluster.yaml that asks for the packages, `component` what they belong to; `skip`: packages of
    the archive that the distribution is to give. `say` is told what takes its time."""

    known: Mapping[str, tuple[str, tuple[str, ...]]]
    confirmed: tuple[str, ...] = ()
    locked: Mapping[str, str] | None = None
    where: str = ""
    component: str = ""
    skip: tuple[str, ...] = ()
    say: Callable[[str], None] = lambda _: None


def read(origin: Origin, fetch: Fetch, trust: Trust) -> Opened:
    """Fetch, verify and open all archives of a repository. Raises GpuprovError naming the archive, the cause and what
    to do."""
    repository = origin.repository
    sweep(private_dir(cache() / "archives"))
    ring = b""
    if any(archive.signature for archive in repository.archives):
        url = repository.key_url
        answer = fetch.get(url, who=f"the key of {repository.name}", limit=KEY_LIMIT)
        if answer.status != 200:
            raise origin.refuse(f"could not download signing key {url}: HTTP {answer.status}",
                                "find its current address in the vendor's documentation")  # fmt: skip
        ring = openpgp.keyring(answer.body, repository.fingerprint, origin.refuse, source=url, others=True)
    files = {archive.url: _verified(origin, archive, ring, fetch, trust) for archive in repository.archives}
    # All hashes that somebody has to confirm are asked for in one error.
    unknown = [one for one in files.values() if not one.basis]
    if unknown:
        raise _unconfirmed(origin, unknown, trust)
    paragraphs: dict[tuple[str, str], tuple[str, str]] = {}
    for archive in files.values():
        for paragraph, digest in _paragraphs(origin, archive):
            name, version = (_field(paragraph, key) for key in ("Package", "Version"))
            if name not in trust.skip:
                paragraphs.setdefault((name, version), (paragraph, digest))
    return Opened(
        repository.model_copy(update={"archives": tuple(files.values())}),
        "\n\n".join(text for text, _ in paragraphs.values()),
        {key: digest for key, (_, digest) in paragraphs.items()},
    )


def kept(url: str) -> Path:
    """Where the cache has the archive of an address."""
    return private_dir(cache() / "archives") / hashlib.sha256(url.encode()).hexdigest()


def _verified(origin: Origin, archive: Archive, ring: bytes, fetch: Fetch, trust: Trust) -> Archive:
    """The archive with its hash, size and basis, its file in the cache; basis "" where nobody vouches for the hash."""
    file = kept(archive.url)
    fresh = not file.exists()
    if fresh:
        _download(origin, archive, fetch, trust)
    file.touch()
    expected, sources = trust.known.get(archive.url, ("", ()))
    expected = (trust.locked or {}).get(archive.url, "") or expected
    digest = _sha256(file)
    if not fresh and expected and digest != expected:  # damaged in the cache, or another one was locked since
        _download(origin, archive, fetch, trust)
        digest = _sha256(file)
    if archive.signature:
        digest = _check_signature(origin, archive, ring, fetch, trust, fresh=fresh)
    if expected and digest != expected:
        file.unlink()
        by = "the lock has" if archive.url in (trust.locked or {}) else f"{' and '.join(sources)} have"
        hint = "possible tampering; compare it with the vendor's documentation"
        if archive.url in (trust.locked or {}):
            hint = "the vendor has put another file there, or possible tampering: look for an announcement; "
            hint += f"`gpuprov lock --upgrade {trust.component}` takes the new one"
        raise origin.refuse(f"{archive.url} changed: SHA-256 {digest}, {by} {expected}", hint)
    basis = f"signed by {origin.repository.fingerprint}" if archive.signature else ""
    if not basis and digest in trust.confirmed:
        basis = "SHA-256 confirmed in cluster.yaml" + (f", also in {' and '.join(sources)}" if sources else "")
    if not basis and len(sources) > 1:
        basis = f"SHA-256 in {' and '.join(sources)}"
    return archive.model_copy(update={"sha256": digest, "size": file.stat().st_size, "basis": basis})


def _check_signature(
    origin: Origin, archive: Archive, ring: bytes, fetch: Fetch, trust: Trust, *, fresh: bool
) -> str:  # fmt: skip
    """The SHA-256 of a file that the vendor's key has signed. One that lay in the cache is fetched again where its
    signature no longer fits: the vendor may have made a new one under the same address."""
    answer = fetch.get(archive.signature, who=f"the signature of {origin.repository.name}", limit=KEY_LIMIT)
    if answer.status != 200:
        raise origin.refuse(
            f"no signature at {archive.signature}: HTTP {answer.status}",
            "nothing is used that is not signed; compare the version with the vendor's documentation",
        )

    def refuse(message: str, hint: str) -> GpuprovError:
        if "signed" in message:  # openpgp speaks of repositories
            hint = f"the file at {archive.signature} has to be a signature by {origin.repository.fingerprint}"
        return origin.refuse(f"{archive.url}: {message}", hint)

    file = kept(archive.url)
    try:
        openpgp.verify_file(ring, file, answer.body, origin.repository.fingerprint, refuse)
    except GpuprovError:
        if fresh:
            file.unlink(missing_ok=True)
            raise
        _download(origin, archive, fetch, trust)
        return _check_signature(origin, archive, ring, fetch, trust, fresh=True)
    return _sha256(file)


def _download(origin: Origin, archive: Archive, fetch: Fetch, trust: Trust) -> None:
    """Bring an archive into the cache, whole or not at all."""
    file = kept(archive.url)
    trust.say(f"fetching {archive.url}")
    handle, fresh = tempfile.mkstemp(dir=file.parent, prefix=".fetching-")
    try:
        with os.fdopen(handle, "w+b") as stream:
            answer = fetch.get(archive.url, who=f"archive {origin.repository.name}", limit=ARCHIVE_LIMIT, into=stream)
        if answer.status != 200:
            raise origin.refuse(
                f"no archive at {archive.url}: HTTP {answer.status}",
                "the vendor no longer has this version: choose another, or use a repository of your own "
                f"(stack.repositories.{origin.repository.name})",
            )
        Path(fresh).replace(file)
    finally:
        Path(fresh).unlink(missing_ok=True)


def _unconfirmed(origin: Origin, archives: list[Archive], trust: Trust) -> GpuprovError:
    """Files that nobody signs, and whose hashes fewer than two sources tell: the user compares them once."""
    told = []
    for archive in archives:
        _, sources = trust.known.get(archive.url, ("", ()))
        told.append(f"  {archive.sha256}  {archive.url} (told by: {', '.join(sources) or 'no source'})")
    hashes = ", ".join(archive.sha256 for archive in archives)
    return GpuprovError(
        "\n".join([f"repository {origin.repository.name}: its vendor signs nothing, and no two sources tell the "
                   "SHA-256 of what was fetched:", *told]),
        where=trust.where,
        hint="compare them once with the vendor's page or with a machine of yours, and write\n    stack:\n"
        f"      repositories:\n        {origin.repository.name}: {{ sha256: [{hashes}] }}",
    )  # fmt: skip


def _sha256(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _paragraphs(origin: Origin, archive: Archive) -> Iterator[tuple[str, str]]:
    """Each package of an archive for this distribution: its control paragraph, and the SHA-256 of its .deb."""
    file, seen, folders = kept(archive.url), 0, set()
    with tempfile.TemporaryDirectory(prefix="gpuprov-archive-") as scratch:
        at = Path(scratch) / "package.deb"
        try:
            for name, stream in _members(file, archive):
                folder = name.removeprefix("./")
                folders.add(f"{folder.rpartition('/')[0]}/")
                if not folder.startswith(archive.folder) or "/debug/" in f"/{folder}":
                    continue
                content = stream.read(PACKAGES_LIMIT)
                seen += 1
                if seen > MOST_PACKAGES:
                    raise origin.refuse(f"{archive.url} has more than {MOST_PACKAGES} packages", "compare its address")
                at.write_bytes(content)
                yield _run("dpkg-deb", "--field", str(at)).strip(), hashlib.sha256(content).hexdigest()
        except (OSError, EOFError, tarfile.TarError) as error:
            raise origin.refuse(f"{archive.url} cannot be opened: {error}",
                                "possible corrupt download: run `gpuprov lock` again") from None  # fmt: skip
    if not seen:
        there = ", ".join(sorted({f for f in folders if f.count("/") > 1})[:6]) or "no packages at all"
        raise origin.refuse(
            f"{archive.url} has no packages in {archive.folder or 'it'}; there: {there}",
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


@contextmanager
def _opened(file: Path, url: str) -> Iterator[tarfile.TarFile]:
    """An archive as a tar: it is one, or a .deb whose files are unpacked on the way."""
    if not re.search(r"\.deb$", url):
        with tarfile.open(file, "r|*") as tar:
            yield tar
        return
    with _process("dpkg-deb", "--fsys-tarfile", str(file)) as stream, tarfile.open(fileobj=stream, mode="r|") as tar:
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


def _field(paragraph: str, key: str) -> str:
    found = re.search(rf"^{key}:[ \t]*(\S+)", paragraph, re.MULTILINE | re.IGNORECASE)
    return found[1] if found else ""
