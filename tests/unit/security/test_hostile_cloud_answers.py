"""Who answers in the place of MAAS, a metadata service or a price list: no key goes on to another host, every answer
ends, and none is a crash."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from provisioner.common.errors import MAX_TEXT, Diagnostic, GpuprovError
from provisioner.machines.providers import public_address
from provisioner.machines.providers.azure import errors as azure_errors
from provisioner.machines.providers.azure import market as azure_market
from provisioner.machines.providers.azure.market import market
from provisioner.machines.providers.azure.site import AzureSite
from provisioner.machines.providers.baremetal import maas
from provisioner.machines.providers.baremetal.maas import MaasApi
from provisioner.machines.providers.market import Unanswered
from provisioner.machines.providers.public_address import PublicAddress
from provisioner.machines.providers.tencent import credentials
from provisioner.machines.providers.trouble import Trouble
from tests.unit.security.test_hostile_network import DRIPS, dripping

DEEP = b"[" * 200_000
ANSWERS = {
    "no http": b"SSH-2.0-x\r\n\r\n",
    "a long status": b"HTTP/1.1 " + b"2" * 100_000 + b" OK\r\n\r\n",
    "many headers": b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 500 + b"\r\n[]",
    "nested": b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + DEEP,
    "digits": b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n[" + b"9" * 5000 + b"]",
    "not text": b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n\xff\xfe\x00",
    "a half": b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n[",
    "chunks that are missing": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    "null": b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nnull",
    "other types": b'HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n[{"system_id": {}, "hostname": 5}, 7, "x", null]',
    "rows": b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n"
    + json.dumps(
        {"Items": [{"retailPrice": "x"}, {"retailPrice": 1.5, "skuName": "Spot", "unitOfMeasure": "1 Hour"}]}
    ).encode(),
}


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAAS_API_KEY", "consumer:token:SECRET")
    monkeypatch.setattr(maas, "TIMEOUT_S", 1.0)
    monkeypatch.setattr(public_address, "TIMEOUT_S", 1.0)
    monkeypatch.setattr(credentials, "ROLE_S", 1.0)
    monkeypatch.setattr(azure_market, "READ_S", 1.0)


def ask_maas(url: str, _: pytest.MonkeyPatch) -> None:
    MaasApi(url).get("machines/", [("status", "ready")])


def ask_address(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(public_address, "MY_ADDRESS", url)
    _ = PublicAddress(called=True).network


def ask_metadata(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(credentials, "ROLE", f"{url}/")
    credentials._machine("role")


def ask_prices(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(azure_market.PRICES, "public", url)
    market().spot("westeurope", "Standard_ND96asr_v4", 1)


Ask = Callable[[str, pytest.MonkeyPatch], None]
ASKS: list[Ask] = [ask_maas, ask_address, ask_metadata, ask_prices]
ERRORS = (GpuprovError, Trouble, Unanswered)


@contextmanager
def answering(raw: bytes) -> Iterator[str]:
    """A server on loopback that gives these bytes to whoever asks; gives its URL."""

    class Handler(BaseHTTPRequestHandler):
        def handle(self) -> None:
            self.rfile.readline(65536)
            while self.rfile.readline(65536) not in (b"\r\n", b""):
                pass
            try:
                self.wfile.write(raw)
            except OSError:
                return

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def outcome(ask: Ask, url: str, monkeypatch: pytest.MonkeyPatch) -> BaseException | None:
    """What a question ends with; asked in a thread, so that one that never ends does not hang the test."""
    results: list[BaseException | None] = []

    def run() -> None:
        try:
            ask(url, monkeypatch)
        except BaseException as error:
            results.append(error)
        else:
            results.append(None)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(timeout=30)
    assert results, "it never ends"
    return results[0]


@pytest.mark.parametrize("answer", ANSWERS)
@pytest.mark.parametrize("ask", ASKS)
def test_any_answer_is_an_answer_or_an_error(ask: Ask, answer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with answering(ANSWERS[answer]) as url:
        error = outcome(ask, url, monkeypatch)
    assert error is None or isinstance(error, ERRORS)
    assert "SECRET" not in str(error)


@pytest.mark.parametrize("drip", ["status line", "headers", "body", "chunks", "answers in between"])
@pytest.mark.parametrize("ask", ASKS)
def test_an_answer_that_drips_ends(ask: Ask, drip: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with dripping(*DRIPS[drip]) as port:
        assert isinstance(outcome(ask, f"http://127.0.0.1:{port}", monkeypatch), ERRORS)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@pytest.mark.parametrize("ask", ASKS)
def test_no_redirect_is_followed(ask: Ask, status: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The key of MAAS is in a header of each request, and went to whoever a redirect named."""
    requests: list[str] = []

    class Elsewhere(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            requests.append(f"{self.path} {self.headers}")
            self.send_error(404)

        def log_message(self, *_: object) -> None:
            """Says nothing."""

    with ThreadingHTTPServer(("127.0.0.2", 0), Elsewhere) as elsewhere:
        threading.Thread(target=elsewhere.serve_forever, daemon=True).start()
        target = f"http://127.0.0.2:{elsewhere.server_port}/x"
        raw = f"HTTP/1.1 {status} Found\r\nLocation: {target}\r\nContent-Length: 0\r\n\r\n".encode()
        with answering(raw) as url:
            assert isinstance(outcome(ask, url, monkeypatch), ERRORS)
        elsewhere.shutdown()
    assert requests == []


@pytest.mark.parametrize("piece", ["(Ab) ", "Code: Ab ", "Request ID: ", "a ", "\n"])
def test_an_error_of_megabytes_is_cut(piece: str) -> None:
    """Azure's nested errors take the square of their length: three megabytes would be minutes."""
    diagnostic = Diagnostic("first", piece * (3_000_000 // len(piece)) + "last")
    assert len(diagnostic.text) <= MAX_TEXT + 10
    assert diagnostic.text.startswith("first") and diagnostic.text.endswith("last")
    site = AzureSite(provider="azure", region="westeurope")
    assert len(azure_errors.read(diagnostic, site).text) <= MAX_TEXT + 10
