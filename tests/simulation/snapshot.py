"""What gpuprov has changed between two moments: the machines, the scheduler, the files that its promises rest on."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from tests.simulation.hosts import Host
from tests.simulation.world import World

PROMISES = (
    "nodes.json", "quarantine.json", "applied.json", "upgrade.json", "replace.json", "maintenance.json",
    "sites/*/provider",
    "sites/*/site.json", "sites/*/capacity.json", "sites/*/terraform.tfstate",
)  # fmt: skip
"""Files that a refused command leaves as they were."""
NOTES = ("state.json", "id", "intent.json")
"""Files that a refused command may write, and one that only looks may not."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """`parts`: what can change, by name. `unsent`: what operators' own disks have of the shared files, by the same
    names: a run that was killed could not share it, and the next command does."""

    parts: dict[str, Any]
    unsent: dict[str, set[str]]

    @classmethod
    def of(cls, world: World, runs: Sequence[Path], *, shared: bool, removed: Collection[str]) -> Snapshot:
        """`runs`: the run directories; `removed`: names of files that people have removed, which are not compared."""
        parts: dict[str, Any] = {
            "machines": sorted((m.id, m.running, m.installed, sorted(m.proven)) for m in world.cloud.machines.values()),
            "hosts": sorted(
                (m.id, m.record, sorted(m.keys)) for m in world.cloud.machines.values() if isinstance(m, Host)
            ),
            "drained": sorted(world.drained.items()),
        }
        for name, (content, _, _) in world.bucket.blobs.items():
            if name.endswith("fleet.json.gz"):
                files = json.loads(gzip.decompress(content))["files"]
                parts |= {f"{name}: {file}": _normal(file, text) for file, text in files.items() if _is_compared(file)}
            elif not name.endswith("holder.json"):
                parts[name] = content.decode(errors="replace")
        for run in () if shared else runs:
            for pattern in (*PROMISES, *NOTES):
                parts |= {
                    str(file): _normal(file.name, file.read_text(errors="replace"))
                    for file in sorted(run.glob(pattern))
                }
        unsent: dict[str, set[str]] = {}
        for run in runs if shared else ():
            for pattern in (*PROMISES, *NOTES):
                for file in run.glob(pattern):
                    name = f"{run.name}/fleet.json.gz: {file.relative_to(run)}"
                    unsent.setdefault(name, set()).add(_normal(file.name, file.read_text(errors="replace")))
        return cls({name: value for name, value in parts.items() if name.rpartition(" ")[2] not in removed}, unsent)

    def changes(self, other: Snapshot, *, notes: bool) -> list[str]:
        """Names of what differs. `notes`: the files of NOTES too."""
        differing = [
            name for name in sorted(self.parts.keys() | other.parts.keys())
            if self.parts.get(name) != other.parts.get(name) and other.parts.get(name) not in self.unsent.get(name, ())
        ]  # fmt: skip
        return [name for name in differing if notes or not name.endswith(NOTES)]

    def machines(self) -> list[tuple[str, bool]]:
        """Each with whether it runs."""
        return [(row[0], row[1]) for row in self.parts["machines"]]

    def digest(self) -> str:
        """The same for worlds that differ in nothing that matters."""
        return hashlib.sha256(json.dumps(self.parts, sort_keys=True).encode()).hexdigest()


def _is_compared(file: str) -> bool:
    return any(fnmatch(file, pattern) for pattern in (*PROMISES, *NOTES))


def _normal(name: str, text: str) -> str:
    """A site's block without its hosts: which are listed says nothing of where machines are; nodes in one order."""
    with contextlib.suppress(ValueError, TypeError, KeyError):
        if name.endswith("nodes.json"):
            return json.dumps(sorted(json.loads(text), key=lambda node: node["name"]))
        if name.endswith("site.json") and isinstance(block := json.loads(text), dict):
            return json.dumps({key: value for key, value in block.items() if key not in ("hosts", "host_keys")})
    return text
