"""What a simulated package is made of: programs, facts that the simulator reads, files that stand for libraries."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass

from provisioner.sandbox.deb import File
from provisioner.sandbox.sources import unit_file

INSTALLED = "usr/lib/gpuprov-sandbox/installed"
LIBRARIES = {"amd64": "usr/lib/x86_64-linux-gnu", "arm64": "usr/lib/aarch64-linux-gnu"}


@dataclass(frozen=True, slots=True)
class Content:
    """Files, dependencies that are wanted when the lock has them, and maintainer scripts of one package."""

    description: str
    files: dict[str, File]
    depends: tuple[str, ...] = ()
    scripts: tuple[tuple[str, str], ...] = ()


def program(tool: str, version: str) -> File:
    """A program of a package: a few lines of Python that hand over to the simulator in the node's image."""
    text = (
        "#!/usr/bin/python3 -IS\n"
        f"# {tool} {version}, simulated by gpuprov: it reads /etc/gpuprov-sandbox/hardware.json\n"
        "import sys\n"
        'sys.path.insert(0, "/usr/lib/gpuprov-sandbox")\n'
        "from gpuprov_node.main import main\n"
        f"sys.exit(main({tool!r}, {version!r}))\n"
    )
    return File(text.encode(), 0o755)


def fact(part: str, **content: object) -> dict[str, File]:
    """A fact that the simulator reads once the package is installed."""
    return {f"{INSTALLED}/{part}.json": File((json.dumps(content, sort_keys=True) + "\n").encode())}


def placeholder(path: str, link: str | None = None) -> dict[str, File]:
    """A library file that only says what it is, with the usual link to it."""
    files = {path: File(b"simulated by gpuprov: this is no library\n")}
    if link:
        files[link] = File(link=path.rsplit("/", 1)[1])
    return files


def unit(name: str, text: str | None = None) -> dict[str, File]:
    """A unit of that name; `text`: the file of data/units with its text, where that has another name."""
    return {f"usr/lib/systemd/system/{name}": File(unit_file(text or name).encode())}


def upstream(version: str) -> str:
    """580.173.02 of "580.173.02-1", 4.5.3 of "1:4.5.3-1", 2.27.7 of "2.27.7-1+cuda13.0"."""
    return re.sub(r"^\d+:", "", version).split("-", 1)[0]


def programs(description: str, *paths: str) -> Callable[[str, str], Content]:
    """A package that holds these programs."""

    def content(version: str, _architecture: str) -> Content:
        return Content(description, {path: program(path.rsplit("/", 1)[1], version) for path in paths})

    return content
