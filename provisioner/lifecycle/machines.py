"""The machines of a cluster: made, proven to be reachable, and known by name afterwards."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import Path

from provisioner import fleet, node_state, ssh
from provisioner.cost import money
from provisioner.errors import GpuprovError, ProviderError
from provisioner.events import Events, Kind
from provisioner.lifecycle import running_cost
from provisioner.machines.base import Machines, Planned
from provisioner.machines.terraform import Root, TerraformMachines
from provisioner.paths import private_dir, write_whole
from provisioner.plan import Plan
from provisioner.preflight import Finding
from provisioner.providers import capacity
from provisioner.providers.base import Provider
from provisioner.session import Cluster
from provisioner.text import counted, printable
from provisioner.workspace.binary import Binary

INCOMPLETE = "incomplete"
"""Stage of a machine that an apply which failed has made."""


def refuse_abandoned(cluster: Cluster, plan: Plan) -> None:
    """Raise GpuprovError where machines were made at a site that cluster.yaml no longer uses: they would run on."""
    abandoned = sorted(set(cluster.providers.made()) - set(sites(plan)))
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
        there = [node.name for node in cluster.nodes() if node.site == site]
        findings += cluster.providers.at(site).preflight(plan, there)
    findings += _packages(cluster, plan)
    for finding in findings:
        if finding.status != "ok":
            text = f"{finding.subject}: {finding.message}" + (f" ({finding.action})" if finding.action else "")
            events("preflight", "warning", text, data={"status": finding.status})
    return findings


def _packages(cluster: Cluster, plan: Plan) -> list[Finding]:
    """Whether the repositories still have what is locked for the groups that machines are to be made for."""
    if plan.simulated:
        return []
    from provisioner.stack import still_there  # it brings an HTTP client along

    there = Counter(node.group for node in cluster.nodes())
    growing = {group.name: group.stack for group in plan.groups if there[group.name] < group.spec.count}
    return still_there.look(growing, str(cluster.file)) if growing else []


def probe(cluster: Cluster, plan: Plan, events: Events) -> list[Finding]:
    """Ask for the capacity of the groups that want that (`capacity.probe`), before anything is made."""
    found = []
    for site in sites(plan):
        knows = cluster.providers.at(site).capacity
        if knows and any(group.site == site and group.spec.capacity.probe for group in plan.groups):
            private_dir(cluster.paths.site(site))
            found += knows.probe(plan, {node.name for node in cluster.nodes()})
    for finding in found:
        kind: Kind = "log" if finding.status == "ok" else "warning"
        events("preflight", kind, f"{finding.subject}: {finding.message}", data={"status": finding.status})
    return found


def ends(cluster: Cluster, plan: Plan) -> dict[str, str]:
    """Group → when what its machines are bought by ends (ISO 8601, UTC), and the machines with it. What could not be
    asked is said."""
    found: dict[str, str] = {}
    for site in sites(plan):
        if knows := cluster.providers.at(site).capacity:
            try:
                found |= {name: f"{when:%Y-%m-%dT%H:%M:%SZ}" for name, when in knows.ends(plan).items()}
            except GpuprovError as error:
                cluster.events("preflight", "warning", error.message)
    return found


def of_site(
    cluster: Cluster, site: str, binary: Binary, run_dir: Path | None = None, *, made_by: Provider | None = None
) -> Machines:
    """The machines of one site; their provider is written down first, because `down` goes by it. `made_by`: who made
    the machines of a site, as Providers.made has it; also of one that cluster.yaml does not name any more."""
    provider = made_by
    if provider is None:
        private_dir(cluster.paths.site(site))
        cluster.providers.record(site)
        provider = cluster.providers.at(site)
    remote = cluster.remote
    root = Root(
        key=lambda: ssh.ensure_key(cluster.paths, None if cluster.sandbox else cluster.spec.access.ssh_key),
        identity=lambda: cluster.identity,
        backend=(lambda: remote.terraform(site)) if remote else None,
    )
    known = [node.name for node in settled(cluster) if node.site == site]
    log = run_dir / f"terraform-{site}.log" if run_dir else None
    return TerraformMachines(provider, root, binary, cluster.events, known=known, log=log)


def ask_again(cluster: Cluster, plan: Plan) -> None:
    """Ask again for machines that a run before could not have."""
    for site in sites(plan):
        folder = cluster.paths.site(site)
        if folder.is_dir():
            capacity.do_without(folder, {})


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


def tell_waiting(events: Events, names: Sequence[str], wait_s: float = fleet.SSH_WAIT_S) -> None:
    """Say that ssh is waited for, on which nodes, and until when."""
    events(
        "fleet",
        "started",
        f"waiting for ssh on {counted(len(names), 'node')}, at most {wait_s:.0f} s (timeouts.ssh_s)",
        total=len(names),
        until=time.time() + wait_s,
        data={"nodes": list(names)},
    )


def make(
    cluster: Cluster, plan: Plan, prepared: Sequence[tuple[Machines, Planned]], events: Events,
    run_dir: Path | None = None,
) -> list[fleet.Node]:  # fmt: skip
    """Apply what has something to do; give every node of the fleet, pinned and reachable. Raises ProviderError of the
    site that failed, with what stands now: it is written down, and costs."""
    nodes: list[fleet.Node] = []
    for machines, planned in prepared:
        try:
            nodes += machines.apply(plan, planned)
        except ProviderError as error:
            told = _record_incomplete(cluster, plan, [one for one, _ in prepared])
            if told:
                message = f"{error.message}\n  {told}"
                raise ProviderError(
                    message, where=error.where, hint=error.hint, diagnostics=error.diagnostics
                ) from None
            raise
    fleet.save(cluster.paths, nodes)
    running_cost.seen(cluster, nodes)
    contact(cluster, nodes, events, waiting=[node.name for node in nodes], run_dir=run_dir)
    cluster.share()
    return nodes


def settled(cluster: Cluster) -> list[fleet.Node]:
    """The machines of the last run, but those that an apply which failed has left: their group may yet move to another
    zone."""
    noted = node_state.load(cluster.paths).get("nodes", {})
    return [node for node in cluster.nodes() if noted.get(node.name, {}).get("stage") != INCOMPLETE]


def _record_incomplete(cluster: Cluster, plan: Plan, sites: Sequence[Machines]) -> str:
    """Write down what stands after an apply that failed, and say it; empty where nothing does. What could not be asked
    is said, too."""
    before = {node.name: node for node in cluster.nodes()}
    nodes, unknown = [], []
    for site in sites:
        try:
            nodes += site.standing(plan)
        except (GpuprovError, OSError, ValueError, LookupError) as error:
            unknown.append(f"what stands at {site.site} could not be asked: {str(error).splitlines()[0]}")
            nodes += [node for node in before.values() if node.site == site.site]
    new = [node.name for node in nodes if node.name not in before or before[node.name].id != node.id]
    if not nodes:
        if not unknown:
            node_state.note_stage(cluster.paths, "planned", [name for name, _ in plan.nodes()])
        return "; ".join(unknown)
    fleet.save(cluster.paths, nodes)
    running_cost.seen(cluster, nodes)
    node_state.note_stage(cluster.paths, INCOMPLETE, new, ok=False)
    names = {node.name for node in nodes}
    node_state.note_stage(cluster.paths, "missing", [n for n, g in plan.nodes() if n not in names], ok=False)
    cluster.share()
    spent = running_cost.so_far(cluster)
    price = ", ".join(f"{money(one['hour'], one['currency'])} an hour" for one in spent["sums"]) if spent else ""
    cost = f", about {price} by list prices" if price else ""
    some = f", {len(new)} of them made by this run," if 0 < len(new) < len(nodes) else ""
    stand = f"{counted(len(nodes), 'machine')} of the cluster{some} stand{'s' if len(nodes) == 1 else ''} now{cost}"
    return "; ".join([f"{stand}: `gpuprov up` goes on, `gpuprov down` removes them", *unknown])


def keep_consoles(cluster: Cluster, nodes: Sequence[fleet.Node], run_dir: Path) -> list[Path]:
    """Write what these machines' consoles show into the run's folder, where their provider hands it out; gives the
    files. To be called before a machine goes that nobody could log in to."""
    kept = []
    for node in nodes:
        access = cluster.providers.at(node.site).access if node.site in cluster.spec.sites else None
        text = access.console(node.id) if access is not None else None
        if text:
            file = run_dir / f"console-{node.name}.txt"
            write_whole(file, printable(text.replace("\r\n", "\n")) + "\n")
            cluster.events("fleet", "log", f"its console is kept in {file}", node=node.name)
            kept.append(file)
    return kept


def contact(
    cluster: Cluster, nodes: Sequence[fleet.Node], events: Events, *, waiting: Sequence[str],
    only: Collection[str] | None = None, run_dir: Path | None = None,
) -> None:  # fmt: skip
    """Wait for ssh on the nodes `waiting`, pin the keys of new machines. See fleet.contact. The console of one that
    never answers is kept in `run_dir`."""
    wait_s = float(cluster.spec.timeouts.ssh_s)
    tell_waiting(events, waiting, wait_s)
    carried = {} if cluster.sandbox else cluster.providers.proxies(nodes)
    users = {node.name: cluster.spec.user(node.site) for node in nodes}
    try:
        fleet.contact(
            cluster.paths, list(nodes), users, events, wait_s=wait_s, only=only, vouched=cluster.providers.host_key,
            carried=carried,
        )  # fmt: skip
    except ProviderError as error:
        silent = [node for node in nodes if node.name == error.where]
        kept = keep_consoles(cluster, silent, run_dir) if run_dir else []
        if not kept:
            raise
        hint = f"its console: {kept[0]}; {error.hint}"
        raise ProviderError(error.message, where=error.where, hint=hint, diagnostics=error.diagnostics) from None
    events("fleet", "done", f"{counted(len(waiting), 'node')} reachable", total=len(waiting))
