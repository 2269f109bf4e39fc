"""Refusals that need the catalogue or several keys: what cannot work on these machines, before anything is spent.

A rule is a generator of findings over a draft: the parts of the file that are well-formed by themselves, so that a
mistake in one group does not hide those in another.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from provisioner.catalog import Catalog
from provisioner.catalog.description import MachineDescription
from provisioner.catalog.models import Machine
from provisioner.common.errors import GpuprovError
from provisioner.common.suggest import did_you_mean
from provisioner.spec.groups import Group
from provisioner.spec.image import ImageRecipe, ImageTarget
from provisioner.spec.maintenance import Maintenance
from provisioner.spec.models import Access, Hooks, Monitoring, Verify
from provisioner.spec.rules_image import disk_needed, image_target, recipe_there
from provisioner.spec.rules_machine import hardware, machine_for_each_site, machine_of_site
from provisioner.spec.rules_monitoring import monitoring_findings
from provisioner.spec.rules_mounts import SYSTEM, mount_points
from provisioner.spec.rules_scheduler import scheduler_findings
from provisioner.spec.rules_sites import account, places, spot_price
from provisioner.spec.scheduler import Scheduler
from provisioner.spec.site import CloudSite, Site
from provisioner.spec.source_map import Finding, Loc, shown
from provisioner.spec.stack_request import StackRequest
from provisioner.spec.state import State

_BASE64_LINE = re.compile(r"[A-Za-z0-9+=][A-Za-z0-9+/=]{59,}")
"""A line of a private key has 64 or 70 characters; a path of that length has other ones, or begins with /."""


@dataclass(slots=True)
class Draft:
    """What of the file could be read by itself. `site_names` has the broken ones too; `file`: that it was read from;
    `whole`: nothing is missing; `dropped`: places that had to be left out of a group for the rest of it to be read."""

    sites: dict[str, Site] = field(default_factory=dict)
    machines: dict[str, MachineDescription] = field(default_factory=dict)
    refused_machines: frozenset[str] | None = frozenset()
    """Types that the file describes and that were refused for themselves; None where its file of types was."""
    site_names: tuple[str, ...] = ()
    groups: dict[str, Group] = field(default_factory=dict)
    stack: StackRequest | None = None
    access: Access | None = None
    monitoring: Monitoring | None = None
    verify: Verify | None = None
    scheduler: Scheduler | None = None
    hooks: Hooks | None = None
    maintenance: Maintenance | None = None
    state: State | None = None
    image: ImageRecipe | None = None
    name: str = ""
    file: Path | None = None
    whole: bool = False
    dropped: set[Loc] = field(default_factory=set)


MOST_NODES = 10_000
"""Nodes of one cluster, as many as a group may have: sizes and times are proven up to here (docs/design/bench.md)."""


def findings(draft: Draft, catalog: Catalog) -> Iterator[Finding]:
    """Everything that the draft asks for and cannot have."""
    for name, site in draft.sites.items():
        at: Loc = ("sites", name)
        groups_here = {
            n: group.at(name)
            for n, group in draft.groups.items()
            if any(other is site for other in _sites_of(group, draft))
        }
        yield from places(at, site, catalog)
        yield from mount_points(at, site, groups_here)
        yield from site.findings(at, groups_here, draft.stack)
        yield from account(at, site, draft.access)
        yield from spot_price(at, site, groups_here, draft.dropped)
    for name, group in draft.groups.items():
        loc: Loc = ("groups", name)
        yield from _site(loc, group, draft, catalog)
        yield from machine_for_each_site(loc, group)
        for at, type_name, site_or_none in _types(loc, group, draft):
            yield from _capacity(loc, group, site_or_none, catalog)
            machine = _known(type_name, catalog)
            is_refused = draft.refused_machines is None or type_name in draft.refused_machines
            if machine is not None or not is_refused:
                yield from machine_of_site(at, type_name, machine, site_or_none, catalog)
            if machine is not None:
                yield from hardware(loc, group, machine, catalog)
        yield from _scratch(loc, group)
        yield from _capacity_minimum(loc, group)
        if group.base != "plain" and group.image is not None:
            message = "a golden image has a base of its own, and base: vendor-hpc names another"
            yield Finding((*loc, "base"), message, "leave one of the two out")
        if group.image is not None and draft.image is not None:
            yield Finding((*loc, "image"), "an image is not built of another one", "leave it out", at_key=True)
        if draft.image is not None and group.count != 1:
            yield Finding((*loc, "count"), "an image is built of one machine", "leave it out")
        if draft.image is not None:
            target = draft.image.targets.get(name, ImageTarget())
            machine = _known(group.machine_type(), catalog)
            yield from disk_needed(name, machine, _site_of(group, draft), target, catalog)
        elif group.image is not None and draft.file is not None:
            yield from recipe_there((*loc, "image"), group.image, draft.file.parent)
    yield from _repositories(draft)
    yield from _fleet(draft, catalog)
    for name, target in draft.image.targets.items() if draft.image is not None else ():
        target_group = draft.groups.get(name)
        machine = _known(target_group.machine_type(), catalog) if target_group else None
        site_or_none = _site_of(target_group, draft) if target_group else None
        yield from image_target(name, target, machine, site_or_none, tuple(draft.groups), draft.file, catalog)
    if draft.image is not None and draft.file is not None and draft.name not in ("", draft.file.stem):
        message = f"the image is called {draft.name} and its file {draft.file.name}"
        yield Finding(("name",), message, f"name: {draft.file.stem}, or {draft.name}.yaml")


def _known(name: str, catalog: Catalog) -> Machine | None:
    try:
        return catalog.machine(name)
    except GpuprovError:
        return None


def _sites_of(group: Group, draft: Draft) -> list[Site]:
    """The sites that a group may be at, those that could be read."""
    if group.site is not None:
        return [draft.sites[name] for name in group.sites if name in draft.sites]
    return list(draft.sites.values()) if len(draft.site_names) == 1 else []


def _site_of(group: Group, draft: Draft) -> Site | None:
    """The first of them."""
    return next(iter(_sites_of(group, draft)), None)


def _types(loc: Loc, group: Group, draft: Draft) -> Iterator[tuple[Loc, str, Site | None]]:
    """The machine types of a group: where each stands, its name, and a site that it is for."""
    at = (*loc, "machine")
    if isinstance(group.machine, str):
        yield at, group.machine, _site_of(group, draft)
        return
    for site, name in group.machine.items():
        if len(group.sites) < 2 or site in group.sites:
            yield (*at, site), name, draft.sites.get(site)


def _site(loc: Loc, group: Group, draft: Draft, catalog: Catalog) -> Iterator[Finding]:
    names, at = draft.site_names, (*loc, "site")
    if group.site is None and len(names) > 1:
        hint = f"one of {', '.join(names[:8])}"
        yield Finding(at, f"{loc[1]} does not say at which site it is", hint, at_key=True)
    is_list = not isinstance(group.site, str)
    for index, name in enumerate(group.sites):
        position: Loc = (*at, index) if is_list else at
        if names and name not in names:
            hint = did_you_mean(name, names) or f"known here: {', '.join(names[:8])}"
            yield Finding(position, f"there is no site {shown(name)}", hint)
        elif name in group.sites[:index]:
            yield Finding(position, f"{shown(name)} is in the list already", "leave it out")
    if len(group.sites) > 1:
        yield from _site_list(loc, group, draft, catalog)
    elif group.site_order == "price":
        hint = "name several sites, or leave site_order out"
        yield Finding((*loc, "site_order"), f"{loc[1]} has one site, and site_order is about several", hint)


def _site_list(loc: Loc, group: Group, draft: Draft, catalog: Catalog) -> Iterator[Finding]:
    """What a group with several sites cannot have: its machines are bought at any of them."""
    first = _site_of(group, draft)
    for index, name in enumerate(group.sites):
        site, at = draft.sites.get(name), (*loc, "site", index)
        if site is None or first is None:
            continue
        if not isinstance(site, CloudSite):
            message = f"{name} has machines that exist already, and capacity is not chosen among them"
            yield Finding(at, message, "name sites of a cloud, or one site")
        elif isinstance(group.machine, str) and site.provider != first.provider:
            titles = (catalog.provider(listed_site.provider).title for listed_site in (site, first))
            message = "{} is a site of {}, and the first of the list is one of {}".format(name, *titles)
            types = f"{{{group.sites[0]}: {group.machine}, {name}: …}}"
            by_site = isinstance(first, CloudSite)
            hint = f"a type for each site: machine: {types}" if by_site else "name sites of a cloud, or one site"
            yield Finding(at, message, hint)
    if group.capacity.kind in ("reservation", "block"):
        message = f"a {group.capacity.kind} is in one region, and {loc[1]} has {len(group.sites)} sites"
        yield Finding((*loc, "capacity", "kind"), message, "name one site")
    if group.base != "plain":
        message = f"the cloud's own image is locked for one region, and {loc[1]} has {len(group.sites)} sites"
        yield Finding((*loc, "base"), message, "name one site, or leave base out")
    if group.image is not None:
        message = f"the golden image is locked for one region, and {loc[1]} has {len(group.sites)} sites"
        yield Finding((*loc, "image"), message, "name one site, or leave image out")
    if draft.image is not None:
        yield Finding((*loc, "site"), "an image is built at one site", "name one site")


def _capacity(loc: Loc, group: Group, site: Site | None, catalog: Catalog) -> Iterator[Finding]:
    capacity, at = group.capacity, (*loc, "capacity")
    needs_id = capacity.kind in ("reservation", "block")
    if needs_id and capacity.id is None:
        yield Finding((*at, "kind"), f"a {capacity.kind} needs its id", "add id: …")
    if not needs_id and capacity.id is not None:
        yield Finding((*at, "id"), f"{capacity.kind} capacity has no id", "write kind: reservation or kind: block")
    for index, kind in enumerate(capacity.fallback):
        position = (*at, "fallback", index)
        if kind == capacity.kind:
            yield Finding(position, f"{kind} is asked for already", "leave it out of fallback")
        elif kind in capacity.fallback[:index]:
            yield Finding(position, f"{kind} is in the list already")
        elif kind in ("reservation", "block"):
            yield Finding(position, f"a {kind} cannot be a fallback: it is paid for, ask for it first")
        elif needs_id and kind == "spot":
            yield Finding(position, f"a {capacity.kind} cannot fall back to spot", "on-demand can be a fallback")
        elif site is not None and kind not in catalog.provider(site.provider).capacity:
            yield Finding(position, f"{catalog.provider(site.provider).title} has no {kind} capacity")
    if site is not None and capacity.kind not in (sold := catalog.provider(site.provider).capacity):
        title = catalog.provider(site.provider).title
        yield Finding((*at, "kind"), f"{title} has no {capacity.kind} capacity", f"known: {', '.join(sold)}")


def _capacity_minimum(loc: Loc, group: Group) -> Iterator[Finding]:
    minimum = group.capacity.min
    if minimum is not None and minimum > group.count:
        message = f"capacity.min ({minimum}) is larger than count ({group.count})"
        yield Finding((*loc, "capacity", "min"), message, f"at most {group.count}")


def _scratch(loc: Loc, group: Group) -> Iterator[Finding]:
    path = group.storage.scratch
    if path is not None and (".." in path.split("/") or "//" in path or SYSTEM.fullmatch(path)):
        hint = "take a directory of its own, such as /scratch"
        yield Finding((*loc, "storage", "scratch"), f"{path} is a system directory", hint)


def _repositories(draft: Draft) -> Iterator[Finding]:
    """A repository of one's own has an address and a key, or neither: then they are the vendor's. The fingerprint is
    stated of both, or of the vendor's files their hashes."""
    for name, repository in (draft.stack.repositories if draft.stack else {}).items():
        if repository.fingerprint is None and (repository.uri is not None or repository.sha256 is None):
            message = "fingerprint is missing: a repository is trusted by the full fingerprint of its key"
            yield Finding(("stack", "repositories", name), message, "add fingerprint: …  # 40 hex digits", at_key=True)
        if (repository.uri is None) != (repository.key is None):
            present, missing = ("key", "uri") if repository.uri is None else ("uri", "key")
            message = (
                f"{present} without {missing}: a repository of yours has both, and of the vendor's neither is said"
            )
            yield Finding(("stack", "repositories", name, present), message, f"add {missing}: …", at_key=True)


def _fleet(draft: Draft, catalog: Catalog) -> Iterator[Finding]:
    if draft.verify is not None and draft.whole and isinstance(draft.verify.min_healthy, int):
        count = sum(group.count for group in draft.groups.values())
        if draft.verify.min_healthy > count:
            message = f"verify.min_healthy ({draft.verify.min_healthy}) exceeds the fleet size ({count})"
            yield Finding(("verify", "min_healthy"), message, f"at most {count}, or a percentage")
    if draft.whole and (total := sum(group.count for group in draft.groups.values())) > MOST_NODES:
        name = list(draft.groups)[-1]
        message = f"all groups together have {total:,} nodes, and one cluster has at most {MOST_NODES:,}"
        yield Finding(("groups", name, "count"), message, "split the fleet into several clusters")
    if draft.maintenance is not None and draft.whole:
        for number, name in enumerate(draft.maintenance.groups):
            if name not in draft.groups:
                hint = did_you_mean(name, draft.groups) or f"the file has {', '.join(draft.groups)}"
                yield Finding(("maintenance", "groups", number), f"there is no group {name}", hint)
    if draft.verify is not None and draft.file is not None:
        for number, folder in enumerate(draft.verify.checks):
            if not (draft.file.parent / folder).is_dir():
                absent_text = f"there is no directory {folder} beside this file"
                yield Finding(
                    ("verify", "checks", number), absent_text, "it has checks of your own (`gpuprov docs verify`)"
                )
    if draft.monitoring is not None:
        yield from monitoring_findings(
            draft.monitoring,
            draft.groups,
            {name: _site_names(group, draft) for name, group in draft.groups.items()},
            draft.stack,
            draft.file,
            _small_machine(draft, catalog),
            {
                name: group.storage.root_gb
                for name, group in draft.groups.items()
                if any(isinstance(draft.sites.get(site), CloudSite) for site in _site_names(group, draft))
            },
            complete=draft.whole,
        )
    if draft.scheduler is not None:
        yield from scheduler_findings(
            draft.scheduler,
            draft.groups,
            {name: _site_names(group, draft) for name, group in draft.groups.items()},
            {name: _known(group.machine_type(), catalog) for name, group in draft.groups.items()},
            draft.hooks,
            _small_machine(draft, catalog),
            complete=draft.whole,
        )
    hook = draft.hooks.interrupted if draft.hooks is not None else None
    if draft.whole and hook is not None and not _interruption_announced(draft, catalog):
        telling = [provider.title for provider in catalog.providers() if provider.spot_notice]
        message = "no machine of this file announces to its node that it will be taken away"
        hint = f"machines of capacity spot at {' or '.join(telling)} do, and those of a block; leave it out"
        yield Finding(("hooks", "interrupted"), message, hint)
    if draft.state is not None and draft.site_names and len(draft.sites) == len(draft.site_names):
        yield from draft.state.findings(draft.sites)
        local_sites = [name for name, site in draft.sites.items() if site.this_machine()]
        if local_sites and draft.state.backend != "local":
            message = f"state is shared, and site {local_sites[0]} has the machine that gpuprov runs on"
            hint = "for another operator that is another machine: give it by name and address, or keep state local"
            yield Finding(("state", "backend"), message, hint)
    if draft.access is not None and draft.access.ssh_key is not None and _is_key(draft.access.ssh_key):
        hint = "give the path of the file; keep the key itself out of cluster.yaml"
        yield Finding(("access", "ssh_key"), "this is a private key, not the path of one", hint)


def _small_machine(draft: Draft, catalog: Catalog) -> str:
    """The smallest machine type without GPUs of the first site's provider."""
    providers = [site.provider for site in draft.sites.values()]
    sizes = [row for row in catalog.without_gpus.values() if row.provider in providers[:1]]
    return min(sizes, key=lambda row: (row.vcpus, row.memory_gib)).name if sizes else "TYPE"


def _site_names(group: Group, draft: Draft) -> tuple[str, ...]:
    """The names of the sites that a group may be at; none where that cannot be told."""
    if group.site is not None:
        return group.sites
    return draft.site_names if len(draft.site_names) == 1 else ()


def _interruption_announced(draft: Draft, catalog: Catalog) -> bool:
    """Whether any machine may be taken away by a provider that tells the node beforehand, or is of a capacity block."""
    if any(group.capacity.kind == "block" for group in draft.groups.values()):
        return True
    for group in draft.groups.values():
        sites = _sites_of(group, draft) if group.capacity.interruptible else []
        unread = group.capacity.interruptible and not sites
        if unread or any(catalog.provider(site.provider).spot_notice for site in sites):
            return True
    return False


def _is_key(text: str) -> bool:
    """Whether this is text of a key: its first line, or a line of base64 from its middle."""
    return text.startswith(("-----BEGIN", "ssh-", "ecdsa-", "sk-ssh-")) or _BASE64_LINE.fullmatch(text) is not None
