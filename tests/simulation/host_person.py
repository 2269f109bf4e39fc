"""What a person does about hosts because an error says so."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tests.simulation.hosts import OTHER, Host

if TYPE_CHECKING:
    from tests.simulation.cluster_file import ClusterFile
    from tests.simulation.simulation import Simulation


def follow(history: Simulation, text: str, down: Callable[[], None]) -> bool:
    """Do it; whether the error is about hosts, and something could be done. `down`: removes a cluster."""
    if foreign := re.search(r"is configured by another gpuprov cluster, ([\w-]+)", text):
        return _release_foreign(history, foreign[1], down) or _write_identity(history, text)
    if "Host key verification failed" in text:
        return _write_addresses(history) or _write_host_keys(history)
    if (
        "have the same address" in text
        or "is another host of this cluster" in text
        or "shows the host key that is pinned for" in text
    ):
        return _write_addresses(history)
    if "neither gpuprov's key nor your own ssh" in text:
        return _copy_key(history)
    if "has no ed25519 key of" in text:
        return _write_host_keys(history)
    if _hosts_back(history, text):
        return True
    if lost := re.search(
        r"(?:site ([\w-]+)(?:: | failed, the others went on: ))+(\S.*) may be configured, and neither", text
    ):
        return _list_hosts(history, lost[1], lost[2].split(", "))
    if "connect to host" in text or "does not answer" in text:
        return _write_addresses(history)
    return False


def compare_host_keys(history: Simulation) -> None:
    """Look at the hosts' consoles: an address of cluster.yaml at which another host answers is corrected."""
    _write_addresses(history)


def _hosts(history: Simulation) -> list[Host]:
    return [machine for machine in history.world.cloud.machines.values() if isinstance(machine, Host)]


def _release_foreign(history: Simulation, cluster: str, down: Callable[[], None]) -> bool:
    if cluster == OTHER:
        for host in _hosts(history):
            if host.record and host.record[0] == OTHER:
                history.happens(f"`gpuprov down` of the cluster {OTHER} leaves {host.id}", host.leave)
        return True
    if history.file.name == cluster:
        return False
    former = history.file.name
    history.edit(f"name: {cluster}", lambda file: setattr(file, "name", cluster))
    down()
    history.edit(f"name: {former}", lambda file: setattr(file, "name", former))
    return True


def _write_identity(history: Simulation, text: str) -> bool:
    """The id that hosts have in their record, into the run directory that lost it, after a `down` of what has its
    present one; whether the error names it."""
    lost = re.search(r"write ([0-9a-f]{12}) into (/\S+/id)", text)
    if lost is not None:
        file = Path(lost[2])
        history.types("down")
        file.parent.mkdir(parents=True, exist_ok=True)
        history.happens(f"{lost[1]} is written into {file.name}", lambda: file.write_text(f"{lost[1]}\n"))
    return lost is not None


def _write_addresses(history: Simulation) -> bool:
    """Each host's address as it is now; whether cluster.yaml had another one."""
    current_addresses = {host.id: host.address for host in _hosts(history)}

    def write(file: ClusterFile) -> None:
        file.addresses = current_addresses

    if all(history.file.address(host) == address for host, address in current_addresses.items()):
        return False
    history.edit("the hosts' addresses are those of the inventory", write)
    return True


def _write_host_keys(history: Simulation) -> bool:
    """Keys as the consoles show them."""
    console_keys = {host.id: host.key for host in _hosts(history)}
    if history.file.host_keys == console_keys:
        return False
    history.edit("host_keys: as the consoles show them", lambda file: setattr(file, "host_keys", console_keys))
    return True


def _hosts_back(history: Simulation, text: str) -> bool:
    """Sites and groups as cluster.yaml last had them when it listed the hosts that an error misses at several sites;
    whether it ever did."""
    lost = re.findall(r"site ([\w-]+): ((?:[\w.-]+, )*[\w.-]+) may be configured, and neither", text)
    if len(lost) < 2:
        return False

    def has(file: ClusterFile) -> bool:
        listed_hosts = {
            site: {file.host_name(host) for host, group in file.listed().items() if file.groups[group]["site"] == site}
            for site, _ in lost
        }
        return all({*names.split(", ")} <= listed_hosts[site] for site, names in lost)

    former = next((file for file in reversed(history.versions) if has(file)), None)
    if former is None:
        return False

    def restore(file: ClusterFile) -> None:
        file.sites = {name: dict(site) for name, site in former.sites.items()}
        file.groups = {name: dict(group) for name, group in former.groups.items()}
        file.renamed = set(former.renamed)

    history.edit("the hosts are listed as they were when they were configured", restore)
    return True


def _list_hosts(history: Simulation, site: str, names: Sequence[str]) -> bool:
    """Hosts are listed again, by the names that they had; whether a group of the site lists hosts."""
    groups = [name for name, group in history.file.groups.items() if group["site"] == site]
    if not groups or not history.file.lists_hosts(site):
        return False

    def write(file: ClusterFile) -> None:
        for name in names:
            host = file.host_of(name)
            if file.host_name(host) != name:
                file.renamed ^= {host}
            former = file.listed().get(host)
            if former is not None and (file.groups[former]["site"] == site or len(file.groups[former]["hosts"]) < 2):
                continue
            if former is not None:
                file.groups[former]["hosts"].remove(host)
                file.groups[former]["count"] -= 1
            file.groups[groups[0]]["hosts"].append(host)
            file.groups[groups[0]]["count"] += 1

    previous = history.file.copy()
    history.edit(f"{', '.join(names)} are listed again", write)
    return history.file != previous


def _copy_key(history: Simulation) -> bool:
    """ssh-copy-id."""

    def copy() -> None:
        for host in _hosts(history):
            host.own_way = True

    history.happens("the person's own ssh gets into all hosts", copy)
    return True
