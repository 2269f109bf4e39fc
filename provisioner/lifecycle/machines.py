"""The machines of each site: rendered, planned, applied, and known by name afterwards."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from provisioner import fleet, mounts, ssh
from provisioner.errors import GpuprovError, ProviderError
from provisioner.events import Events
from provisioner.lifecycle import running_cost
from provisioner.paths import private_dir, write_whole
from provisioner.plan import Plan
from provisioner.preflight import Finding
from provisioner.providers import base as providers
from provisioner.providers.base import Instead, Provider
from provisioner.session import Cluster
from provisioner.text import counted
from provisioner.workspace.binary import Binary
from provisioner.workspace.render import outputs_to_nodes, render
from provisioner.workspace.terraform import Changes, Workspace

PROVIDER = "provider"
"""File in a workspace: the name of the provider that made it."""


@dataclass(frozen=True, slots=True)
class SitePlan:
    """One site, ready to be applied."""

    site: str
    provider: Provider
    workspace: Workspace
    changes: Changes
    again: Callable[[Collection[str]], Changes] = lambda _: Changes()
    """Render and plan once more; the argument are addresses to be made anew."""
    there: frozenset[str] = frozenset()
    """Addresses of the machines that stood before."""


def provider_of(cluster: Cluster, site: str) -> Provider:
    """The provider of a site; the sandbox for a rehearsal."""
    return providers.get(cluster.spec.sites[site].provider, sandbox=cluster.sandbox)


def made_at(cluster: Cluster) -> dict[str, Provider]:
    """Site → provider of every workspace that is there, also of sites that cluster.yaml no longer names.

    Raises GpuprovError for a workspace that nobody can say the provider of: its machines would be forgotten.
    """
    folder = cluster.paths.root / "sites"
    found = {}
    for workspace in sorted(path for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []:
        try:
            name = (workspace / PROVIDER).read_text(encoding="utf-8").strip()
        except FileNotFoundError:
            site = cluster.spec.sites.get(workspace.name)
            if site is None and not cluster.sandbox:
                raise GpuprovError(
                    f"{PROVIDER} is missing: whose machines are these?",
                    where=str(workspace),
                    hint=f"put site {workspace.name} back into {cluster.file}, then run `gpuprov down`",
                ) from None
            name = site.provider if site else "sandbox"
        found[workspace.name] = providers.get(name, sandbox=cluster.sandbox)
    return found


def refuse_abandoned(cluster: Cluster, plan: Plan) -> None:
    """Raise GpuprovError where machines were made at a site that cluster.yaml no longer uses: they would run on."""
    abandoned = sorted(set(made_at(cluster)) - set(sites(plan)))
    if abandoned:
        raise GpuprovError(
            f"no group is at {', '.join(abandoned)} any more, and machines were made there",
            where=str(cluster.file),
            hint="put the site and its groups back, or remove the whole cluster with `gpuprov down`",
        )


def sites(plan: Plan) -> list[str]:
    """The sites that groups are at, in the order of cluster.yaml."""
    used = {group.site for group in plan.groups}
    return [site for site in plan.spec.sites if site in used]


def preflight(cluster: Cluster, plan: Plan, events: Events) -> list[Finding]:
    """What keeps, or may keep, the fleet from being made. Nothing is spent."""
    findings = list(cluster.sharing.findings) if cluster.sharing else []
    for site in sites(plan):
        there = sum(node.site == site for node in cluster.nodes())
        findings += provider_of(cluster, site).preflight(plan, site, there)
    for finding in findings:
        if finding.status != "ok":
            text = f"{finding.subject}: {finding.message}" + (f" ({finding.action})" if finding.action else "")
            events("preflight", "warning", text, data={"status": finding.status})
    return findings


def written(cluster: Cluster, plan: Plan, site: str, provider: Provider) -> None:
    """Write a site's root module, and the key that its nodes are to know."""
    key = ssh.ensure_key(cluster.paths, None if cluster.sandbox else cluster.spec.access.ssh_key)
    backend = cluster.remote.terraform(site) if cluster.remote else None
    folder = cluster.paths.site(site)
    render(plan, site, provider, folder, ssh_public_key=key, identity=cluster.identity, backend=backend)


def prepare(
    cluster: Cluster,
    plan: Plan,
    site: str,
    binary: Binary,
    events: Events,
    run_dir: Path | None = None,
    replace: Collection[str] = (),
) -> SitePlan:
    """Render a site's workspace and work out what Terraform would do. `replace`: nodes to be made anew. Makes no
    machine."""
    provider, folder = provider_of(cluster, site), cluster.paths.site(site)
    write_whole(private_dir(folder) / PROVIDER, provider.name + "\n")  # first: `down` goes by it
    written(cluster, plan, site, provider)
    workspace = Workspace(folder, binary, events, log=run_dir / f"terraform-{site}.log" if run_dir else None)
    if damage := workspace.damage():
        if not cluster.sandbox:
            raise ProviderError(damage, where=f"site {site}", hint="restore terraform.tfstate from your own backup")
        events("terraform", "warning", f"{damage}: the sandbox's nodes are removed and made again")
        provider.clean(folder, events)
        (folder / "terraform.tfstate").unlink(missing_ok=True)
    workspace.init()
    _adopt(plan, site, provider, workspace, events)
    here = {node.name for node in cluster.nodes() if node.site == site}
    anew = dict.fromkeys([*provider.lost(folder, here), *(provider.address(name) for name in replace)])
    changes = workspace.plan(replace=list(anew))
    mounts.refuse_loss(changes.actions, site, provider.data_resources)

    def again(addresses: Collection[str]) -> Changes:
        written(cluster, plan, site, provider)
        workspace.init()
        return workspace.plan(replace=list(addresses))

    there = frozenset(provider.address(name) for name in here)
    return SitePlan(site, provider, workspace, changes, again, there)


def hope(cluster: Cluster, plan: Plan) -> None:
    """Ask again for machines that a run before could not have."""
    for site in sites(plan):
        folder = cluster.paths.site(site)
        if folder.is_dir():
            provider_of(cluster, site).do_without(folder, {})


def _adopt(plan: Plan, site: str, provider: Provider, workspace: Workspace, events: Events) -> None:
    """Write machines into Terraform's state that a run which died had made and could not write there. Raises
    ProviderError for those of somebody else, and where the state is lost."""
    standing = provider.standing(plan, site, workspace.path)
    recorded = workspace.recorded() if standing else set()
    strays = [machine for machine in standing if machine.id not in recorded]
    if not strays:
        return
    told = ", ".join(f"{machine.id} ({machine.node})" for machine in strays[:5])
    told += f" and {len(strays) - 5} more" if len(strays) > 5 else ""
    if not all(machine.ours for machine in strays):
        raise ProviderError(
            f"machines of a cluster {plan.spec.name} stand there already, made from another folder: {told}",
            where=f"site {site}",
            hint="share that folder's state (docs/operators.md), or give this cluster another name",
        )
    if not recorded:
        raise ProviderError(
            f"Terraform's state knows nothing of machines that were made here: {told}",
            where=f"site {site}",
            hint="the state is lost, or the run that made them was killed before it was written: restore it, or remove "
            "them with `gpuprov down` and run `gpuprov up` again",
        )
    known = set(workspace.addresses())
    for machine in strays:
        address = provider.address(machine.node)
        if address in known or machine.node not in dict(plan.nodes()):
            raise ProviderError(
                f"{machine.id} says that it is {machine.node}, and Terraform's state or cluster.yaml says otherwise",
                where=f"site {site}",
                hint="look at it, then terminate it",
            )
        said = f"{machine.id} was made by a run that died: taken in as {machine.node}"
        events("terraform", "warning", said, node=machine.node)
        workspace.adopt(address, machine.id)
        known.add(address)


def write_intent(cluster: Cluster, plan: Plan) -> None:
    """Say what is about to be made before it is made, so that whatever happens `down` knows where to look."""
    intent = {
        "cluster": cluster.spec.name,
        "sandbox": cluster.sandbox,
        "sites": sites(plan),
        "nodes": {name: {"site": group.site, "machine": group.machine.name} for name, group in plan.nodes()},
    }
    write_whole(cluster.paths.intent, json.dumps(intent, indent=1) + "\n")
    cluster.share()


def apply(plan: Plan, site: SitePlan, events: Events, *, always: bool = False) -> list[fleet.Node]:
    """Do what a site's plan has to do; give the site's nodes. `always` also where there is nothing: the outputs of an
    apply that was killed are older than its state."""
    total = site.changes.total
    if total:
        events("terraform", "started", f"{site.site}: {total} resources", total=total)
    if total or always:
        _apply(plan, site, events)
    without = site.provider.without(site.workspace.path)
    nodes = fleet.from_outputs(plan, site.site, outputs_to_nodes(site.workspace.outputs()), without)
    events("terraform", "done", f"{site.site}: {total} changes")
    return nodes


def _apply(plan: Plan, site: SitePlan, events: Events) -> None:
    """Apply; where machines can't be had, ask in the ways that the provider still knows. A group is had whole or not at
    all: what was made of it meanwhile moves along, and goes where nothing is left to ask."""
    workspace, provider = site.workspace, site.provider
    while True:
        try:
            workspace.apply()
        except ProviderError as error:
            other = provider.instead(plan, site.site, workspace.path, error.message)
            if other is None:
                raise
            names = [name for group in other.short for name in plan.group(group).node_names()]
            standing = set(workspace.addresses())
            if enough := _enough(plan, site, other, standing):
                told = "; ".join(f"{group} does without {', '.join(lost)}" for group, lost in enough.items())
                events("terraform", "warning", f"{other.message}. {told}: `gpuprov up` asks for them again")
                provider.do_without(workspace.path, enough)
                site.again(())
                continue
            made = {provider.address(name) for name in names} & standing - site.there
            if not other.groups:
                if made:
                    events("terraform", "warning", f"removing {len(made)} machines of groups that can't be had whole")
                    workspace.destroy(only=sorted(made))
                hint = "later, in other zones (sites.*.zones), or bought in another way (groups.*.capacity.fallback)"
                raise ProviderError(other.message, where=f"site {site.site}", hint=hint) from None
            events("terraform", "warning", other.message)
            site.again(sorted(made))
        else:
            provider.settle(workspace.path)
            return


def _enough(plan: Plan, site: SitePlan, other: Instead, standing: Collection[str]) -> dict[str, list[str]]:
    """Group → nodes that it can do without, where every group that is short has its `capacity.min`; else nothing."""
    found = {}
    for name in other.short:
        group = plan.group(name)
        lost = [node for node in group.node_names() if site.provider.address(node) not in standing]
        least = group.spec.capacity.min
        if least is None or group.spec.count - len(lost) < least:
            return {}
        found[name] = lost
    return found


def vouched(cluster: Cluster) -> Callable[[fleet.Node], str | None]:
    """What the providers know of their machines' host keys."""

    def of(node: fleet.Node) -> str | None:
        return provider_of(cluster, node.site).host_key(cluster.spec.sites[node.site], node.id)

    return of


def carried(cluster: Cluster, nodes: Collection[fleet.Node]) -> dict[str, str]:
    """The commands that carry ssh to nodes which are not called by their address."""
    return {} if cluster.sandbox else providers.proxies(cluster.spec, nodes)


def tell_waiting(events: Events, names: Sequence[str]) -> None:
    """Say that ssh is waited for, on which nodes, and until when."""
    events(
        "fleet",
        "started",
        f"waiting for ssh on {counted(len(names), 'node')}",
        total=len(names),
        until=time.time() + fleet.SSH_WAIT_S,
        data={"nodes": list(names)},
    )


def make(cluster: Cluster, plan: Plan, prepared: list[SitePlan], events: Events) -> list[fleet.Node]:
    """Apply what has something to do; give every node of the fleet, pinned and reachable."""
    nodes = [node for site in prepared for node in apply(plan, site, events)]
    fleet.save(cluster.paths, nodes)
    running_cost.seen(cluster, nodes)
    tell_waiting(events, [node.name for node in nodes])
    fleet.contact(
        cluster.paths,
        nodes,
        cluster.spec.access.user,
        events,
        vouched=vouched(cluster),
        carried=carried(cluster, nodes),
    )
    events("fleet", "done", f"{counted(len(nodes), 'node')} reachable", total=len(nodes))
    cluster.share()
    return nodes
