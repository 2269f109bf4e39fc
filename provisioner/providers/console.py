"""A machine's host key as cloud-init writes it on its console at first boot (module keys-to-console), where its cloud
hands that out: no network of the machine's is in between."""

from __future__ import annotations

import re
import time
from collections.abc import Callable

KEYS = re.compile(r"-----BEGIN SSH HOST KEY KEYS-----(.*?)-----END SSH HOST KEY KEYS-----", re.S)
WAIT_S, PAUSE_S = 30.0, 3.0
"""sshd answers a little before cloud-init writes the keys."""


def read(text: str) -> str | None:
    """The ed25519 key of the last boot that wrote keys."""
    blocks = KEYS.findall(text.replace("\r", ""))
    found = re.findall(r"(?m)(ssh-ed25519 [A-Za-z0-9+/=]{40,})", blocks[-1]) if blocks else []
    return found[-1] if found else None


def awaited(console: Callable[[], str | None], *, wait_s: float = WAIT_S) -> str | None:
    """The key, once the console has one; None where it has none within `wait_s` seconds, or may not be read (None)."""
    until = time.monotonic() + wait_s
    while True:
        text = console()
        if text is None:
            return None
        if key := read(text):
            return key
        if time.monotonic() > until:
            return None
        time.sleep(PAUSE_S)
