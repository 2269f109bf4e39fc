"""The mirror container: apt repositories and keys over HTTP, images over a real registry with TLS."""

from __future__ import annotations

import subprocess
import sys
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from types import FrameType

ROOT = "/srv/mirror"


class Files(SimpleHTTPRequestHandler):
    """Static files with connections that stay open, so that apt fetches thirty packages over one."""

    protocol_version = "HTTP/1.1"
    server_version = "gpuprov-sandbox-mirror (simulated)"

    def send_head(self):  # type: ignore[no-untyped-def]
        """A mirror for another set of locks may be older than the one before it: what is asked for is always sent."""
        del self.headers["If-Modified-Since"]
        return super().send_head()

    def log_message(self, format: str, *args: object) -> None:
        """Nobody reads an access log here."""


def mirror(_arguments: list[str], _version: str) -> int:
    """Serve until the registry ends or the container is stopped."""
    import signal

    registry = subprocess.Popen(["docker-registry", "serve", f"{ROOT}/registry.yml"])

    def stop(_number: int, _frame: FrameType | None) -> None:
        registry.terminate()

    signal.signal(signal.SIGTERM, stop)
    server = ThreadingHTTPServer(("0.0.0.0", 80), partial(Files, directory=ROOT + "/http"))  # noqa: S104
    threading.Thread(target=server.serve_forever, daemon=True).start()
    code = registry.wait()
    print(f"the registry ended with {code}", file=sys.stderr)
    return code
