"""Refusals of `monitoring`: a Prometheus on machines that are not there, or that cannot reach the nodes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path

from provisioner.common.errors import GpuprovError
from provisioner.common.suggest import did_you_mean
from provisioner.spec import receivers
from provisioner.spec.groups import Group
from provisioner.spec.models import EXTERNAL, Monitoring, Prometheus
from provisioner.spec.source_map import Finding, Loc, shown
from provisioner.spec.stack_request import StackRequest

AT: Loc = ("monitoring", "prometheus")
TOO_OLD = "ubuntu-22.04"
"""Its Prometheus (2.31) does not know keep_firing_for, which is of 2.42 (prometheus/prometheus CHANGELOG.md)."""
FILLED = 0.8
"""The part of a disk that Prometheus' data may fill (Prometheus documentation, Storage: 80 to 85 %)."""
Sites = Mapping[str, tuple[str, ...]]


def monitoring_findings(
    monitoring: Monitoring, groups: Mapping[str, Group], sites_of: Sites, stack: StackRequest | None,
    file: Path | None, machine: str, root_disks: Mapping[str, int], *, complete: bool,
) -> Iterator[Finding]:  # fmt: skip
    """`groups`: those that could be read; `sites_of`: the sites that one may be at; `machine`: a type that a head node
    may have; `root_disks`: GB of the root disk that gpuprov makes, by group; `complete`: there are no other groups."""
    if monitoring.grafana and not monitoring.heads:
        hint = "name one: prometheus: {at: GROUP}; `gpuprov monitoring export` writes dashboards for your own Grafana"
        message = "monitoring.grafana needs the Prometheus of a group"
        yield Finding(("monitoring", "grafana"), message, hint, at_key=True)
    prometheus = monitoring.prometheus
    if prometheus is None:
        return
    if not prometheus.groups:
        for key in sorted(prometheus.model_fields_set - {"at"}):
            message = f"{key} is for the Prometheus of a group, and this one is {EXTERNAL}"
            yield Finding((*AT, key), message, "leave it out, or name a group in `at`", at_key=True)
        return
    yield from _heads(prometheus, groups, sites_of, machine, complete=complete)
    yield from _too_much_data(prometheus, root_disks)
    if stack is not None and stack.os == TOO_OLD:
        message = f"the Prometheus of {TOO_OLD} is too old for gpuprov's rules (it needs 2.42)"
        yield Finding(("stack", "os"), message, "choose ubuntu-24.04 or debian-12, or prometheus: {at: external}")
    if prometheus.receivers is not None and file is not None:
        path = file.absolute().parent / prometheus.receivers
        try:
            receivers.read(path)
        except GpuprovError as error:
            position = error.where.replace(str(path), prometheus.receivers)
            yield Finding((*AT, "receivers"), f"{position}: {error.message}", error.hint)


def _heads(
    prometheus: Prometheus, groups: Mapping[str, Group], sites_of: Sites, machine: str, *, complete: bool
) -> Iterator[Finding]:
    watched: dict[str, str] = {}
    if twice := sorted({name for name in prometheus.groups if prometheus.groups.count(name) > 1}):
        yield Finding(_at(prometheus), f"{twice[0]} is in the list twice", "leave one of them out")
    for name in dict.fromkeys(prometheus.groups):
        group = groups.get(name)
        if group is None:
            if complete:
                hint = did_you_mean(name, list(groups))
                add = f"add a group of one machine: {name}: {{machine: {machine}}}, or write at: {EXTERNAL}"
                yield Finding(_at(prometheus), f"there is no group {shown(name)}", f"{hint}; {add}" if hint else add)
            continue
        if group.count != 1:
            message = f"group {name} runs Prometheus, and has {group.count} machines"
            yield Finding(("groups", name, "count"), message, "count: 1; a site is watched by one machine")
        sites = sites_of[name]
        if len(sites) > 1:
            message = f"group {name} runs Prometheus, and may be at several sites"
            yield Finding(("groups", name, "site"), message, "name one site")
        elif sites and (other := watched.setdefault(sites[0], name)) != name:
            yield Finding(_at(prometheus), f"{other} and {name} are both at site {sites[0]}", "one watches a site")
    if complete and watched:
        yield from _unwatched(prometheus, groups, sites_of, watched)


def _unwatched(
    prometheus: Prometheus, groups: Mapping[str, Group], sites_of: Sites, watched: Mapping[str, str]
) -> Iterator[Finding]:
    for name in groups:
        for site in sites_of[name]:
            if site not in watched:
                message = f"nothing watches group {name} at site {site}: {', '.join(watched.values())} is elsewhere"
                hint = f"add a group at {site} to `at`: a Prometheus reaches the private addresses of its own site"
                yield Finding(_at(prometheus), message, hint)
                return


def _too_much_data(prometheus: Prometheus, root_disks: Mapping[str, int]) -> Iterator[Finding]:
    if prometheus.retention_size is None:
        return
    gigabytes = prometheus.retention_bytes() / 1e9
    for name in prometheus.groups:
        if name in root_disks and gigabytes > FILLED * root_disks[name]:
            message = f"{prometheus.retention_size} is more than {FILLED:.0%} of the root disk of group {name}"
            minimum_gb = math.ceil(gigabytes / FILLED)
            hint = f"storage: {{root_gb: {minimum_gb}}} of that group (it has {root_disks[name]}), or a smaller size"
            yield Finding((*AT, "retention_size"), message, hint)
            return


def _at(prometheus: Prometheus) -> Loc:
    return (*AT, "at") if "at" in prometheus.model_fields_set else AT
