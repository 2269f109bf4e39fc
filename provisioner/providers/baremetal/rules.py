"""What about a bare-metal site can't work."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from provisioner.providers.baremetal.listing import NOT_YET, listed
from provisioner.spec.groups import Group
from provisioner.spec.source_map import Finding, Loc
from provisioner.text import counted

if TYPE_CHECKING:
    from provisioner.providers.baremetal.site import BareMetalSite


def findings(site: BareMetalSite, at: Loc, groups: Mapping[str, Group]) -> Iterator[Finding]:
    """What cannot work at the site; `groups`: those that are at it."""
    if site.method != "ssh":
        yield Finding((*at, "method"), f"method: {site.method} {NOT_YET}", "method: ssh")
        return
    for key in ("credentials", "install"):
        if getattr(site, key) is not None:
            yield Finding((*at, key), f"{key} belongs to method: redfish, which {NOT_YET}", "leave it out", at_key=True)
    for name, entry in site.hosts.items():
        if entry.bmc is not None:
            said = f"bmc belongs to method: redfish, which {NOT_YET}"
            yield Finding((*at, "hosts", name, "bmc"), said, "leave it out", at_key=True)
    if site.hosts and site.inventory:
        yield Finding((*at, "inventory"), "hosts and inventory are both here", "leave out one of them", at_key=True)
        return
    hosts, problems = listed(site, groups)
    for problem in problems:
        yield Finding((*at, *problem.loc), problem.message, problem.hint, problem.at_key)
    if (site.hosts or site.inventory) and not problems:
        yield from _counts(str(at[-1]), Counter(host.group for host in hosts), groups)


def _counts(site: str, there: Mapping[str, int], groups: Mapping[str, Group]) -> Iterator[Finding]:
    for name, group in groups.items():
        if there.get(name, 0) != group.count:
            has = f"site {site} lists {counted(there[name], 'host')} for it" if there.get(name) else ""
            message = f"groups.{name}.count is {group.count}, and {has or f'site {site} lists no host for it'}"
            hint = f"count: {there[name]}, or other hosts" if there.get(name) else f"add hosts with group: {name}"
            yield Finding(("groups", name, "count"), message, hint)
