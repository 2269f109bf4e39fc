"""What people do to cluster.yaml between commands; each is drawn by numbers below a count."""

from __future__ import annotations

from collections.abc import Callable

from tests.simulation.cluster_file import DRIVERS, MACHINE, REGIONS, ClusterFile

Pick = Callable[[int], int]
EDITS: dict[str, Callable[[ClusterFile, Pick], str]] = {}
"""Name → what changes the file, by numbers that it picks; gives what was done, in words."""


def editing(
    call: Callable[[ClusterFile, Pick], str],
) -> Callable[[ClusterFile, Pick], str]:
    EDITS[call.__name__] = call
    return call


@editing
def count(file: ClusterFile, pick: Pick) -> str:
    name = sorted(file.groups)[pick(len(file.groups))]
    file.groups[name]["count"] = 1 + pick(3)
    if file.groups[name]["min"] and file.groups[name]["min"] > file.groups[name]["count"]:
        file.groups[name]["min"] = None
    return f"groups.{name}.count: {file.groups[name]['count']}"


@editing
def fewer_are_enough(file: ClusterFile, pick: Pick) -> str:
    name = sorted(file.groups)[pick(len(file.groups))]
    file.groups[name]["min"] = 1
    return f"groups.{name}.capacity.min: 1"


@editing
def capacity_kind(file: ClusterFile, pick: Pick) -> str:
    name = sorted(file.groups)[pick(len(file.groups))]
    file.groups[name]["kinds"] = (("on-demand",), ("spot",), ("spot", "on-demand"))[pick(3)]
    return f"groups.{name} is bought as {', else '.join(file.groups[name]['kinds'])}"


@editing
def group_renamed(file: ClusterFile, pick: Pick) -> str:
    name = sorted(file.groups)[pick(len(file.groups))]
    fresh = {"train": "learn", "learn": "train", "eval": "test", "test": "eval"}[name]
    if fresh not in file.groups:
        file.groups[fresh] = file.groups.pop(name)
    return f"group {name} is called {fresh}"


@editing
def group_added(file: ClusterFile, pick: Pick) -> str:
    site = sorted(file.sites)[pick(len(file.sites))]
    file.groups.setdefault("eval", {"site": site, "count": 1, "min": None})
    return f"group eval at {site}"


@editing
def group_removed(file: ClusterFile, pick: Pick) -> str:
    name = sorted(file.groups)[pick(len(file.groups))]
    if len(file.groups) > 1:
        del file.groups[name]
    return f"group {name} is removed"


@editing
def site_renamed(file: ClusterFile, pick: Pick) -> str:
    name = sorted(file.sites)[pick(len(file.sites))]
    fresh = {"east": "ohio", "ohio": "east", "west": "oregon", "oregon": "west"}[name]
    if fresh not in file.sites:
        file.sites[fresh] = file.sites.pop(name)
        for group in file.groups.values():
            group["site"] = fresh if group["site"] == name else group["site"]
    return f"site {name} is called {fresh}"


@editing
def region(file: ClusterFile, pick: Pick) -> str:
    name = sorted(file.sites)[pick(len(file.sites))]
    known = REGIONS[file.sites[name]["provider"]]
    file.sites[name]["region"] = known[pick(len(known))]
    return f"sites.{name}.region: {file.sites[name]['region']}"


@editing
def zones(file: ClusterFile, pick: Pick) -> str:
    name = sorted(file.sites)[pick(len(file.sites))]
    file.sites[name]["zones"] = 1 + pick(2)
    return f"sites.{name}.zones: {file.sites[name]['zones']} of them"


@editing
def provider(file: ClusterFile, pick: Pick) -> str:
    name = sorted(file.sites)[pick(len(file.sites))]
    fresh = sorted(MACHINE)[pick(len(MACHINE))]
    if fresh != file.sites[name]["provider"]:
        file.sites[name] |= {"provider": fresh, "region": REGIONS[fresh][0]}
    return f"sites.{name}.provider: {fresh}"


@editing
def cluster_renamed(file: ClusterFile, pick: Pick) -> str:
    file.name = ("fleet", "other")[pick(2)]
    return f"name: {file.name}"


@editing
def lock(file: ClusterFile, pick: Pick) -> str:
    file.driver = DRIVERS[pick(len(DRIVERS))]
    return f"cluster.lock has driver {file.driver}"
