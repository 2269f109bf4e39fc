"""A machine's host key as cloud-init writes it on its console at first boot (module keys-to-console), where its cloud
hands that out: no network of the machine's is in between."""

from __future__ import annotations

import time
from collections.abc import Callable

from provisioner.machines.providers.first_boot import host_key_of

WAIT_S, PAUSE_S = 30.0, 3.0
"""sshd answers a little before cloud-init writes the keys."""


def awaited(console: Callable[[], str | None], *, wait_s: float = WAIT_S) -> str | None:
    """The key, once the console has one; None where it has none within `wait_s` seconds, or may not be read (None)."""
    until = time.monotonic() + wait_s
    while True:
        text = console()
        if text is None:
            return None
        if key := host_key_of(text):
            return key
        if time.monotonic() > until:
            return None
        time.sleep(PAUSE_S)
