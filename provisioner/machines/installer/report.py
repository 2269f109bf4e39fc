"""What an installer says of itself to the server that it came from: that it has ended, or why it has not installed."""

from __future__ import annotations

import re
from typing import NamedTuple

LENGTH = 1024
"""Bytes of a report's body that are read."""
_KEY = re.compile(r"ssh-ed25519 [A-Za-z0-9+/]{60,80}={0,2}")
_LOST = "what was on the disk is lost"
AGAIN = "again"
WHY = {
    AGAIN: "it was installed, and its firmware started the installer's image once more in place of its disk; nothing "
    "was written again",
    "machine": "nothing was written: it is not the machine that the installer was made for",
    "data": "nothing was written: a disk of it holds data",
    "no-disk": "nothing was written: it has no disk to install on, or not the one that install.disk names",
    "small": "nothing was written: it has no disk of at least 32 GB, or one that is smaller than the image",
    "bios": "nothing was written: it was started by BIOS, and a disk image starts by UEFI alone",
    "fetch": "nothing was written: the image can't be fetched from its network",
    "disk": f"its disk can't be written; {_LOST}",
    "image": f"what it fetched three times was not the image; {_LOST}",
    "system": f"the image's last partition holds no system with cloud-init and sshd, or can't be grown; {_LOST}",
}  # fmt: skip
"""What an installer reports by a word (guard.sh, disk_image.sh), and AGAIN, which follows from what it reports."""


class Report(NamedTuple):
    """`refused`: a word of WHY, "" for an installation that has ended; `host_key`: the machine's own, made there."""

    refused: str = ""
    host_key: str = ""

    @property
    def ended(self) -> bool:
        return self.refused in ("", AGAIN)


def read(segments: list[str], body: bytes = b"") -> Report | None:
    """A report's path and body; None for what is none."""
    if segments == ["installed"]:
        key_match = _KEY.fullmatch(body[:LENGTH].decode("ascii", "replace").strip())
        return Report(host_key=key_match[0] if key_match else "")
    if len(segments) == 2 and segments[0] == "refused" and segments[1] in WHY and segments[1] != AGAIN:
        return Report(segments[1])
    return None
