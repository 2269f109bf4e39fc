"""`systemctl status UNIT`, `systemctl list-units --state=failed` and `systemctl show UNIT…`.

Traps: a second "●" line (TriggeredBy), lines cut with ">", a journal excerpt instead of the status; lists with a header
and a legend, of units that have not failed as well.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from provisioner.verify.parsers import Unreadable, first_line, lines
from provisioner.verify.tool import Tool

_ACTIVE = re.compile(r"^\s*Active:\s+([a-z-]+)(?:\s+\(([^)]*)\))?")
STATES = {"active", "reloading", "refreshing", "inactive", "failed", "activating", "deactivating", "maintenance"}
_MISMATCH = re.compile(r"version ([0-9.]+) (?:doesn't|don't|does not|do not) match with driver version ([0-9.]+)")
_COMPLAINT = re.compile(
    r"(?:nv-fabricmanager|nvidia-fabricmanager-start\.sh)\[\d+\]: (.*\b(?:[Ff]ailed|[Ee]rror|not match)\b.*)"
)
"""What fabric manager says in the journal before it ends."""
_UNIT = re.compile(r"^(?:[●○×x*]\s+|\s+)?([A-Za-z0-9@._\\:…-]+(?:\.[a-z]+|…))\s+[a-z-]+\s+([a-z-]+)\s+[a-z-]+(?:\s|$)")
_AROUND = re.compile(
    r"^\s*UNIT\s+LOAD\s+ACTIVE\s+SUB\b|^\s*(?:LOAD|ACTIVE|SUB|JOB)\s+[=→] |loaded units? listed\b"
    r"|^To show all installed unit files\b|^Legend:"
)
"""Header, legend and end of a list that was made without --no-legend."""


@dataclass(frozen=True, slots=True)
class Service:
    """`state` is active, inactive, failed, activating …, or not-found; `sub` running, dead, exited …

    For fabric manager `version` and `driver_version` are what its log says when the two differ.
    """

    state: str
    sub: str | None = None
    version: str | None = None
    driver_version: str | None = None
    reason: str | None = None


def parse(text: str) -> Service:
    rows = lines(text)
    version = driver = reason = None
    if match := _MISMATCH.search(text):
        version, driver = match[1], match[2]
        reason = f"fabric manager {version} does not match driver {driver}"
    elif match := _COMPLAINT.search(text):
        reason = match[1].strip()[:200]
    for row in rows:
        if (match := _ACTIVE.match(row)) and match[1] in STATES:
            return Service(match[1], match[2], version, driver, reason)
    if re.search(r"Unit \S+ could not be found|Loaded: not-found", text):
        return Service("not-found", reason="the service is not installed")
    failures = [m.end() for m in re.finditer(r"Failed with result|code=exited, status=[1-9]\S*/FAILURE", text)]
    # In a journal without a status the service may have been started after its failure.
    if (version or failures) and not re.search(r"systemd\[1\]: Started \S", text[max(failures, default=0) :]):
        return Service("failed", None, version, driver, reason)
    raise Unreadable(f"no status of a service: {first_line(text)}")


def parse_failed(text: str) -> tuple[str, ...]:
    """Failed units; an empty text is a real answer: none."""
    units = []
    for row in lines(text):
        if not row.strip() or _AROUND.search(row):
            continue
        match = _UNIT.match(row)
        if not match:
            raise Unreadable(f"not a list of units: {first_line(row)}")
        if match[2] == "failed":
            units.append(match[1])
    return tuple(units)


JOB_SERVICES = ("slurmd.service", "munge.service", "kubelet.service", "k3s-agent.service", "rke2-agent.service")
"""Units that bring jobs to a node; gpuprov installs none of them, and asks after all."""


@dataclass(frozen=True, slots=True)
class Unit:
    """One unit as `systemctl show` says: `load` loaded, masked, not-found …; `active` active, inactive, failed …;
    `enabled` enabled, disabled, static, masked …, empty where there is no file."""

    load: str
    active: str
    sub: str = ""
    enabled: str = ""
    result: str = ""


def parse_units(text: str) -> dict[str, Unit]:
    """Unit → its state: blocks of Key=Value, an empty line between two."""
    units = {}
    for block in re.split(r"\n\s*\n", "\n".join(lines(text)).strip()):
        values = dict(line.split("=", 1) for line in block.split("\n") if "=" in line)
        if not values.get("Id") or "ActiveState" not in values or "LoadState" not in values:
            raise Unreadable(f"not a unit's properties: {first_line(block)}")
        if values["ActiveState"] not in STATES:
            raise Unreadable(f"no state of a unit: {values['ActiveState'][:40]!r}")
        units[values["Id"]] = Unit(
            values["LoadState"],
            values["ActiveState"],
            values.get("SubState", ""),
            values.get("UnitFileState", ""),
            values.get("Result", ""),
        )
    return units


TOOLS = (
    Tool(
        file="fabricmanager.txt",
        field="fabric_manager",
        parse=parse,
        command=("systemctl", "status", "nvidia-fabricmanager", "--no-pager", "--full"),
        seconds=10,
        when=lambda expected: expected.fabric_manager,
        complaint_answers=True,
        label="systemctl status nvidia-fabricmanager",
    ),
    Tool(
        file="services.txt",
        field="failed_units",
        parse=parse_failed,
        command=("systemctl", "list-units", "--state=failed", "--no-legend", "--plain", "--no-pager"),
        seconds=10,
        empty=True,
        label="systemctl list-units --state=failed",
    ),
    Tool(
        file="units.txt",
        field="units",
        parse=parse_units,
        seconds=10,
        drift=True,
        label="systemctl show",
    ),
)
