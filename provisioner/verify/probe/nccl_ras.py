"""nccl-ras.txt: what NCCL itself says of the job on this node (RAS, since NCCL 2.24), asked as its own client does.

NCCL listens on the loopback address while a job runs; without one nobody answers, and the file is empty. Standard
library only, Python 3.8 or newer.
"""

from __future__ import annotations

import socket
import time
from typing import Any

from provisioner.verify.probe.runner import COLLECTORS, result

RAS_PORT = 28028
RAS_TEXT = 1 << 18


def nccl_ras(seconds: float, _request: dict[str, Any]) -> dict[str, Any]:
    """The whole answer, or what came of it within the deadline: NCCL waits for processes that do not answer it."""
    until = time.monotonic() + seconds
    try:
        client = socket.create_connection(("127.0.0.1", RAS_PORT), timeout=2.0)
    except OSError:
        return result("", 0)
    parts: list[bytes] = []
    try:
        client.sendall(b"verbose status\n")
        while sum(map(len, parts)) < RAS_TEXT and (remaining := until - time.monotonic()) > 0:
            client.settimeout(remaining)
            part = client.recv(65536)
            if not part:
                break
            parts.append(part)
    except OSError:
        pass
    finally:
        client.close()
    return result(b"".join(parts)[:RAS_TEXT].decode("utf-8", "replace"), 0, seconds - (until - time.monotonic()))


COLLECTORS["nccl-ras.txt"] = nccl_ras
