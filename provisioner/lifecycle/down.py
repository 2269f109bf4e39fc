"""`gpuprov down`: removes everything that `up` made, looks again by tag, and says what is left."""

from __future__ import annotations

import contextlib
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path

from provisioner.common import regular_file
from provisioner.common.errors import DamagedFileError, GpuprovError, Interrupted, ProviderError
from provisioner.common.paths import has_state, private_dir, write_whole
from provisioner.common.text import counted
from provisioner.lifecycle import machines, silencing
from provisioner.lifecycle.quarantine import actions as quarantine
from provisioner.lifecycle.quarantine import book as quarantine_book
from provisioner.lifecycle.session import Cluster
from provisioner.lifecycle.sites import refuse_recipe, together
from provisioner.lifecycle.upgrade import journal as upgrade_journal
from provisioner.lifecycle.upgrade.actions import NodeActions, end_without_machines
from provisioner.machines.base import DestroyRefusedError, Machines
from provisioner.machines.providers.base import Provider
from provisioner.machines.terraform.binary import Binary
from provisioner.monitoring.breaker_alert import Trip
from provisioner.plan.models import Plan, build_plan
from provisioner.rundir import intent
from provisioner.spec.site import CloudSite
from provisioner.transport import ssh_config, ssh_sockets

REPORT = 1 << 30
"""Bytes of one file of a report, at most."""


@dataclass(slots=True)
class Removal:
    """What `down` did: resources removed, and one sentence for everything that is still there."""

    removed: int = 0
    left: list[str] = field(default_factory=list)
    stays: dict[str, list[str]] = field(default_factory=dict)
    """Node → what stays on a machine that existed before gpuprov, one sentence each."""


def recorded_nodes(cluster: Cluster) -> list[str]:
    """The nodes that were made or were about to be, by the intent and the last outputs."""
    intended = intent.load(cluster.paths).nodes
    intended_names = {name for name in intended if ssh_config.NAME.fullmatch(name)}
    return sorted({node.name for node in cluster.nodes()} | intended_names)


def copy_reports(cluster: Cluster, folder: Path) -> int:
    """Copy the reports of all runs, a folder for each run; gives the number of runs. Links are not followed."""
    runs = {file.parent for file in cluster.paths.runs.glob("*/report.html") if not file.parent.is_symlink()}
    for run in runs:
        target = private_dir(folder / run.name)
        for file in run.glob("report.*"):
            with contextlib.suppress(OSError):  # a link, or no regular file
                write_whole(target / file.name, regular_file.read(file, REPORT, follow_links=False))
    return len(runs)


def _plan_to_render(cluster: Cluster, site: str) -> Plan | None:
    """The plan of a site whose root module has to be written again: it was made on another computer, or its folder has
    Terraform's state alone. Raises GpuprovError for one that cluster.yaml does not name any more."""
    folder = cluster.paths.site(site)
    recorded = cluster.remote is not None or has_state(folder)
    if not recorded or (folder / "main.tf").exists():
        return None
    elsewhere = f"restore {folder / 'main.tf'}"
    if cluster.remote is not None:
        elsewhere = "run `gpuprov down` on the computer that created them"
    elif not cluster.paths.lock_file.exists():
        message = f"machines exist at site {site}, and neither its main.tf nor cluster.lock is here"
        raise GpuprovError(message, where=str(folder), hint=elsewhere)
    plan = build_plan(cluster.spec, cluster.lock)
    if site not in plan.sites():
        raise GpuprovError(
            f"machines exist at site {site}, which no group uses any more, and its main.tf is not here",
            where=str(cluster.file),
            hint=f"put the site and its groups back, or {elsewhere}",
        )
    return plan


def _destroy_by_state(site_machines: Machines, removal: Removal) -> list[str]:
    """Nothing is left by the tags: whether the state says so, too."""
    try:
        removal.removed += site_machines.destroy()
    except DestroyRefusedError as error:
        return [error.message]
    return []


def remove_site(cluster: Cluster, site_machines: Machines, provider: Provider, removal: Removal) -> None:
    """Remove a site's machines and what has its tags; `removal` is added to."""
    try:
        removal.removed += site_machines.destroy(_plan_to_render(cluster, site_machines.site))
        removal.left += provider.clean(cluster.events)
    except DestroyRefusedError as error:
        cluster.events("down", "warning", f"{error.message}\n  what is left is looked for by its tags")
        removal.left += provider.clean(cluster.events) or _destroy_by_state(site_machines, removal)


def refuse_unrecorded(cluster: Cluster, recorded_sites: Collection[str]) -> None:
    """Raise ProviderError where a site of cluster.yaml has machines with the cluster's own identity, and the run
    directory neither a root module nor a state of that site: an older backup was put back. Without that identity nobody
    would look for them again. A region that does not answer is only warned of: most such sites never had machines."""
    identity = "" if cluster.sandbox else cluster.recorded_identity()
    for name, site in cluster.spec.sites.items():
        folder = cluster.paths.site(name)
        has_root = (folder / "main.tf").exists() or has_state(folder) or cluster.remote is not None
        if not identity or (name in recorded_sites and has_root) or not isinstance(site, CloudSite):
            continue
        try:
            orphans = cluster.providers.at(name).orphans(site.region)
            resources = orphans.find().things if orphans is not None else ()
        except Interrupted:
            raise
        except GpuprovError as error:
            message = f"site {name}: whether machines exist in {site.region} could not be asked: {error.message}"
            cluster.events("down", "warning", message)
            continue
        owner_tags = (cluster.spec.name, name, identity)
        if any((resource.cluster, resource.site, resource.identity) == owner_tags for resource in resources):
            raise ProviderError(
                f"machines of this cluster exist in {site.region}, and {cluster.paths.root} has no record of them",
                where=f"site {name}",
                hint=f"run `gpuprov up {cluster.file}`, which records the site, then `gpuprov down` again",
            )


def _note_resuming(cluster: Cluster, run_dir: Path) -> None:
    """Record, and share, that no node is drained any more, before `forget` resumes them: an upgrade that has nodes out
    of service ends, and they are in quarantine. If this run is cut off after that, the next command does not take them
    for drained. `forget` reports a damaged record."""
    with contextlib.suppress(DamagedFileError):
        nodes, journal = cluster.nodes(), upgrade_journal.load(cluster.paths)
        journal.forget(nodes)
        if journal.out_of_service():
            end_without_machines(journal, NodeActions(cluster, nodes, run_dir))
            journal.save(cluster.paths)
        store = quarantine_book.load(cluster.paths)
        if store.nodes:
            quarantine.note_resuming(cluster, store, [*store.nodes])
            machines.share_undoing(cluster)


def down(cluster: Cluster, binary: Binary) -> Removal:
    """Remove the fleet and, when nothing is left, the run directory. A site that fails does not keep the others.
    Raises ProviderError naming what is left, and what failed."""
    refuse_recipe(cluster)
    removal, failed = Removal(), dict[str, GpuprovError]()
    with cluster.exclusively("down") as run_dir:
        events = cluster.events
        made_by = cluster.providers.made()
        refuse_unrecorded(cluster, made_by)
        if any(provider.hosts is not None for provider in made_by.values()):
            # Hosts run on: what is put back into service has to be written down, and shared.
            quarantine.refuse_damaged(cluster)
            machines.follow_hosts(cluster, made_by)
        machines.write_ssh_configuration(cluster)
        for site, provider in made_by.items():
            exist = provider.hosts is not None
            events("down", "started", f"{site}: " + ("undoing what was configured" if exist else "removing machines"))
            try:
                site_machines = machines.of_site(cluster, site, binary, run_dir, made_by=provider)
                remove_site(cluster, site_machines, provider, removal)
                removal.stays |= site_machines.stays
            except Interrupted:
                raise
            except GpuprovError as error:  # the machines of other sites cost something, too
                events("down", "warning", f"site {site}: {error}")
                failed[site] = error
        if failed:
            for sentence in removal.left:
                events("down", "warning", f"not removed: {sentence}")
            raise together(failed)
        if removal.left:
            raise ProviderError(
                "not removed: " + "; ".join(removal.left), where=cluster.spec.name, hint="run `gpuprov down` again"
            )
        _note_resuming(cluster, run_dir)
        try:
            quarantine.forget(cluster)
        except GpuprovError as error:  # a damaged record of nodes that are gone keeps nobody
            events("down", "warning", str(error))
        silencing.settle(cluster, "down", {}, heads=False, trip=Trip(None))
        ssh_sockets.close(cluster.paths, cluster.nodes())
        remaining_text = f"; {counted(len(removal.stays), 'machine')} run on" if removal.stays else ""
        resource_count = removal.removed - len(removal.stays)
        events("down", "done", f"{counted(resource_count, 'resource')} removed, nothing is left{remaining_text}")
        cluster.forget()
        if cluster.sharing:
            cluster.sharing.remove()
    return removal
