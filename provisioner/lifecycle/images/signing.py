"""Who says that a build was proven: an OpenPGP signature beside its manifest, made by gpg with a key of one's own.

The key is named in the recipe (`image.signed_by`, a full fingerprint), so that who trusts the recipe trusts the key.
Its public half lies beside the builds.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

from provisioner.common import regular_file
from provisioner.common.errors import GpuprovError
from provisioner.common.paths import write_whole
from provisioner.stack import openpgp

DEADLINE_S = 120
"""Seconds that gpg may take; an agent may ask for a passphrase, or for a touch of a token."""
LIMIT = 1 << 20
"""Bytes of a public key, and of a signature."""
KEY, SIGNATURE = "key.asc", "manifest.json.asc"


def sign(folder: Path, text: str, fingerprint: str) -> None:
    """Write the detached signature of a manifest's text, and beside the builds the public key. Raises GpuprovError
    where gpg does not sign with that key."""
    signature = _gpg(["--local-user", f"{fingerprint}!", "--armor", "--detach-sign"], text.encode(), fingerprint)
    public = _gpg(["--armor", "--export", fingerprint], b"", fingerprint)
    write_whole(folder / SIGNATURE, signature, mode=0o644)
    write_whole(folder.parents[1] / KEY, public, mode=0o644)
    verify(folder, text.encode(), fingerprint)


def ready(fingerprint: str) -> None:
    """Return where gpg can sign with that key now. Raises GpuprovError else: better before a build than after it."""
    _gpg(["--local-user", f"{fingerprint}!", "--armor", "--detach-sign"], b"gpuprov", fingerprint)


def verify(folder: Path, text: bytes, fingerprint: str) -> None:
    """Return where the manifest's text is signed by that key. Raises GpuprovError for everything else."""

    def refuse(reason: str, hint: str) -> GpuprovError:
        return GpuprovError(f"the manifest is not signed by {fingerprint}: {reason}", where=str(folder), hint=hint)

    try:
        key = regular_file.read(folder.parents[1] / KEY, LIMIT)
        signature = regular_file.read(folder / SIGNATURE, LIMIT)
    except OSError as error:
        hint = "build it again, or take image.signed_by out of the recipe"
        raise refuse(f"{error.filename}: {error.strerror}", hint) from None
    ring = openpgp.keyring(key, fingerprint, refuse, source=str(folder.parents[1] / KEY))
    openpgp.verified(ring, text, fingerprint, refuse, detached=signature)


def _gpg(arguments: list[str], content: bytes, fingerprint: str) -> bytes:
    try:
        done = subprocess.run(
            ["gpg", "--batch", *arguments], input=content, capture_output=True, timeout=DEADLINE_S, check=False
        )
    except FileNotFoundError:
        raise GpuprovError("gpg is not installed", hint="sudo apt-get install -y gpg") from None
    except subprocess.TimeoutExpired:
        raise GpuprovError(f"gpg gave no signature within {DEADLINE_S} s", hint="unlock the key first") from None
    if done.returncode or not done.stdout:
        error_text = (done.stderr.decode(errors="replace").strip().splitlines() or ["it said nothing"])[-1]
        raise GpuprovError(
            f"gpg cannot sign with {fingerprint}: {error_text}",
            hint="`gpg --list-secret-keys` shows the keys that it has",
        )
    return done.stdout
