"""The simulated person who ends a history: types what the hints name, until nothing is left."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.simulation.cluster_file import REGIONS, ClusterFile
from tests.simulation.contracts import BrokenInvariant, load
from tests.simulation.host_contracts import HostContracts
from tests.simulation.host_person import compare_host_keys, follow
from tests.simulation.world import ACCOUNT

if TYPE_CHECKING:
    from tests.simulation.simulation import Simulation

MOST_TRIES = 12
"""Commands that a person types until a fleet is well again."""


class Person:
    """Of one history."""

    def __init__(self, history: Simulation) -> None:
        self.history = history

    def finish(self) -> None:
        """No more faults: the commands that hints name bring the fleet back to health, then `down` leaves nothing."""
        self.history.say("# no more faults from here on")
        for machine in self.history.world.cloud.machines.values():
            machine.recover()
        self.history.world.cloud.short.clear()
        self.history.world.cloud.used_up.clear()
        self.history.world.bad_drivers.clear()
        self.history.world.account = ACCOUNT
        self.history.world.clock += 1000.0
        self._until(("up",), "the fleet does not get well")
        for name in sorted(self.history.excused & set(self.history.file.nodes) & set(self.history.world.drained)):
            self.history.types("quarantine", name)
            self.history.types("release", name)
            if name in self.history.world.drained:
                raise BrokenInvariant(self.history.world, f"`quarantine` and `release` leave {name} drained")
        self._until(("down",), "`down` does not end")
        running = [machine for kind in ("machine", "network") for machine in self.history.world.cloud.running(kind)]
        hosts = HostContracts(self.history)
        for name in sorted({owner.cluster for owner in (*running, *hosts.changed())}):
            self.history.edit(f"name: {name}", lambda file, name=name: setattr(file, "name", name))
            self._until(("down",), f"`down` of {name} does not end")
        leftovers = [f"{machine.id} ({machine.node or machine.kind}, {machine.cluster}, {machine.region})"
                for kind in ("machine", "network") for machine in self.history.world.cloud.running(kind)]  # fmt: skip
        leftovers += [f"gpuprov's record on {host.id} ({host.node}, {host.cluster})" for host in hosts.changed()]
        if leftovers:
            raise BrokenInvariant(self.history.world, f"after `down` there is still {', '.join(leftovers)}")

    def _until(self, command: tuple[str, ...], complaint: str) -> None:
        """Type the command, and what its errors name, until it ends well."""
        following = command
        for _ in range(MOST_TRIES):
            process = self.history.types(*following)
            text = "".join(process.errors)
            if process.code == 0 and following == command:
                return
            if process.code == 1 and command == ("up",) and (names := self._kept_by_people()):
                self.history.types("release", *names)
            hint = command if process.code == 0 else self._named_in(text, following)
            following = command if hint == following else hint
        raise BrokenInvariant(self.history.world, complaint)

    def _set(self, key: str, value: str, site: re.Match[str] | None) -> None:
        """A key of cluster.yaml as an error says it was. `site`: the site that it names, or the group."""
        if key == "name":
            self.history.edit(f"name: {value}", lambda file: setattr(file, "name", value))
        elif key == "site" and site is not None:
            self.history.edit(
                f"groups.{site[2]}.site: {value}", lambda file: self._at_one_site(file.groups[site[2]], value)
            )
        elif site is not None:
            first = {"region": REGIONS[value][0]} if key == "provider" and value in REGIONS else {}

            def change(file: ClusterFile) -> None:
                file.sites[site[1]].update({key: value, **first})
                file.leave_lists(site[1])

            self.history.edit(f"sites.{site[1]}.{key}: {value}", change)

    def _method_back(self, site: str) -> bool:
        """A site as it was when cluster.yaml last had its machines made in the other way; whether it ever did. All else
        stays: another error may have named what was edited since."""
        file = self.history.file
        blocks = (
            former.sites[site] for former in reversed(self.history.versions)
            if site in former.sites and former.lists_hosts(site) != file.lists_hosts(site)
        )  # fmt: skip
        if (block := next(blocks, None)) is None:
            return False
        self.history.edit(f"site {site} has its former method", lambda file: file.sites.update({site: dict(block)}))
        return True

    @staticmethod
    def _at_one_site(group: dict[str, Any], site: str) -> None:
        group["site"] = site
        group.pop("next", None)

    def _group_back(self, name: str, number: int) -> None:
        """A group as it was when cluster.yaml last had that node of it."""
        versions = [file.groups[name] for file in reversed(self.history.versions) if name in file.groups]
        group = next((group for group in versions if group["count"] > number), versions[0])
        self.history.edit(f"group {name} is put back", lambda file: file.groups.update({name: dict(group)}))

    def _write_account(self, site: str, file: Path) -> None:
        cloud = self.history.world.cloud
        existing = [*cloud.running(), *cloud.running("network")]  # a network stays where its machines have vanished
        accounts = [resource.account for resource in existing if resource.site == site]
        number = next(iter(accounts), ACCOUNT) or "unknown"  # a MAAS has none
        self.history.happens(f"{number} is written into {file.name} of {site}", lambda: file.write_text(f"{number}\n"))

    def _buy_on_demand(self) -> None:
        def change(file: ClusterFile) -> None:
            for group in file.groups.values():
                group.pop("kinds", None)

        self.history.edit("every group is bought as on-demand", change)

    def _site_back(self, site: str, groups: Sequence[str] = (), restored_groups: Collection[str] = ()) -> set[str]:
        """A site and its groups as they were when cluster.yaml last had them: `groups`, else those whose names are
        free, or all where none is, as after a new name of the site. Other sites that cluster.yaml has stay as they
        are, and so do the groups `restored_groups`, which were put back for another site. Gives the groups' names."""
        candidates = [file for file in reversed(self.history.versions) if self._groups_at(site, file)]
        candidates = [
            file for file in candidates if self._groups_at(site, file).keys() - {*restored_groups}
        ] or candidates
        groups = [name for name in groups if name not in restored_groups]
        records = [load(run / "sites" / site / "site.json") or {} for run in self.history.run_directories()]
        made_by = {record.get("provider") for record in records}
        candidates = [file for file in candidates if file.sites[site].get("provider") in made_by] or candidates
        if with_groups := [file for file in candidates if {*groups} & self._groups_at(site, file).keys()]:
            candidates = with_groups
        with_free = (
            []
            if with_groups
            else [file for file in candidates if self._groups_at(site, file).keys() - self.history.file.groups.keys()]
        )
        former = (with_free or candidates)[0]
        restored = self._groups_at(site, former)
        if with_groups:
            restored = {name: group for name, group in restored.items() if name in groups}
        if with_free:
            restored = {name: group for name, group in restored.items() if name not in self.history.file.groups}

        restored = {name: group for name, group in restored.items() if name not in restored_groups} or restored

        def restore(file: ClusterFile) -> None:
            listed = {name for group in restored.values() for name in former.sites_of(group)}
            for name in {site, *(listed - file.used_sites())}:
                file.sites[name] = dict(former.sites[name])
            file.groups |= restored

        self.history.edit(f"site {site} and its groups are put back", restore)
        return {*restored}

    def _nodes_back(self) -> bool:
        """Sites and groups as cluster.yaml last had them when it wanted the nodes that exist; whether it ever did, and
        does not now."""
        run = self.history.world.folders[0] / ".gpuprov" / self.history.file.name
        nodes = load(run / "nodes.json") or ()
        site_by_node = {node["name"]: node["site"] for node in nodes}
        hosts: dict[str, set[str]] = {}
        for node in nodes:
            hosts.setdefault(node["group"], set()).add(node["id"])

        def has_nodes(file: ClusterFile) -> bool:
            sites = {f"{n}-{i}": file.sites_of(g) for n, g in file.groups.items() for i in range(g["count"])}
            same_hosts = all(
                {file.host_name(host) for host in group["hosts"]} == hosts.get(name)
                for name, group in file.groups.items()
                if group.get("hosts")
            )
            placed = sites.keys() == site_by_node.keys()
            return placed and same_hosts and all(site_by_node[node] in listed for node, listed in sites.items())

        former = next((file for file in reversed(self.history.versions) if has_nodes(file)), None)
        if former is None or has_nodes(self.history.file):
            return False

        def restore(file: ClusterFile) -> None:
            file.sites = {name: dict(site) for name, site in former.sites.items()}
            file.groups = {name: dict(group) for name, group in former.groups.items()}
            file.renamed = set(former.renamed)

        self.history.edit("sites and groups are put back as machines were made by them", restore)
        return True

    @staticmethod
    def _groups_at(site: str, file: ClusterFile) -> dict[str, dict[str, Any]]:
        return {name: dict(group) for name, group in file.groups.items() if site in file.sites_of(group)}

    def _kept_by_people(self) -> list[str]:
        """Nodes that somebody has put into quarantine, and has to take out."""
        run = self.history.world.folders[0] / ".gpuprov" / self.history.file.name
        rows = load(run / "quarantine.json") or {"nodes": {}}
        return [
            name
            for name, entry in rows["nodes"].items()
            if entry["owner"] != "gpuprov" and name in self.history.file.nodes
        ]

    def _lost_file(self, text: str) -> bool:
        """A damaged file, by its path: it, or the one that the hint names, is removed. What it said of nodes
        that are out of service is asked of the scheduler. Whether the error names one."""
        damaged = re.search(r"(/\S+/[\w.-]+): [^\n]*\b(?:damaged|is missing|is not gpuprov's)\b", text)
        hint = re.search(r"\bremove (it|the file|/\S+)(?:: |$|\b)", text)
        if hint is None or (damaged is None and not ("is damaged" in text and hint[1].startswith("/"))):
            return False
        target = Path(hint[1].rstrip(":;,")) if hint[1].startswith("/") or damaged is None else Path(damaged[1])
        if not target.is_file():
            return False
        if "compare the machines' host keys by hand" in text:
            compare_host_keys(self.history)
        self.history.excuse(Path(damaged[1]).name if damaged else target.name)
        self.history.excuse(target.name)
        self.history.remove(target)
        return True

    def _named_in(self, text: str, typed_command: tuple[str, ...]) -> tuple[str, ...]:
        """The command that an error names; cluster.yaml is put back where it says so."""
        if lost := re.findall(r"of the account with the machines of site ([\w-]+) into (/\S+)", text):
            for site, file in lost:
                self._write_account(site, Path(file))
            return typed_command
        if "spot machines can be in no availability set" in text and "kind: on-demand and no spot" in text:
            self._buy_on_demand()
            return typed_command
        if follow(self.history, text, lambda: self._until(("down",), "`down` does not end")):
            return typed_command
        if setting := re.search(r"put `(\w+): ([\w-]+)` back", text):
            owner = re.search(r"(?:site ([\w-]+)(?::| is left out,)|group ([\w-]+) is at)", text)
            self._set(setting[1], setting[2], owner)
            return typed_command
        if lost := re.search(r"cluster.yaml no longer has ([\w-]+)-(\d+)", text):
            self._group_back(lost[1], int(lost[2]))
            return typed_command
        if abandoned := re.search(r"(?:no group is|machines exist) at (?:site )?([\w-]+(?:, (?!which)[\w-]+)*)", text):
            owners = re.search(r"any more, and machines of ([\w, -]+) were made there", text)
            restored_groups: set[str] = set()
            for site in abandoned[1].split(", "):
                restored_groups |= self._site_back(site, owners[1].split(", ") if owners else (), restored_groups)
            return typed_command
        if re.search(r"take the change of .* back", text) and self._nodes_back():
            return typed_command
        edited_site = re.search(r"site ([\w-]+): its machines were created with another `method`", text)
        if edited_site is not None and self._method_back(edited_site[1]):
            return typed_command
        if re.search(r"\b(put|take) (?!them ).*\bback\b", text) and self.history.put_back():
            return typed_command
        if account := re.search(r"sign in to account (\d+)", text):
            self.history.happens(
                f"AWS_PROFILE is of account {account[1]}", lambda: setattr(self.history.world, "account", account[1])
            )
            return typed_command
        if self._lost_file(text):
            return typed_command
        if re.search(r"remove (it|the file)\b.*nodes\.json|nodes\.json.*: is damaged", text, re.S):
            for folder in self.history.world.folders:
                for file in folder.glob(".gpuprov/*/nodes.json"):
                    self.history.remove(file)
            return typed_command
        hint = text.rstrip().rpartition("\n  ")[2]  # the error before it may name another command
        for match in re.finditer(r"`(?:sudo )?gpuprov (up|down|upgrade|release|replace|unlock|verify)\b([^`]*)`", hint):
            command, arguments = match[1], match[2]
            names = tuple(
                name for name in arguments.split() if name in self.history.file.nodes or name.startswith("--again")
            )
            if command in ("release", "replace") and not names:
                continue
            if (command, *names) != typed_command:
                return (command, *names)
        for match in re.finditer(r"with --([a-z-]+)", text):
            return (*typed_command, f"--{match[1]}")
        return typed_command
