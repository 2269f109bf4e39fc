"""`provider: baremetal`: a site of cluster.yaml, with its machines and what is refused in it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from provisioner.common.errors import GpuprovError
from provisioner.machines.providers.baremetal import rules
from provisioner.machines.providers.baremetal.listing import listed
from provisioner.machines.providers.baremetal.settings import BareMetalSettings
from provisioner.machines.providers.hosts import Host
from provisioner.spec.groups import Group
from provisioner.spec.source_map import Finding, Loc
from provisioner.spec.stack_request import StackRequest


class BareMetalSite(BareMetalSettings):
    """Machines that are yours already."""

    def jump_hosts(self, nodes: Collection[str]) -> dict[str, str]:
        """A sandbox node stands for the host of that place in its group."""
        hosts = listed(self, ())[0]
        if not hosts:
            return super().jump_hosts(nodes)
        jumps = {}
        for node in nodes:
            group, _, number = node.rpartition("-")
            group_hosts = [host for host in hosts if host.group in ("", group)]
            host = group_hosts[int(number)] if number.isdigit() and int(number) < len(group_hosts) else None
            if host is not None and not host.local and (jump := host.jump or self.jump):
                jumps[node] = jump
        return jumps

    def this_machine(self) -> bool:
        return any(host.local for host in listed(self, ())[0])

    def findings(self, at: Loc, groups: Mapping[str, Group], stack: StackRequest | None) -> Iterator[Finding]:  # noqa: ARG002
        return rules.findings(self, at, groups)

    def unready(self, at: Loc) -> Iterator[Finding]:
        return rules.unready(self, at)

    def machines(self, groups: Collection[str]) -> list[Host]:
        """The hosts in the order of the file, each with its group. Raises GpuprovError where they can't be told."""
        hosts, problems = listed(self, groups)
        if problems:
            raise GpuprovError(problems[0].message, where="hosts", hint=problems[0].hint)
        return hosts
