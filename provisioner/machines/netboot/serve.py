"""The web server that machines ask which start from the network: plain HTTP, because iPXE as distributions build it
knows no authority of ours (https://ipxe.org/crypto). What it gives holds no secret but a machine's token. Whoever has
that can end the machine's installation and report its host key, the one that is pinned then. So a token goes to a
machine whose serial number cluster.yaml has, and which asks from its own MAC address."""

from __future__ import annotations

import contextlib
import fcntl
import hmac
import re
import socket
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from http.server import ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from provisioner.common.errors import GpuprovError
from provisioner.machines.installer import report, serve
from provisioner.machines.journal import Installation, Journal
from provisioner.machines.netboot import ipxe, network
from provisioner.machines.netboot.ipxe import Asked
from provisioner.machines.netboot.media import Media
from provisioner.machines.providers.hosts import Host

Make = Callable[[Host, Installation, Asked, str], Media]
"""The media of a machine; the last is the URL under which they lie."""


@dataclass(slots=True)
class Answers:
    """What machines are told. `hosts`: by MAC address; `told`: of a machine, for a person; `url`: of this server."""

    hosts: Mapping[str, Host]
    journal: Journal
    make: Make
    told: Callable[[Host, str], object]
    url: str = ""
    neighbour: Callable[[str], str] = network.mac_of
    """IP address → MAC address of who has it on this computer's networks, "" where that is not known."""
    _media: dict[str, Media] = field(default_factory=dict)
    _lock: threading.RLock = field(default_factory=threading.RLock)

    def script(self, request: Asked, address: str) -> str:
        """What iPXE does next; written down before it is said. `address`: where the question comes from."""
        host = self.hosts.get(request.mac)
        if host is None:
            return ipxe.from_disk("cluster.yaml does not name this machine")
        sender = self.neighbour(address)
        if sender and sender != request.mac:
            self.told(host, f"{sender} ({address}) asked for its installer in its name, and got nothing")
            return ipxe.from_disk("the question came from another MAC address")
        with self._lock:
            previous = self.journal.load().get(host.name)
            answer = ipxe.decide(host, previous, request)
            if not answer.install:
                self.told(host, f"starts from its own disk: {answer.why}")
                return ipxe.from_disk(answer.why)
            is_same_machine = previous is not None and request.is_called(previous.serial)
            installation = (
                previous
                if previous is not None and is_same_machine
                else Installation(host.name, host.serial or request.names[0])
            )
            url = f"{self.url}/{installation.token}"
            try:
                media = self._media.get(installation.token) or self.make(host, installation, request, url)
            except GpuprovError as error:
                self.told(host, f"is not installed: {error}")
                return ipxe.from_disk("its installer could not be made")
            self._media[installation.token] = media
            self.journal.note(installation, "offered", url=url)
        self.told(host, f"asked for its installer ({installation.serial})")
        return ipxe.installer(url, host.name, media.words)

    def file(self, token: str, name: str) -> Path | None:
        """A file of an installation, while it is allowed to begin; what its installer fetches itself, until its end."""
        media = next((candidate for known, candidate in self._media.items() if hmac.compare_digest(known, token)), None)
        installation = self._of(token)
        if media is None or installation is None:
            return None
        begins = name in ("linux", "initrd.gz")
        return (
            media.files.get(name)
            if installation.step == "offered" or (installation.step == "started" and not begins)
            else None
        )

    def started(self, token: str) -> bool:
        """To be called before the last byte of the initrd leaves: from then on the machine can install. Whether it
        may."""
        with self._lock:
            installation = self._of(token)
            if installation is None or installation.step != "offered":
                return False
            self.journal.note(installation, "started")
        self._announce(installation, "has its installer: its next start is from its own disk")
        return True

    def reported(self, token: str, segments: list[str], body: bytes = b"") -> bool:
        """What an installer says of itself; whether anybody knows it."""
        received = report.read(segments, body)
        with self._lock:
            installation = self._of(token)
            if received is None or installation is None or installation.step != "started":
                return False
            if received.refused:
                self.journal.note(installation, "failed")
                self._announce(installation, f"was not installed, {report.WHY[received.refused]}")
                return True
            if received.host_key and installation.host_key and received.host_key != installation.host_key:
                self._announce(
                    installation, "reports a second host key: somebody else has its token, and the first key counts"
                )
                return False
            if received.host_key:
                installation = self.journal.note(installation, installation.step, host_key=received.host_key)
            self._announce(installation, "reports the end of its installation")
        return True

    def _announce(self, installation: Installation, sentence: str) -> None:
        host = next((candidate for candidate in self.hosts.values() if candidate.name == installation.host), None)
        if host is not None:
            self.told(host, sentence)

    def _of(self, token: str) -> Installation | None:
        known = self.journal.load().values()
        return next((installation for installation in known if hmac.compare_digest(installation.token, token)), None)


class _Handler(serve.Handler):
    answers: Answers

    def do_GET(self) -> None:
        url_parts = urlsplit(self.path)
        parts = url_parts.path.strip("/").split("/")
        if parts == ["boot.ipxe"]:
            self._text(ipxe.first(self.answers.url))
        elif parts == ["machine"]:
            self._text(self.answers.script(_parse_request(url_parts.query), str(self.client_address[0])))
        elif len(parts) < 2 or not re.fullmatch(r"[a-f0-9]{16,64}", parts[0]):
            self.answer(404)
        elif self.answers.reported(parts[0], parts[1:]):
            self._text("")
        elif len(parts) == 2 and (file := self.answers.file(*parts)) is not None:
            self._send(file, parts[0] if parts[1] == "initrd.gz" else "")
        else:
            self.answer(404)

    def do_HEAD(self) -> None:
        """Of a file that an installer fetches itself; nothing begins by it."""
        token, _, name = urlsplit(self.path).path.strip("/").partition("/")
        file = self.answers.file(token, name) if re.fullmatch(r"[a-f0-9]{16,64}", token) else None
        self.answer(404 if file is None else 200, file.stat().st_size if file is not None else 0)

    def do_POST(self) -> None:
        token, *segments = urlsplit(self.path).path.strip("/").split("/")
        body = self.report()
        if body is None:
            return
        if re.fullmatch(r"[a-f0-9]{16,64}", token) and self.answers.reported(token, segments, body):
            self._text("")
        else:
            self.answer(404)

    def _text(self, text: str) -> None:
        body = text.encode("ascii", "replace")
        self.send_response(200)
        self.send_header("Content-Type", "text/plain")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _send(self, file: Path, starts: str) -> None:
        """A file, or a part of it. `starts`: the token of the machine that can install with its last byte."""
        with file.open("rb") as content:
            size = file.stat().st_size
            part = serve.part(None if starts else self.headers.get("Range"), size)
            if part is None:
                self.answer(416)
                return
            first, last = part
            is_complete = (first, last) == (0, size - 1)
            self.send_response(200 if is_complete else 206)
            self.send_header("Content-Length", str(last - first + 1))
            self.send_header("Accept-Ranges", "none" if starts else "bytes")
            if not is_complete:
                self.send_header("Content-Range", f"bytes {first}-{last}/{size}")
            self.end_headers()
            if file.suffix == ".zst":
                self.connection.settimeout(serve.STALL_S)
            content.seek(first)
            remaining = last - first + 1
            while remaining > 1 and (piece := content.read(min(serve.PIECE, remaining - 1))):
                self.wfile.write(piece)
                remaining -= len(piece)
            if starts and not (_arrived(self.connection) and self.answers.started(starts)):
                self.close_connection = True
                return
            self.wfile.write(content.read(remaining))


def _arrived(connection: socket.socket) -> bool:
    """Whether all that was sent has been received (tcp(7), SIOCOUTQ): megabytes of it can wait in this computer while
    the machine has hung up."""
    end, waiting = time.monotonic() + serve.IDLE_S, bytearray(4)
    while time.monotonic() < end:
        fcntl.ioctl(connection, termios.TIOCOUTQ, waiting)
        if connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            return False
        if not int.from_bytes(waiting, sys.byteorder):
            return True
        time.sleep(0.02)
    return False


def _parse_request(query: str) -> Asked:
    try:
        values = {key: texts[0][:128] for key, texts in parse_qs(query, max_num_fields=8).items()}
    except ValueError:
        return Asked("")
    return Asked(values.get("mac", "").lower().replace("-", ":"), values.get("serial", ""), values.get("uuid", ""))


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def handle_error(self, request: object, client_address: object) -> None:
        """A machine that hangs up is asked nothing."""


@contextlib.contextmanager
def serving(address: str, port: int, answers: Answers) -> Iterator[Answers]:
    """Serve until the block ends; `port` 0: any that is free. Raises GpuprovError where the address is not this
    computer's, or the port is taken."""
    handler = type("Handler", (_Handler,), {"answers": answers})
    try:
        server = _Server((address, port), handler)
    except OSError as error:
        raise GpuprovError(
            f"cannot serve installers at {address}:{port}: {error.strerror}", where="install.serve",
            hint="another host:port: one of this interface, with a port that is free",
        ) from error  # fmt: skip
    answers.url = f"http://{address}:{server.server_address[1]}"
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True, name="netboot").start()
    try:
        yield answers
    finally:
        server.shutdown()
        server.server_close()
