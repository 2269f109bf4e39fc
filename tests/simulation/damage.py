"""What happens to the world between commands: machines, zones, files, clocks. Each is drawn by numbers."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.simulation.cloud import Machine
from tests.simulation.cluster_file import DRIVERS, ClusterFile
from tests.simulation.hosts import OTHER, Host
from tests.simulation.simulation import Simulation, drawing

Pick = Callable[[int], int]
Event = Callable[[Simulation, Pick], None]
EVENTS: dict[str, Event] = {}
"""Name → what happens."""
HOUR_S = 3600.0


def event(call: Event) -> Event:
    EVENTS[call.__name__] = call
    return call


def happen(history: Simulation, name: str, picks: Sequence[int]) -> None:
    """One of EVENTS."""
    steps = len(history.world.script)
    EVENTS[name](history, drawing(picks))
    if len(history.world.script) > steps:
        history.world.steps.append({"event": name, "picks": list(picks)})
        history.changes[name] += 1


def _machine(history: Simulation, pick: Pick) -> Machine | None:
    machines = history.world.cloud.running()
    return machines[pick(len(machines))] if machines else None


@event
def machine_vanishes(history: Simulation, pick: Pick) -> None:
    """The cloud takes a spot machine back."""
    if machine := _machine(history, pick):
        history.happens(f"{machine.id} ({machine.node}) vanishes", lambda: setattr(machine, "running", False))


@event
def node_sickens(history: Simulation, pick: Pick) -> None:
    if machine := _machine(history, pick):
        history.happens(f"{machine.id} ({machine.node}) gets a bad GPU", lambda: setattr(machine, "sick", True))


@event
def node_recovers(history: Simulation, pick: Pick) -> None:
    for machine in history.world.cloud.machines.values():
        if machine.sick or machine.deaf:
            history.happens(f"{machine.id} ({machine.node}) is well again", machine.recover)


@event
def node_goes_deaf(history: Simulation, pick: Pick) -> None:
    if machine := _machine(history, pick):
        history.happens(f"{machine.id} ({machine.node}) answers no ssh", lambda: setattr(machine, "deaf", True))


def _host(history: Simulation, pick: Pick) -> Host | None:
    """One that is a node; of several those."""
    hosts = [machine for machine in history.world.cloud.serving() if isinstance(machine, Host)]
    return hosts[pick(len(hosts))] if hosts else None


@event
def host_sickens(history: Simulation, pick: Pick) -> None:
    if host := _host(history, pick):
        history.happens(f"{host.id} ({host.node}) gets a bad GPU", lambda: setattr(host, "sick", True))


@event
def host_goes_deaf(history: Simulation, pick: Pick) -> None:
    if host := _host(history, pick):
        history.happens(f"{host.id} ({host.node}) answers no ssh", lambda: setattr(host, "deaf", True))


@event
def host_reinstalled(history: Simulation, pick: Pick) -> None:
    if host := _host(history, pick):
        history.happens(f"{host.id} ({host.node}) is reinstalled", host.reinstall)


@event
def hosts_swap_addresses(history: Simulation, pick: Pick) -> None:
    """As after a new DHCP lease, by a mistake in cluster.yaml, or as planned: in the world, the file or both."""
    hosts = [machine for machine in history.world.cloud.serving() if isinstance(machine, Host)]
    if len(hosts) < 2:
        return
    manner = pick(3)
    first = hosts.pop(pick(len(hosts)))
    other = hosts[pick(len(hosts))]
    if manner != 1:

        def swap() -> None:
            first.address, other.address = other.address, first.address

        history.happens(f"{first.id} and {other.id} have each other's address", swap)
    if manner != 0:

        def write(file: ClusterFile) -> None:
            former = {host: file.address(host) for host in (first.id, other.id)}
            file.addresses |= {first.id: former[other.id], other.id: former[first.id]}

        history.edit(f"{first.id} and {other.id} exchange addresses in cluster.yaml", write)


@event
def own_ssh_refused(history: Simulation, pick: Pick) -> None:
    """A host lets gpuprov's key in, if it has it, and no longer the person's own ones."""
    hosts = [machine for machine in history.world.cloud.machines.values() if isinstance(machine, Host)]
    host = hosts[pick(len(hosts))]

    def refuse() -> None:
        host.own_way = False

    history.happens(f"{host.id} refuses the person's own ssh", refuse)


@event
def host_of_another_cluster(history: Simulation, pick: Pick) -> None:
    """A host that is in no cluster is taken by a colleague's."""
    hosts = [
        machine
        for machine in history.world.cloud.machines.values()
        if isinstance(machine, Host) and machine.record is None
    ]
    if hosts:
        host = hosts[pick(len(hosts))]
        history.happens(
            f"{host.id} is taken by the cluster {OTHER}", lambda: setattr(host, "record", (OTHER, "f" * 12))
        )


@event
def driver_turns_out_bad(history: Simulation, pick: Pick) -> None:
    """The checks fail on every node that has it."""
    driver = DRIVERS[1:][pick(len(DRIVERS) - 1)]
    if driver not in history.world.bad_drivers:
        history.happens(f"driver {driver} is a bad one", lambda: history.world.bad_drivers.add(driver))


@event
def address_changes(history: Simulation, pick: Pick) -> None:
    """A machine was stopped and started from the console."""
    if machine := _machine(history, pick):
        history.happens(f"{machine.id} ({machine.node}) has another address", history.world.cloud.mover(machine))


@event
def zone_sells_out(history: Simulation, pick: Pick) -> None:
    zones = sorted({f"{site['region']}{letter}" for site in history.file.sites.values() for letter in "ab"})
    zone = zones[pick(len(zones))]
    history.happens(f"{zone} has no more machines", lambda: history.world.cloud.short.add(zone))


@event
def site_sells_out(history: Simulation, pick: Pick) -> None:
    sites = sorted(history.file.sites)
    name = sites[pick(len(sites))]
    zones = {f"{history.file.sites[name]['region']}{letter}" for letter in "ab"}
    history.happens(f"site {name} has no more machines", lambda: history.world.cloud.short.update(zones))


@event
def quota_used_up(history: Simulation, pick: Pick) -> None:
    sites = sorted(history.file.sites)
    region = history.file.sites[sites[pick(len(sites))]]["region"]
    history.happens(
        f"the account may have no more machines in {region}", lambda: history.world.cloud.used_up.add(region)
    )


@event
def zones_sell_again(history: Simulation, pick: Pick) -> None:
    """And the account may have them."""

    def sell() -> None:
        history.world.cloud.short.clear()
        history.world.cloud.used_up.clear()

    if history.world.cloud.short or history.world.cloud.used_up:
        history.happens("all zones have machines again", sell)


@event
def other_account(history: Simulation, pick: Pick) -> None:
    """Of a cluster with one site: of several, each would have to be signed in to in turn."""
    account = ("111111111111", "222222222222")[pick(2)]
    if len(history.file.sites) == 1 and account != history.world.account:
        history.happens(f"AWS_PROFILE is of account {account}", lambda: setattr(history.world, "account", account))


@event
def hours_pass(history: Simulation, pick: Pick) -> None:
    hours = 1 + pick(48)
    history.happens(
        f"{hours} hours pass", lambda: setattr(history.world, "clock", history.world.clock + hours * HOUR_S)
    )


def _files(history: Simulation, *names: str) -> list[Path]:
    return [run / name for run in history.run_directories() for name in names if (run / name).is_file()]


@event
def file_damaged(history: Simulation, pick: Pick) -> None:
    """Half of a file is lost; of files that gpuprov can do without."""
    if files := _files(history, "nodes.json", "state.json"):
        file = files[pick(len(files))]
        content = file.read_bytes()
        history.happens(f"{file.name} is damaged", lambda: file.write_bytes(content[: len(content) // 2]))


@event
def file_removed(history: Simulation, pick: Pick) -> None:
    if files := _files(history, "nodes.json", "state.json"):
        history.remove(files[pick(len(files))])


@event
def folder_copied(history: Simulation, pick: Pick) -> None:
    """A colleague gets a copy of the project folder, or restores a backup of it."""
    runs = history.run_directories()
    if history.operators > 1 and runs:
        source = runs[pick(len(runs))]
        owner = next(folder for folder in history.world.folders if folder in source.parents)
        target = history.world.folders[1 - history.world.folders.index(owner)] / source.relative_to(owner)
        shutil.rmtree(target, ignore_errors=True)
        history.happens(
            f"{source.relative_to(owner)} of {owner.name} is copied over the colleague's",
            lambda: shutil.copytree(source, target, symlinks=True),
        )
