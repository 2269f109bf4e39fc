"""`uname -r`, /proc/modules and /run/reboot-required."""

from __future__ import annotations

import re
from collections.abc import Iterable

from provisioner.verify.parsers import Unreadable, first_line, lines
from provisioner.verify.tool import Tool

_IMAGE = re.compile(r"linux-image-(?:unsigned-)?([0-9]+\.[0-9].*?)(?<!-dbg)(?<!-unsigned)")


def parse(text: str) -> str:
    """The release of the running kernel."""
    rows = [line.strip() for line in lines(text) if line.strip()]
    if len(rows) != 1 or not re.fullmatch(r"[0-9]+\.[0-9]+[A-Za-z0-9.+_~-]*", rows[0]):
        raise Unreadable(f"not a kernel release: {first_line(text)}")
    return rows[0]


def is_kernel(running: str, locked: str) -> bool:
    """Whether a lock names that kernel: a whole release is one kernel, a series (6.8) has all of its own."""
    return running == locked or ("-" not in locked and running.startswith((f"{locked}.", f"{locked}-")))


def parse_modules(text: str) -> tuple[str, ...]:
    """Names of the loaded modules; lines of /proc/modules or of lsmod."""
    modules = [m[1] for line in lines(text) if (m := re.match(r"^([A-Za-z0-9_]+)\s+[0-9]+\s", line))]
    if not modules:
        raise Unreadable(f"no module in it: {first_line(text)}")
    return tuple(modules)


def parse_reboot(text: str) -> str:
    """Which packages ask for a reboot, in one line; empty where none does (there is no such file)."""
    rows = [line.strip() for line in lines(text) if line.strip()]
    packages = sorted({line for line in rows if re.fullmatch(r"[a-z0-9][a-z0-9+.-]+", line)})
    return ", ".join(packages) or ("some package" if rows else "")


def newest_kernel(packages: Iterable[str]) -> str | None:
    """The highest release among the installed linux-image-RELEASE packages; None where the kernel is no package."""
    releases = [m[1] for p in packages if (m := _IMAGE.fullmatch(p))]
    return max(releases, key=_order, default=None)


def _order(release: str) -> tuple[tuple[int, str], ...]:
    return tuple((int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"[.+~_-]", release))


TOOLS = (
    Tool(file="kernel.txt", field="kernel", parse=parse, command=("uname", "-r"), drift=True),
    Tool(file="modules.txt", field="modules", parse=parse_modules, label="/proc/modules"),
    Tool(
        file="reboot.txt",
        field="reboot",
        parse=parse_reboot,
        paths=("/run/reboot-required", "/run/reboot-required.pkgs"),
        seconds=5,
        configured=True,
        empty=True,
    ),
)
