"""Real Prometheus, Alertmanager and node_exporter of Debian, on loopback."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from provisioner.monitoring import servers

ROOT = Path(__file__).parents[2]
TOOLS = ROOT / ".cache" / "prometheus" / "usr" / "bin"
os.environ["PATH"] = f"{TOOLS}:{os.environ['PATH']}"  # where gpuprov looks for them too
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
    with servers.prometheus(folder, servers.free_port()) as url:
        yield url


@contextmanager
def node_exporter(folder: Path, textfiles: Path) -> Iterator[int]:
    """A node_exporter of this machine, with a directory of .prom files. Gives its port."""
    port = servers.free_port()
    arguments = [
        tool("prometheus-node-exporter"), f"--web.listen-address=127.0.0.1:{port}",
        f"--collector.textfile.directory={textfiles}",
    ]  # fmt: skip
    with servers.running(arguments, folder, f"http://127.0.0.1:{port}/"):
        yield port


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


def until(holds: Callable[[], bool], log: Path | None = None) -> None:
    """Wait for an event."""
    end = time.monotonic() + WAIT_S
    while not holds():
        if time.monotonic() > end:
            raise AssertionError(f"nothing came in {WAIT_S:.0f} s: {log.read_text()[-3000:] if log else ''}")
        time.sleep(0.2)
