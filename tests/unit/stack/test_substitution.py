"""Somebody between a vendor and gpuprov, without the vendor's key: what was once signed is served in another place,
text stands around what is signed, and a registry sends other documents than those it named."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from provisioner.common.errors import GpuprovError
from provisioner.common.image_reference import parse
from provisioner.sandbox.keys import Keys, clearsign
from provisioner.sandbox.keys import keys as make_keys
from provisioner.stack import index, registry
from provisioner.stack.fetch import Fetch
from provisioner.stack.index import Origin
from provisioner.stack.models import Repository
from tests.support.vendors import Reply, Vendors, deb

EVIL = "Package: tool\nVersion: 6.6.6\nArchitecture: amd64\nFilename: evil.deb\nSize: 1\nSHA256: " + "6" * 64 + "\n"


@pytest.fixture
def noble(vendors: Vendors, keys: Keys) -> Repository:
    return vendors.publish("acme-noble", [deb("tool", "2.0")], keys, suite="noble", components="main")


def read(repository: Repository) -> str:
    return "".join(index.read(Origin(repository), Fetch(deadline_s=20, pause_s=0.01)))


def evil_list(folder: Path) -> str:
    """Put a list of the attacker's beside the real ones; a row of Release for it."""
    packed = gzip.compress(EVIL.encode())
    (folder / "Packages.gz").write_bytes(packed)
    (folder / "Packages").write_text(EVIL)
    return f"SHA256:\n {hashlib.sha256(packed).hexdigest()} {len(packed)} main/binary-amd64/Packages.gz\n"


def test_a_release_of_another_suite_is_not_this_one(noble: Repository, vendors: Vendors, keys: Keys) -> None:
    """One key signs all suites of a vendor: the older one's whole folder is served in place of the new one."""
    vendors.publish("acme-jammy", [deb("tool", "1.0")], keys, suite="jammy", components="main")
    (vendors.root / "acme-noble" / "dists" / "noble").rename(vendors.root / "away")
    (vendors.root / "acme-jammy" / "dists" / "jammy").rename(vendors.root / "acme-noble" / "dists" / "noble")
    with pytest.raises(GpuprovError, match="is of suite jammy, not noble"):
        read(noble)


@pytest.mark.parametrize(
    ("fields", "suite"),
    [
        ("Suite: noble", "noble"), ("Codename: noble", "noble"), ("Suite: stable\nCodename: noble", "stable"),
        ("Suite: noble-updates\nCodename: noble", "noble-updates"), ("Origin: acme", "noble"),
        ("Suite: stable-security\nCodename: bookworm-security", "bookworm-security"),
        ("Suite: noble\nCodename: noble", "noble/9.3"), ("Suite: stable", "stable/debian"),
    ],
)  # fmt: skip
def test_suites_as_vendors_write_them(fields: str, suite: str, noble: Repository) -> None:
    def refuse(message: str, hint: str) -> GpuprovError:
        return GpuprovError(message, hint=hint)

    text = f"{fields}\nSHA256:\n {'a' * 64} 5 Packages\n"
    assert index._parsed(text, refuse, suite).files


Attack = Callable[[Path, str], None]


def _appended(folder: Path, text: str) -> None:
    (folder / "InRelease").write_text(text + evil_list(folder / "main/binary-amd64"))


def _two_messages(folder: Path, text: str) -> None:
    (folder / "InRelease").write_text(text + text.replace("SHA256:\n", evil_list(folder / "main/binary-amd64")))


def _in_the_armor_header(folder: Path, text: str) -> None:
    row = evil_list(folder / "main/binary-amd64").replace("\n", " ")
    (folder / "InRelease").write_text(text.replace("Hash: SHA512\n", f"Hash: SHA512\nComment: {row}\n"))


def _before_the_signature(folder: Path, text: str) -> None:
    row = evil_list(folder / "main/binary-amd64")
    (folder / "InRelease").write_text(text.replace("-----BEGIN PGP SIGNATURE", f"{row}-----BEGIN PGP SIGNATURE"))


def _in_dash_escapes(folder: Path, text: str) -> None:
    row = evil_list(folder / "main/binary-amd64").replace("SHA256", "- SHA256")
    (folder / "InRelease").write_text(text.replace("\n\n", f"\n\n{row}", 1))


def _release_beside_its_old_signature(folder: Path, text: str) -> None:
    (folder / "InRelease").unlink()
    row = evil_list(folder / "main/binary-amd64")
    (folder / "Release").write_text((folder / "Release").read_text().replace("SHA256:\n", row))


def _empty_signature(folder: Path, text: str) -> None:
    (folder / "InRelease").unlink()
    evil_list(folder / "main/binary-amd64")
    (folder / "Release.gpg").write_bytes(b"")


@pytest.mark.parametrize(
    "attack",
    [_appended, _two_messages, _in_the_armor_header, _before_the_signature, _in_dash_escapes,
     _release_beside_its_old_signature, _empty_signature],
)  # fmt: skip
def test_nothing_that_is_not_signed_is_read(attack: Attack, noble: Repository, vendors: Vendors) -> None:
    folder = vendors.root / "acme-noble" / "dists" / "noble"
    attack(folder, (folder / "InRelease").read_text())
    try:
        assert "6.6.6" not in read(noble)
    except GpuprovError as error:
        assert "acme-noble" in str(error)


def test_a_key_file_with_the_attackers_key_beside_the_vendors(
    noble: Repository, vendors: Vendors, keys: Keys, tmp_path: Path
) -> None:
    other = make_keys(tmp_path / "other")
    folder = vendors.root / "acme-noble" / "dists" / "noble"
    row = evil_list(folder / "main/binary-amd64")
    text = (folder / "Release").read_text().replace("SHA256:\n", row)
    (folder / "InRelease").write_text(clearsign(other, text)[0])
    for content in (other.public, keys.public + other.public, other.public + keys.public):
        (vendors.root / "acme-noble.asc").write_text(content)
        with pytest.raises(GpuprovError, match=r"signing key mismatch|signed by another key"):
            read(noble)


def names(vendors: Vendors) -> registry.Name:
    return parse(f"127.0.0.1:{vendors.port}/acme/train:1")


def registries() -> registry.Registries:
    return registry.Registries(Fetch(deadline_s=10, pause_s=0.01))


@pytest.mark.parametrize("kind", ["index", "manifest", "config"])
def test_a_document_is_what_its_digest_says(kind: str, vendors: Vendors) -> None:
    digest = vendors.image("acme/train", "1", env=["PYTORCH_VERSION=2.9"])
    index_ = json.loads(vendors.manifests["acme/train", digest])
    manifest = index_["manifests"][1]["digest"]
    config = json.loads(vendors.manifests["acme/train", manifest])["config"]["digest"]
    swapped = {"index": digest, "manifest": manifest, "config": config}[kind]
    vendors.manifests["acme/train", swapped] = json.dumps(
        {"architecture": "amd64", "config": {"Env": ["PYTORCH_VERSION=6.6"]}, "schemaVersion": 2, "manifests": []}
    ).encode()
    with pytest.raises(GpuprovError, match="digest mismatch"):
        registries().facts(names(vendors), digest)


def test_the_known_digest_is_of_what_was_fetched_then(vendors: Vendors) -> None:
    """A registry that says that a tag is still what it was can only keep gpuprov at what it has verified before."""
    digest = vendors.image("acme/train", "1")
    vendors.said_digest = "sha256:" + "0" * 64
    with pytest.raises(GpuprovError, match="digest mismatch"):
        registries().digest(names(vendors), known=digest)


def test_an_account_goes_to_no_other_host(vendors: Vendors, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a redirect of the manifest, and by a realm of this computer that a registry elsewhere names."""
    account = base64.b64encode(b"me:secret").decode()
    (tmp_path / "docker").mkdir(exist_ok=True)
    host = f"127.0.0.1:{vendors.port}"
    accounts = {name: {"auth": account} for name in (host, "r.example")}
    (tmp_path / "docker" / "config.json").write_text(json.dumps({"auths": accounts}))
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker"))
    path = "/v2/acme/train/manifests/1"
    vendors.replies[path] += [
        Reply(401, {"WWW-Authenticate": 'Basic realm="acme"'}),
        Reply(302, {"Location": f"http://localhost:{vendors.port}/elsewhere"}),
    ]
    with pytest.raises(GpuprovError):
        registries().digest(names(vendors))
    assert [(request_path, bool(secret)) for _, request_path, secret in vendors.seen] == [
        (path, False), (path, True), ("/elsewhere", False),
    ]  # fmt: skip
    vendors.seen.clear()
    challenge = fetch_answer(f'Bearer realm="http://127.0.0.1:{vendors.port}/token",service="x"')
    with pytest.raises(GpuprovError, match="without TLS"):
        registries()._authorise(parse("r.example/acme/train:1"), challenge)
    assert vendors.seen == []


def fetch_answer(challenge: str) -> registry.Answer:
    return registry.Answer(401, {"www-authenticate": challenge}, b"")
