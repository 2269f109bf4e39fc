"""The web server that BMCs fetch their image from: HTTPS, a path that nobody can guess, parts of a file (Range), and
nothing else."""

from __future__ import annotations

import contextlib
import hmac
import os
import re
import ssl
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from provisioner.errors import GpuprovError

_PIECE = 256 * 1024
_IDLE_S = 60
"""Seconds after which a connection that sends nothing is closed."""


@dataclass(slots=True)
class Images:
    """What is served: token → file; a token's image lies at /<token>/install.iso. `address`: of this computer as BMCs
    call it; `fetched`: token → bytes that were asked for."""

    address: str
    port: int = 0
    files: dict[str, Path] = field(default_factory=dict)
    fetched: dict[str, int] = field(default_factory=dict)

    def url(self, token: str) -> str:
        host = f"[{self.address}]" if ":" in self.address else self.address
        return f"https://{host}:{self.port}/{token}/install.iso"

    def find(self, path: str) -> tuple[str, Path] | None:
        found = re.fullmatch(r"/([a-f0-9]{16,64})/install\.iso", path.partition("?")[0])
        if found is None:
            return None
        return next(((one, file) for one, file in self.files.items() if hmac.compare_digest(one, found[1])), None)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server_version = "gpuprov"
    sys_version = ""
    timeout = _IDLE_S
    images: Images

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: a URL has a token."""

    def do_HEAD(self) -> None:
        self._give(body=False)

    def do_GET(self) -> None:
        self._give(body=True)

    def _give(self, *, body: bool) -> None:
        found = self.images.find(self.path)
        if found is None:
            self._refuse(404)
            return
        token, file = found
        with file.open("rb") as image:
            size = os.fstat(image.fileno()).st_size
            asked = part(self.headers.get("Range"), size)
            if asked is None:
                self.send_response(416)
                self.send_header("Content-Range", f"bytes */{size}")
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            first, last = asked
            whole = self.headers.get("Range") is None
            self.send_response(200 if whole else 206)
            self.send_header("Content-Type", "application/octet-stream")
            self.send_header("Accept-Ranges", "bytes")
            self.send_header("Content-Length", str(last - first + 1))
            if not whole:
                self.send_header("Content-Range", f"bytes {first}-{last}/{size}")
            self.end_headers()
            if not body:
                return
            image.seek(first)
            left = last - first + 1
            while left and (piece := image.read(min(_PIECE, left))):
                self.wfile.write(piece)
                left -= len(piece)
                self.images.fetched[token] = self.images.fetched.get(token, 0) + len(piece)

    def _refuse(self, status: int) -> None:
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()


def part(header: str | None, size: int) -> tuple[int, int] | None:
    """First and last byte that a Range asks for; the whole file for a header that is none, as RFC 9110 wants it. None
    for a part that is not there."""
    found = re.fullmatch(r"bytes=([0-9]{0,18})-([0-9]{0,18})", (header or "").strip())
    if found is None or not (found[1] or found[2]):
        return (0, size - 1)
    if not found[1]:
        length = min(int(found[2]), size)
        return (size - length, size - 1) if length else None
    first, last = int(found[1]), min(int(found[2] or size - 1), size - 1)
    return (first, last) if first <= last else None


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def __init__(self, where: tuple[str, int], handler: type[BaseHTTPRequestHandler], context: ssl.SSLContext) -> None:
        self.context = context
        super().__init__(where, handler)

    def finish_request(self, request: object, client_address: object) -> None:
        """The handshake is made in the connection's own thread: one that never comes holds nobody."""
        request.settimeout(_IDLE_S)  # type: ignore[attr-defined]
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
    try:
        server = _Server((bind or address, port), handler, _context(address, folder))
    except OSError as error:
        raise GpuprovError(
            f"images can't be served at {address}:{port}: {error.strerror}", where="install.serve",
            hint="give an address of this computer that the BMCs reach, and a port that is free and open",
        ) from error  # fmt: skip
    images.port = server.server_address[1]
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True, name="images").start()
    try:
        yield images
    finally:
        server.shutdown()
        server.server_close()


def _context(address: str, folder: Path) -> ssl.SSLContext:
    """A certificate of its own, made anew each time; its key is gone when the process is."""
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
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_cert_chain(certificate, key)
        return context
