"""The clusters below a folder, by their run directories; only files are read."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from provisioner.common.errors import GpuprovError
from provisioner.common.paths import RUNS, SANDBOX_SUFFIX, ClusterPaths
from provisioner.lifecycle.gc import is_run_lock_held as run_lock_held
from provisioner.lifecycle.quarantine import book as quarantine_book
from provisioner.output.status import ClusterOutput
from provisioner.rundir import fleet, node_state, run_events, run_folders
from provisioner.rundir.node_state import NodeState
from provisioner.spec.cluster_files import cluster_names

DEEP = 4
"""Folders below the first that are looked into."""
FOLDERS = 20_000
"""That are looked into at all."""


def below(folder: Path) -> list[ClusterOutput]:
    """A row for each cluster."""
    return [row for runs in _run_folders(folder) for row in _rows(runs)]


def _run_folders(top: Path) -> Iterator[Path]:
    for looked, (path, folders, _) in enumerate(os.walk(top, followlinks=False), start=1):
        if RUNS in folders:
            yield Path(path, RUNS)
        deep = len(Path(path).relative_to(top).parts) >= DEEP or looked >= FOLDERS
        folders[:] = [] if deep else sorted(name for name in folders if not name.startswith("."))


def _rows(runs: Path) -> Iterator[ClusterOutput]:
    names = cluster_names(runs.parent)
    for root in sorted(path for path in runs.iterdir() if path.is_dir() and not path.is_symlink()):
        name, sandbox = root.name.removesuffix(SANDBOX_SUFFIX), root.name.endswith(SANDBOX_SUFFIX)
        paths = ClusterPaths(runs.parent / "-", name, sandbox=sandbox)
        source = Path(run_folders.source_name(paths)).name
        created_from = runs.parent / source if source else None
        current = names.get(created_from) if created_from else None
        same_name = [path for path in names if names[path] == name]  # copies may lie beside the file of the fleet
        file = created_from if created_from in same_name else next(iter(same_name), runs.parent / "-")
        yield _row(
            ClusterPaths(file, name, sandbox=sandbox),
            str(created_from) if created_from else None,
            current if current != name else None,
        )


def _row(paths: ClusterPaths, created_from: str | None, renamed_to: str | None) -> ClusterOutput:
    try:
        nodes = fleet.load(paths)
        names: list[str] | None = [node.name for node in nodes]
        state = node_state.load(paths)
        quarantined = {node.name for node in nodes if quarantine_book.load(paths).holds(node)}
    except (GpuprovError, OSError, AttributeError):
        names, state, quarantined = None, NodeState(), set()
    healthy = sum(state.of(name).ok is True and name not in quarantined for name in names or ())
    run = run_events.last_run(paths.root, paths.runs, at_work=run_lock_held(paths.root))
    return ClusterOutput(
        cluster=paths.name,
        sandbox=paths.sandbox,
        file=str(paths.spec) if paths.spec.is_file() else None,
        nodes=None if names is None else len(names),
        healthy=healthy,
        run=run_events.run_document(run),
        created_from=created_from,
        renamed_to=renamed_to,
    )
