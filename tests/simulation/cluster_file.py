"""The cluster.yaml that people edit between commands, and the locks beside it."""

from __future__ import annotations

import contextlib
import functools
import json
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from provisioner import spec, stack
from provisioner.errors import InputError
from provisioner.stack import lockfile
from provisioner.stack.models import BaseImage, Lock, Stack

DRIVERS = ("580.1", "590.2", "595.3")
MACHINE = {"aws": "g5.xlarge", "azure": "Standard_ND96asr_v4"}
REGIONS = {"aws": ("us-east-2", "us-west-2"), "azure": ("eastus", "westeurope")}


@dataclass
class ClusterFile:
    """What a file says. `sites`: name → provider, region, zones; `groups`: name → site, count, capacity.min, perhaps
    kinds of capacity. `shared`: its state lies in a bucket; `driver`: of the lock beside it."""

    name: str = "fleet"
    sites: dict[str, dict[str, Any]] = field(default_factory=dict)
    groups: dict[str, dict[str, Any]] = field(default_factory=dict)
    driver: str = DRIVERS[0]
    hooks: bool = True
    shared: bool = False

    @classmethod
    def of(cls, *, shared: bool = False, sites: int = 1, hooks: bool = True) -> ClusterFile:
        made = cls(shared=shared, hooks=hooks)
        for number, name in enumerate(("east", "west")[:sites]):
            made.sites[name] = {"provider": "aws", "region": REGIONS["aws"][number], "zones": 2}
        made.groups["train"] = {"site": "east", "count": 2, "min": None}
        if sites > 1:
            made.groups["eval"] = {"site": "west", "count": 1, "min": None}
        return made

    def copy(self) -> ClusterFile:
        return deepcopy(self)

    @property
    def nodes(self) -> list[str]:
        return [f"{name}-{number}" for name, group in self.groups.items() for number in range(group["count"])]

    def text(self, key: Path) -> str:
        used = {group["site"] for group in self.groups.values()}
        sites: dict[str, Any] = {}
        for name in sorted(used):
            one = self.sites[name]
            sites[name] = {"provider": one["provider"], "region": one["region"]}
            if one["provider"] == "aws":
                sites[name]["zones"] = [f"{one['region']}{letter}" for letter in "ab"[: one["zones"]]]
            else:
                sites[name]["subscription"] = "00000000-0000-0000-0000-000000000000"
        groups = {
            name: {"machine": MACHINE[self.sites[one["site"]]["provider"]], "count": one["count"], "site": one["site"]}
            | ({"capacity": capacity} if (capacity := _capacity(one)) else {})
            for name, one in self.groups.items()
        }
        document = {
            "name": self.name, "sites": sites, "groups": groups, "access": {"ssh_key": str(key)},
            "quarantine": {"share": "100%"},
        } | ({"hooks": {"drain": "drain", "resume": "resume"}} if self.hooks else {})  # fmt: skip
        if self.shared:
            document["state"] = {"backend": "s3", "bucket": "simulated", "region": "us-east-2"}
        return json.dumps(document, indent=1) + "\n"

    def write(self, folder: Path, key: Path) -> None:
        """cluster.yaml and cluster.lock; of a file that is not valid there is no new lock."""
        file = folder / "cluster.yaml"
        text = self.text(key)
        file.write_text(text, encoding="utf-8")
        with contextlib.suppress(InputError):
            (folder / "cluster.lock").write_text(_lock(text, self.driver), encoding="utf-8")


def _capacity(group: dict[str, Any]) -> dict[str, Any]:
    first, *others = group.get("kinds", ("on-demand",))
    found = {"min": group["min"], "kind": first, "fallback": others}
    return {key: value for key, value in found.items() if value and value != "on-demand"}


@functools.cache
def _stack(machine: str) -> Stack:
    from tests.support import plans

    solved = stack.solve(plans.cluster_spec(machine))["train"]
    return solved.model_copy(update={"packages": (), "images": (), "repositories": ()})


@functools.lru_cache(maxsize=2048)
def _lock(text: str, driver: str) -> str:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "cluster.yaml"
        file.write_text(text, encoding="utf-8")
        loaded = spec.load(file)
        groups = {
            name: _stack(group.machine).model_copy(update={"driver": driver}) for name, group in loaded.groups.items()
        }
        systems = {one.os for one in groups.values()}
        bases = {site: {system: BaseImage(id="ami-1", why="") for system in systems} for site in loaded.sites}
        lock = Lock(request=stack.request(loaded), simulated=False, bases=bases, groups=groups)
        lockfile.write(Path(folder) / "cluster.lock", lock)
        return (Path(folder) / "cluster.lock").read_text(encoding="utf-8")
