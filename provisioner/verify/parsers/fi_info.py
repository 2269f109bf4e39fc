"""`fi_info -p efa`: EFA devices. Three entries describe one device; the GUIDs are all zero, so the domain names it.
The last line of an entry is its protocol."""

from __future__ import annotations

import re
from dataclasses import dataclass

from provisioner.verify.parsers import Unreadable, first_line, lines
from provisioner.verify.tool import Tool

_DOMAIN = re.compile(r"^\s*domain:\s*(\S{1,80}?)(?:-(?:rdm|dgrm))?$")


@dataclass(frozen=True, slots=True)
class Efa:
    devices: tuple[str, ...]


def parse(text: str) -> Efa:
    devices: dict[str, None] = {}
    provider = None
    begun = ended = 0
    for line in lines(text):
        if line.strip().startswith("provider:"):
            provider = line.split(":", 1)[1].strip()
            begun += 1
        elif line.strip().startswith("protocol:"):
            ended += 1
        elif provider and provider.startswith("efa") and (match := _DOMAIN.match(line)):
            devices[match[1]] = None
    if not devices and provider is None:
        # "fi_getinfo: -61" is ENODATA: libfabric works and finds no EFA device.
        if re.search(r"fi_getinfo: -61\b|No data available", text):
            return Efa(())
        raise Unreadable(f"no provider in it: {first_line(text)}")
    if 0 < ended < begun:
        raise Unreadable(f"{begun} entries begin and {ended} end: it was cut")
    return Efa(tuple(devices))


TOOLS = (
    Tool(
        file="fi_info.txt",
        field="efa",
        parse=parse,
        label="fi_info -p efa",
        seconds=45.0,
        when=lambda expected: expected.network == "efa",
        complaint_answers=True,
        document={"efa_devices": lambda efa: len(efa.devices)},
    ),
)
