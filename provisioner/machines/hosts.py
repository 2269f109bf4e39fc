"""Machines that exist already: none is made, none is turned off, none is removed."""

from __future__ import annotations

import os
import pwd
from collections.abc import Callable, Collection, Mapping, Sequence

from provisioner.common.errors import ProviderError
from provisioner.common.events import Events
from provisioner.common.paths import private_dir, write_whole
from provisioner.common.text import counted, few
from provisioner.machines import existing
from provisioner.machines.base import Action, Planned
from provisioner.machines.existing import Way
from provisioner.machines.providers.base import Hosts
from provisioner.machines.providers.cluster import MARK
from provisioner.machines.providers.hosts import Host
from provisioner.plan.models import Plan
from provisioner.rundir.fleet import Node
from provisioner.rundir.release import Ledger
from provisioner.transport import ssh_pins

LEFT = "left"
"""File in the site's folder: hosts on which a `down` has undone everything."""
LEAVING = "leaving"
"""The same: hosts on which a `down` has begun to undo."""


class HostMachines:
    """See machines/base.py for the contract. `known`: the site's nodes of the last run; `share`: lets other operators
    know what is noted in the site's folder."""

    def __init__(
        self, site: str, hosts: Hosts, known: Sequence[Node], access: Way, events: Events,
        share: Callable[[], None] = lambda: None,
    ) -> None:  # fmt: skip
        self.site, self._share = site, share
        self.stays: dict[str, list[str]] = {}
        """Node → what `destroy` left on it, one sentence each."""
        self._hosts, self._known, self._access, self._events = hosts, list(known), access, events
        self._folder = access.paths.site(site)

    def plan(self, plan: Plan, *, replace: Collection[str] = (), repair: bool = True) -> Planned:  # noqa: ARG002
        nodes = self._nodes(plan)
        self._refuse_unlisted()
        recorded_ids = {node.name: node.id for node in self._known}
        for name in replace:
            if name in nodes and recorded_ids.get(name) == nodes[name].id:
                raise self._irreplaceable(name, nodes[name].id)
        actions = [
            Action(
                "replace" if (former := recorded_ids.get(name)) else "create",
                f"{node.id} as {name}",
                name,
                reason=f"{node.id} takes the place of {former}" if former else "",
            )
            for name, node in nodes.items()
            if recorded_ids.get(name) != node.id
        ]
        removed = self._removed_nodes(nodes)
        actions += [Action("delete", f"gpuprov's changes on {node.id}", node.name, attached=True) for node in removed]
        actions += self._former(nodes)
        new = sum(1 for action in actions if action.what != "delete")
        hosts = tuple(node.id for node in nodes.values())
        return Planned(self.site, add=new, destroy=len(removed), actions=tuple(actions), hosts=hosts)

    def _irreplaceable(self, name: str, host: str) -> ProviderError:
        """Of a node whose host cluster.yaml still names: what a person does."""
        return ProviderError(
            f"{host} cannot be replaced by gpuprov: it is your own machine",
            where=name,
            hint=f"repair it, then `gpuprov verify FILE` and `gpuprov release FILE {name}`; or name another host "
            f"in place of {host} in cluster.yaml and run the same command again",
        )

    def apply(self, plan: Plan, planned: Planned, *, always: bool = False) -> list[Node]:  # noqa: ARG002
        nodes = self._nodes(plan)
        write_whole(private_dir(self._folder) / MARK, "".join(f"{node.id}\n" for node in nodes.values()))
        for name in (LEAVING, LEFT):
            (self._folder / name).unlink(missing_ok=True)
        if removed := self._removed_nodes(nodes):
            failed = existing.undo(self._access, removed, self._report_undo)
            for node in removed:
                if error := failed.get(node.name):
                    self._warn_left(node, error)
        return list(nodes.values())

    def existing_nodes(self) -> list[Node]:
        return list(self._known)

    def destroy(self, plan: Plan | None = None) -> int:  # noqa: ARG002
        done_hosts = self._left_hosts()
        self._refuse_unnamed(done_hosts)
        for host in self._unlisted(done_hosts):
            message = f"{host} left with gpuprov's changes: neither nodes.json nor cluster.yaml names it"
            self._events("down", "warning", message)
        write_whole(private_dir(self._folder) / LEAVING, "".join(f"{node.id}\n" for node in self._known))
        self._share()
        # Also those that were left: another operator may have configured them since.
        failed = existing.undo(self._access, self._known, self._report_undo, finished=done_hosts)
        foreign = [name for name, error in failed.items() if isinstance(error, existing.ForeignError)]
        for name in foreign:
            self._events("down", "warning", f"{failed.pop(name).message}: left alone", node=name)
        for node in self._known:
            if node.name not in failed:
                done_hosts.add(node.id)
            elif node.id in done_hosts:
                failed.pop(node.name)
            elif node.id not in self._access.listed:  # at any site: it may have been configured for another one
                self._warn_left(node, failed.pop(node.name))
        write_whole(private_dir(self._folder) / LEFT, "".join(f"{host_id}\n" for host_id in sorted(done_hosts)))
        if failed:
            message = "\n  ".join(f"{name}: {error.message}" for name, error in failed.items())
            hints = "; ".join(dict.fromkeys(error.hint for error in failed.values()))
            hint_when_gone = "a machine that is gone for good: take it out of hosts, and run `gpuprov down` again"
            raise ProviderError(
                f"gpuprov's changes could not be undone:\n  {message}",
                where=f"site {self.site}",
                hint=f"{hints}; {hint_when_gone}",
            )
        return len(self._known) - len(foreign)

    def _warn_left(self, node: Node, error: ProviderError) -> None:
        self._events("down", "warning", f"{node.id} left with gpuprov's changes: {error.message}", node=node.name)

    def _refuse_unnamed(self, done_hosts: Collection[str]) -> None:
        """Raise ProviderError for hosts that were configured and that nodes.json does not name: it was removed."""
        configured = set(self._read(MARK)) & {host.name for host in self._hosts.listed(())}
        if unnamed := sorted(configured - {node.id for node in self._known} - set(done_hosts)):
            raise ProviderError(
                f"{few(unnamed, 5, ',')} may be configured, and nodes.json does not name "
                + ("them" if len(unnamed) > 1 else "it"),
                where=f"site {self.site}",
                hint="run `gpuprov up`, which takes them in, then `gpuprov down` again",
            )

    def _refuse_unlisted(self) -> None:
        """Raise ProviderError where `_unlisted` has hosts: no later command would undo what was configured on them."""
        if lost := self._unlisted(self._left_hosts()):
            raise ProviderError(
                f"{few(lost, 5, ',')} may be configured, and neither nodes.json nor cluster.yaml names "
                + ("them" if len(lost) > 1 else "it"),
                where=f"site {self.site}",
                hint="put the host back into `hosts`, run `gpuprov up`, then remove it from `hosts` again; if the "
                f"machine no longer exists, remove its line from {self._folder / MARK}",
            )

    def _unlisted(self, done_hosts: Collection[str]) -> list[str]:
        """Hosts that were configured, and whose addresses neither nodes.json nor cluster.yaml has. A nodes.json that is
        there is newer than the list of configured hosts, which operators do not share."""
        listed = {host.name for host in self._hosts.listed(())} | set(done_hosts)
        return [] if self._known else [host for host in self._read(MARK) if host not in listed]

    def _left_hosts(self) -> set[str]:
        """Machines that a `down` which failed elsewhere has left already: gpuprov's key is gone from them."""
        return set(self._read(LEFT))

    def _read(self, name: str) -> list[str]:
        """The hosts in a file of the site's folder; none where there is no such file."""
        try:
            return (self._folder / name).read_text(encoding="utf-8", errors="replace").split()
        except FileNotFoundError:
            return []

    def forget(self) -> None:
        """Planning leaves nothing."""

    def _report_undo(self, node: Node, done: list[str], stays: list[str]) -> None:
        self.stays[node.name] = stays
        for sentence in done:
            self._events("down", "log", sentence, node=node.name)
        for sentence in stays:
            self._events("down", "log", f"stays: {sentence}", node=node.name)

    def _former(self, nodes: Mapping[str, Node]) -> list[Action]:
        """Nodes whose hosts become other ones: those of nodes.json that have no host then, and those that the host was
        proven as, where that is neither what nodes.json calls it nor what it becomes."""
        known = {(node.name, node.id) for node in self._known}
        recorded, proven = dict[str, list[str]](), dict[str, list[str]]()
        for former in self._known:
            if former.name not in nodes:
                recorded.setdefault(former.id, []).append(former.name)
        for name, id in Ledger(self._access.paths).machines().items():
            proven.setdefault(id, []).append(name)
        actions = []
        for name, node in nodes.items():
            ending = recorded.get(node.id, [])
            if name not in (earlier := proven.get(node.id, [])):
                ending = [*ending, *(former for former in earlier if (former, node.id) not in known)]
            actions += [
                Action("delete", f"{former}: its machine {node.id} becomes {name}", former) for former in ending
            ]
        return actions

    def _removed_nodes(self, nodes: Mapping[str, Node]) -> list[Node]:
        """Machines of the last run that cluster.yaml does not name any more."""
        planned_ids = {node.id for node in nodes.values()}
        return [node for node in self._known if node.id not in planned_ids]

    def _nodes(self, plan: Plan) -> dict[str, Node]:
        """Name → node, as planned. A host keeps the name that it has; new ones take what is free, in the file's
        order."""
        groups = [group for group in plan.groups if group.site == self.site]
        names_by_host = self._names({name for group in groups for name in group.node_names()})
        listed = self._hosts.listed([group.name for group in groups])
        nodes_by_name = {}
        for group in groups:
            hosts = [host for host in listed if host.group == group.name]
            names = group.node_names()
            if len(hosts) != len(names):
                raise ProviderError(
                    f"groups.{group.name}.count is {len(names)}, and its list has {counted(len(hosts), 'host')}",
                    where=f"site {self.site}",
                    hint="list as many hosts as the group has machines",
                )
            for name, host in assign_names(hosts, names, names_by_host).items():
                nodes_by_name[name] = _node(name, group.name, self.site, group.machine.name, host)
        return nodes_by_name

    def _names(self, planned: Collection[str]) -> dict[str, str]:
        """Host → which of the planned nodes it is. If nodes.json does not say, it is the node that it was proven as, or
        whose host key was pinned for it. By another name a host that was proven would be a new machine."""
        names = {node.id: node.name for node in self._known if node.name in planned}
        pinned = {name: id for name, (id, _) in ssh_pins.load_pins(self._access.paths).items() if name in planned}
        proven = Ledger(self._access.paths).machines().items()
        recorded = {id: name for name, id in proven if name in planned and pinned.get(name, id) == id}
        recorded |= {id: name for name, id in pinned.items()}
        taken = set(names.values())
        return names | {id: name for id, name in recorded.items() if id not in names and name not in taken}


def assign_names(hosts: Sequence[Host], names: Sequence[str], names_by_host: Mapping[str, str]) -> dict[str, Host]:
    """Name → host, as many as there are of both. `names_by_host`: host → the name that it has."""
    taken = {name: host for host in hosts if (name := names_by_host.get(host.name)) in names and name is not None}
    placed = {host.name for host in taken.values()}
    unnamed = iter([host for host in hosts if host.name not in placed])
    return {name: host for name in names if (host := taken.get(name) or next(unnamed, None)) is not None}


def _node(name: str, group: str, site: str, machine: str, host: Host) -> Node:
    address = "127.0.0.1" if host.local else host.address
    own_user = pwd.getpwuid(os.getuid()).pw_name if host.local else ""
    return Node(
        name=name, group=group, site=site, machine=machine, id=host.name, zone="", address=address,
        private_address=address, port=host.port, user=host.user or own_user,
    )  # fmt: skip
