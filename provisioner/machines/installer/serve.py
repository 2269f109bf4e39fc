"""The web server that BMCs fetch their image from, and installers a disk image: HTTPS, a path that nobody can guess,
parts of a file (Range), reports of installers, and nothing else."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import re
import ssl
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from provisioner.common.errors import GpuprovError
from provisioner.common.paths import write_whole
from provisioner.machines.installer import report
from provisioner.machines.installer.report import Report

PIECE = 256 * 1024
IDLE_S = 60
"""Seconds after which a connection that sends nothing is closed."""
STALL_S = 1800
"""Seconds in which a machine may read nothing of a disk image: it decompresses and writes a long run of zeros."""
KEPT_S = 86_400


@dataclass(slots=True)
class Images:
    """What is served: token → file; a token's image lies at /<token>/install.iso, and `disk` for each at
    /<token>/disk.zst. `address`: of this computer as BMCs call it; `certificate`: of the server, PEM; `fetched`: token
    → bytes of its image that were sent, and `sent` those of the disk; `reports`: token → what its installer has said
    last."""

    address: str
    port: int = 0
    files: dict[str, Path] = field(default_factory=dict)
    fetched: dict[str, int] = field(default_factory=dict)
    sent: dict[str, int] = field(default_factory=dict)
    disk: Path | None = None
    certificate: str = ""
    reports: dict[str, Report] = field(default_factory=dict)

    def url(self, token: str) -> str:
        return f"{self.base(token)}/install.iso"

    def base(self, token: str) -> str:
        """URL under which all of an installation lies."""
        host = f"[{self.address}]" if ":" in self.address else self.address
        return f"https://{host}:{self.port}/{token}"

    def find(self, path: str) -> tuple[str, Path] | None:
        token, name = self._parts(path)
        if token is None or name not in (["install.iso"], ["disk.zst"]):
            return None
        file = self.files[token] if name == ["install.iso"] else self.disk
        previous_report = self.reports.get(token)
        if file is self.disk and previous_report is not None and previous_report.ended:
            return None  # a machine that is installed is never written to again by the same installer
        return (token, file) if file is not None else None

    def reported(self, path: str, body: bytes = b"") -> bool:
        """Take an installer's report; whether it is one."""
        token, segments = self._parts(path)
        received = report.read(segments, body) if token is not None else None
        if token is None or received is None:
            return False
        previous_report = self.reports.get(token)
        if (
            previous_report is not None
            and previous_report.host_key
            and received.host_key not in ("", previous_report.host_key)
        ):
            return False  # the first key counts: a second one is somebody else's
        if previous_report is not None and previous_report.ended and received.refused:
            received = Report(report.AGAIN, previous_report.host_key)
        self.reports[token] = received
        return True

    def _parts(self, path: str) -> tuple[str | None, list[str]]:
        """The token of an installation that is served, and the rest of a path."""
        first, *segments = path.partition("?")[0].removeprefix("/").split("/")
        known = first.isascii() and re.fullmatch(r"[a-f0-9]{16,64}", first)
        return next((token for token in self.files if known and hmac.compare_digest(token, first)), None), segments


class Handler(BaseHTTPRequestHandler):
    """What servers of installers have in common, also the one for machines that start from the network."""

    protocol_version = "HTTP/1.1"
    server_version = "gpuprov"
    sys_version = ""
    timeout = IDLE_S

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: a URL has a token."""

    def report(self) -> bytes | None:
        """The body of a report; None for one that is too long or of no length, which is refused."""
        length = self.headers.get("Content-Length", "")
        if re.fullmatch(r"[0-9]{1,4}", length) and int(length) <= report.LENGTH:
            return self.rfile.read(int(length))
        self.answer(413, ends=True)
        return None

    def answer(self, status: int, length: int = 0, *, ends: bool = False) -> None:
        """`length`: of what a HEAD asked for; `ends`: the connection, which has a body in it that nobody reads."""
        self.send_response(status)
        self.send_header("Content-Length", str(length))
        if ends:
            self.send_header("Connection", "close")
        self.end_headers()


class _Handler(Handler):
    disable_nagle_algorithm = True
    images: Images

    def do_HEAD(self) -> None:
        self._give(body=False)

    def do_GET(self) -> None:
        self._give(body=True)

    def do_POST(self) -> None:
        body = self.report()
        if body is not None:
            self.answer(200 if self.images.reported(self.path, body) else 404)

    def _give(self, *, body: bool) -> None:
        match = self.images.find(self.path)
        if match is None:
            self.answer(200 if body and self.images.reported(self.path) else 404)
            return
        token, file = match
        with file.open("rb") as image:
            size = os.fstat(image.fileno()).st_size
            byte_range = part(self.headers.get("Range"), size)
            if byte_range is None:
                self.send_response(416)
                self.send_header("Content-Range", f"bytes */{size}")
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            first, last = byte_range
            is_complete = self.headers.get("Range") is None
            self.send_response(200 if is_complete else 206)
            self.send_header("Content-Type", "application/octet-stream")
            self.send_header("Accept-Ranges", "bytes")
            self.send_header("Content-Length", str(last - first + 1))
            if not is_complete:
                self.send_header("Content-Range", f"bytes {first}-{last}/{size}")
            self.end_headers()
            if not body:
                return
            if file == self.images.disk:
                self.connection.settimeout(STALL_S)
            image.seek(first)
            remaining = last - first + 1
            counted = self.images.sent if file == self.images.disk else self.images.fetched
            while remaining and (piece := image.read(min(PIECE, remaining))):
                self.wfile.write(piece)
                remaining -= len(piece)
                counted[token] = counted.get(token, 0) + len(piece)


def part(header: str | None, size: int) -> tuple[int, int] | None:
    """First and last byte that a Range asks for; the whole file for a header that is none, as RFC 9110 wants it. None
    for a part that is not there."""
    match = re.fullmatch(r"bytes=([0-9]{0,18})-([0-9]{0,18})", (header or "").strip())
    if match is None or not (match[1] or match[2]):
        return (0, size - 1)
    if not match[1]:
        length = min(int(match[2]), size)
        return (size - length, size - 1) if length else None
    first, last = int(match[1]), min(int(match[2] or size - 1), size - 1)
    return (first, last) if first <= last else None


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def __init__(
        self, server_address: tuple[str, int], handler: type[BaseHTTPRequestHandler], context: ssl.SSLContext
    ) -> None:
        self.context = context
        super().__init__(server_address, handler)

    def finish_request(self, request: object, client_address: object) -> None:
        """The handshake is made in the connection's own thread: one that never comes holds nobody."""
        request.settimeout(IDLE_S)  # type: ignore[attr-defined]
        with contextlib.suppress(OSError), self.context.wrap_socket(request, server_side=True) as secure:  # type: ignore[arg-type]
            self.RequestHandlerClass(secure, client_address, self)  # type: ignore[arg-type]

    def handle_error(self, request: object, client_address: object) -> None:
        """A BMC that hangs up reads on with the next request."""


@contextlib.contextmanager
def serving(address: str, port: int, folder: Path, bind: str = "") -> Iterator[Images]:
    """Serve images at this address and port (0: any that is free) until the block ends. Raises GpuprovError where the
    address is not this computer's, or the port is taken."""
    images = Images(address)
    handler = type("Handler", (_Handler,), {"images": images})
    context, images.certificate = _context(address, folder)
    try:
        server = _Server((bind or address, port), handler, context)
    except OSError as error:
        raise GpuprovError(
            f"cannot serve images at {address}:{port}: {error.strerror}", where="install.serve",
            hint="give an address of this computer that the BMCs reach, and a port that is free and open",
        ) from error  # fmt: skip
    images.port = server.server_address[1]
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True, name="images").start()
    try:
        yield images
    finally:
        server.shutdown()
        server.server_close()


def _context(address: str, folder: Path) -> tuple[ssl.SSLContext, str]:
    """A certificate of its own, with its PEM. It is kept for a day in the folder: an installer that is told of it goes
    on when gpuprov was killed and is run again."""
    certificate_file = folder / f"serving-{hashlib.sha256(address.encode()).hexdigest()[:12]}.pem"
    if not certificate_file.exists() or time.time() - certificate_file.stat().st_mtime > KEPT_S:
        write_whole(certificate_file, _certificate(address, folder))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(certificate_file)
    text = certificate_file.read_text(encoding="ascii")
    return context, text[text.index("-----BEGIN CERTIFICATE-----") :]


def _certificate(address: str, folder: Path) -> str:
    """A key and its certificate, PEM."""
    kind = "IP" if re.fullmatch(r"[0-9.]+|[0-9A-Fa-f:]*:[0-9A-Fa-f:]*", address) else "DNS"
    with tempfile.TemporaryDirectory(dir=folder, prefix=".tls-") as inside:
        key, certificate = Path(inside) / "key.pem", Path(inside) / "certificate.pem"
        command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "7", "-subj", "/CN=gpuprov",
                   "-addext", f"subjectAltName={kind}:{address}", "-keyout", str(key),
                   "-out", str(certificate)]  # fmt: skip
        try:
            subprocess.run(command, capture_output=True, timeout=60, check=True, stdin=subprocess.DEVNULL)
        except (FileNotFoundError, subprocess.SubprocessError) as error:
            raise GpuprovError(f"openssl could not make a certificate: {error}", hint="apt install openssl") from error
        return key.read_text(encoding="ascii") + certificate.read_text(encoding="ascii")
