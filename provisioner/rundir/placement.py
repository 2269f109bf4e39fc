"""The site of each group whose `site` in cluster.yaml is a list: which one was chosen, and why the others were not.

A group's site is chosen once. It is recorded in intent.json, before machines are created, and stays while the group has
machines. The nodes in nodes.json decide before that
record does, because machines do not move. A group without both stays where intent.json has its nodes, from when it had
one site; else it goes to the first site of its list, which `site_order` of the group puts in order.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence

from provisioner.common.errors import GpuprovError
from provisioner.common.paths import MADE_BY, ClusterPaths
from provisioner.common.text import money
from provisioner.output.site_choice import SiteChoiceOutput
from provisioner.rundir import fleet, intent
from provisioner.rundir.intent import Choice, IntendedNode
from provisioner.spec.models import ClusterSpec


def lists(spec: ClusterSpec) -> dict[str, tuple[str, ...]]:
    """The groups whose `site` is a list, and that list."""
    return {name: sites for name in spec.groups if len(sites := spec.sites_of(name)) > 1}


def with_chosen_sites(spec: ClusterSpec, paths: ClusterPaths) -> ClusterSpec:
    """The file with the chosen site of each group. Files are read for it, and only where a group has a list."""
    if not (groups := lists(spec)):
        return spec
    existing: dict[str, set[str]] = {}
    with contextlib.suppress(GpuprovError):  # a damaged nodes.json is reported by whoever needs the nodes
        for node in fleet.load(paths):
            existing.setdefault(node.group, set()).add(node.site)
    recorded = intent.load(paths)
    intended = _intended(spec, recorded.nodes)
    return spec.with_sites(
        {name: _site(name, groups[name], existing, recorded.choices, intended, paths) for name in groups}
    )


def _site(
    group: str, sites: Sequence[str], existing: Mapping[str, set[str]], recorded: Mapping[str, Choice] | None,
    intended: Mapping[str, set[str]], paths: ClusterPaths,
) -> str:  # fmt: skip
    with_nodes = [site for site in sites if site in existing.get(group, ())]
    if with_nodes:
        return with_nodes[0]
    if recorded is None:  # the record is missing or damaged: machines may be where a workspace is
        used = [site for site in sites if (paths.site(site) / MADE_BY).exists()]
        return used[0] if used else sites[0]
    choice = recorded.get(group)
    if choice is not None and choice.site in sites:
        return choice.site
    return next((site for site in sites if site in intended.get(group, ())), sites[0])


def _intended(spec: ClusterSpec, nodes: Mapping[str, IntendedNode]) -> dict[str, set[str]]:
    """Group → the sites where intent.json has nodes of it: a run that was killed may have created machines there."""
    groups, sites = spec.node_groups(), dict[str, set[str]]()
    for name, node in nodes.items():
        if name in groups:
            sites.setdefault(groups[name], set()).add(node.site)
    return sites


def current(spec: ClusterSpec, paths: ClusterPaths) -> dict[str, Choice]:
    """The choice of each group that has a list, as `up` records it before machines are created: refusals count of those
    sites alone that were tried before this one."""
    recorded, choices = intent.load(paths).choices or {}, {}
    for name, sites in lists(spec).items():
        site = spec.site_of(name)
        refused = recorded[name].refused if name in recorded else {}
        earlier = sites[: sites.index(site)] if site in sites else ()
        choices[name] = Choice(
            site, {earlier_site: refused[earlier_site] for earlier_site in earlier if earlier_site in refused}
        )
    return choices


def rows(spec: ClusterSpec, paths: ClusterPaths) -> list[SiteChoiceOutput]:
    """The choices for a document; `prices` is empty where the order is the file's and the machine type is the same at
    all sites."""
    recorded = intent.load(paths).choices or {}
    return [
        SiteChoiceOutput(
            group=name,
            site=spec.site_of(name),
            sites=list(sites),
            machines={site: spec.groups[name].machine_type(site) for site in sites},
            order=spec.groups[name].site_order,
            prices=_prices(spec, name, sites),
            refused={s: reason for s, reason in recorded[name].refused.items() if s in sites}
            if name in recorded
            else {},
        )
        for name, sites in lists(spec).items()
    ]


def _prices(spec: ClusterSpec, group: str, sites: Sequence[str]) -> dict[str, str | None]:
    if spec.groups[group].site_order == "price":
        prices = spec.site_prices(group)
    elif len(spec.groups[group].machine_types) > 1:
        prices = spec.list_prices(group)
    else:
        return {}
    return {site: money(price.price, price.currency) if (price := prices[site]) else None for site in sites}


def lines(choices: Sequence[SiteChoiceOutput]) -> list[str]:
    """The same for a person, a line each."""
    return [f"{row.group}: {_sentence(row)}" for row in choices]


def _sentence(row: SiteChoiceOutput) -> str:
    site, sites, refused = row.site, row.sites, row.refused
    machines = row.machines if len(set(row.machines.values())) > 1 else {}
    reasons = "; ".join(f"{refused_site} had no capacity ({reason})" for refused_site, reason in refused.items())
    if site in refused:
        return f"no site of its list had capacity, the next `gpuprov up` begins with {site}: {reasons}"
    later = [
        site_name
        for site_name in (sites[sites.index(site) + 1 :] if site in sites else sites)
        if site_name not in refused
    ]
    prices, by_price = row.prices, row.order == "price"
    best = "cheapest" if by_price and prices.get(site) else "first"
    first = f", the {best} of its list" if site == sites[0] and not refused else ""
    parts = [f"site {_with_machine(site, machines)}{first}{_list_prices(prices, by_price)}"]
    if reasons:
        parts.append(reasons)
    unknown = (
        [site_name for site_name in sites[: sites.index(site)] if site_name not in refused] if site in sites else []
    )
    if unknown:
        parts.append(f"its machines were created there, and {', '.join(unknown)} was not tried")
    if later:
        parts.append(f"without capacity there: {', then '.join(_with_machine(name, machines) for name in later)}")
    return "; ".join(parts)


def _with_machine(site: str, machines: Mapping[str, str]) -> str:
    """A site with the machine type there, where that depends on the site."""
    return f"{site} with {machines[site]}" if site in machines else site


def _list_prices(prices: Mapping[str, str | None], by_price: bool) -> str:
    """The list prices of the sites in their order, by which it is chosen or not."""
    known = [f"{site} {price}" for site, price in prices.items() if price]
    unknown = [site for site, price in prices.items() if not price]
    without_price = "no comparable list price, so last" if by_price else "no list price"
    parts = [f"list prices an hour: {', '.join(known)}"] if known else []
    parts += [f"{without_price}: {', '.join(unknown)}"] if unknown else []
    return f" ({'; '.join(parts)})" if parts else ""
