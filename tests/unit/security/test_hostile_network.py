"""What answers while a lock is made: a repository, a registry, somebody between."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from provisioner.common.errors import GpuprovError
from provisioner.common.image_reference import parse
from provisioner.stack.fetch import Fetch, loopback
from provisioner.stack.registry import api

HEAD = b"HTTP/1.1 200 OK\r\n"
DRIPS = {
    "status line": (b"", b"H"),
    "headers": (HEAD, b"X-A: b\r\n"),
    "one header": (HEAD + b"X: ", b"a"),
    "body": (HEAD + b"Content-Length: 100000000\r\n\r\n", b"a"),
    "body without an end": (HEAD + b"Connection: close\r\n\r\n", b"a"),
    "chunks": (HEAD + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\na\r\n"),
    "a chunk's size": (HEAD + b"Transfer-Encoding: chunked\r\n\r\n", b"0"),
    "answers in between": (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
}
"""What is sent at once, and what then again and again: never silent for long, and never done."""


@contextmanager
def dripping(first: bytes, repeated: bytes) -> Iterator[int]:
    """A server on loopback; gives its port."""
    over = threading.Event()

    def serve(connection: socket.socket) -> None:
        with connection:
            try:
                connection.sendall(first)
                while not over.wait(0.02):
                    connection.sendall(repeated)
            except OSError:
                return

    def accept() -> None:
        while not over.is_set():
            try:
                threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
            except OSError:
                return

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=accept, daemon=True).start()
        try:
            yield listener.getsockname()[1]
        finally:
            over.set()


@pytest.mark.parametrize("scheme", ["http", "https"])
@pytest.mark.parametrize("drip", DRIPS)
def test_a_repository_that_drips_does_not_outlive_the_deadline(drip: str, scheme: str) -> None:
    """Over https the drip is of the handshake: whoever has no certificate can do that too."""
    messages: list[str] = []

    def fetch(port: int) -> None:
        try:
            Fetch(deadline_s=0.5).get(f"{scheme}://127.0.0.1:{port}/InRelease", who="repository x", limit=1 << 40)
        except GpuprovError as error:
            messages.append(error.message)

    with dripping(*DRIPS[drip]) as port:
        thread = threading.Thread(target=fetch, args=(port,), daemon=True)
        thread.start()
        thread.join(timeout=15)  # only so that the test does not hang
        assert not thread.is_alive()
    assert "repository x" in messages[0]


def test_another_thread_s_request_ends_when_it_is_told_to() -> None:
    ended: list[BaseException] = []
    fetch = Fetch(deadline_s=600)

    def ask(port: int) -> None:
        try:
            fetch.get(f"http://127.0.0.1:{port}/", who="x", limit=1 << 40)
        except GpuprovError as error:
            ended.append(error)

    with dripping(*DRIPS["headers"]) as port:
        thread = threading.Thread(target=ask, args=(port,), daemon=True)
        thread.start()
        while not fetch._cuts and thread.is_alive():
            threading.Event().wait(0.01)
        fetch.stop()
        thread.join(timeout=15)
        assert not thread.is_alive()
    assert len(ended) == 1


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.255.0.3", "::1", "[::1]"])
def test_this_machine_is_this_machine(host: str) -> None:
    assert loopback(host)


@pytest.mark.parametrize(
    "host", ["127.evil.example", "127.0.0.1.evil.example", "localhost.evil.example", "127.0.0.1@x", "0.0.0.0", "",
             "::2", "127.1.evil", "10.0.0.1", "evil.example"],
)  # fmt: skip
def test_no_other_host_is_taken_for_this_machine(host: str) -> None:
    assert not loopback(host)


@pytest.mark.parametrize("reference", ["127.evil.example/a:1", "127.evil.example:5000/a:1", "127.0.0.1.x.example/a:1"])
def test_no_registry_but_this_machine_s_is_asked_without_tls(reference: str) -> None:
    assert api(parse(reference)).startswith("https://")
