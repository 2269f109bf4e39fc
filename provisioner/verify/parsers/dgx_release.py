"""/etc/dgx-release: the DGX OS of a machine that has it.

Traps: an update over the air adds its own version and leaves that of the build; a machine that was installed anew has
none of an update; other makers' machines with it call their board the platform. What has no such file has no DGX OS.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from provisioner.verify.document import plain
from provisioner.verify.parsers import Unreadable, first_line, lines
from provisioner.verify.tool import Tool

_LINE = re.compile(r'^\s*(DGX_[A-Z_]{1,40})="?([^"]{0,120})"?\s*$')


@dataclass(frozen=True, slots=True)
class DgxOs:
    """`release`: of the last update, else of the build; None for a machine without DGX OS."""

    release: str | None = None
    build: str | None = None
    platform: str | None = None


def parse(text: str) -> DgxOs:
    """Raises Unreadable for a file in which nothing is of DGX OS; an empty text says that there is none."""
    if not text.strip():
        return DgxOs()
    values = {match[1]: match[2].strip() for line in lines(text) if (match := _LINE.match(line))}
    build = values.get("DGX_SWBUILD_VERSION") or None
    release = values.get("DGX_OTA_VERSION") or build
    if release is None:
        raise Unreadable(f"it names no release of DGX OS: {first_line(text)}")
    return DgxOs(release, build, values.get("DGX_PLATFORM") or values.get("DGX_PRETTY_NAME") or None)


TOOLS = (
    Tool(
        file="dgx-release.txt",
        field="dgx",
        parse=parse,
        paths=("/etc/dgx-release",),
        seconds=5,
        # gpuprov configures no machine with DGX OS: of one with a lock it is not asked
        when=lambda expected: expected.bare_metal and expected.vendor == "nvidia" and expected.packages is None,
        empty=True,
        document={"dgx_os": lambda dgx: plain(dgx) if dgx.release else None},
    ),
)
