"""How far each node is, for `status` and the next `up`: state.json in the run directory.

{"nodes": {name: {"stage": text, "ok": true, false or null}}, "report": path in the run directory, or null}, and what
else a module keeps there under a key of its own. What is damaged of it is left out: it decides nothing by itself.

`verify` writes it beside a run that holds the cluster's lock: each change of the file holds state.json.lock for the few
milliseconds that it takes, so that no note is lost between two processes.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from provisioner.common import stored
from provisioner.common.errors import LockedError
from provisioner.common.levels import LEVELS, deeper
from provisioner.common.paths import ClusterPaths, touch, write_whole
from provisioner.rundir.files import PAGE, matches

FILE = "state.json"
LOCK = "state.json.lock"
LOCK_TIMEOUT_S = 30.0
"""A change takes milliseconds; a process that was stopped (SIGSTOP) within it holds up the others for so long."""


def load(paths: ClusterPaths) -> dict[str, Any]:
    """state.json, with the paths of reports absolute; no nodes and no report before the first run."""
    state = _read(paths)
    if partial := state.get("partial_report"):
        state |= {"partial_report": partial | {"report": str(paths.root / partial["report"])}}
    return state | {"report": str(paths.root / state["report"])} if state.get("report") else state


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
    if not _read(paths):
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
            state = _read(paths)
            yield state
            write_whole(paths.root / FILE, json.dumps(state, indent=1) + "\n")
    except Timeout:
        hint = "a process that was stopped holds it: `fuser -v` on the file names it"
        raise LockedError("the file is locked by another process", where=str(file), hint=hint) from None


def _read(paths: ClusterPaths) -> dict[str, Any]:
    try:
        loaded = stored.load(paths.root / FILE)
    except (FileNotFoundError, ValueError):
        return {}
    if not isinstance(loaded, dict):
        return {}
    nodes = loaded.get("nodes")
    valid_nodes = {k: _node(v) for k, v in nodes.items() if isinstance(v, dict)} if isinstance(nodes, dict) else {}
    report = str(loaded.get("report")).removeprefix(f"{paths.root}/")
    failed = loaded.get("failed")
    failed = {k: v for k, v in failed.items() if isinstance(v, str)} if isinstance(failed, dict) else {}
    partial = _partial_report(loaded.pop("partial_report", None))
    state = {**loaded, "nodes": valid_nodes, "failed": failed, "report": report if is_report(report) else None}
    return state | ({"partial_report": partial} if partial else {})


def is_report(name: object) -> bool:
    """Whether state.json's `report` is the page of a run."""
    return isinstance(name, str) and matches(name, (PAGE,))


def _partial_report(noted: object) -> dict[str, Any] | None:
    """A report of some nodes; None where there is none, or it is damaged."""
    if not isinstance(noted, dict) or not is_report(noted.get("report")) or not isinstance(noted.get("nodes"), list):
        return None
    return {"report": noted["report"], "nodes": [name for name in noted["nodes"] if isinstance(name, str)]}


def _node(noted: dict[str, Any]) -> dict[str, Any]:
    """A node's stage and verdict; what is of another type is left out."""
    types = {"stage": str, "ok": bool | None, "level": str}
    return {key: noted[key] for key, kind in types.items() if key in noted and isinstance(noted[key], kind)}
