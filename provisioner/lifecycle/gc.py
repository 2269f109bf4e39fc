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

from provisioner.errors import GpuprovError
from provisioner.paths import IDENTITY, SANDBOX_SUFFIX, ClusterPaths
from provisioner.providers.orphans import Orphans, Thing
from provisioner.providers.state import remote_of
from provisioner.spec.models import ClusterSpec

RECIPE_FOLDER = f".image{SANDBOX_SUFFIX}"
"""End of the run directory of a recipe's rehearsals (lifecycle/image/use.py)."""
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
        return min((thing.since for thing in self.things if thing.since), default=None)


@dataclass(frozen=True, slots=True)
class Remainder:
    """What was found, and what could not be asked."""

    clusters: tuple[Cluster, ...]
    unknown: tuple[str, ...]


def look(places: Sequence[Orphans], folders: Iterable[Path], spec: ClusterSpec | None = None) -> Remainder:
    """Everything that is there. `folders`: where a `.gpuprov` may lie; `spec`: the file that was named, whose cluster
    is alive also where its state is kept elsewhere. Raises ProviderError."""
    known = [folder.absolute() for folder in folders]
    things, unknown = _found(places)
    found: dict[tuple[str, str, str, str, str], list[Thing]] = {}
    for thing in things.values():
        key = (thing.place, thing.cluster, thing.site, thing.workspace, thing.identity)
        found.setdefault(key, []).append(thing)
    clusters = []
    for (where, name, site, workspace, identity), mine in sorted(found.items()):
        alive = alive_here(name, known, spec, identity)
        if workspace:  # the provider knows which directory made it, and `down` finds all of it from there
            alive = workspace if Path(workspace).is_dir() else ""
        clusters.append(Cluster(name, site, where, tuple(mine), alive, identity))
    return Remainder(tuple(clusters), unknown)


def _found(places: Sequence[Orphans]) -> tuple[dict[tuple[str, str], Thing], tuple[str, ...]]:
    """Things by kind and id. What several regions see (IAM) is kept only if none of them can say whose it is."""
    things: dict[tuple[str, str], Thing] = {}
    unknown: list[str] = []
    for place in places:
        answer = place.find()
        unknown += answer.unknown
        for thing in answer.things:
            key = (thing.kind, thing.id)
            things[key] = things[key] if key in things and not things[key].kept else thing
    return things, tuple(dict.fromkeys(unknown))


def chosen(found: Remainder, name: str, identity: str | None = None) -> list[Cluster]:
    """The one cluster of that name (at all its places), if nobody here knows it. `identity`: which one, where several
    have the name; NO_ID for the one without. Raises GpuprovError."""
    mine = [cluster for cluster in found.clusters if cluster.name == name]
    there = sorted({cluster.identity or NO_ID for cluster in mine})
    if identity is not None:
        mine = [cluster for cluster in mine if (cluster.identity or NO_ID) == identity]
        if not mine and there:
            raise GpuprovError(f"no cluster {name} has the id {identity}", hint=f"--id takes {', '.join(there)}")
    elif len(there) > 1:
        raise GpuprovError(
            f"{len(there)} clusters are called {name}: their tags gpuprov-id differ; nothing was removed",
            hint="name the one to remove: "
            + " or ".join(f"--cluster {quote(name)} --id {quote(one)}" for one in there),
        )
    if alive := next((cluster.alive for cluster in mine if cluster.alive), ""):
        if alive.endswith(RECIPE_FOLDER):
            hint = "`gpuprov image prune RECIPE --sandbox --all` removes all builds of its recipe"
            raise GpuprovError(f"{name} is alive here: {alive}", where=name, hint=hint)
        moved = f"; where that is not possible, move {alive} away and run this again" if Path(alive).is_dir() else ""
        hint = f"remove it with `gpuprov down FILE`{moved}"
        raise GpuprovError(f"{name} is alive here: {alive}", where=name, hint=hint)
    return mine


def remove(
    places: Sequence[Orphans], clusters: Collection[Cluster], tell: Callable[[str], None]
) -> tuple[int, list[str]]:
    """Remove all of these clusters that may be removed. Returns how many things are gone, and one sentence for each
    that is left: what was refused, what holds data, what is found again. Raises ProviderError."""
    wanted = {(thing.kind, thing.id) for cluster in clusters for thing in cluster.things}
    left: list[str] = []
    for place in places:
        mine = [thing for thing in place.find().things if (thing.kind, thing.id) in wanted]
        left += place.remove(mine, tell) if any(not thing.kept for thing in mine) else []
    again, unknown = _found(places)
    still = [thing for key, thing in again.items() if key in wanted]
    kept = [f"{thing}: {thing.kept}" for thing in still if thing.kept]
    if not left:  # else they wait for what was refused
        left = [f"{thing}: still there" for thing in still if not thing.kept]
    left += kept
    return len(wanted) - len(still), [*left, *unknown]


def alive_here(name: str, folders: Iterable[Path], spec: ClusterSpec | None = None, identity: str = "") -> str:
    """Who on this machine knows a cluster of that name; empty where nobody does. `identity`: its tag gpuprov-id; a run
    directory that has another one made another cluster of that name."""
    if spec is not None and spec.name == name and spec.state.backend != "local" and (said := _elsewhere(spec)):
        return said
    for folder in folders:
        root = ClusterPaths(folder / "cluster.yaml", name, sandbox=False).root
        if (said := _directory(root)) and identity in ("", _own(root) or identity):
            return said
    return ""


def _own(root: Path) -> str:
    """The id of the cluster that a run directory made; empty where it has none that can be read."""
    try:
        kept = (root / "id").read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        return ""
    return kept if IDENTITY.fullmatch(kept) else ""


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
    if held(root):
        return f"a run is in progress in {root}"
    for workspace in sorted(root.glob("sites/*")):
        if _state(workspace):
            return str(root)
    return ""


def held(root: Path) -> bool:
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
