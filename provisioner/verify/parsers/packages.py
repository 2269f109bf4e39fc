"""`dpkg-query -W` and `apt-mark showhold`: what is installed and what may not move."""

from __future__ import annotations

import re
from dataclasses import replace

from provisioner.verify.document import plain
from provisioner.verify.parsers import Unreadable, first_line, lines
from provisioner.verify.tool import Tool

_PACKAGE = re.compile(
    r"^([a-z0-9][a-z0-9+.-]+)(?::[a-z0-9-]+)?\t(\S*)(?:\t([a-z][a-zA-Z])[^\t]*(?:\t(\S+)\t(\S+))?.*)?$"
)
_NAME = re.compile(r"^([a-z0-9][a-z0-9+.-]+)(?::[a-z0-9-]+)?$")


def parse(text: str) -> dict[str, str]:
    """Package → version. Removed packages whose configuration is left (no version, or state "rc") are not there."""
    versions: dict[str, str] = {}
    rows = [line for line in lines(text) if line]
    if len(rows) > 1 and rows[-1].count("\t") < rows[0].count("\t"):
        raise Unreadable(f"its last line was cut: {first_line(rows[-1])}")
    for line in rows:
        match = _PACKAGE.match(line)
        if match and match[2] and (match[3] is None or match[3][1] == "i"):
            versions[match[1]] = match[2]
    if not versions:
        raise Unreadable(f"no package in it: {first_line(text)}")
    return versions


def parse_sources(text: str) -> dict[str, str]:
    """Package → "source version", for packages whose source package has another name or version: vulnerabilities are
    listed by source package."""
    source_versions = {}
    for line in lines(text):
        match = _PACKAGE.match(line)
        if match and match[4] and (match[4], match[5]) != (match[1], match[2]):
            source_versions[match[1]] = f"{match[4]} {match[5]}"
    return source_versions


def parse_unfinished(text: str) -> dict[str, str]:
    """Package → what dpkg says of one that is neither whole nor gone: half-installed, unpacked, half-configured …"""
    states = {"H": "half-installed", "U": "unpacked", "F": "half-configured", "W": "waiting for triggers"}
    unfinished = {}
    for line in lines(text):
        match = _PACKAGE.match(line)
        if match and match[3] and match[3][1] in states:
            unfinished[match[1]] = f"{match[2]} {states[match[3][1]]}".strip()
    return unfinished


def parse_holds(text: str) -> tuple[str, ...]:
    """Packages on hold; an empty text is a real answer: none."""
    packages = []
    for line in lines(text):
        if not line.strip():
            continue
        match = _NAME.match(line.strip())
        if not match:
            raise Unreadable(f"not a package name: {first_line(line)}")
        packages.append(match[1])
    return tuple(packages)


_SHOWN = "\t".join(
    f"${{{name}}}" for name in ("binary:Package", "Version", "db:Status-Abbrev", "source:Package", "source:Version")
)
PACKAGES = Tool(
    file="packages.txt",
    field="packages",
    parse=parse,
    command=("dpkg-query", "-W", "-f", f"{_SHOWN}\n"),
    drift=True,
    label="dpkg-query -W",
)
TOOLS = (
    PACKAGES,
    replace(PACKAGES, field="package_sources", parse=parse_sources, document={}),
    replace(PACKAGES, field="unfinished", parse=parse_unfinished, document={"unfinished_packages": plain}),
    Tool(file="holds.txt", field="holds", parse=parse_holds, drift=True, empty=True, label="apt-mark showhold"),
)
