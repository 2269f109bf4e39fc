"""A repository's list of packages, verified link by link: fingerprint → key → signed Release → size and SHA-256 of the
list. Nothing of it is used before the link above it holds.

The list is kept in the cache under its SHA-256 and is compared with a fresh, verified Release each time, so a second
lock reads a few kilobytes.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import lzma
import re
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any

from provisioner.common.errors import GpuprovError
from provisioner.common.paths import cache, private_dir, write_whole
from provisioner.stack import openpgp
from provisioner.stack.fetch import Answer, Fetch
from provisioner.stack.models import Repository

ARCHITECTURE = "amd64"
KEY_LIMIT = 1 << 20
RELEASE_LIMIT = 16 << 20
LIST_LIMIT = 512 << 20
"""Bytes that a list may have, packed or unpacked; Debian's own main has 50 MB."""
KEPT_DAYS = 90
"""Days after which a list that nobody asked for is swept out of the cache."""
FUTURE = 3600
"""Seconds by which a Release may be newer than this machine's clock."""


@dataclass(frozen=True, slots=True)
class Origin:
    """A repository of the lock, and where cluster.yaml names it ("" where the vendor's is taken). `key`: what its key
    file holds, where that is a file of the user's."""

    repository: Repository
    where: str = ""
    key: bytes | None = None

    def refuse(self, message: str, hint: str = "") -> GpuprovError:
        """The error that names this repository."""
        return GpuprovError(f"repository {self.who}: {message}", where=self.where, hint=hint)

    @property
    def who(self) -> str:
        return f"{self.repository.name} ({self.repository.uri})"


def read(origin: Origin, fetch: Fetch) -> tuple[str, ...]:
    """The texts of its package lists, one for each suite and component. Raises GpuprovError naming the repository."""
    repository = origin.repository
    key = origin.key if origin.key is not None else _key(origin, fetch)
    ring = openpgp.keyring(key, repository.fingerprint, origin.refuse, source=repository.key_url or "its signing key")
    folder = private_dir(cache() / "indexes")
    sweep(folder)
    texts = []
    for suite in repository.suite.split():
        base, component_paths = _layout(repository, suite)
        release = _release(origin, fetch, base, ring, suite)
        for component_path in component_paths:
            texts.append(_list(origin, fetch, base, component_path, release, folder))
    return tuple(texts)


@dataclass(frozen=True, slots=True)
class _Release:
    """What a verified Release says: file → (SHA-256, bytes), and whether files lie under their hash too."""

    files: dict[str, tuple[str, int]]
    by_hash: bool
    made: datetime | None = None


def _key(origin: Origin, fetch: Fetch) -> bytes:
    url = origin.repository.key_url
    answer = fetch.get(url, who=f"the key of repository {origin.repository.name}", limit=KEY_LIMIT)
    if answer.status != 200:
        raise origin.refuse(
            f"could not download signing key {url}: HTTP {answer.status}",
            "find its current address in the vendor's documentation",
        )
    return answer.body


def _layout(repository: Repository, suite: str) -> tuple[str, list[str]]:
    """The folder of Release, and the folders of package lists below it."""
    root = repository.uri.rstrip("/")
    if suite.endswith("/"):
        inner = suite.strip("/")
        return (f"{root}/{inner}/" if inner not in ("", ".") else f"{root}/"), [""]
    components = repository.components.split() or ["main"]
    return f"{root}/dists/{suite}/", [f"{component}/binary-{ARCHITECTURE}/" for component in components]


def _release(origin: Origin, fetch: Fetch, base: str, ring: bytes, suite: str) -> _Release:
    refuse = partial(_about, origin, base)
    check = partial(openpgp.verified, ring, fingerprint=origin.repository.fingerprint, refuse=refuse)
    inline = _file(origin, fetch, f"{base}InRelease", RELEASE_LIMIT)
    if inline.status == 200:
        text = check(signed=inline.body)
    else:
        plain = _file(origin, fetch, f"{base}Release", RELEASE_LIMIT)
        if plain.status != 200:
            answers = f"InRelease: HTTP {inline.status}, Release: HTTP {plain.status}"
            raise origin.refuse(f"no repository at {base}: {answers}",
                                "compare its address and suite with the vendor's documentation")  # fmt: skip
        signature = _file(origin, fetch, f"{base}Release.gpg", KEY_LIMIT)
        if signature.status != 200:
            raise refuse("not signed", "a repository needs InRelease, or Release with Release.gpg")
        text = check(signed=plain.body, detached=signature.body)
    release = _parsed(text.decode("utf-8", errors="replace"), refuse, suite)
    _refuse_older(base, origin.repository.fingerprint, release, refuse)
    return release


def _refuse_older(base: str, fingerprint: str, release: _Release, refuse: openpgp.Refuse) -> None:
    """An attacker in the network can replay an old Release to hide newer packages: most have no Valid-Until date. So
    the newest that this machine has seen is remembered in the cache."""
    if release.made is None:
        return
    which = hashlib.sha256(f"{fingerprint} {base}".encode()).hexdigest()
    file = private_dir(cache() / "releases") / which
    last_made = None
    with contextlib.suppress(OSError, ValueError):
        last_made = datetime.fromisoformat(file.read_text(encoding="ascii")).astimezone(UTC)
    if last_made is not None and release.made < last_made:
        raise refuse(
            f"older than before: made on {release.made:%Y-%m-%d %H:%M} UTC, this machine has already seen the one of "
            f"{last_made:%Y-%m-%d %H:%M}",
            "the mirror is behind (run `gpuprov lock` again in some minutes), or it is a replay of old packages; if "
            f"the vendor really went back, remove {file}",
        )
    write_whole(file, release.made.isoformat())


def _about(origin: Origin, base: str, message: str, hint: str) -> GpuprovError:
    return origin.refuse(f"{base}InRelease: {message}", hint)


def _file(origin: Origin, fetch: Fetch, url: str, limit: int) -> Answer:
    return fetch.get(url, who=f"repository {origin.repository.name}", limit=limit)


def _parsed(text: str, refuse: openpgp.Refuse, suite: str) -> _Release:
    """Check suite and dates of a Release that was verified, and read its hashes."""
    from debian_inspector.debcon import get_paragraph_data

    fields = get_paragraph_data(text.strip() + "\n")
    names = {fields[key] for key in ("suite", "codename") if fields.get(key)}
    if names and not suite.endswith("/") and not names & {suite, suite.partition("/")[0], suite.partition("-")[0]}:
        # One key signs all suites of a vendor: apt warns of "Conflicting distribution" here.
        raise refuse(f"it is of suite {', '.join(sorted(names))[:100]}, not {suite}",
                     "possible tampering, or a wrong mirror: compare with the vendor's own address")  # fmt: skip
    current_time = datetime.now(UTC)
    until = _moment(fields.get("valid-until"), refuse)
    if until is not None and until < current_time:
        raise refuse(f"expired: valid until {until:%Y-%m-%d %H:%M} UTC, this machine's clock says "
                     f"{current_time:%Y-%m-%d %H:%M}",
                     "the mirror is no longer updated, or this machine's clock is wrong")  # fmt: skip
    made_at = _moment(fields.get("date"), refuse)
    if made_at is not None and (made_at - current_time).total_seconds() > FUTURE:
        raise refuse(
            f"made in the future, on {made_at:%Y-%m-%d %H:%M} UTC; this machine's clock says "
            f"{current_time:%Y-%m-%d %H:%M}",
            "set this machine's clock",
        )
    rows = re.findall(
        r"^[ \t]*([0-9a-fA-F]{64})[ \t]+(\d{1,15})[ \t]+(\S+)[ \t]*$", fields.get("sha256", ""), re.MULTILINE
    )
    if not rows:
        raise refuse("no SHA-256 checksums", "an old repository format: gpuprov does not accept weaker hashes")
    return _Release({name: (digest.lower(), int(size)) for digest, size, name in rows},
                    fields.get("acquire-by-hash", "").lower() == "yes", made_at)  # fmt: skip


def _moment(value: str | None, refuse: openpgp.Refuse) -> datetime | None:
    if value is None:
        return None
    try:
        moment = parsedate_to_datetime(value)
    except (ValueError, TypeError, IndexError, OverflowError):
        raise refuse(f"{value[:60]!r} is not a date", "the repository has to write it as in RFC 5322") from None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _list(origin: Origin, fetch: Fetch, base: str, component_path: str, release: _Release, folder: Path) -> str:
    """A list of packages as text: out of the cache where the Release still names that file, else fetched."""
    offered = [name for kind in (".xz", ".gz", "") if (name := f"{component_path}Packages{kind}") in release.files]
    if not offered:
        raise origin.refuse(
            f"{base}InRelease lists no {component_path}Packages",
            f"the repository has no packages for {ARCHITECTURE} there",
        )
    for name in offered:
        digest, size = release.files[name]
        cached_file = folder / digest
        with contextlib.suppress(OSError):
            packed = cached_file.read_bytes()
            if len(packed) == size and hashlib.sha256(packed).hexdigest() == digest:
                cached_file.touch()
                return _unpacked(origin, name, packed)
    for name in offered:
        digest, size = release.files[name]
        if size > LIST_LIMIT:
            raise origin.refuse(f"{base}{name} has {size} bytes, more than {LIST_LIMIT}", "take a smaller repository")
        content = _fetched(origin, fetch, base, name, release)
        if content is None:
            continue
        actual_digest = hashlib.sha256(content).hexdigest()
        if (len(content), actual_digest) != (size, digest):
            raise origin.refuse(
                f"{base}{name} does not match its signed Release: {len(content)} of {size} bytes, SHA-256 "
                f"{actual_digest[:16]}…, expected {digest[:16]}…",
                "the repository is being updated (run `gpuprov lock` again in some minutes), or possible tampering",
            )
        text = _unpacked(origin, name, content)
        write_whole(folder / digest, content)
        return text
    raise origin.refuse(f"{base}{offered[0]} is missing, though its Release lists it",
                        "the repository is being updated or incomplete: run `gpuprov lock` again later")  # fmt: skip


def _fetched(origin: Origin, fetch: Fetch, base: str, name: str, release: _Release) -> bytes | None:
    """The file's bytes, not yet checked; None where it is not there."""
    digest, size = release.files[name]
    urls = [f"{base}{name.rpartition('Packages')[0]}by-hash/SHA256/{digest}"] if release.by_hash else []
    for url in (*urls, f"{base}{name}"):
        answer = _file(origin, fetch, url, max(size, KEY_LIMIT))
        if answer.status == 200:
            return answer.body
    return None


def _unpacked(origin: Origin, name: str, packed: bytes) -> str:
    try:
        return b"".join(_pieces(name, packed)).decode("utf-8", errors="replace")
    except (OSError, EOFError, lzma.LZMAError, zlib.error) as error:
        raise origin.refuse(
            f"{name} cannot be decompressed ({error})", "corrupt in the repository; report it to its maintainer"
        ) from None
    except OverflowError:
        raise origin.refuse(f"{name} unpacks to more than {LIST_LIMIT} bytes", "take a smaller repository") from None


def _pieces(name: str, packed: bytes) -> Iterator[bytes]:
    kinds: dict[str, Callable[[BytesIO], Any]] = {".xz": lzma.LZMAFile, ".gz": _gzip, "": _plain}
    unpack = kinds[Path(name).suffix]
    size = 0
    with unpack(BytesIO(packed)) as stream:
        while piece := stream.read(1 << 20):
            size += len(piece)
            if size > LIST_LIMIT:
                raise OverflowError
            yield piece


def _gzip(packed: BytesIO) -> gzip.GzipFile:
    return gzip.GzipFile(fileobj=packed)


def _plain(unpacked: BytesIO) -> BytesIO:
    return unpacked


def sweep(folder: Path) -> None:
    """Remove what nobody has asked for in KEPT_DAYS."""
    for file in folder.iterdir():
        with contextlib.suppress(OSError):
            if time.time() - file.stat().st_mtime > KEPT_DAYS * 86400:
                file.unlink()
