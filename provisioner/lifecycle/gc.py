"""`gpuprov gc`: what a crash left behind, found by tag, and whether anybody here still knows it.

A cluster whose run directory is on this machine, with state in it, is alive: it is `down`'s. Of another one nothing
here tells whether it was left behind or is somebody else's, so only a cluster that a person names is ever removed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from shlex import quote

from filelock import FileLock, Timeout

from provisioner.common.errors import GpuprovError
from provisioner.common.paths import IDENTITY, SANDBOX_SUFFIX, ClusterPaths
from provisioner.machines.providers.orphans import Orphans, Thing
from provisioner.machines.providers.state import remote_of
from provisioner.spec.models import ClusterSpec

RECIPE_FOLDER = f".image{SANDBOX_SUFFIX}"
"""End of the run directory of a recipe's sandboxes (lifecycle/images/use.py)."""
NO_ID = "none"
"""What a person calls the tag gpuprov-id of things that have none."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """All that has the tags of one cluster at one place. `alive`: who knows it here; empty where nobody does.
    `identity`: its tag gpuprov-id, which tells it from others of its name; empty where it has none."""

    name: str
    site: str
    place: str
    things: tuple[Thing, ...]
    alive: str
    identity: str = ""

    @property
    def since(self) -> datetime | None:
        return min((resource.since for resource in self.things if resource.since), default=None)


@dataclass(frozen=True, slots=True)
class Remainder:
    """What was found, and what could not be asked."""

    clusters: tuple[Cluster, ...]
    unknown: tuple[str, ...]


def look(places: Sequence[Orphans], folders: Iterable[Path], spec: ClusterSpec | None = None) -> Remainder:
    """Everything that is there. `folders`: where a `.gpuprov` may lie; `spec`: the file that was named, whose cluster
    is alive also where its state is kept elsewhere. Raises ProviderError."""
    known = [folder.absolute() for folder in folders]
    resources, unknown = _list_resources(places)
    by_cluster: dict[tuple[str, str, str, str, str], list[Thing]] = {}
    for resource in resources.values():
        key = (resource.place, resource.cluster, resource.site, resource.workspace, resource.identity)
        by_cluster.setdefault(key, []).append(resource)
    clusters = []
    for (location, name, site, workspace, identity), cluster_resources in sorted(by_cluster.items()):
        alive = alive_here(name, known, spec, identity)
        if workspace:  # the provider knows which directory made it, and `down` finds all of it from there
            alive = workspace if Path(workspace).is_dir() else ""
        clusters.append(Cluster(name, site, location, tuple(cluster_resources), alive, identity))
    return Remainder(tuple(clusters), unknown)


def _list_resources(places: Sequence[Orphans]) -> tuple[dict[tuple[str, str], Thing], tuple[str, ...]]:
    """Things by kind and id. What several regions see (IAM) is kept only if none of them can say whose it is."""
    resources: dict[tuple[str, str], Thing] = {}
    unknown: list[str] = []
    for provider in places:
        answer = provider.find()
        unknown += answer.unknown
        for resource in answer.things:
            key = (resource.kind, resource.id)
            resources[key] = resources[key] if key in resources and not resources[key].kept else resource
    return resources, tuple(dict.fromkeys(unknown))


def chosen(remainder: Remainder, name: str, identity: str | None = None) -> list[Cluster]:
    """The one cluster of that name (at all its places), if nobody here knows it. `identity`: which one, where several
    have the name; NO_ID for the one without. Raises GpuprovError."""
    matching = [cluster for cluster in remainder.clusters if cluster.name == name]
    identities = sorted({cluster.identity or NO_ID for cluster in matching})
    if identity is not None:
        matching = [cluster for cluster in matching if (cluster.identity or NO_ID) == identity]
        if not matching and identities:
            raise GpuprovError(f"no cluster {name} has the id {identity}", hint=f"--id takes {', '.join(identities)}")
    elif len(identities) > 1:
        raise GpuprovError(
            f"{len(identities)} clusters are called {name}: their tags gpuprov-id differ; nothing was removed",
            hint="name the one to remove: "
            + " or ".join(f"--cluster {quote(name)} --id {quote(identity_tag)}" for identity_tag in identities),
        )
    if alive := next((cluster.alive for cluster in matching if cluster.alive), ""):
        if alive.endswith(RECIPE_FOLDER):
            hint = "`gpuprov image prune RECIPE --sandbox --all` removes all builds of its recipe"
            raise GpuprovError(f"{name} is alive here: {alive}", where=name, hint=hint)
        moved = f"; where that is not possible, move {alive} away and run this again" if Path(alive).is_dir() else ""
        hint = f"remove it with `gpuprov down FILE`{moved}"
        raise GpuprovError(f"{name} is alive here: {alive}", where=name, hint=hint)
    return matching


def remove(
    places: Sequence[Orphans], clusters: Collection[Cluster], report: Callable[[str], None]
) -> tuple[int, list[str]]:
    """Remove all of these clusters that may be removed. Returns how many things are gone, and one sentence for each
    that is left: what was refused, what holds data, what is found again. Raises ProviderError."""
    keys = {(resource.kind, resource.id) for cluster in clusters for resource in cluster.things}
    remaining: list[str] = []
    for provider in places:
        resources = [resource for resource in provider.find().things if (resource.kind, resource.id) in keys]
        remaining += provider.remove(resources, report) if any(not resource.kept for resource in resources) else []
    second_look, unknown = _list_resources(places)
    still = [resource for key, resource in second_look.items() if key in keys]
    kept_sentences = [f"{resource}: {resource.kept}" for resource in still if resource.kept]
    if not remaining:  # else they wait for what was refused
        remaining = [f"{resource}: still there" for resource in still if not resource.kept]
    remaining += kept_sentences
    return len(keys) - len(still), [*remaining, *unknown]


def alive_here(name: str, folders: Iterable[Path], spec: ClusterSpec | None = None, identity: str = "") -> str:
    """Who on this machine knows a cluster of that name; empty where nobody does. `identity`: its tag gpuprov-id; a run
    directory that has another one made another cluster of that name."""
    if spec is not None and spec.name == name and spec.state.backend != "local" and (owner := _elsewhere(spec)):
        return owner
    for folder in folders:
        root = ClusterPaths(folder / "cluster.yaml", name, sandbox=False).root
        if (owner := _directory(root)) and identity in ("", _read_identity(root) or identity):
            return owner
    return ""


def _read_identity(root: Path) -> str:
    """The id of the cluster that a run directory made; empty where it has none that can be read."""
    try:
        identity = (root / "id").read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        return ""
    return identity if IDENTITY.fullmatch(identity) else ""


def _elsewhere(spec: ClusterSpec) -> str:
    """Why a cluster whose state its operators share is alive; empty where nothing of it is there."""
    try:
        remote = remote_of(spec)
        assert remote is not None
        return f"its state is in {remote.where}" if remote.names() else ""
    except GpuprovError as error:
        return f"its state is kept in {spec.state.backend}, which could not be read: {error.message}"


def _directory(root: Path) -> str:
    """Why the cluster of a run directory is alive; empty where there is none, or nothing in it stands for anything."""
    if not root.is_dir():
        return ""
    if is_run_lock_held(root):
        return f"a run is in progress in {root}"
    for workspace in sorted(root.glob("sites/*")):
        if _state(workspace):
            return str(root)
    return ""


def is_run_lock_held(root: Path) -> bool:
    """Whether a living run holds its lock; a lock that can't be tried is taken for held."""
    path = root / "run.lock"
    if not path.exists():
        return False
    try:
        with FileLock(path, timeout=0):
            return False
    except (Timeout, OSError):
        return True


def _state(workspace: Path) -> bool:
    """Whether Terraform's state there has resources; one that can't be read, or lies elsewhere, counts."""
    try:
        if re.search(r'backend\s+"(?!local")', (workspace / "main.tf").read_text(encoding="utf-8")):
            return True
    except (OSError, ValueError):
        pass
    try:
        state = json.loads((workspace / "terraform.tfstate").read_text(encoding="utf-8"))
        return any(resource.get("mode") == "managed" for resource in state["resources"])
    except FileNotFoundError:
        return False
    except (OSError, ValueError, RecursionError, LookupError, TypeError, AttributeError):
        return True
