"""Whether a BMC is the one it was: its certificate is verified, or pinned at first contact. There is no third way."""

from __future__ import annotations

import hashlib
import json
import socket
import ssl
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from provisioner.common.paths import write_whole
from provisioner.machines.redfish.errors import BmcError

VERIFIED = "verified"
"""In place of a fingerprint: the certificate was signed by an authority that this computer trusts."""


@dataclass(slots=True)
class Pins:
    """Machine → fingerprint of its BMC's certificate (SHA-256, 64 hex digits) or VERIFIED; bmc_pins.json, beside
    known_hosts."""

    file: Path
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def load(self) -> dict[str, str]:
        try:
            document = json.loads(self.file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, RecursionError) as error:
            raise BmcError(
                f"is damaged: {error}",
                where=str(self.file),
                hint="remove it: gpuprov then pins the certificates of BMCs again",
            ) from error
        if not isinstance(document, Mapping) or not all(isinstance(pin, str) for pin in document.values()):
            raise BmcError(
                "is damaged", where=str(self.file), hint="remove it: gpuprov then pins the certificates of BMCs again"
            )
        return dict(document)

    def keep(self, machine: str, pin: str) -> None:
        with self._lock:
            write_whole(self.file, json.dumps({**self.load(), machine: pin}, indent=1, sort_keys=True) + "\n")

    def context(self) -> ssl.SSLContext:
        """A context that verifies."""
        return ssl.create_default_context()

    def meet(self, machine: str, host: str, port: int, timeout_s: float) -> tuple[str, bool]:
        """The pin that this BMC must fulfil (a fingerprint or VERIFIED), and whether this is the first contact. Nothing
        is sent to it but a TLS handshake. Raises BmcError for one that can't be reached, or shows another certificate
        than it did."""
        known = self.load().get(machine)
        certificate, error = _fetch_certificate(host, port, timeout_s, self.context())
        fingerprint = hashlib.sha256(certificate).hexdigest()
        if known is None:
            pin = VERIFIED if error is None else fingerprint
            self.keep(machine, pin)
            return pin, True
        if known == VERIFIED and error is not None:
            raise _another(machine, f"a certificate that can't be verified any more ({error})", self.file)
        if known not in (VERIFIED, fingerprint):
            raise _another(
                machine, f"the certificate SHA256:{fingerprint}, not SHA256:{known}, which is pinned", self.file
            )
        return known, False


def _another(machine: str, certificate_text: str, file: Path) -> BmcError:
    return BmcError(
        f"its BMC shows {certificate_text}", where=machine, kind="certificate",
        hint="possible man in the middle: nothing was sent to it. If its certificate was renewed, remove this "
        f"machine's line from {file} and run the command again",
    )  # fmt: skip


def _fetch_certificate(host: str, port: int, timeout_s: float, verifying: ssl.SSLContext) -> tuple[bytes, str | None]:
    """The certificate (DER), and why it could not be verified; None where it could."""
    try:
        with (
            socket.create_connection((host, port), timeout=timeout_s) as plain,
            verifying.wrap_socket(plain, server_hostname=host) as secure,
        ):
            return secure.getpeercert(binary_form=True) or b"", None
    except ssl.SSLCertVerificationError as error:
        reason = error.verify_message or "not verified"
    with (
        socket.create_connection((host, port), timeout=timeout_s) as plain,
        unverified().wrap_socket(plain, server_hostname=host) as secure,
    ):
        return secure.getpeercert(binary_form=True) or b"", reason


def unverified() -> ssl.SSLContext:
    """For connections whose certificate is compared with a pin before anything is sent."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context
