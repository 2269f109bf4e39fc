"""`dcgmi health -c`, with -j or without: what DCGM's background watches have seen (NVIDIA/DCGM, dcgmi/Health.cpp and
DcgmiOutput.cpp: a tree of entities, systems and lines of text).

Traps: where no watch was set it prints a sentence and no report; a long message is cut into several lines; an entity
without incidents is not listed.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from provisioner.verify.parsers import Unreadable, first_line, lines
from provisioner.verify.parsers.untrusted import read_map
from provisioner.verify.tool import Tool, listed, nvidia

if TYPE_CHECKING:
    pass

STATES = ("Healthy", "Warning", "Failure", "Internal error")
_ROW = re.compile(r"^\|( *(?:-> )?)([^|]*?) *\| ([^|]*?) *\|$")


@dataclass(frozen=True, slots=True)
class Incident:
    """`entity` such as "GPU 3"; `system` such as "Memory system"; `state` is one of STATES."""

    entity: str
    system: str
    state: str
    message: str


@dataclass(frozen=True, slots=True)
class Health:
    """`overall` is one of STATES, None where no watch is set."""

    overall: str | None
    incidents: tuple[Incident, ...] = ()


def parse(text: str) -> Health:
    if re.search(r"^Error: Health watches not enabled", text, re.M):
        return Health(None)
    start = text.find("{")
    if start < 0:
        return _tree(text)
    try:
        data, _ = json.JSONDecoder().raw_decode(text, start)
    except (ValueError, RecursionError) as error:
        raise Unreadable(f"not JSON: {first_line(text)}") from error
    body = read_map(read_map(data).get("body"))
    incidents = []
    for group, entities in body.items():
        for number, entity in read_map(read_map(entities).get("children")).items():
            errors = read_map(read_map(read_map(entity).get("children")).get("Errors")).get("children")
            for system, row in read_map(errors).items():
                overflow = read_map(row).get("overflow")
                messages = (
                    [entry if isinstance(entry, str) else str(read_map(entry).get("value", "")) for entry in overflow]
                    if isinstance(overflow, list)
                    else []
                )
                incidents.append(_incident(f"{group} {number}", system, read_map(row).get("value"), messages))
    return Health(_state(read_map(body.get("Overall Health")).get("value"), text), tuple(incidents))


def _tree(text: str) -> Health:
    overall, group, entity = "", "", ""
    rows: list[tuple[str, str, str, list[str]]] = []
    for line in lines(text):
        if (match := _ROW.match(line)) is None:
            continue
        depth, label, value = len(match[1].replace("-> ", "")), match[2].strip(), match[3].strip()
        if "->" not in match[1] and label.startswith("Overall Health"):
            overall = value
        elif "->" not in match[1] and label:
            group = label
        elif label and depth <= 2 and label != "Errors":
            entity = f"{group} {label}".strip()
        elif label and label != "Errors":
            rows.append((entity, label, value, []))
        elif rows and value:
            rows[-1][3].append(value)
    return Health(_state(overall, text), tuple(_incident(*row) for row in rows))


def _state(value: Any, text: str) -> str:
    if value not in STATES:
        raise Unreadable(f"no overall health in it: {first_line(text)}")
    return str(value)


def _incident(entity: str, system: str, state: Any, messages: list[str]) -> Incident:
    known = state if state in STATES else "Failure"  # a word that nobody knows is never well
    return Incident(entity[:40], system[:40], str(known), " ".join(messages)[:300])


TOOLS = (
    Tool(
        file="dcgmi-health.json",
        added_later=True,
        field="dcgm_health",
        parse=parse,
        command=("dcgmi", "health", "-c", "-j"),
        seconds=15,
        when=nvidia,
        document={"dcgm_health": lambda value: {"overall": value.overall, "incidents": listed(value.incidents)}},
    ),
)
