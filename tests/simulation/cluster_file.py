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
from provisioner.common.errors import InputError
from provisioner.stack import lockfile
from provisioner.stack.models import BaseImage, Lock, Stack
from tests.simulation.hosts import HOSTS

DRIVERS = ("580.1", "590.2", "595.3")
MACHINE = {"aws": "g5.xlarge", "azure": "Standard_ND96asr_v4"}
REGIONS = {"aws": ("us-east-2", "us-west-2"), "azure": ("eastus", "westeurope")}
OWN_MACHINE = "dell-poweredge-r750xa"
"""Of bare metal."""
MAAS = "https://maas.lab/MAAS"
POOL = tuple(f"dgx{number}" for number in range(HOSTS))
"""Hosts that a list may name."""


@dataclass
class ClusterFile:
    """What a file says. `sites`: name → provider, region, zones, for bare metal a method. `groups`: name → site, count,
    capacity.min, perhaps kinds of capacity, at a site of hosts those; `next`: sites that follow in its list. `shared`:
    its state lies in a bucket. `driver`: of the lock beside it."""

    name: str = "fleet"
    sites: dict[str, dict[str, Any]] = field(default_factory=dict)
    groups: dict[str, dict[str, Any]] = field(default_factory=dict)
    driver: str = DRIVERS[0]
    hooks: bool = True
    shared: bool = False
    renamed: set[str] = field(default_factory=set)
    """Hosts that it calls by their other name."""
    addresses: dict[str, str] = field(default_factory=dict)
    """Of hosts, where they are not those that they began with."""
    host_keys: dict[str, str] = field(default_factory=dict)
    """Host → its key, once a person has written down those of all; empty: there is no such file."""

    @classmethod
    def of(cls, *, shared: bool = False, sites: int = 1, hooks: bool = True, metal: int = 0) -> ClusterFile:
        """`metal`: so many of its sites have hosts of one's own."""
        file = cls(shared=shared, hooks=hooks)
        for number, name in enumerate(("east", "west")[:sites]):
            file.sites[name] = {"provider": "aws", "region": REGIONS["aws"][number], "zones": 2}
        file.groups["train"] = {"site": "east", "count": 2, "min": None}
        if sites > 1:
            file.groups["eval"] = {"site": "west", "count": 1, "min": None}
        for name in sorted(file.sites)[:metal]:
            file.sites[name] |= {"provider": "baremetal", "method": "ssh"}
        file.fit()
        return file

    def lists_hosts(self, site: str) -> bool:
        return (self.sites[site]["provider"], self.sites[site].get("method")) == ("baremetal", "ssh")

    def listed(self) -> dict[str, str]:
        """Host → its group."""
        return {
            host: name for name, group in self.groups.items() if self.lists_hosts(group["site"])
            for host in group["hosts"]
        }  # fmt: skip

    def free(self) -> list[str]:
        """Hosts that it does not list."""
        return [host for host in POOL if host not in self.listed()]

    def fit(self) -> None:
        """Groups at sites of hosts list as many as they count, as long as there are some; one that has none is away."""
        for group in self.groups.values():
            self._fit_sites(group)
            if self.lists_hosts(group["site"]):
                group.setdefault("hosts", [])
        for name in sorted(self.groups):
            group = self.groups[name]
            if self.lists_hosts(group["site"]):
                taken = {host for host, other in self.listed().items() if other != name}
                kept_hosts = [host for host in group["hosts"] if host not in taken]
                free = [host for host in POOL if host not in taken and host not in kept_hosts]
                group["hosts"] = [*kept_hosts, *free][: group["count"]]
        lists = [group["hosts"] for group in self.groups.values() if self.lists_hosts(group["site"])]
        for hosts in lists:
            if not hosts:
                hosts.append(max(lists, key=len).pop())
        for group in self.groups.values():
            if self.lists_hosts(group["site"]):
                group["count"] = len(group["hosts"])
                group["min"] = None

    def _fit_sites(self, group: dict[str, Any]) -> None:
        """A list of sites has those of clouds, each once."""
        following = [
            site for site in dict.fromkeys(group.pop("next", ()))
            if site in self.sites and site != group["site"] and self._is_cloud(site)
        ]  # fmt: skip
        if following and self._is_cloud(group["site"]):
            group["next"] = following

    def leave_lists(self, site: str) -> None:
        """A site of bare metal is in no list: groups with other sites in their list stay at those."""
        for group in self.groups.values():
            other_sites = [other for other in self.sites_of(group) if other != site]
            if other_sites and group["site"] == site and not self._is_cloud(site):
                group["site"], group["next"] = other_sites[0], other_sites[1:]

    def used_sites(self) -> set[str]:
        """Those at which groups may be: no other one is written."""
        return {site for group in self.groups.values() for site in self.sites_of(group)}

    def sites_of(self, group: dict[str, Any]) -> list[str]:
        """The sites that a group may be at, in order."""
        return [group["site"], *group.get("next", ())]

    def host_name(self, host: str) -> str:
        """As the file calls it."""
        return f"{host}.rack" if host in self.renamed else f"{host}.lab"

    def host_of(self, name: str) -> str:
        return name.partition(".")[0]

    def address(self, host: str) -> str:
        return self.addresses.get(host) or f"192.0.2.{POOL.index(host) + 1}"

    def copy(self) -> ClusterFile:
        return deepcopy(self)

    @property
    def nodes(self) -> list[str]:
        return [f"{name}-{number}" for name, group in self.groups.items() for number in range(group["count"])]

    def text(self, key: Path) -> str:
        used = {site for group in self.groups.values() for site in self.sites_of(group)}
        sites: dict[str, Any] = {}
        for name in sorted(used):
            settings = self.sites[name]
            if settings["provider"] == "baremetal":
                sites[name] = self._own_machines(name)
                continue
            sites[name] = {"provider": settings["provider"], "region": settings["region"]}
            if settings["provider"] == "aws":
                sites[name]["zones"] = [f"{settings['region']}{letter}" for letter in "ab"[: settings["zones"]]]
            else:
                sites[name]["subscription"] = "00000000-0000-0000-0000-000000000000"
        groups = {
            name: {
                "machine": self._machine(group),
                "count": group["count"], "site": self.sites_of(group) if group.get("next") else group["site"],
            } | ({"capacity": capacity} if self._is_cloud(group["site"]) and (capacity := _capacity(group)) else {})
            for name, group in self.groups.items()
        }  # fmt: skip
        document = {
            "name": self.name, "sites": sites, "groups": groups, "access": {"ssh_key": str(key)},
            "quarantine": {"share": "100%"},
        } | ({"hooks": {"drain": "drain", "resume": "resume"}} if self.hooks else {})  # fmt: skip
        if self.shared:
            document["state"] = {"backend": "s3", "bucket": "simulated", "region": "us-east-2"}
        return json.dumps(document, indent=1) + "\n"

    def _machine(self, group: dict[str, Any]) -> str | dict[str, str]:
        """Its machine type; of a list of sites of two clouds one for each site."""
        types = {site: MACHINE.get(self.sites[site]["provider"], OWN_MACHINE) for site in self.sites_of(group)}
        return types if len(set(types.values())) > 1 else types[group["site"]]

    def _is_cloud(self, site: str) -> bool:
        return self.sites[site]["provider"] != "baremetal"

    def _own_machines(self, site: str) -> dict[str, Any]:
        """The block of a site of bare metal."""
        if not self.lists_hosts(site):
            return {"provider": "baremetal", "method": "maas", "maas": {"url": MAAS}}
        hosts = {
            self.host_name(host): {"group": name, "address": self.address(host)}
            for name, group in self.groups.items() if group["site"] == site
            for host in group["hosts"]
        }  # fmt: skip
        keys = {"host_keys": "host_keys"} if self.host_keys else {}
        return {"provider": "baremetal", "method": "ssh", "hosts": hosts, **keys}

    def write(self, folder: Path, key: Path) -> None:
        """cluster.yaml, cluster.lock and the file of host keys; of a file that is not valid there is no new lock."""
        if self.host_keys:
            rows = [f"{self.host_name(host)} {known}\n" for host, known in sorted(self.host_keys.items())]
            (folder / "host_keys").write_text("".join(rows), encoding="utf-8")
        file = folder / "cluster.yaml"
        text = self.text(key)
        file.write_text(text, encoding="utf-8")
        with contextlib.suppress(InputError):
            (folder / "cluster.lock").write_text(_lock(text, self.driver), encoding="utf-8")


def _capacity(group: dict[str, Any]) -> dict[str, Any]:
    first, *fallbacks = group.get("kinds", ("on-demand",))
    capacity = {"min": group["min"], "kind": first, "fallback": fallbacks}
    return {key: value for key, value in capacity.items() if value and value != "on-demand"}


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
            name: _stack(group.machine_type()).model_copy(update={"driver": driver})
            for name, group in loaded.by_machine().groups.items()
        }
        systems = {group_stack.os for group_stack in groups.values()}
        bases = {site: {system: BaseImage(id="ami-1", why="") for system in systems} for site in loaded.sites}
        lock = Lock(request=stack.request(loaded), simulated=False, bases=bases, groups=groups)
        lockfile.write(Path(folder) / "cluster.lock", lock)
        return (Path(folder) / "cluster.lock").read_text(encoding="utf-8")
