"""The NVIDIA driver's own files: /proc/driver/nvidia/version and params, and the device nodes below /dev."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Literal

from provisioner.verify.parsers import Unreadable, first_line, lines
from provisioner.verify.tool import Tool, nvidia

_VERSION = re.compile(
    r"^NVRM version: NVIDIA UNIX (.*?)Kernel Module(?: for \S+)?\s+([0-9]{2,4}(?:\.[0-9]{1,3}){1,3})\b"
)
_PARAM = re.compile(r'^([A-Z][A-Za-z0-9_]{1,60}): (?:"(.*)"|(.*))$')
_NODE = re.compile(
    r"^([bcdlps-])([rwxsStT-]{9})[.+@]?\s+\d+\s+\S+\s+\S+\s+(?:(\d+), +(\d+)|\d+)\s+(?:.*\s)?/dev/(nvidia[\w./-]*)"
)


@dataclass(frozen=True, slots=True)
class Module:
    """The kernel module that is loaded."""

    version: str
    flavour: Literal["open", "proprietary"]


@dataclass(frozen=True, slots=True)
class Node:
    """One entry of /dev: `kind` as ls prints it (c: character device), `name` below /dev."""

    name: str
    kind: str
    rights: str
    major: int | None
    minor: int | None


def parse(text: str) -> Module:
    """/proc/driver/nvidia/version. The open modules call themselves so in their first line."""
    for line in lines(text):
        if match := _VERSION.match(line.strip()):
            return Module(match[2], "open" if "open" in match[1].lower() else "proprietary")
    raise Unreadable(f"no version of an NVIDIA module: {first_line(text)}")


def parse_params(text: str) -> dict[str, str]:
    """/proc/driver/nvidia/params: name → value, quotes taken off."""
    params = {m[1]: m[2] if m[2] is not None else m[3] for line in lines(text) if (m := _PARAM.match(line.strip()))}
    if not params:
        raise Unreadable(f"no parameter in it: {first_line(text)}")
    return params


def parse_nodes(text: str) -> tuple[Node, ...]:
    """`ls -l /dev/nvidia*`; what is below /dev/nvidia-caps is left out where ls lists the directory by itself."""
    nodes = []
    for line in lines(text):
        if match := _NODE.match(line.strip()):
            major, minor = (int(match[3]), int(match[4])) if match[3] else (None, None)
            nodes.append(Node(match[5], match[1], match[2], major, minor))
    if not nodes:
        raise Unreadable(f"no device of the NVIDIA driver: {first_line(text)}")
    return tuple(nodes)


DRIVER = Tool(
    file="nvidia-version.txt",
    field="module",
    parse=parse,
    paths=("/proc/driver/nvidia/version",),
    seconds=5,
    when=nvidia,
)
TOOLS = (
    DRIVER,
    replace(DRIVER, file="nvidia-params.txt", field="module_params", parse=parse_params,
            paths=("/proc/driver/nvidia/params",), document={}),
    Tool(
        file="nvidia-dev.txt",
        field="device_nodes",
        parse=parse_nodes,
        seconds=5,
        when=nvidia,
        label="ls -l /dev/nvidia*",
    ),
)  # fmt: skip
