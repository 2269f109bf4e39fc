"""cluster.yaml in, a ClusterSpec that can work out, or every problem at its line and column.

Reading has three layers: source.py (YAML and positions), models.py (shapes), rules.py (what the machines can do).
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Collection
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, TypeAdapter, ValidationError

from provisioner import catalog as catalogue
from provisioner.catalog import Catalog
from provisioner.catalog.description import MachineDescription
from provisioner.common.errors import InputError, Problem
from provisioner.spec import machine_types, private_key
from provisioner.spec.groups import Group
from provisioner.spec.image import ImageRecipe
from provisioner.spec.maintenance import Maintenance
from provisioner.spec.models import Access, ClusterSpec, Hooks, Monitoring, Verify
from provisioner.spec.problems import (
    add_problems,
    refuse_blocks_without_value,
    right_values_for_doubtful_ones,
    to_json,
)
from provisioner.spec.rules import Draft, findings
from provisioner.spec.scheduler import Scheduler
from provisioner.spec.sites import SITE
from provisioner.spec.source import read
from provisioner.spec.source_map import MAX_PROBLEMS, Finding, Loc, Source, dotted
from provisioner.spec.stack_request import StackRequest
from provisioner.spec.state import AnyState, LocalState, State

__all__ = ["ClusterSpec", "check", "load", "load_shape", "placer", "problem_at", "unready"]

ModelT = TypeVar("ModelT", bound=BaseModel)
_STATE: TypeAdapter[State] = TypeAdapter(AnyState)


def load(path: str | os.PathLike[str], *, catalog: Catalog | None = None) -> ClusterSpec:
    """The file as a ClusterSpec that passed every rule. Raises InputError with all problems, sorted by place."""
    spec, problems = _read(path, catalog or catalogue.load())
    if problems or spec is None:
        raise InputError(problems)
    return spec


def load_shape(path: str | os.PathLike[str], folder: Path) -> ClusterSpec:
    """A copy of a file that lay in `folder` and was valid once: its rules are not applied again, because the catalogue
    may have lost its machines since. Raises InputError for what is none by its shape."""
    source = read(path)
    if source.complete:
        machine_types.take_from_file(source, catalogue.load(), folder)
    spec = _located(_validate(source), folder) if source.complete else None
    if spec is None:
        raise InputError(sorted(source.problems, key=lambda p: (p.line, p.column)))
    return spec


def check(path: str | os.PathLike[str], *, catalog: Catalog | None = None) -> list[Problem]:
    """Everything that is wrong with the file, sorted by place; empty where `load` would succeed."""
    return _read(path, catalog or catalogue.load())[1]


def problem_at(path: str | os.PathLike[str], key_path: str, message: str, hint: str = "") -> Problem:
    """What a later stage found wrong with `key_path` (dotted: stack.containers), at the line and column of that key in
    the file, or of the nearest one around it where the file does not have it."""
    source = read(path)
    return Problem(source.file, *source.mark(_nearest(source, key_path)).key, key_path, message, hint)


def placer(path: str | os.PathLike[str]) -> Callable[[str], str]:
    """A function from a key of the file (dotted) to where it stands: "cluster.yaml:12:3", or the place of the nearest
    key around it."""
    source = read(path)

    def position_of(key_path: str) -> str:
        line, column = source.mark(_nearest(source, key_path)).key
        return f"{source.file}:{line}:{column}"

    return position_of


def unready(path: str | os.PathLike[str], spec: ClusterSpec, sites: Collection[str] | None = None) -> list[Problem]:
    """What a run at these sites, or all, lacks that a sandbox of the same file does without. A recipe of images needs
    no machines that are there."""
    if spec.image is not None:
        return []
    names = spec.sites if sites is None else sites
    lacking = [finding for name in names for finding in spec.sites[name].unready(("sites", name))]
    key = Path(spec.access.ssh_key).expanduser() if spec.access.ssh_key else None
    if key is not None and (unusable := private_key.problem(key)):
        lacking.append(Finding(("access", "ssh_key"), *unusable))
    if not lacking:
        return []
    source = read(path)
    for finding in lacking:
        mark = source.mark(finding.loc)
        source.report(mark.key if finding.at_key else mark.value, finding.loc, finding.message, finding.hint)
    return sorted(source.problems, key=lambda p: (p.line, p.column))


_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,40}")


_AT_SITE = re.compile(r"groups\.([^.@]+)@([^.]+)(\.machine)?")
"""A key of a group of ClusterSpec.by_machine."""


def _nearest(source: Source, key_path: str) -> Loc:
    if (match := _AT_SITE.match(key_path)) is not None:
        machine = f".machine.{match[2]}" if match[3] else ""
        key_path = f"groups.{match[1]}{machine}{key_path[match.end() :]}"
    around = [loc for loc in source.marks if key_path == dotted(loc) or key_path.startswith(f"{dotted(loc)}.")]
    return max(around, key=len, default=())


def _read(path: str | os.PathLike[str], catalog: Catalog) -> tuple[ClusterSpec | None, list[Problem]]:
    source = read(path)
    spec = None
    if source.complete:
        file = Path(path).absolute()
        types_file = machine_types.take_from_file(source, catalog, file.parent)
        refuse_blocks_without_value(source)
        right_values_for_doubtful_ones(source)
        spec = _located(_validate(source), file.parent)
        _apply_rules(source, spec, catalog, file, types_file)
    problems = sorted(dict.fromkeys(source.problems), key=lambda p: (p.line, p.column))
    return (None, problems) if problems else (spec, problems)


def _validate(source: Source) -> ClusterSpec | None:
    if not isinstance(source.value, dict) or _is_another_file(source.value):
        at = source.mark(()).value
        source.report(at, (), "the file does not hold keys such as name, sites and groups", "`gpuprov init` writes one")
        return None
    try:
        return ClusterSpec.model_validate_json(to_json(source.value))
    except ValidationError as error:
        add_problems(source, error)
        return None


def _is_another_file(value: dict[str, Any]) -> bool:
    """Whether no key is one of ours, and one is no word. A pull request may have made cluster.yaml a link to
    /etc/shadow, and what is unknown there is nothing to print."""
    return not set(value) & set(ClusterSpec.model_fields) and not all(map(_WORD.fullmatch, value))


def _located(spec: ClusterSpec | None, folder: Path) -> ClusterSpec | None:
    if spec is None:
        return None
    return spec.model_copy(update={"sites": {name: site.located(folder) for name, site in spec.sites.items()}})


def _apply_rules(
    source: Source, spec: ClusterSpec | None, catalog: Catalog, file: Path, types_file: Source | None
) -> None:
    draft = _draft_of(spec) if spec is not None else _draft_from(source.value, file.parent)
    draft.file = file
    types = machine_types.usable(draft.machines, catalog)
    listed = source.value.get(machine_types.KEY) if isinstance(source.value, dict) else None
    draft.refused_machines = frozenset(listed if isinstance(listed, dict) else ()) - types.keys()
    if types_file is not None and not types:
        draft.refused_machines = None
    type_findings = () if types_file is not None else machine_types.findings(draft.machines, catalog)
    for finding in chain(type_findings, findings(draft, catalog.with_described(types))):
        if len(source.problems) > MAX_PROBLEMS:
            return
        mark = source.mark(finding.loc)
        unsure = finding.at_key and finding.loc[:-1] in source.partial  # the key may be the one that could not be taken
        if finding.loc not in source.broken and not unsure and not _doubtful(finding.loc, source, draft.dropped):
            at_key = finding.at_key or finding.loc not in source.marks
            source.report(mark.key if at_key else mark.value, finding.loc, finding.message, finding.hint)


def _doubtful(loc: Loc, source: Source, dropped: set[Loc]) -> bool:
    """Whether a finding may come from what was left out beside it: in a small block everything hangs together, in a
    group only what the file does not say."""
    if loc in dropped:  # it was refused for itself, and what is usual stands in its place
        return True
    has_dropped_sibling = any(dropped_loc[: len(loc) - 1] == loc[:-1] for dropped_loc in dropped)
    return has_dropped_sibling and (len(loc) > 3 or loc not in source.marks)


def _draft_of(spec: ClusterSpec) -> Draft:
    return Draft(
        name=spec.name,
        sites=dict(spec.sites),
        site_names=tuple(spec.sites),
        groups=dict(spec.groups),
        machines=dict(spec.machines),
        stack=spec.stack,
        access=spec.access,
        monitoring=spec.monitoring,
        verify=spec.verify,
        scheduler=spec.scheduler,
        hooks=spec.hooks,
        maintenance=spec.maintenance,
        state=spec.state,
        image=spec.image,
        whole=True,
    )


def _draft_from(value: Any, folder: Path) -> Draft:
    """What is well-formed by itself in a file that is not well-formed as a whole."""
    if not isinstance(value, dict):
        return Draft()
    draft = Draft(
        stack=_part(StackRequest, value.get("stack", {})),
        access=_part(Access, value.get("access", {})),
        monitoring=_part(Monitoring, value.get("monitoring", {})),
        verify=_part(Verify, value.get("verify", {})),
        scheduler=_part(Scheduler, value.get("scheduler", {})),
        hooks=_part(Hooks, value.get("hooks", {})),
        maintenance=_part(Maintenance, value.get("maintenance", {})),
        image=_part(ImageRecipe, value["image"]) if value.get("image") else None,
        state=_one_of(_STATE, value["state"]) if "state" in value else LocalState(),
    )
    sites, groups, machines = value.get("sites"), value.get("groups"), value.get(machine_types.KEY)
    if isinstance(machines, dict):
        draft.machines = {
            name: description for name, raw in machines.items() if (description := _part(MachineDescription, raw))
        }
    if isinstance(sites, dict):
        draft.site_names = tuple(sites)
        parsed_sites = {name: site for name, raw in sites.items() if (site := _one_of(SITE, raw)) is not None}
        draft.sites = {name: site.located(folder) for name, site in parsed_sites.items()}
    if isinstance(groups, dict):
        for name, raw in groups.items():
            if (group := _group(("groups", name), raw, draft.dropped)) is not None:
                draft.groups[name] = group
        draft.whole = len(draft.groups) == len(groups) and not draft.dropped
    return draft


def _part(model: type[ModelT], raw: Any) -> ModelT | None:
    try:
        return model.model_validate_json(to_json(raw))
    except ValidationError:
        return None


def _group(at: Loc, raw: Any, dropped: set[Loc]) -> Group | None:
    """A group, without what is wrong in it: a misspelled key must not hide a machine that does not exist."""
    value = json.loads(to_json(raw))
    try:
        return Group.model_validate_json(json.dumps(value))
    except ValidationError as error:
        for item in error.errors(include_url=False, include_context=False, include_input=False):
            if (dropped_key := _drop(value, item["loc"])) is not None:
                dropped.add((*at, *dropped_key))
    return _part(Group, value)


def _drop(value: Any, loc: Loc) -> Loc | None:
    """Take the place that `loc` names, or the nearest key around it, out of `value`; None where there is none."""
    around = value
    for depth, key in enumerate(loc):
        inner = around.get(key) if isinstance(around, dict) else None
        if not isinstance(around, dict) or key not in around:
            return None
        if depth == len(loc) - 1 or not isinstance(inner, dict) or loc[depth + 1] not in inner:
            del around[key]
            return loc[: depth + 1]
        around = inner
    return None


def _one_of(union: TypeAdapter[ModelT], raw: Any) -> ModelT | None:
    try:
        return union.validate_json(to_json(raw))
    except ValidationError:
        return None
