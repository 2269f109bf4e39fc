"""A repository's list: what is read of it, and all that makes it untrustworthy, each by its own injected fault."""

from __future__ import annotations

import gzip
import hashlib
import lzma
import os
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from provisioner.common.errors import GpuprovError
from provisioner.sandbox.keys import Keys, clearsign, gpg_home
from provisioner.sandbox.keys import keys as make_keys
from provisioner.stack import index, openpgp
from provisioner.stack.fetch import Fetch
from provisioner.stack.index import Origin
from provisioner.stack.models import Repository
from tests.support.vendors import Reply, Vendors, deb


@pytest.fixture
def flat(vendors: Vendors, keys: Keys) -> Repository:
    """What conftest.py publishes: two versions of a package `tool`."""
    return Repository(
        name="acme",
        uri=f"{vendors.url}/acme/",
        suite="/",
        components="",
        key_url=f"{vendors.url}/acme.asc",
        fingerprint=keys.fingerprint,
    )


def patient(seconds: float = 20) -> Fetch:
    return Fetch(deadline_s=seconds, pause_s=0.01)


def read(repository: Repository, seconds: float = 20) -> str:
    return "".join(index.read(Origin(repository), patient(seconds)))


def refused(repository: Repository, seconds: float = 20) -> str:
    with pytest.raises(GpuprovError) as caught:
        read(repository, seconds)
    assert "acme" in str(caught.value)
    assert caught.value.hint
    return str(caught.value)


def test_a_flat_repository(flat: Repository) -> None:
    assert read(flat).count("Package: tool\n") == 2


@pytest.mark.parametrize("suite", ["sub/", "./", "/"])
def test_flat_suites(suite: str, vendors: Vendors, keys: Keys) -> None:
    assert "Package: tool" in read(vendors.publish(f"acme-{len(suite)}", [deb("tool", "1")], keys, suite=suite))


def test_suites_with_components(vendors: Vendors, keys: Keys) -> None:
    published = vendors.publish("acme-noble", [deb("tool", "1")], keys, suite="noble", components="main extra")
    assert len(index.read(Origin(published), patient())) == 2
    assert read(published.model_copy(update={"components": "extra"})).count("Package: tool") == 1


@pytest.mark.parametrize("kinds", [(".xz",), (".gz",), ("",), (".xz", ".gz", "")])
def test_every_kind_of_list(kinds: tuple[str, ...], flat: Repository, vendors: Vendors, keys: Keys) -> None:
    folder = vendors.root / "acme"
    plain = (folder / "Packages").read_bytes()
    for name in ("Packages", "Packages.gz"):
        (folder / name).unlink()
    files = {f"Packages{k}": {".xz": lzma.compress, ".gz": gzip.compress}.get(k, bytes)(plain) for k in kinds}
    for name, content in files.items():
        (folder / name).write_bytes(content)
    rows = "".join(f" {hashlib.sha256(c).hexdigest()} {len(c)} {n}\n" for n, c in files.items())
    head = (folder / "Release").read_text().partition("SHA256:")[0]
    (folder / "Release").write_text(f"{head}SHA256:\n{rows}")
    vendors.sign_again(folder, keys)
    assert read(flat).count("Package: tool\n") == 2


def test_lists_under_their_hash(flat: Repository, vendors: Vendors, keys: Keys) -> None:
    folder = vendors.root / "acme"
    vendors.sign_again(folder, keys, "Suite:", "Acquire-By-Hash: yes\nSuite:")
    packed = (folder / "Packages.gz").read_bytes()
    (folder / "by-hash/SHA256").mkdir(parents=True)
    (folder / "by-hash/SHA256" / hashlib.sha256(packed).hexdigest()).write_bytes(packed)
    (folder / "Packages.gz").unlink()
    assert "Package: tool" in read(flat)


def test_a_detached_signature_will_do(flat: Repository, vendors: Vendors) -> None:
    (vendors.root / "acme" / "InRelease").unlink()
    assert "Package: tool" in read(flat)


def test_what_stands_around_the_signed_text_is_not_read(flat: Repository, vendors: Vendors) -> None:
    file = vendors.root / "acme" / "InRelease"
    file.write_text("Valid-Until: Mon, 01 Jan 2001 00:00:00 UTC\n" + file.read_text())
    assert "not signed" in refused(flat)


Break = Callable[[Vendors, Path, Keys], None]


def _other_key(vendors: Vendors, folder: Path, keys: Keys) -> None:
    other = make_keys(folder.parent.parent / "other-keys")
    (folder.parent / "acme.asc").write_text(other.public)


def _two_keys(vendors: Vendors, folder: Path, keys: Keys) -> None:
    other = make_keys(folder.parent.parent / "other-keys")
    (folder.parent / "acme.asc").write_text(keys.public + other.public)


def _other_signer(vendors: Vendors, folder: Path, keys: Keys) -> None:
    vendors.sign_again(folder, make_keys(folder.parent.parent / "other-keys"))


def _tampered(vendors: Vendors, folder: Path, keys: Keys) -> None:
    file = folder / "InRelease"
    file.write_text(file.read_text().replace("gpuprov sandbox\n", "gpuprov sandbax\n", 1))


def _unsigned(vendors: Vendors, folder: Path, keys: Keys) -> None:
    (folder / "InRelease").unlink()
    (folder / "Release.gpg").unlink()


def _not_clearsigned(vendors: Vendors, folder: Path, keys: Keys) -> None:
    (folder / "InRelease").write_bytes((folder / "Release").read_bytes())


def _twice(vendors: Vendors, folder: Path, keys: Keys) -> None:
    file = folder / "InRelease"
    file.write_text(file.read_text() * 2)


def _other_list(vendors: Vendors, folder: Path, keys: Keys) -> None:
    (folder / "Packages.gz").write_bytes(gzip.compress(b"Package: tool\nVersion: 9\n"))


def _same_size(vendors: Vendors, folder: Path, keys: Keys) -> None:
    packed = (folder / "Packages.gz").read_bytes()
    (folder / "Packages.gz").write_bytes(packed[:-1] + bytes([packed[-1] ^ 1]))


def _no_list(vendors: Vendors, folder: Path, keys: Keys) -> None:
    for name in ("Packages", "Packages.gz"):
        (folder / name).unlink()


def _longer(vendors: Vendors, folder: Path, keys: Keys) -> None:
    (folder / "InRelease").write_bytes(b"x" * (index.RELEASE_LIMIT + 1))


def _signed(old: str, new: str) -> Break:
    return lambda vendors, folder, keys: vendors.sign_again(folder, keys, old, new)


def _broken_list(vendors: Vendors, folder: Path, keys: Keys) -> None:
    content = b"\x1f\x8b this is no gzip"
    (folder / "Packages.gz").write_bytes(content)
    lines = (folder / "Release").read_text().splitlines(keepends=True)
    row = f" {hashlib.sha256(content).hexdigest()} {len(content)} Packages.gz\n"
    (folder / "Release").write_text("".join(row if line.endswith(" Packages.gz\n") else line for line in lines))
    vendors.sign_again(folder, keys)


BROKEN: list[tuple[Break, str, str]] = [
    (_other_key, "signing key mismatch: expected fingerprint ", "tampered"),
    (_two_keys, ", got ", "announcement"),
    (lambda v, f, k: (f.parent / "acme.asc").unlink(), "could not download signing key", "vendor"),
    (lambda v, f, k: (f.parent / "acme.asc").write_text("<html>") and None, "is not an OpenPGP public key", "vendor"),
    (_other_signer, "signed by another key: ", "compare the key"),
    (_tampered, "bad signature", "possible tampering or corrupt download"),
    (_unsigned, "not signed", "InRelease"),
    (_not_clearsigned, "it is not signed (it begins with '", "InRelease"),
    (_twice, "it is not signed (it holds several signed texts)", "InRelease"),
    (lambda v, f, k: (f / "InRelease").write_text("\n") and None, "it is not signed (it is empty)", "InRelease"),
    (_signed("Suite:", "Valid-Until: Mon, 01 Jan 2024 00:00:00 UTC\nSuite:"), "valid until 2024-01-01", "clock"),
    (_signed("Date: Sun, 13 Sep 2020", "Date: Sun, 13 Sep 2099"), "made in the future, on 2099-09-13", "clock"),
    (_signed("Date: Sun, 13", "Date: Someday, 33"), "is not a date", "RFC 5322"),
    (_signed("SHA256:", "MD5Sum:"), "no SHA-256 checksums", "weaker"),
    (_signed("Packages", "Sources"), "lists no Packages", "amd64"),
    (_other_list, "does not match its signed Release", "being updated"),
    (_same_size, "does not match its signed Release", "tampering"),
    (_no_list, "is missing, though its Release lists it", "incomplete"),
    (_longer, "larger than the limit", "can reach the URL"),
    (_broken_list, "cannot be decompressed", "maintainer"),
    (lambda v, f, k: v.replies["/acme/InRelease"].append(Reply(302, {"Location": "/acme/InRelease"})) or
     v.replies["/acme/InRelease"].extend([Reply(302, {"Location": "/acme/InRelease"})] * 20), "redirect", "can reach"),
]  # fmt: skip


@pytest.mark.parametrize(("broken", "cause", "right"), BROKEN, ids=[b[1][:40] for b in BROKEN])
def test_what_is_not_trusted(
    broken: Break, cause: str, right: str, flat: Repository, vendors: Vendors, keys: Keys
) -> None:
    broken(vendors, vendors.root / "acme", keys)
    message = refused(flat, seconds=2)
    assert cause in message
    assert right in message
    assert not list((Path(os.environ["XDG_CACHE_HOME"]) / "gpuprov").rglob("*-*"))


def test_a_trusted_list_in_the_cache_does_not_help_an_untrusted_release(
    flat: Repository, vendors: Vendors, keys: Keys
) -> None:
    read(flat)
    _tampered(vendors, vendors.root / "acme", keys)
    assert "bad signature" in refused(flat)


def test_an_older_release_than_one_that_was_seen_is_refused(flat: Repository, vendors: Vendors, keys: Keys) -> None:
    """The signature of an old one stays good: who stands between keeps newer packages back with it."""
    folder = vendors.root / "acme"
    old = {name: (folder / name).read_bytes() for name in ("Release", "InRelease", "Release.gpg")}
    vendors.sign_again(folder, keys, "Date: Sun, 13 Sep 2020 12:26:40 GMT", "Date: Mon, 14 Sep 2020 00:00:00 GMT")
    read(flat)
    for name, content in old.items():
        (folder / name).write_bytes(content)
    assert (
        "older than before: made on 2020-09-13 12:26 UTC, this machine has already seen the one of 2020-09-14 00:00"
        in refused(flat)
    )
    assert "made on 2020-09-13" in refused(flat)  # nor is it forgotten
    vendors.sign_again(folder, keys, "Date: Sun, 13 Sep 2020 12:26:40 GMT", "Date: Tue, 15 Sep 2020 00:00:00 GMT")
    read(flat)


def aged(folder: Path, at: str, *generate: str) -> Keys:
    """A key that was made on a day of the past. `generate`: algorithm, usage, how long it is valid."""
    with gpg_home() as gpg:
        faked = (*gpg, "--faked-system-time", at)

        def tool(*arguments: str) -> str:
            return subprocess.run([*faked, *arguments], check=True, capture_output=True, text=True, timeout=60).stdout

        tool("--passphrase", "", "--quick-generate-key", "old <old@example.com>", *generate)
        listing = tool("--with-colons", "--list-keys")
        fingerprint = next(line.split(":")[9] for line in listing.splitlines() if line.startswith("fpr:"))
        (folder / "text").write_text((folder / "Release").read_text())
        tool(
            "--output",
            str(folder / "InRelease"),
            "--yes",
            "--default-sig-expire",
            "5d",
            "--clearsign",
            str(folder / "text"),
        )
        return Keys(tool("--armor", "--export"), "", fingerprint, "", "", "")


def test_a_key_that_expired(flat: Repository, vendors: Vendors, keys: Keys) -> None:
    old = aged(vendors.root / "acme", "20200101T000000", "ed25519", "sign", "10d")
    (vendors.root / "acme.asc").write_text(old.public)
    message = refused(flat.model_copy(update={"fingerprint": old.fingerprint}))
    assert f"its signing key {old.fingerprint} expired on 2020-01-11" in message


def test_a_signature_that_expired(flat: Repository, vendors: Vendors, keys: Keys) -> None:
    old = aged(vendors.root / "acme", "20200101T000000", "ed25519", "sign", "never")
    (vendors.root / "acme.asc").write_text(old.public)
    message = refused(flat.model_copy(update={"fingerprint": old.fingerprint}))
    assert "its signature expired on 2020-01-06" in message


def test_a_key_that_was_revoked(flat: Repository, vendors: Vendors) -> None:
    with gpg_home() as gpg:
        generate_command = [
            *gpg,
            "--passphrase",
            "",
            "--quick-generate-key",
            "old <old@example.com>",
            "ed25519",
            "sign",
            "never",
        ]
        subprocess.run(generate_command, check=True, capture_output=True, timeout=60)
        (certificate,) = Path(gpg[2]).glob("openpgp-revocs.d/*.rev")
        ready = certificate.read_text().replace(":-----BEGIN", "-----BEGIN")
        subprocess.run([*gpg, "--import"], input=ready, text=True, check=True, capture_output=True, timeout=60)
        (vendors.root / "acme.asc").write_bytes(subprocess.check_output([*gpg, "--armor", "--export"], timeout=60))
    message = refused(flat.model_copy(update={"fingerprint": certificate.stem}))
    assert f"its signing key {certificate.stem} is revoked" in message


def test_a_signature_over_a_hash_that_can_be_forged(flat: Repository, vendors: Vendors) -> None:
    folder = vendors.root / "acme"
    with gpg_home() as gpg:
        generate_command = [
            *gpg,
            "--passphrase",
            "",
            "--quick-generate-key",
            "old <old@example.com>",
            "rsa2048",
            "sign",
            "never",
        ]
        subprocess.run(generate_command, check=True, capture_output=True, timeout=60)
        listing = subprocess.check_output([*gpg, "--with-colons", "--list-keys"], text=True, timeout=60)
        fingerprint = next(line.split(":")[9] for line in listing.splitlines() if line.startswith("fpr:"))
        (vendors.root / "acme.asc").write_bytes(subprocess.check_output([*gpg, "--armor", "--export"], timeout=60))
        signed = [*gpg, "--digest-algo", "SHA1", "--yes", "--output", str(folder / "InRelease"), "--clearsign"]
        subprocess.run([*signed, str(folder / "Release")], check=True, capture_output=True, timeout=60)
    message = refused(flat.model_copy(update={"fingerprint": fingerprint}))
    assert "gpgv does not accept its algorithm" in message


def test_a_good_signature_of_another_key_is_none(vendors: Vendors, keys: Keys, tmp_path: Path) -> None:
    """Even where a keyring held more than the one key."""
    other = make_keys(tmp_path / "other")

    def refuse(message: str, hint: str) -> GpuprovError:
        return GpuprovError(message, hint=hint)

    ring = openpgp.keyring(other.public.encode(), other.fingerprint, refuse)
    signed = clearsign(other, "text\n")[0].encode()
    assert openpgp.verified(ring, signed, other.fingerprint, refuse) == b"text\n"
    with pytest.raises(GpuprovError):
        openpgp.verified(ring, signed, keys.fingerprint, refuse)


def test_other_signatures_beside_the_trusted_one(
    flat: Repository, vendors: Vendors, keys: Keys, tmp_path: Path
) -> None:
    other = make_keys(tmp_path / "other")
    folder = vendors.root / "acme"
    with gpg_home() as gpg:
        for key in (keys, other):
            subprocess.run([*gpg, "--import"], input=key.secret, text=True, check=True, capture_output=True, timeout=60)
        both = ("--local-user", other.fingerprint, "--local-user", keys.fingerprint)
        subprocess.run(
            [*gpg, *both, "--yes", "--output", str(folder / "InRelease"), "--clearsign", str(folder / "Release")],
            check=True, capture_output=True, timeout=60,
        )  # fmt: skip
    assert "Package: tool" in read(flat)


PASSING = [Reply(503), Reply(429, {"Retry-After": "0"}), Reply(500), Reply(200, {"Content-Length": "999999"}, b"half")]


@pytest.mark.parametrize("reply", PASSING, ids=lambda r: str(r.status))
def test_what_passes_is_tried_again(reply: Reply, flat: Repository, vendors: Vendors) -> None:
    vendors.replies["/acme/InRelease"] += [reply, reply]
    assert "Package: tool" in read(flat)
    assert len(vendors.asked("InRelease")) == 3


def test_retry_after_is_kept(flat: Repository, vendors: Vendors) -> None:
    vendors.replies["/acme/InRelease"] += [Reply(503, {"Retry-After": "7"}), Reply(503)]
    fetch, waits = patient(), []

    class Clock(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            waits.append(timeout)
            return False

    fetch._ended = Clock()
    assert "Package: tool" in "".join(index.read(Origin(flat), fetch))
    assert waits == [7, 0.02]


def test_a_wait_that_is_longer_than_the_deadline_is_not_begun(flat: Repository, vendors: Vendors) -> None:
    vendors.replies["/acme/InRelease"].append(Reply(503, {"Retry-After": "3600"}))
    message = refused(flat, seconds=30)
    assert "HTTP 503, Retry-After 3600 s; gave up after 1 try" in message
    assert len(vendors.asked("InRelease")) == 1


def test_what_does_not_pass_in_time(flat: Repository, vendors: Vendors) -> None:
    vendors.replies["/acme/InRelease"] += [Reply(503)] * 1000
    assert "HTTP 503; gave up after 7 tries" in refused(flat)
    assert len(vendors.asked("InRelease")) == 7
    vendors.seen.clear()
    assert "HTTP 503; gave up after" in refused(flat, seconds=0.4)
    assert 1 <= len(vendors.asked("InRelease")) < 7


def test_nobody_there(flat: Repository) -> None:
    unreachable = flat.model_copy(update={"uri": "http://127.0.0.1:1/acme/", "key_url": "http://127.0.0.1:1/acme.asc"})
    message = refused(unreachable, seconds=0.3)
    assert "Connection refused" in message
    assert "object at" not in message and "Plain(" not in message


@pytest.mark.parametrize("scheme", ["http", "HTTP"])
def test_https_does_not_lead_to_http(
    flat: Repository, vendors: Vendors, monkeypatch: pytest.MonkeyPatch, scheme: str
) -> None:
    from provisioner.stack import fetch

    # The loopback server speaks no TLS: what the address was is all that is changed.
    monkeypatch.setattr(fetch, "parse_url", lambda url: type("Url", (), {"scheme": "https", "host": "127.0.0.1"})())
    vendors.replies["/acme/InRelease"].append(
        Reply(302, {"Location": f"{vendors.url}/acme/InRelease?token=SECRET".replace("http", scheme, 1)})
    )
    message = refused(flat)
    assert f"refused redirect from https to {scheme}://" in message and "SECRET" not in message


def test_a_release_that_is_damaged_is_never_a_traceback(flat: Repository, vendors: Vendors, keys: Keys) -> None:
    release_text = (vendors.root / "acme" / "Release").read_text()
    for cut in range(0, len(release_text), 37):
        text = release_text[:cut] + "\x00\xff:" + release_text[cut + 5 :]
        try:
            index._parsed(text, lambda message, hint: GpuprovError(message, hint=hint), "/")
        except GpuprovError as error:
            assert error.hint


def test_nothing_of_the_users_keyring_is_touched(
    flat: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("GNUPGHOME", str(tmp_path / "home"))
    assert "Package: tool" in read(flat)
    assert not (tmp_path / "home").exists()


def test_gpg_that_is_missing_is_said(flat: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(GpuprovError, match="gpg is not installed") as caught:
        read(flat)
    assert "apt-get install" in caught.value.hint


def test_gpg_that_hangs_has_a_deadline(flat: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hung = tmp_path / "gpg"
    hung.write_text("#!/bin/sh\nexec sleep 60\n")
    hung.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(openpgp, "DEADLINE", 0.2)
    with pytest.raises(GpuprovError, match="did not finish"):
        read(flat)


def test_old_lists_are_swept_out(flat: Repository) -> None:
    read(flat)
    folder = Path(os.environ["XDG_CACHE_HOME"]) / "gpuprov" / "indexes"
    old = folder / ("0" * 64)
    old.write_text("old")
    os.utime(old, (1, 1))
    read(flat)
    assert not old.exists()
    assert len(list(folder.iterdir())) == 1


def test_a_gpgv_that_was_killed_says_nothing_about_the_signature(
    keys: Keys, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed = tmp_path / "gpgv"
    killed.write_text("#!/bin/sh\nkill -9 $$\n")
    killed.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    inline, _ = clearsign(keys, "Origin: somebody\n")
    with pytest.raises(GpuprovError, match="gpgv was killed by signal 9"):
        openpgp.verified(b"", inline.encode(), "0" * 40, lambda message, hint: GpuprovError(message, hint=hint))
