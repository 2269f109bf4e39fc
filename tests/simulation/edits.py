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
def group_at_several_sites(file: ClusterFile, pick: Pick) -> str:
    """Or at one, as before; the list may begin with another site than that at which its machines are."""
    name = sorted(file.groups)[pick(len(file.groups))]
    group, manner = file.groups[name], pick(4)
    other_sites = [site for site in sorted(file.sites) if site != group["site"]]
    if manner == 0 or not other_sites:
        group.pop("next", None)
    elif manner == 1 and file.sites[other_sites[0]]["provider"] != "baremetal":
        group["site"], group["next"] = other_sites[0], [group["site"]]
    else:
        group["next"] = other_sites
    return f"groups.{name}.site: {', '.join(file.sites_of(group))}"


@editing
def group_at_two_clouds(file: ClusterFile, pick: Pick) -> str:
    """Its list goes on with a site of another cloud, where it has another machine type."""
    name = sorted(file.groups)[pick(len(file.groups))]
    group = file.groups[name]
    other_site = next((site for site in sorted(file.sites) if site != group["site"]), None)
    clouds = [cloud for cloud in sorted(MACHINE) if cloud != file.sites[group["site"]]["provider"]]
    if other_site is None or len(clouds) == len(MACHINE):  # its own machines stay where they are
        return f"groups.{name} stays at one cloud"
    if file.sites[other_site]["provider"] not in clouds:
        file.sites[other_site] |= {"provider": clouds[0], "region": REGIONS[clouds[0]][0]}
    group["next"] = [other_site]
    return f"groups.{name}.site: {', '.join(file.sites_of(group))}, of two clouds"


@editing
def site_renamed(file: ClusterFile, pick: Pick) -> str:
    name = sorted(file.sites)[pick(len(file.sites))]
    fresh = {"east": "ohio", "ohio": "east", "west": "oregon", "oregon": "west"}[name]
    if fresh not in file.sites:
        file.sites[fresh] = file.sites.pop(name)
        for group in file.groups.values():
            group["site"] = fresh if group["site"] == name else group["site"]
            if "next" in group:
                group["next"] = [fresh if site == name else site for site in group["next"]]
    return f"site {name} is called {fresh}"


@editing
def region(file: ClusterFile, pick: Pick) -> str:
    name = sorted(file.sites)[pick(len(file.sites))]
    if known := REGIONS.get(file.sites[name]["provider"]):
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
def own_machines(file: ClusterFile, pick: Pick) -> str:
    """A site of hosts in place of one of a cloud."""
    name = sorted(file.sites)[pick(len(file.sites))]
    file.sites[name] |= {"provider": "baremetal", "method": "ssh"}
    return f"sites.{name}.provider: baremetal, with a list of hosts"


@editing
def method(file: ClusterFile, pick: Pick) -> str:
    """Of a site of bare metal."""
    name = sorted(file.sites)[pick(len(file.sites))]
    if file.sites[name]["provider"] == "baremetal":
        file.sites[name]["method"] = ("ssh", "maas")[pick(2)]
    return f"sites.{name}.method: {file.sites[name].get('method')}"


def _group_of_hosts(file: ClusterFile, pick: Pick) -> str:
    """Any group that lists hosts; empty where none does."""
    groups = sorted(set(file.listed().values()))
    return groups[pick(len(groups))] if groups else ""


@editing
def host_added(file: ClusterFile, pick: Pick) -> str:
    name, free = _group_of_hosts(file, pick), file.free()
    if not name or not free:
        return "no host is added"
    hosts, fresh = file.groups[name]["hosts"], free[pick(len(free))]
    hosts.insert(pick(len(hosts) + 1), fresh)
    file.groups[name]["count"] = len(hosts)
    return f"host {fresh} is added to {name}"


@editing
def host_removed(file: ClusterFile, pick: Pick) -> str:
    name = _group_of_hosts(file, pick)
    if not name or len(file.groups[name]["hosts"]) < 2:
        return "no host is removed"
    hosts = file.groups[name]["hosts"]
    removed_host = hosts.pop(pick(len(hosts)))
    file.groups[name]["count"] = len(hosts)
    return f"host {removed_host} is removed from {name}"


@editing
def host_exchanged(file: ClusterFile, pick: Pick) -> str:
    name, free = _group_of_hosts(file, pick), file.free()
    if not name or not free:
        return "no host is exchanged"
    hosts, fresh = file.groups[name]["hosts"], free[pick(len(free))]
    at = pick(len(hosts))
    removed_host, hosts[at] = hosts[at], fresh
    return f"host {removed_host} of {name} is exchanged for {fresh}"


@editing
def host_renamed(file: ClusterFile, pick: Pick) -> str:
    listed = sorted(file.listed())
    if not listed:
        return "no host is renamed"
    host = listed[pick(len(listed))]
    file.renamed ^= {host}
    return f"host {host} is called {file.host_name(host)}"


@editing
def host_to_another_group(file: ClusterFile, pick: Pick) -> str:
    """Perhaps at another site."""
    listed, groups = file.listed(), sorted(set(file.listed().values()))
    if len(groups) < 2:
        return "no host is moved"
    host = sorted(listed)[pick(len(listed))]
    other_groups = [name for name in groups if name != listed[host]]
    target, former = file.groups[other_groups[pick(len(other_groups))]], file.groups[listed[host]]
    if len(former["hosts"]) > 1:
        former["hosts"].remove(host)
        former["count"] = len(former["hosts"])
        target["hosts"].append(host)
    else:  # they exchange hosts
        former["hosts"], target["hosts"] = target["hosts"], former["hosts"]
        former["count"] = len(former["hosts"])
    target["count"] = len(target["hosts"])
    return f"host {host} is in group {other_groups[0]}"


@editing
def hosts_reordered(file: ClusterFile, pick: Pick) -> str:
    if name := _group_of_hosts(file, pick):
        file.groups[name]["hosts"].reverse()
    return f"the hosts of {name} are listed in another order"


@editing
def cluster_renamed(file: ClusterFile, pick: Pick) -> str:
    file.name = ("fleet", "other")[pick(2)]
    return f"name: {file.name}"


@editing
def lock(file: ClusterFile, pick: Pick) -> str:
    file.driver = DRIVERS[pick(len(DRIVERS))]
    return f"cluster.lock has driver {file.driver}"
