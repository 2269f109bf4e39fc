"""What `up` was about to create, and the chosen site of each group with several: intent.json in the run directory. `up`
writes it before it creates machines, so that `down` knows where to look whatever happens.

What is damaged of it is left out: it decides nothing by itself.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, field
from typing import Annotated, Any

from pydantic import ValidationError, ValidatorFunctionWrapHandler, WrapValidator
from pydantic.dataclasses import dataclass

from provisioner.common import stored
from provisioner.common.paths import ClusterPaths, write_whole
from provisioner.rundir import records


@dataclass(config=records.STRICT, frozen=True, slots=True)
class IntendedNode:
    site: str = ""
    machine: str = ""


@dataclass(config=records.STRICT, frozen=True, slots=True)
class Choice:
    """The site of a group. `refused`: the sites that had no capacity → what they answered."""

    site: str
    refused: dict[str, str] = field(default_factory=dict)


def _all_or_none(choices: Any, validate: ValidatorFunctionWrapHandler) -> Any:
    try:
        return validate(choices)
    except ValidationError:
        return None


@dataclass(config=records.STRICT, frozen=True, slots=True)
class Intent:
    """intent.json. `file`: the name of cluster.yaml; `nodes` are by name; `choices`: group → its choice, None where any
    of them is damaged, because machines may be at any site then."""

    cluster: str = ""
    file: str = ""
    sandbox: bool = False
    sites: list[str] = field(default_factory=list)
    nodes: dict[str, IntendedNode] = field(default_factory=dict)
    choices: Annotated[dict[str, Choice] | None, WrapValidator(_all_or_none)] = field(default_factory=dict)


def load(paths: ClusterPaths) -> Intent:
    """What fits the model; of a file that is missing or not a JSON object nothing, and `choices` is None."""
    document = _document(paths)
    if document is None:
        return Intent(choices=None)
    return records.fit(Intent, document | {"nodes": _with_rows(document.get("nodes"))})


def save(paths: ClusterPaths, intent: Intent) -> None:
    """Write the file whole; it has no `choices` where no group has several sites."""
    document = asdict(intent)
    if not intent.choices:
        del document["choices"]
    _write(paths, document)


def save_choices(paths: ClusterPaths, choices: Mapping[str, Choice]) -> None:
    """Write these choices, beside those of other groups and what else the file has."""
    document = _document(paths) or {}
    known = load(paths).choices or {}
    document["choices"] = {group: asdict(choice) for group, choice in {**known, **choices}.items()}
    _write(paths, document)


def _document(paths: ClusterPaths) -> dict[str, Any] | None:
    try:
        document = stored.load(paths.intent)
    except (FileNotFoundError, ValueError):
        return None
    return document if isinstance(document, dict) else None


def _with_rows(nodes: Any) -> dict[str, Any]:
    """A row for each name of a node, an empty one where it is damaged: `down` looks for the machines of all names."""
    if isinstance(nodes, list):
        return {name: {} for name in nodes if isinstance(name, str)}
    return (
        {name: row if isinstance(row, dict) else {} for name, row in nodes.items()} if isinstance(nodes, dict) else {}
    )


def _write(paths: ClusterPaths, document: Mapping[str, Any]) -> None:
    write_whole(paths.intent, json.dumps(document, indent=1) + "\n")
