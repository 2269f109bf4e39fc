"""The run directories beside a cluster.yaml: of which file each cluster was created, and what to do where that file is
missing."""

from __future__ import annotations

import contextlib
import shlex
from pathlib import Path

from provisioner.common.errors import GpuprovError
from provisioner.common.paths import RUNS, SANDBOX_SUFFIX, ClusterPaths
from provisioner.common.text import counted
from provisioner.rundir import fleet, intent
from provisioner.spec.cluster_files import cluster_names


def sibling_clusters(file: Path) -> list[ClusterPaths]:
    """The clusters with a run directory in the folder of a file, by name."""
    folders = sorted((file.absolute().parent / RUNS).glob("*"))
    names = [(root.name.removesuffix(SANDBOX_SUFFIX), root.name.endswith(SANDBOX_SUFFIX)) for root in folders]
    return [ClusterPaths(file, name, sandbox=sandbox) for name, sandbox in names]


def source_name(paths: ClusterPaths) -> str:
    """The name of the file of which a cluster was created; empty where it was not recorded."""
    with contextlib.suppress(OSError):
        return intent.load(paths).file
    return ""


def is_named(paths: ClusterPaths) -> bool:
    """Whether a file beside the run directories has the cluster's name."""
    return paths.name in cluster_names(paths.spec.absolute().parent).values()


def used_specs(file: Path) -> list[ClusterPaths]:
    """Run directories that have a copy of this file from when machines were created."""
    return [paths for paths in sibling_clusters(file) if paths.used_spec.is_file() and source_name(paths) == file.name]


def machines_of(paths: ClusterPaths) -> str:
    """How many machines a run directory has, as words; "machines" where their number is not known."""
    with contextlib.suppress(GpuprovError):
        if count := len(fleet.load(paths)):
            return counted(count, "machine")
    return "machines"


def restoring(file: Path) -> str:
    """What to do where `file` is missing and run directories beside it have machines; empty where none has."""
    existing = [paths for paths in sibling_clusters(file) if paths.made()]
    same_source = [paths for paths in existing if source_name(paths) == file.name]
    return "\n  ".join(_sentence(paths, file, len(same_source)) for paths in same_source or existing)


def _sentence(paths: ClusterPaths, file: Path, count: int) -> str:
    folder = paths.root.relative_to(file.absolute().parent)
    source = source_name(paths)
    sentence = f"{folder} has {machines_of(paths)} created from {source or 'a file of unknown name'}"
    if source != file.name:
        return f"{sentence}: pass that file"
    if not paths.used_spec.is_file():
        return f"{sentence}: restore that file; `gpuprov gc` finds machines by their tags"
    copy = shlex.join(["cp", str(paths.used_spec), str(file)])
    which = "" if count == 1 else " --sandbox" if paths.sandbox else " --no-sandbox"
    return (
        f"{sentence}: restore that file (`{copy}` takes the copy of the last run), "
        f"or remove them with `gpuprov down {shlex.quote(str(file))}{which}`"
    )
