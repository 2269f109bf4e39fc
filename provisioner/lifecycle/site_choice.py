"""Groups with several sites: where their machines are, and which site is next where one has no capacity.

A site is left in this order, so that `up` resumes a run that was killed at any moment, and `down` removes all of it:
what was created there for the group is removed (Terraform has done that), the site's own network too where no other
group uses it, its workspace is removed, which is shared, then the next site is recorded and shared. Until then the
group is at the former site.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from provisioner.common.errors import GpuprovError, Interrupted, ProviderError
from provisioner.common.paths import remove_tree
from provisioner.common.preflight import Finding
from provisioner.common.text import few
from provisioner.lifecycle import machines
from provisioner.lifecycle.down import Removal, remove_site
from provisioner.lifecycle.session import Cluster
from provisioner.machines.base import NoCapacityError
from provisioner.machines.terraform.binary import Binary
from provisioner.plan.models import Plan
from provisioner.rundir import intent, placement
from provisioner.rundir.intent import Choice


class SiteChoices:
    """The sites that groups were refused at in one run of `up`. `only`: the sites that it is for; empty: all."""

    def __init__(self, cluster: Cluster, binary: Binary, run_dir: Path, only: Collection[str]) -> None:
        self._cluster, self._binary, self._run_dir, self._only = cluster, binary, run_dir, only
        self._refused: dict[str, dict[str, str]] = {}

    def find_existing(self, plan: Plan) -> bool:
        """Ask the other sites of each group that has no known machine whether they have some of it: records may be
        lost. Whether a group is at another site now. Raises ProviderError where a site cannot be asked, and where
        several have machines of one group."""
        cluster, moved = self._cluster, False
        known = {node.group for node in cluster.nodes()}
        for name, sites in placement.lists(cluster.spec).items():
            present = cluster.spec.site_of(name)
            if name in known or name not in {group.name for group in plan.groups}:
                continue
            names = set(cluster.spec.groups[name].node_names(name))
            sites_with_machines = [site for site in sites if site != present and names & self._standing(site)]
            if not sites_with_machines:
                continue
            if len(sites_with_machines) > 1 or names & self._standing(present):
                listing = ", ".join(dict.fromkeys((present, *sites_with_machines)))
                raise ProviderError(
                    f"group {name} has machines at several sites: {listing}",
                    where=str(cluster.file),
                    hint=f"`gpuprov down {cluster.typed_file}` removes them",
                )
            cluster.events(
                "terraform", "warning", f"group {name} has machines at site {sites_with_machines[0]}, and stays there"
            )
            intent.save_choices(cluster.paths, {name: Choice(sites_with_machines[0])})
            moved = True
        cluster.place_groups()
        return moved

    def _standing(self, site: str) -> set[str]:
        """The nodes of the cluster whose machines a provider has at a site, recorded or not."""
        module = self._cluster.providers.at(site).module
        return {machine.node for machine in module.standing() if machine.ours} if module is not None else set()

    def leave(self, failed: dict[str, GpuprovError], whole: Plan) -> set[str]:
        """Take the groups for which sites had no capacity to their next site, which is recorded; gives the sites that
        they leave and to which they go. The error of a group's last site, in `failed`, names all that were tried."""
        moving = set[str]()
        for site, error in list(failed.items()):
            if not isinstance(error, NoCapacityError):
                continue
            lists = placement.lists(self._cluster.spec)
            groups = [
                name for name in error.groups
                if name in lists and not any(node.group == name for node in self._cluster.nodes())
            ]  # fmt: skip
            if not groups:
                continue
            for name in groups:
                self._refused.setdefault(name, {})[site] = error.groups[name]
            following = {name: self._next(name) for name in groups}
            if self._is_left(site, groups, error, whole):
                first = {name: following[name] or lists[name][0] for name in groups}
                self._record(first)
                if targets := set(filter(None, following.values())):
                    moving |= {site, *targets}
            exhausted = [name for name in groups if following[name] is None]
            if exhausted:
                failed[site] = self._with_sites(error, exhausted)
        return moving

    def leave_blocked(self, findings: Mapping[str, Sequence[Finding]], whole: Plan) -> bool:
        """Take all groups of a site to their next one, where preflight has found nothing but that the site has no
        capacity, and all of them may be elsewhere. Whether a group goes to another site."""
        lists, failed = placement.lists(self._cluster.spec), dict[str, GpuprovError]()
        for site, site_findings in findings.items():
            blocking = [finding for finding in site_findings if finding.status == "blocks"]
            groups = [group.name for group in whole.groups if group.site == site]
            if blocking and all(finding.no_capacity for finding in blocking) and all(name in lists for name in groups):
                reason = "; ".join(f"{finding.subject}: {finding.message}" for finding in blocking)
                failed[site] = NoCapacityError(reason, where=f"site {site}", groups=dict.fromkeys(groups, reason))
        return bool(self.leave(failed, whole))

    def _next(self, group: str) -> str | None:
        """The first site of the list that was not tried in this run; None where all were."""
        tried = self._refused[group]
        sites = placement.lists(self._cluster.spec)[group]
        return next((site for site in sites if site not in tried and (not self._only or site in self._only)), None)

    def _is_left(self, site: str, groups: Sequence[str], error: NoCapacityError, whole: Plan) -> bool:
        """Leave a site: whether nothing of the groups is there any more."""
        events = self._cluster.events
        other_groups = [group.name for group in whole.groups if group.site == site and group.name not in groups]
        if not other_groups and error.data:
            message = f"site {site} is kept: it has file systems ({few(error.data, 3, ',')})"
            events("terraform", "warning", f"{message}; `gpuprov down` removes them")
            return False
        try:
            names = {name for group in groups for name in whole.group(group).node_names()}
            if remaining := sorted(names & self._standing(site)):
                message = f"site {site} is kept: machines of {few(remaining, 5, ',')} are there"
                events("terraform", "warning", f"{message}; `gpuprov up` takes them in")
                return False
            if not other_groups:
                self._remove(site)
        except Interrupted:
            raise
        except (GpuprovError, OSError, ValueError, LookupError) as failure:
            events("terraform", "warning", f"site {site} is kept: {failure}")
            return False
        return True

    def _remove(self, site: str) -> None:
        """Remove what is left of a site that no group is at. Raises ProviderError where a part stays."""
        cluster, removal = self._cluster, Removal()
        provider = cluster.providers.at(site)
        existing = machines.of_site(cluster, site, self._binary, self._run_dir, made_by=provider)
        remove_site(cluster, existing, provider, removal)
        if removal.left:
            raise ProviderError("not removed: " + "; ".join(removal.left), where=f"site {site}")
        remove_tree(cluster.paths.site(site))

    def _record(self, sites: Mapping[str, str]) -> None:
        cluster = self._cluster
        cluster.share()  # else a workspace that is removed comes back from the shared files, beside the new choice
        recorded = intent.load(cluster.paths).choices or {}
        choices = {}
        for name, site in sites.items():
            earlier = recorded[name].refused if name in recorded else {}
            choices[name] = Choice(site, {**earlier, **self._refused[name]})
        intent.save_choices(cluster.paths, choices)
        cluster.place_groups()
        cluster.share()
        for name, site in sites.items():
            if site not in self._refused[name]:
                reasons = "; ".join(f"{refused_site}: {reason}" for refused_site, reason in self._refused[name].items())
                cluster.events("terraform", "warning", f"{name} is at site {site} now; no capacity at {reasons}")

    def _with_sites(self, error: NoCapacityError, groups: Sequence[str]) -> NoCapacityError:
        """The error of the last site, with those that refused before."""
        lines = [
            f"{name}: no capacity at {', '.join(tried)}" for name in groups if len(tried := self._refused[name]) > 1
        ]
        return NoCapacityError(
            "\n  ".join([error.message, *lines]), where=error.where, hint=error.hint, diagnostics=error.diagnostics,
            groups=error.groups, data=error.data,
        )  # fmt: skip
