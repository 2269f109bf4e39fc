"""gds.txt: what `gdscheck -p` says of GPUDirect Storage.

Traps: "Supported" up to GDS 1.15, and from 1.16 the names of the modes that a route has ("nvfs, compat"), of which
compat alone goes through the host's memory; use_compat_mode only allows that, force_compat_mode makes it so; without
nvidia-fs its version is not printed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from provisioner.verify.parsers import Unreadable, first_line, lines
from provisioner.verify.tool import Tool

DIRECT = frozenset({"supported", "nvfs", "p2pdma", "c2c"})
"""Words of a route on which the disk reaches the GPU's memory itself."""
ROUTE = re.compile(r" ?([A-Za-z][A-Za-z0-9 ]{1,30}?) +: ([A-Za-z0-9, ]{3,60})")
_GPU = re.compile(r" ?GPU index (\d{1,3}) (.{1,200})")


@dataclass(frozen=True, slots=True)
class Gds:
    """`routes` are kinds of storage, with whether they are direct; `gpus` index → whether it supports GDS."""

    version: str | None = None
    nvidia_fs: str | None = None
    routes: Mapping[str, bool] = field(default_factory=dict)
    forced_compat: bool | None = None
    gpus: Mapping[int, bool] = field(default_factory=dict)


def parse(text: str) -> Gds:
    rows = lines(text)
    version = re.search(r"GDS release version: *([0-9][0-9.]{0,30})", text)
    begin = next((i for i, row in enumerate(rows) if "DRIVER CONFIGURATION" in row), None)
    if version is None or begin is None:
        raise Unreadable(f"not what gdscheck prints: {first_line(text)}")
    end = next((i for i, row in enumerate(rows) if i > begin and "CUFILE CONFIGURATION" in row), len(rows))
    routes = [match for row in rows[begin + 1 : end] if (match := ROUTE.fullmatch(row.rstrip())) is not None]
    module = re.search(r"nvidia_fs version: *([0-9][0-9.]{0,30})", text)
    forced = re.search(r"properties\.force_compat_mode *: *(true|false)", text)
    return Gds(
        version[1],
        module[1] if module else None,
        {match[1]: not DIRECT.isdisjoint(match[2].lower().replace(",", " ").split()) for match in routes},
        forced[1] == "true" if forced else None,
        {int(match[1]): " supports GDS" in match[2] for row in rows if (match := _GPU.match(row))},
    )


TOOLS = (
    Tool(
        file="gds.txt",
        field="gds",
        parse=parse,
        seconds=20.0,
        when=lambda expected: expected.vendor == "nvidia",
        label="gdscheck -p",
    ),
)
