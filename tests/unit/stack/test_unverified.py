"""What nobody has verified is refused: hashes that contradict each other, locks that were changed, archives that unpack
without end."""

from __future__ import annotations

import hashlib
import io
import tarfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from provisioner.common.errors import GpuprovError
from provisioner.stack import archives, lockfile, unpack
from provisioner.stack.index import Origin
from provisioner.stack.models import Archive, Repository
from tests.support.ansible_modules import module, shared

URL = "https://vendor.example.com/a.tar.gz"
LOCAL = "file:/var/lib/gpuprov/repositories/doca/"


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def origin(*doca_archives: Archive) -> Origin:
    return Origin(
        Repository(name="doca", uri=LOCAL, suite="/", components="", key_url="", fingerprint="", archives=doca_archives)
    )


class Vendor:
    def __init__(self, content: bytes) -> None:
        self.content = content

    def get(self, url: str, *, into: Any, **_: object) -> SimpleNamespace:
        into.write(self.content)
        return SimpleNamespace(status=200)


def verified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes, trust: archives.Trust) -> Archive:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    archive = Archive(url=URL, folder="debs/")
    return archives._verified(origin(archive), archive, b"", Vendor(content), trust)  # type: ignore[arg-type]


def test_a_locked_hash_that_differs_from_the_known_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = {URL: (digest(b"good"), ("A", "B"))}
    trust = archives.Trust(known=known, locked={URL: digest(b"evil")}, component="ofed")
    for served in (b"evil", b"good"):
        with pytest.raises(GpuprovError, match=r"the lock has SHA-256 .*, A and B have") as caught:
            verified(tmp_path, monkeypatch, served, trust)
        assert "gpuprov lock --upgrade ofed" in caught.value.hint
    trust = archives.Trust(known=known, locked={URL: digest(b"good")})
    assert verified(tmp_path, monkeypatch, b"good", trust).basis == "SHA-256 in A and B"
    assert not verified(tmp_path, monkeypatch, b"good", archives.Trust(known={}, locked=trust.locked)).basis


def tar(file: Path, **options: Any) -> Path:
    with tarfile.open(file, "w:gz", format=tarfile.PAX_FORMAT) as archive:
        for number in range(2):
            member = tarfile.TarInfo(f"debs/{number}.deb")
            member.size, member.pax_headers = 3000, options
            archive.addfile(member, io.BytesIO(b"0" * 3000))
    return file


def unpacked(file: Path) -> list[tuple[str, str]]:
    archive = Archive(url=URL, folder="debs/")
    return list(unpack.paragraphs(origin(archive), archive, file))


def test_the_sum_of_what_is_unpacked_has_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unpack, "_run", lambda *_: "Package: x")
    file = tar(tmp_path / "a.tar.gz")
    assert len(unpacked(file)) == 2
    monkeypatch.setattr(unpack, "CHUNK", 1000)
    monkeypatch.setattr(unpack, "PACKAGES_LIMIT", 5000)
    with pytest.raises(GpuprovError, match="MiB of packages"):
        unpacked(file)


def test_names_in_an_archive_have_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(GpuprovError, match="the header of a file has 2 MiB"):
        unpacked(tar(tmp_path / "a.tar.gz", comment="x" * (2 << 20)))


def test_a_node_trusts_no_other_address_than_its_own_folder() -> None:
    written = module("apt_repositories")
    row = {"name": "doca", "suite": "/", "components": "", "fingerprint": "", "archives": [{}]}
    local_uri = f"file:{shared('gpuprov_archive').ROOT}/doca/"
    assert "Trusted: yes" in written.source({**row, "uri": local_uri}, "")
    for uri in ("http://evil.example.com/", local_uri.replace("doca", "efa")):
        with pytest.raises(Exception, match="find out who changed it"):
            written.source({**row, "uri": uri}, "")


LOCK = Path(__file__).parent / "locks" / "before-archives.lock"
ARCHIVE = {"url": URL, "folder": "debs/", "sha256": "0" * 64, "size": 5}


def changed(changed_key: str, value: Any, archive: dict[str, Any] | None = None) -> str:
    """A lock with one value of its first group's first repository or package (repository.uri) changed."""
    lock = yaml.load(LOCK.read_text(), yaml.CSafeLoader) | {"simulated": False}
    stack = next(iter(lock["groups"].values()))
    if archive is not None:
        row = {"name": "doca", "uri": LOCAL, "suite": "/", "components": "", "key_url": "", "fingerprint": ""}
        stack["repositories"].insert(0, {**row, "archives": [archive]})
    kind, _, key = changed_key.partition(".")
    if kind:
        stack[{"repository": "repositories", "package": "packages"}[kind]][0][key] = value
    return yaml.dump(lock, Dumper=yaml.CSafeDumper)


def test_a_lock_with_archives_is_read() -> None:
    assert lockfile.parse(changed("", None, ARCHIVE), "cluster.lock")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (changed("repository.uri", "http://evil.example.com/", ARCHIVE), "a repository of archives is file:"),
        (changed("repository.uri", LOCAL.replace("doca", "efa"), ARCHIVE), "a repository of archives is file:"),
        (changed("repository.fingerprint", ""), "has no fingerprint"),
        (changed("package.repository", "nowhere"), "the lock has no repository nowhere"),
        (changed("package.repository", "doca", ARCHIVE), "has no SHA-256"),
        (changed("", None, {**ARCHIVE, "sha256": "0" * 63}), "SHA-256"),
        (changed("", None, {**ARCHIVE, "sha256": ""}), "the archive has no sha256"),
        (changed("", None, {**ARCHIVE, "size": 0}), "the archive has no size"),
        (changed("", None, {**ARCHIVE, "size": -1}), "greater than or equal to 0"),
        (changed("", None, {**ARCHIVE, "size": 5 << 30}), "less than or equal to"),
        *((changed("package.name", name), "name of a package") for name in ("curl-", "-o", "Curl", "a_b")),
        (changed("package.version", "1.0-"), "version of a package"),
    ],
)
def test_a_lock_that_gpuprov_did_not_write(text: str, message: str) -> None:
    with pytest.raises(GpuprovError, match="is not a lock that gpuprov wrote") as caught:
        lockfile.parse(text, "cluster.lock")
    assert message in caught.value.message and caught.value.where.startswith("cluster.lock:")


def test_names_that_debian_has() -> None:
    for name in ("g++", "libstdc++6", "7zip", "libc6.1"):
        assert lockfile.parse(changed("package.name", name), "cluster.lock")
