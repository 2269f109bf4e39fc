"""How far each node is, for `status` and the next `up`: state.json in the run directory.

What is damaged of it is left out: it decides nothing by itself. Keys that the model does not have stay in the file, and
all keys keep their order.

`verify` writes it beside a run that holds the cluster's lock: each change of the file holds state.json.lock for the few
milliseconds that it takes, so that no note is lost between two processes.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import field
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

from filelock import FileLock, Timeout
from pydantic import AfterValidator
from pydantic.dataclasses import dataclass

from provisioner.common import stored
from provisioner.common.errors import LockedError
from provisioner.common.levels import LEVELS, deeper
from provisioner.common.paths import ClusterPaths, touch, write_whole
from provisioner.rundir import records
from provisioner.rundir.files import PAGE, matches

FILE = "state.json"
LOCK = "state.json.lock"
FORM = "%Y-%m-%dT%H:%M:%SZ"
"""Of a time, which is UTC."""
LOCK_TIMEOUT_S = 30.0
"""A change takes milliseconds; a process that was stopped (SIGSTOP) within it holds up the others for so long."""


def is_report(name: object) -> bool:
    """Whether state.json's `report` is the page of a run."""
    return isinstance(name, str) and matches(name, (PAGE,))


def _page(name: str) -> str:
    if not is_report(name):
        raise ValueError("the file is not the page of a report")
    return name


def _utc(text: str) -> str:
    datetime.strptime(text, FORM)
    return text


Page = Annotated[str, AfterValidator(_page)]
"""The page of a report, by its path in the run directory."""
Moment = Annotated[str, AfterValidator(_utc)]
"""2026-01-31T12:00:00Z"""


@dataclass(config=records.STRICT, frozen=True, slots=True)
class NodeProgress:
    """One node. `ok`: whether it was healthy, None where nothing was judged; `level`: of the verdict that found it
    unhealthy."""

    stage: str = ""
    ok: bool | None = None
    level: str = ""


@dataclass(config=records.STRICT, slots=True)
class NewerReport:
    """A report of some nodes that is newer than the last report of the fleet."""

    report: Page
    nodes: list[str]


@dataclass(config=records.STRICT, frozen=True, slots=True)
class SeenMachine:
    """A machine that cost money from when it was first seen. `until`: None while it stands."""

    node: str
    machine: str
    region: str
    kind: str
    since: Moment
    until: Moment | None = None


@dataclass(config=records.STRICT, slots=True)
class NodeState:
    """state.json. `nodes` are by name, `machines` by the provider's id. `failed`: site → message of the last `up`;
    `ends`: each group whose machines are bought by a block, with the end of it."""

    nodes: dict[str, NodeProgress] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    report: Page | None = None
    partial_report: NewerReport | None = None
    machines: dict[str, SeenMachine] = field(default_factory=dict)
    ends: list[tuple[str, Moment]] = field(default_factory=list)

    def of(self, name: str) -> NodeProgress:
        return self.nodes.get(name, NodeProgress())


def load(paths: ClusterPaths) -> NodeState:
    """state.json, with the paths of reports absolute; no nodes and no report before the first run."""
    state, _ = _read(paths)
    for noted in (state, state.partial_report):
        if noted is not None and noted.report is not None:
            noted.report = str(paths.root / noted.report)
    return state


def note(paths: ClusterPaths, **facts: Any) -> None:
    """Write facts into state.json: a mapping is merged into the existing one, anything else replaces it. Raises
    LockedError where another process does not release the file within LOCK_TIMEOUT_S."""
    with _changing(paths) as state:
        for key, value in facts.items():
            if isinstance(value, dict):
                state.setdefault(key, {}).update(value)
            else:
                state[key] = value


def note_stage(paths: ClusterPaths, stage: str, names: Iterable[str], *, ok: bool | None = None) -> None:
    """These nodes are at that stage; `ok` is None where nothing was judged."""
    note(paths, nodes={name: {"stage": stage, "ok": ok} for name in names})


def note_absent(paths: ClusterPaths, names: Iterable[str], known: Collection[str]) -> None:
    """These nodes are not there: those that were (`known`) are missing, the others were never made."""
    absent = list(names)
    note_stage(paths, "missing", [name for name in absent if name in known], ok=False)
    note_stage(paths, "not made", [name for name in absent if name not in known])


def note_failed(paths: ClusterPaths, sites: Collection[str], failed: Mapping[str, str]) -> None:
    """What a run failed with at these sites, in place of what an earlier one did; nothing is written for a cluster of
    which nothing is there yet."""
    if not _read(paths)[1]:
        return
    with _changing(paths) as state:
        retained = {site: message for site, message in state.get("failed", {}).items() if site not in sites}
        state["failed"] = retained | dict(failed)


def note_verdicts(paths: ClusterPaths, verdicts: Mapping[str, bool], level: str | None) -> None:
    """Remember the verdict of each of these nodes: whether it is healthy. What a deeper level found wrong stays until a
    level that looks as deep finds it right: `quick` cannot answer for `standard`."""
    with _changing(paths) as state:
        nodes = state.setdefault("nodes", {})
        for name, ok in verdicts.items():
            previous = nodes.get(name, {})
            if ok and previous.get("ok") is False and _is_deeper(previous.get("level"), level):
                continue
            stage = "verified" if ok else "unhealthy"
            nodes[name] = {"stage": stage, "ok": ok} | ({"level": level} if level and not ok else {})


def _is_deeper(level: Any, other: Any) -> bool:
    return {level, other} <= {*LEVELS} and deeper(level, other) != other


def note_report(paths: ClusterPaths, page: Path, nodes: Collection[str] = ()) -> None:
    """Remember the last report's page, a file in the run directory. `nodes`: it is of these nodes alone, and stands
    beside the last report of the fleet until the next one."""
    name = page.relative_to(paths.root).as_posix()
    with _changing(paths) as state:
        state.pop("partial_report", None)
        state.update({"partial_report": {"report": name, "nodes": sorted(nodes)}} if nodes else {"report": name})


@contextlib.contextmanager
def _changing(paths: ClusterPaths) -> Iterator[dict[str, Any]]:
    """The content of state.json, to be changed in place; it is written when the block ends, and no other process
    changes it meanwhile."""
    file = paths.root / LOCK
    touch(file)
    try:
        with FileLock(file, timeout=LOCK_TIMEOUT_S, mode=0o600):
            _, document = _read(paths)
            yield document
            write_whole(paths.root / FILE, json.dumps(document, indent=1) + "\n")
    except Timeout:
        hint = "a process that was stopped holds it: `fuser -v` on the file names it"
        raise LockedError("the file is locked by another process", where=str(file), hint=hint) from None


def _read(paths: ClusterPaths) -> tuple[NodeState, dict[str, Any]]:
    """What fits the model, and the file's document without what does not; an empty one where there is none."""
    try:
        document = stored.load(paths.root / FILE)
    except (FileNotFoundError, ValueError):
        return NodeState(), {}
    if not isinstance(document, dict):
        return NodeState(), {}
    if isinstance(report := document.get("report"), str):
        document["report"] = report.removeprefix(f"{paths.root}/")
    state = records.fit(NodeState, document)
    empty: dict[str, Any] = {"nodes": {}, "failed": {}, "report": None}
    partial_report = document.pop("partial_report", None)
    document |= {key: value for key, value in empty.items() if key not in document}
    if partial_report:
        document["partial_report"] = partial_report
    return state, document
