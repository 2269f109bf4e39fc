"""The sandbox's own keys, made once: an OpenPGP key that signs the apt repositories, a CA and the registry's
certificate.

Private parts stay in the cache (0700/0600). gpg works in a short temporary home directory, because the socket of its
agent must have a short path, and the agent is told to stop when the work is done.
"""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from provisioner.common.errors import GpuprovError
from provisioner.common.paths import private_dir, write_whole

MIRROR_HOST = "mirror.gpuprov.internal"
USER_ID = "gpuprov sandbox repositories (simulated packages)"
DAYS = "3650"


@dataclass(frozen=True, slots=True)
class Keys:
    """`public` and `secret`: ASCII-armoured OpenPGP; `fingerprint`: 40 hex digits; the rest is PEM."""

    public: str
    secret: str
    fingerprint: str
    ca: str
    registry_certificate: str
    registry_key: str


def keys(directory: Path) -> Keys:
    """The keys in that directory, made when they are not there. The caller holds the cache's lock."""
    private_dir(directory)
    if not (directory / "complete").exists():
        _make_signing_key(directory)
        _make_certificates(directory)
        write_whole(directory / "complete", "")
    read = {name: (directory / name).read_text(encoding="utf-8") for name in _FILES}
    return Keys(
        read["signing.asc"],
        read["signing-secret.asc"],
        read["fingerprint"],
        read["ca.pem"],
        read["registry.pem"],
        read["registry.key"],
    )


_FILES = ("signing.asc", "signing-secret.asc", "fingerprint", "ca.pem", "registry.pem", "registry.key")


def run_tool(*command: str, stdin: str | None = None, package: str, deadline: float = 60) -> str:
    """Run gpg, openssl… and give what they print; `package` is what apt calls the tool when it is missing."""
    try:
        done = subprocess.run(
            command,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=deadline,
            check=False,
            encoding="utf-8",
            errors="replace",
        )
    except FileNotFoundError as error:
        raise GpuprovError(f"{command[0]} is not installed", hint=f"sudo apt-get install -y {package}") from error
    except subprocess.TimeoutExpired as error:
        raise GpuprovError(f"{command[0]} did not finish in {deadline:.0f} s") from error
    if done.returncode != 0:
        raise GpuprovError(f"{command[0]} failed: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


@contextmanager
def gpg_home() -> Iterator[tuple[str, ...]]:
    """A gpg command line with a home directory of its own that leaves no agent behind."""
    with tempfile.TemporaryDirectory(prefix="gpg-", dir="/tmp") as home:
        try:
            yield ("gpg", "--homedir", home, "--batch", "--no-tty", "--quiet")
        finally:
            subprocess.run(
                ["gpgconf", "--homedir", home, "--kill", "all"], capture_output=True, timeout=20, check=False
            )


def clearsign(keys_: Keys, text: str) -> tuple[str, str]:
    """A text signed inline (InRelease) and its detached signature (Release.gpg)."""
    with gpg_home() as gpg:
        run_tool(*gpg, "--import", stdin=keys_.secret, package="gpg")
        signer = ("--armor", "--local-user", keys_.fingerprint, "--digest-algo", "SHA512")
        inline = run_tool(*gpg, *signer, "--clearsign", stdin=text, package="gpg")
        return inline, run_tool(*gpg, *signer, "--detach-sign", stdin=text, package="gpg")


def _make_signing_key(directory: Path) -> None:
    with gpg_home() as gpg:
        run_tool(
            *gpg,
            "--passphrase",
            "",
            "--quick-generate-key",
            USER_ID,
            "ed25519",
            "sign",
            "never",
            package="gpg gpg-agent",
        )
        listing = run_tool(*gpg, "--with-colons", "--list-secret-keys", package="gpg")
        fingerprint = next(line.split(":")[9] for line in listing.splitlines() if line.startswith("fpr:"))
        write_whole(directory / "fingerprint", fingerprint)
        write_whole(directory / "signing.asc", run_tool(*gpg, "--armor", "--export", fingerprint, package="gpg"))
        secret = run_tool(*gpg, "--armor", "--export-secret-keys", fingerprint, package="gpg")
        write_whole(directory / "signing-secret.asc", secret)


def _make_certificates(directory: Path) -> None:
    with tempfile.TemporaryDirectory(prefix=".certificates-", dir=directory) as scratch:
        at = Path(scratch)
        fresh = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", DAYS)
        run_tool(
            "openssl",
            "req",
            "-x509",
            *fresh,
            "-subj",
            "/CN=gpuprov sandbox CA",
            "-keyout",
            f"{at}/ca.key",
            "-out",
            f"{at}/ca.pem",
            "-addext",
            "keyUsage=critical,keyCertSign,cRLSign",
            package="openssl",
        )
        run_tool(
            "openssl",
            "req",
            "-x509",
            *fresh,
            "-subj",
            f"/CN={MIRROR_HOST}",
            "-CA",
            f"{at}/ca.pem",
            "-CAkey",
            f"{at}/ca.key",
            "-keyout",
            f"{at}/registry.key",
            "-out",
            f"{at}/registry.pem",
            "-addext",
            f"subjectAltName=DNS:{MIRROR_HOST}",
            "-addext",
            "basicConstraints=critical,CA:FALSE",
            package="openssl",
        )
        for name in ("ca.pem", "registry.pem", "registry.key"):
            write_whole(directory / name, (at / name).read_text(encoding="utf-8"))
