"""Packages out of vendors' archives: fetched once, verified by the vendor's signature or a known SHA-256, listed like a
repository.

An archive is kept in the cache under its address. Each lock hashes it again and verifies its signature again: a vendor
that puts another file under the same address is noticed.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from provisioner.common.errors import GpuprovError
from provisioner.common.paths import cache, private_dir
from provisioner.stack import openpgp, unpack
from provisioner.stack.fetch import Fetch
from provisioner.stack.index import KEY_LIMIT, Origin, sweep
from provisioner.stack.models import ARCHIVE_LIMIT, Archive, Repository


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
    unknown = [archive for archive in files.values() if not archive.basis]
    if unknown:
        raise _unconfirmed(origin, unknown, trust)
    paragraphs: dict[tuple[str, str], tuple[str, str]] = {}
    for archive in files.values():
        for paragraph, digest in unpack.paragraphs(origin, archive, kept(archive.url)):
            name, version = (unpack.field(paragraph, key) for key in ("Package", "Version"))
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
    expected = _expected(origin, archive, trust)
    file = kept(archive.url)
    fresh = not file.exists()
    if fresh:
        _download(origin, archive, fetch, trust)
    file.touch()
    digest = _sha256(file)
    if not fresh and any(
        digest != known_digest for known_digest, _, _ in expected
    ):  # damaged in the cache, or another one was locked since
        _download(origin, archive, fetch, trust)
        digest = _sha256(file)
    if archive.signature:
        digest = _check_signature(origin, archive, ring, fetch, trust, fresh=fresh)
    for known_digest, by, hint in expected:
        if digest != known_digest:
            file.unlink()
            raise origin.refuse(f"{archive.url} changed: SHA-256 {digest}, {by} {known_digest}", hint)
    sources = trust.known[archive.url][1] if archive.url in trust.known else ()  # their hash is this one
    basis = f"signed by {origin.repository.fingerprint}" if archive.signature else ""
    if not basis and digest in trust.confirmed:
        basis = "SHA-256 confirmed in cluster.yaml" + (f", also in {' and '.join(sources)}" if sources else "")
    if not basis and len(sources) > 1:
        basis = f"SHA-256 in {' and '.join(sources)}"
    return archive.model_copy(update={"sha256": digest, "size": file.stat().st_size, "basis": basis})


def _expected(origin: Origin, archive: Archive, trust: Trust) -> list[tuple[str, str, str]]:
    """Every SHA-256 that the file has to have: (hash, who has it, what to do where the file has another). Raises
    GpuprovError where the lock and the sources differ."""
    locked = (trust.locked or {}).get(archive.url, "")
    known, sources = trust.known.get(archive.url, ("", ()))
    sources_have, upgrade = f"{' and '.join(sources)} have", f"`gpuprov lock --upgrade {trust.component}`"
    if locked and known and locked != known:
        raise origin.refuse(
            f"{archive.url}: the lock has SHA-256 {locked}, {sources_have} {known}",
            f"possible tampering with cluster.lock: find out who changed it; {upgrade} locks the file anew",
        )
    hint = f"the vendor has put another file there, or possible tampering: look for an announcement; {upgrade} takes "
    return [
        *([(locked, "the lock has", f"{hint}the new one")] if locked else []),
        *([(known, sources_have, "possible tampering; compare it with the vendor's documentation")] if known else []),
    ]


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
    lines = []
    for archive in archives:
        _, sources = trust.known.get(archive.url, ("", ()))
        lines.append(f"  {archive.sha256}  {archive.url} (told by: {', '.join(sources) or 'no source'})")
    hashes = ", ".join(archive.sha256 for archive in archives)
    return GpuprovError(
        "\n".join([f"repository {origin.repository.name}: its vendor signs nothing, and no two sources tell the "
                   "SHA-256 of what was fetched:", *lines]),
        where=trust.where,
        hint="compare them once with the vendor's page or with a machine of yours, and write\n    stack:\n"
        f"      repositories:\n        {origin.repository.name}: {{ sha256: [{hashes}] }}",
    )  # fmt: skip


def _sha256(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
