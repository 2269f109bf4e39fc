"""Real Prometheus, Alertmanager and node_exporter of Debian, on loopback."""

from __future__ import annotations

import json
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
TOOLS = ROOT / ".cache" / "prometheus" / "usr" / "bin"
WAIT_S = 120.0


def tool(name: str) -> str:
    """The path of a program of the packages that `make system-test` unpacks."""
    path = TOOLS / name
    assert path.exists(), f"{path} is missing: run `make system-test`"
    return str(path)


def promtool(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [tool("promtool"), *arguments], cwd=cwd, capture_output=True, text=True, check=False, timeout=900
    )


@contextmanager
def prometheus(folder: Path) -> Iterator[str]:
    """A server with the prometheus.yml and the data of a folder. Gives its URL."""
    port = free_port()
    arguments = [
        tool("prometheus"), "--config.file=prometheus.yml", "--storage.tsdb.path=data",
        f"--web.listen-address=127.0.0.1:{port}", "--storage.tsdb.retention.time=10y",
    ]  # fmt: skip
    with _running(arguments, folder, "prometheus.log"):
        url = f"http://127.0.0.1:{port}"
        until(lambda: reachable(f"{url}/-/ready"), folder / "prometheus.log")
        yield url


@contextmanager
def alertmanager(folder: Path) -> Iterator[str]:
    """A server with the alertmanager.yml of a folder. Gives HOST:PORT."""
    port = free_port()
    arguments = [
        tool("prometheus-alertmanager"), "--config.file=alertmanager.yml", "--storage.path=alerts",
        f"--web.listen-address=127.0.0.1:{port}", "--cluster.listen-address=",
    ]  # fmt: skip
    with _running(arguments, folder, "alertmanager.log"):
        until(lambda: reachable(f"http://127.0.0.1:{port}/-/ready"), folder / "alertmanager.log")
        yield f"127.0.0.1:{port}"


@contextmanager
def node_exporter(folder: Path, textfiles: Path) -> Iterator[int]:
    """A node_exporter of this machine, with a directory of .prom files. Gives its port."""
    port = free_port()
    arguments = [
        tool("prometheus-node-exporter"), f"--web.listen-address=127.0.0.1:{port}",
        f"--collector.textfile.directory={textfiles}",
    ]  # fmt: skip
    with _running(arguments, folder, "node-exporter.log"):
        until(lambda: reachable(f"http://127.0.0.1:{port}/"), folder / "node-exporter.log")
        yield port


@contextmanager
def _running(arguments: list[str], folder: Path, log: str) -> Iterator[None]:
    with (folder / log).open("w") as stream:
        process = subprocess.Popen(arguments, cwd=folder, stdout=stream, stderr=stream)
        try:
            yield
        finally:
            process.terminate()
            process.wait(60)


def serve(answer: Callable[[str], bytes]) -> ThreadingHTTPServer:
    """An exporter on loopback: path → its metrics. Whoever starts it calls `shutdown`."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            body = answer(self.path)
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


def query(url: str, expr: str) -> list[dict[str, Any]]:
    """The series of an instant query, now."""
    answer = get(f"{url}/api/v1/query?{urllib.parse.urlencode({'query': expr})}")
    assert answer["status"] == "success", answer
    return list(answer["data"]["result"])


def get(url: str) -> Any:
    try:
        with urllib.request.urlopen(url, timeout=60) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        return json.load(error)


def reachable(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=10):
            return True
    except OSError:
        return False


def until(holds: Callable[[], bool], log: Path | None = None) -> None:
    """Wait for an event."""
    end = time.monotonic() + WAIT_S
    while not holds():
        if time.monotonic() > end:
            raise AssertionError(f"nothing came in {WAIT_S:.0f} s: {log.read_text()[-3000:] if log else ''}")
        time.sleep(0.2)


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
