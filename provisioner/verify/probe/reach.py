"""Whether the node reaches what its packages and images come from (reach.json): one HEAD of each address, all at once.

{"addresses": address → {"status", "seconds", "resolve_seconds", "error"}, "proxy": whether apt goes through one}.
Standard library only, Python 3.8 or newer.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import ssl
import threading
import time
from typing import Any
from urllib.parse import urlsplit

from provisioner.verify.probe.runner import COLLECTORS, lines_of, listed, result


def reach(deadline: float, request: dict[str, Any]) -> dict[str, Any]:
    """All addresses of the request; what has not answered at the deadline is timed out."""
    started, answers_by_address = time.monotonic(), {}

    def ask(address: str) -> None:
        answers_by_address[address] = head(address, deadline - 1.0)

    addresses = [str(address) for address in request.get("reach", [])][:24]
    threads = [threading.Thread(target=ask, args=(address,), daemon=True) for address in addresses]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, started + deadline - time.monotonic()))
    late = {address: {"status": None, "error": f"no answer within {deadline:.0f} s"} for address in addresses}
    return result(json.dumps({"addresses": dict(late, **dict(answers_by_address)), "proxy": through_a_proxy()}), 0)


def head(address: str, deadline: float) -> dict[str, Any]:
    """Any answer of HTTP is one: a registry says 401, a repository's folder 403 or 404."""
    row: dict[str, Any] = {"status": None, "error": ""}
    started = time.monotonic()
    try:
        parts = urlsplit(address)
        host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
        socket.getaddrinfo(host, port)
        row["resolve_seconds"] = round(time.monotonic() - started, 3)
        connection = (
            http.client.HTTPSConnection(host, port, timeout=deadline, context=trusted(parts.netloc))
            if parts.scheme == "https"
            else http.client.HTTPConnection(host, port, timeout=deadline)
        )
        connection.request("HEAD", parts.path or "/")
        row["status"] = connection.getresponse().status
        connection.close()
    except (OSError, http.client.HTTPException, ValueError) as error:
        row["error"] = f"{type(error).__name__}: {error}"[:200]
    row["seconds"] = round(time.monotonic() - started, 3)
    return row


def trusted(registry: str) -> ssl.SSLContext:
    """The system's authorities, and those that docker trusts for this registry alone (docs.docker.com)."""
    context, folder = ssl.create_default_context(), f"/etc/docker/certs.d/{registry}/"
    for name in listed(folder):
        if name.endswith(".crt"):
            with contextlib.suppress(OSError):
                context.load_verify_locations(folder + name)
    return context


def through_a_proxy() -> bool:
    base = "/etc/apt/apt.conf.d"
    for file in ["/etc/apt/apt.conf", *(base + "/" + name for name in listed(base))]:
        with contextlib.suppress(OSError):
            if any("::proxy" in line.lower() and not line.lstrip().startswith(("#", "//")) for line in lines_of(file)):
                return True
    return False


COLLECTORS["reach.json"] = reach
