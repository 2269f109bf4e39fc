"""Who signed it: keys by their full fingerprint, and text that exactly that key has signed.

gpg and gpgv work in a private temporary directory that holds the one key, with a deadline. Nothing of the user's own
keyring is looked at, and what is not covered by the signature is thrown away.
"""

from __future__ import annotations

import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from provisioner.common.errors import GpuprovError
from provisioner.common.text import one_line, printable

DEADLINE = 30.0
FILE_DEADLINE = 300.0
"""Seconds for the signature of a whole archive, which may have a gigabyte."""
BEGIN = b"-----BEGIN PGP SIGNED MESSAGE-----"

UNSIGNED = "a repository needs InRelease, or Release with Release.gpg"

Refuse = Callable[[str, str], GpuprovError]
"""What is wrong, what to do → the error that names the repository."""


def keyring(
    key: bytes, fingerprint: str, refuse: Refuse, *, source: str = "its signing key", others: bool = False
) -> bytes:
    """The keyring for `verified`, of a file that holds this key and no other; `source` is where it was read. `others`:
    the file may hold further keys (a vendor's former one), which are left out.

    Raises what `refuse` makes for a file that is no key, another key, or one that is expired or revoked.
    """
    with tempfile.TemporaryDirectory(prefix="gpuprov-gpg-") as home:
        file = Path(home) / "key"
        file.write_bytes(key)
        primary_keys = _primary_keys(_gpg("gpg", home, "--with-colons", "--show-keys", str(file)).stdout)
        if not primary_keys:
            raise refuse(
                f"{source} is not an OpenPGP public key", "compare its address with the vendor's documentation"
            )
        matching = [row for row in primary_keys if row[0] == fingerprint]
        if not matching or (len(primary_keys) > 1 and not others):
            fingerprints = ", ".join(row[0] for row in primary_keys)
            raise refuse(
                f"signing key mismatch: expected fingerprint {fingerprint}, got {fingerprints}",
                "the vendor has rotated its key (look for an announcement), or the download was tampered with",
            )
        _, validity, expires = matching[0]
        if validity == "r":
            raise refuse(f"its signing key {fingerprint} is revoked", "look for the vendor's announcement of a new key")
        if 0 < expires < time.time():
            raise refuse(f"its signing key {fingerprint} expired on {_day(expires)}; today is {_day(time.time())}",
                         "download the key again from the vendor, or set this machine's clock")  # fmt: skip
        _gpg("gpg", home, "--quiet", "--import", str(file))
        exported = _gpg("gpg", home, "--quiet", "--export", fingerprint).stdout
    if not exported:
        raise refuse(f"gpg cannot use its signing key {fingerprint}", "compare it with the vendor's documentation")
    return exported


def expires(key: bytes, fingerprint: str) -> float | None:
    """When the key with that fingerprint ends (seconds since 1970): 0 where it never does; None where a file does not
    hold it."""
    with tempfile.TemporaryDirectory(prefix="gpuprov-gpg-") as home:
        file = Path(home) / "key"
        file.write_bytes(key)
        primary_keys = _primary_keys(_gpg("gpg", home, "--with-colons", "--show-keys", str(file)).stdout)
    return next((float(ends) for key_fingerprint, _, ends in primary_keys if key_fingerprint == fingerprint), None)


def verified(ring: bytes, signed: bytes, fingerprint: str, refuse: Refuse, *, detached: bytes | None = None) -> bytes:
    """The text that the key of `ring` has signed: of a clear-signed file what is inside, or all of `signed` where
    `detached` is its signature. Signatures of other keys beside it do not count.

    Raises what `refuse` makes for text that is not signed, was changed, was signed by another key or too long ago.
    """
    if detached is None and (not signed.startswith(BEGIN) or signed.count(BEGIN) > 1):
        raise refuse(f"it is not signed ({_beginning(signed)})", UNSIGNED)
    with tempfile.TemporaryDirectory(prefix="gpuprov-gpg-") as home:
        at = Path(home)
        (at / "ring.gpg").write_bytes(ring)
        (at / "signed").write_bytes(signed)
        # SHA-1 signatures can be forged (SHAttered, 2017); gpgv still takes them unless told otherwise.
        arguments = ["--keyring", str(at / "ring.gpg"), "--weak-digest", "SHA1", "--status-fd", "1"]
        if detached is None:
            done = _gpg("gpgv", home, *arguments, "--output", str(at / "text"), str(at / "signed"))
        else:
            (at / "signature").write_bytes(detached)
            done = _gpg("gpgv", home, *arguments, str(at / "signature"), str(at / "signed"))
        _judge(done, fingerprint, refuse)
        if detached is not None:
            return signed
        try:
            return (at / "text").read_bytes()
        except FileNotFoundError:
            raise refuse("its signature covers no content", "a repository needs InRelease") from None


def verify_file(ring: bytes, file: Path, signature: bytes, fingerprint: str, refuse: Refuse) -> None:
    """Return where the key of `ring` has made the detached `signature` of a file; else raise what `refuse` makes."""
    with tempfile.TemporaryDirectory(prefix="gpuprov-gpg-") as home:
        at = Path(home)
        (at / "ring.gpg").write_bytes(ring)
        (at / "signature").write_bytes(signature)
        arguments = ["--keyring", str(at / "ring.gpg"), "--weak-digest", "SHA1", "--status-fd", "1"]
        done = _gpg("gpgv", home, *arguments, str(at / "signature"), str(file), deadline=FILE_DEADLINE)
    _judge(done, fingerprint, refuse)


def _judge(done: subprocess.CompletedProcess[bytes], fingerprint: str, refuse: Refuse) -> None:
    """Return where one signature is good and made by the key (or a subkey of it); else raise what is the matter."""
    signatures: list[dict[str, list[str]]] = []
    for line in done.stdout.decode(errors="replace").splitlines():
        tokens = line.removeprefix("[GNUPG:] ").split()
        if tokens[:1] == ["NEWSIG"]:
            signatures.append({})
        elif tokens and signatures:
            signatures[-1].setdefault(tokens[0], tokens[1:])
    for signature in signatures:
        if "GOODSIG" in signature and signature.get("VALIDSIG", [""])[-1] == fingerprint:
            return
    statuses: dict[str, list[str]] = {}
    for signature in signatures:
        statuses = {**signature, **statuses}
    if "BADSIG" in statuses:
        raise refuse("bad signature", "possible tampering or corrupt download; run `gpuprov lock` again")
    if "EXPSIG" in statuses:
        until = statuses.get("VALIDSIG", ["", "", "", ""])[3]
        when = f" on {_day(int(until))}" if until.isdigit() and int(until) else ""
        raise refuse(f"its signature expired{when}; today is {_day(time.time())}",
                     "the repository has to be signed again, or this machine's clock is wrong")  # fmt: skip
    if "EXPKEYSIG" in statuses or "KEYEXPIRED" in statuses:
        raise refuse(f"its signing key {fingerprint} has expired", "download the key again from the vendor")
    if "REVKEYSIG" in statuses:
        raise refuse(f"its signing key {fingerprint} is revoked", "look for the vendor's announcement of a new key")
    if "NO_PUBKEY" in statuses:
        raise refuse(f"signed by another key: {' '.join(statuses['NO_PUBKEY'])}, expected {fingerprint}",
                     "compare the key with the vendor's documentation")  # fmt: skip
    if "ERRSIG" in statuses:
        raise refuse(
            "unsupported signature: gpgv does not accept its algorithm", "the repository has to be signed with SHA-256"
        )
    complaint = printable(done.stderr[-500:].decode(errors="replace").strip().rpartition("\n")[2])
    raise refuse(f"it is not signed ({complaint or f'gpgv ended with status {done.returncode}'})", UNSIGNED)


def _beginning(text: bytes) -> str:
    """What stands in a file in place of a signature, such as the page of a proxy."""
    if not text.strip():
        return "it is empty"
    if text.startswith(BEGIN):
        return "it holds several signed texts"
    return f"it begins with {one_line(text[:60].decode(errors='replace'))!r}"


def _primary_keys(colons: bytes) -> list[tuple[str, str, int]]:
    """(fingerprint, validity letter, time of expiry or 0) of each primary key in gpg's listing."""
    keys: list[tuple[str, str, int]] = []
    primary: list[str] | None = None
    for line in colons.decode(errors="replace").splitlines():
        fields = line.split(":")
        if fields[0] in ("pub", "sub") and len(fields) > 6:
            primary = fields if fields[0] == "pub" else None
        elif fields[0] == "fpr" and primary is not None and len(fields) > 9:
            keys.append((fields[9].upper(), primary[1], int(primary[6]) if primary[6].isdigit() else 0))
            primary = None
    return keys


def _gpg(tool: str, home: str, *arguments: str, deadline: float | None = None) -> subprocess.CompletedProcess[bytes]:
    options: Sequence[str] = ("--batch", "--no-tty", "--no-autostart") if tool == "gpg" else ()
    limit = DEADLINE if deadline is None else deadline
    try:
        done = subprocess.run(
            [tool, "--homedir", home, *options, *arguments], stdin=subprocess.DEVNULL, capture_output=True,
            timeout=limit, check=False,
        )  # fmt: skip
    except FileNotFoundError:
        raise GpuprovError(f"{tool} is not installed", hint="sudo apt-get install -y gpg gpgv") from None
    except subprocess.TimeoutExpired:
        raise GpuprovError(f"{tool} did not finish in {limit:.0f} s") from None
    if done.returncode < 0:  # it has looked at nothing: that says nothing about a signature
        raise GpuprovError(f"{tool} was killed by signal {-done.returncode}", hint="run it again")
    return done


def _day(moment: float) -> str:
    return time.strftime("%Y-%m-%d", time.gmtime(moment))
