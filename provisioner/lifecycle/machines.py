"""The machines of a cluster: made, proven to be reachable, and known by name afterwards."""

from __future__ import annotations

import contextlib
import functools
import threading
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from provisioner.common import stored
from provisioner.common.errors import GpuprovError, LockedError, ProviderError
from provisioner.common.events import Events
from provisioner.common.paths import APPLYING, ERRORED, STATE, private_dir, write_whole
from provisioner.common.text import counted, few, money, printable
from provisioner.lifecycle import running_cost
from provisioner.lifecycle.session import Cluster
from provisioner.lifecycle.sites import each
from provisioner.machines import existing
from provisioner.machines.base import Machines, NoCapacityError, PartlyMadeError, Planned
from provisioner.machines.existing import Way
from provisioner.machines.hosts import LEAVING, HostMachines
from provisioner.machines.providers import capacity
from provisioner.machines.providers.base import Provider
from provisioner.machines.providers.cluster import MARK
from provisioner.machines.terraform.binary import Binary
from provisioner.machines.terraform_machines import Root, TerraformMachines
from provisioner.plan.models import Plan
from provisioner.rundir import fleet, intent, node_state, placement
from provisioner.rundir.intent import IntendedNode, Intent
from provisioner.rundir.release import Ledger
from provisioner.transport import host_keys, ssh_config, ssh_keys, ssh_pins

INCOMPLETE = "incomplete"
"""Stage of a machine that an apply which failed has made."""

NO_IDENTITY = "0" * 12
"""In the tags of a plan that is made before the cluster has an identity; nothing is made with it."""


def refuse_abandoned(cluster: Cluster, plan: Plan) -> None:
    """Raise GpuprovError where machines were made at a site that cluster.yaml no longer uses, or that it wants at
    another site: they would run on."""
    abandoned = sorted(set(cluster.providers.made()) - set(plan.sites()))
    if abandoned:
        groups = list(dict.fromkeys(node.group for node in cluster.nodes() if node.site in abandoned))
        noun = f"machines of {few(groups, 5, ',')}" if groups else "machines"
        raise GpuprovError(
            f"no group is at {', '.join(abandoned)} any more, and {noun} were made there",
            where=str(cluster.file),
            hint="put the site and its groups back, or remove the whole cluster with `gpuprov down`",
        )
    planned = dict(plan.nodes())
    for node in cluster.nodes():
        group = planned.get(node.name)
        if group is not None and group.site != node.site:
            raise GpuprovError(
                f"group {group.name} is at site {group.site}, and {node.name} exists at site {node.site}",
                where=str(cluster.file),
                hint=f"put `site: {node.site}` back, or give the group at {group.site} another name",
            )


def refuse_damaged_pins(cluster: Cluster) -> None:
    """Raise GpuprovError where the pinned host keys cannot be read: nobody could reach a machine that is created."""
    ssh_pins.load_pins(cluster.paths)


def refuse_undone(cluster: Cluster) -> None:
    """Raise GpuprovError where a `down` that did not end has begun to undo what was configured on hosts: roles would
    change them again, and nothing there would note what."""
    for file in sorted(cluster.paths.root.glob(f"sites/*/{LEAVING}")):
        if hosts := file.read_text(encoding="utf-8", errors="replace").split():
            raise GpuprovError(
                f"`gpuprov down` has begun to undo what was configured on {few(hosts, 5, ',')}, and did not end",
                where=f"site {file.parent.name}",
                hint=f"run `gpuprov down {cluster.typed_file}` to its end, or "
                f"`gpuprov up {cluster.typed_file}` to configure them",
            )


def refuse_moved(cluster: Cluster, site: str, *, home: bool = True) -> None:
    """Raise ProviderError where a site's machines may exist and are not where cluster.yaml, or the account that is
    signed in, says now: they would run on, and nobody would look for them there. Without `home` the account alone is
    compared: what is recorded decides where `down` looks."""
    moved = {key: values for key, values in cluster.providers.moved(site).items() if home or key == "account"}
    if not moved or not _may_have_machines(cluster, site):
        return
    former_places = ", ".join(f"{key} {former}" for key, (former, _) in moved.items())
    after = ", ".join(f"{key} {present}" for key, (_, present) in moved.items())
    hint = f"sign in to account {moved['account'][0]}, and run the same command again" if "account" in moved else ""
    key, (former, _) = next(iter(moved.items()))
    raise ProviderError(
        f"its machines are in {former_places}; {'the credentials are of' if hint else 'cluster.yaml says'} {after}",
        where=f"site {site}",
        hint=hint or f"put `{key}: {former}` back and run `gpuprov down` first, or add a site of another name",
    )


def _may_have_machines(cluster: Cluster, site: str) -> bool:
    """Whether machines of a site were made, or may have been; a state that cannot be read counts."""
    folder = cluster.paths.site(site)
    if any(node.site == site for node in cluster.nodes()):
        return True
    if any((folder / name).exists() for name in (MARK, ERRORED, APPLYING)):
        return True
    if cluster.remote is not None:
        return site in intent.load(cluster.paths).sites
    try:
        return bool(stored.load(folder / STATE)["resources"])
    except FileNotFoundError:
        return False
    except (ValueError, LookupError, TypeError):
        return True


def of_site(
    cluster: Cluster, site: str, binary: Binary, run_dir: Path | None = None, *, made_by: Provider | None = None,
    record: bool = True, renew: bool = True,
) -> Machines:  # fmt: skip
    """The machines of one site; with `record` their provider and place are written down first, because `down` goes by
    it; without `renew` only where they are not yet. `made_by`: who made the machines of a site, as Providers.made has
    it; also of one that cluster.yaml does not name any more. Raises ProviderError where the machines are elsewhere than
    cluster.yaml says."""
    refuse_moved(cluster, site, home=made_by is None)
    provider, folder = made_by or cluster.providers.at(site), cluster.paths.site(site)
    if (folder / (STATE if provider.hosts is not None else MARK)).exists():
        raise ProviderError(
            "its machines were created with another `method` than cluster.yaml says now",
            where=f"site {site}",
            hint="put the former method back and run `gpuprov down`, or give the machines a site of another name",
        )
    if made_by is None:
        private_dir(cluster.paths.site(site))
        if record and (renew or not cluster.providers.is_recorded(site)):
            cluster.providers.record(site)
    if provider.hosts is not None:
        nodes = [node for node in cluster.nodes() if node.site == site]
        managed = provider.management
        if managed is not None and managed.installation is not None:
            from provisioner.machines.bmc import RedfishMachines

            return RedfishMachines(
                site, provider.hosts, managed, managed.installation, nodes, _host_access(cluster, cluster.nodes()),
                cluster.events, float(cluster.spec.timeouts.machine_s), cluster.file.parent,
                cluster.spec.user(site),
                provider.access.proxy if provider.access else lambda _: None,
                lambda: share_undoing(cluster),
            )  # fmt: skip
        return HostMachines(
            site,
            provider.hosts,
            nodes,
            _host_access(cluster, cluster.nodes()),
            cluster.events,
            lambda: share_undoing(cluster),
        )
    remote = cluster.remote
    backend = (lambda: remote.terraform(site)) if remote else None
    identity = (lambda: _identity(cluster)) if record else (lambda: cluster.recorded_identity() or NO_IDENTITY)
    root = Root(key=lambda: _key(cluster), identity=identity, backend=backend)
    recorded = {node.name for node in cluster.nodes() if node.site == site}
    incomplete = recorded - {node.name for node in settled(cluster)}
    log = run_dir / f"terraform-{site}.log" if run_dir else None
    return TerraformMachines(
        provider, root, binary, cluster.events, known=recorded - incomplete, incomplete=incomplete, log=log
    )


def share_undoing(cluster: Cluster) -> None:
    """Share which hosts a `down` is about to undo: another operator's `upgrade` must not configure them. A damaged
    record, which is not shared, does not keep a `down`."""
    try:
        cluster.share()
    except (LockedError, ProviderError):
        raise
    except GpuprovError as error:
        cluster.events("down", "warning", f"not shared: {error}")


def _host_access(cluster: Cluster, nodes: Sequence[fleet.Node]) -> Way:
    """How machines that exist already are entered."""
    users, carried = _users(cluster, nodes), cluster.providers.proxies(nodes)
    listed: set[str] = set()
    for site in cluster.spec.sites:
        with contextlib.suppress(GpuprovError):  # that site fails by itself
            hosts = cluster.providers.at(site).hosts
            listed |= {host.name for host in hosts.listed(())} if hosts is not None else set()
    key, identity = functools.cache(lambda: _key(cluster)), functools.cache(lambda: _identity(cluster))
    known = frozenset(node.id for node in cluster.nodes())
    return Way(cluster.paths, users, carried, key, identity, known | listed, frozenset(listed))


def _users(cluster: Cluster, nodes: Sequence[fleet.Node]) -> dict[str, str]:
    return {node.name: node.user or cluster.spec.user(node.site) for node in nodes}


_ALONE = threading.Lock()
"""Held to make what all sites share: they are planned side by side."""


def _key(cluster: Cluster) -> str:
    with _ALONE:
        return ssh_keys.ensure_key(cluster.paths, None if cluster.sandbox else cluster.spec.access.ssh_key)


def _identity(cluster: Cluster) -> str:
    with _ALONE:
        return cluster.identity


def ask_again(cluster: Cluster, plan: Plan) -> None:
    """Ask again for machines that a run before could not have."""
    for site in plan.sites():
        folder = cluster.paths.site(site)
        if folder.is_dir():
            capacity.do_without(folder, {})


def write_intent(cluster: Cluster, plan: Plan) -> None:
    """Say what is about to be made, and what was made before, so that whatever happens `down` knows where to look."""
    _identity(cluster)  # shared with the intent: another operator goes on with machines that are tagged with it
    plan = plan.at([site for site in plan.sites() if cluster.paths.site(site).exists()])
    nodes = {name: IntendedNode(group.site, group.machine.name) for name, group in plan.nodes()}
    choices = placement.current(cluster.spec, cluster.paths)
    recorded = Intent(cluster.spec.name, cluster.file.name, cluster.sandbox, plan.sites(), nodes, choices)
    intent.save(cluster.paths, recorded)
    write_whole(cluster.paths.used_spec, cluster.file.read_bytes())
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


@contextlib.contextmanager
def applying(cluster: Cluster, planned: Sequence[Planned]) -> Iterator[set[str]]:
    """Say what is made at these sites, and when that is over; sites that fail are put into what it gives."""
    events = cluster.events
    total, sites = sum(site.total for site in planned), ", ".join(site.site for site in planned)
    if total:
        wait = f"a machine may take {cluster.spec.timeouts.machine_s} s (timeouts.machine_s)"
        events("terraform", "started", f"{sites}: {counted(total, 'resource')}; {wait}", total=total)
    failed: set[str] = set()
    yield failed
    done = [site for site in planned if site.site not in failed]
    changes = counted(sum(site.total for site in done), "resource")
    if done:
        events("terraform", "done", f"{', '.join(site.site for site in done)}: {changes}")


class Made(NamedTuple):
    """Nodes that are pinned and reachable; the sites that failed: site → with what; the sites of whose machines some
    failed, and the others are among the nodes: site → with what."""

    nodes: list[fleet.Node]
    failed: dict[str, GpuprovError]
    partly: dict[str, GpuprovError]


class ApplyResult(NamedTuple):
    """What an apply of several sites gives: site → its nodes; `failed` and `partly` as in Made; `other_nodes` stay in
    nodes.json beside them."""

    nodes_by_site: dict[str, list[fleet.Node]]
    failed: Mapping[str, GpuprovError]
    partly: Mapping[str, GpuprovError]
    other_nodes: list[fleet.Node]

    @property
    def nodes(self) -> list[fleet.Node]:
        """The nodes of all sites."""
        return [node for nodes in self.nodes_by_site.values() for node in nodes]


def make(
    cluster: Cluster, plan: Plan, prepared: Sequence[tuple[Machines, Planned]], events: Events,
    run_dir: Path | None = None,
) -> Made:  # fmt: skip
    """Apply what has something to do, all sites at once, and wait for ssh. The error of a site whose apply failed has
    what stands now: it is written down, and costs."""
    sites = {machines.site: (machines, planned) for machines, planned in prepared}
    former = cluster.nodes()
    write_ssh_configuration(cluster)  # a host that is no node any more is entered once more
    applied = _apply(cluster, plan, sites)
    recorded = [*applied.other_nodes, *applied.nodes]
    if applied.failed:
        existing_text = _record_incomplete(cluster, plan, [sites[site][0] for site in applied.failed], recorded)
        failed = {site: _with(error, existing_text) for site, error in applied.failed.items()}
        applied = applied._replace(failed=failed)
    else:
        record(cluster, recorded)
    names = [node.name for node in applied.nodes]
    silent = contact(cluster, cluster.nodes(), events, waiting=names, only=names, run_dir=run_dir) if names else {}
    _keep_addresses(cluster, former, silent)
    result = _leave_silent_out(cluster, applied, silent)
    cluster.share()
    return result


def _apply(cluster: Cluster, plan: Plan, sites: Mapping[str, tuple[Machines, Planned]]) -> ApplyResult:
    """Apply all sites at once. A site that takes a host of another site fails."""
    with applying(cluster, [planned for _, planned in sites.values()]) as unmade:
        done, errors = each(list(sites), lambda site: sites[site][0].apply(plan, sites[site][1]))
        partly = {site: error for site, error in errors.items() if isinstance(error, PartlyMadeError)}
        failed = {site: error for site, error in errors.items() if site not in partly}
        failed |= occupied(cluster, {site: planned for site, (_, planned) in sites.items() if site not in failed})
        unmade.update(failed)
    done |= {site: error.nodes for site, error in partly.items()}
    nodes_by_site = {site: nodes for site, nodes in done.items() if site not in failed}
    partly = {site: error for site, error in partly.items() if site not in failed}
    other_nodes = [node for node in cluster.nodes() if node.site not in sites]
    other_nodes += [node for error in partly.values() for node in error.known]
    return ApplyResult(nodes_by_site, failed, partly, other_nodes)


def _leave_silent_out(cluster: Cluster, applied: ApplyResult, silent: Mapping[str, GpuprovError]) -> Made:
    """The result without the nodes that are not reachable (`silent`: node → error): their sites have failed."""
    failed, partly = dict(applied.failed), dict(applied.partly)
    for site, nodes in applied.nodes_by_site.items():
        errors = [silent[node.name] for node in nodes if node.name in silent]
        if errors:
            # Each machine of one's own is served for itself; a site of a cloud is tried again whole.
            some = len(errors) < len(nodes) and cluster.providers.at(site).hosts is not None
            earlier_errors = [partly.pop(site)] if site in partly else []
            (partly if some else failed)[site] = _joined([*earlier_errors, *errors])
    reached = [node for node in applied.nodes if node.site not in failed and node.name not in silent]
    return Made(reached, failed, partly)


def _keep_addresses(cluster: Cluster, former: Sequence[fleet.Node], silent: Collection[str]) -> None:
    """Hosts of one's own that could not be reached keep the address at which they were: by a mistake in cluster.yaml
    the next `verify` would condemn healthy nodes."""
    silent_hosts = {
        (node.name, node.id) for node in cluster.nodes()
        if node.name in silent and cluster.providers.at(node.site).hosts is not None
    }  # fmt: skip
    known = {node.name: node for node in former if (node.name, node.id) in silent_hosts}
    nodes = [known.get(node.name, node) for node in cluster.nodes()]
    if nodes != cluster.nodes():
        record(cluster, nodes)
        _save_ssh(cluster, nodes)


def write_ssh_configuration(cluster: Cluster) -> None:
    """Write how the nodes are reached, where that file is missing. What cannot be read is no matter here."""
    if (cluster.paths.ssh / "config").exists() or cluster.sandbox:
        return
    with contextlib.suppress(GpuprovError):
        if nodes := [node for node in cluster.nodes() if node.site in cluster.spec.sites]:
            _key(cluster)
            _save_ssh(cluster, nodes)


def follow_hosts(cluster: Cluster, made_by: Mapping[str, Provider]) -> None:
    """Give nodes whose machines exist already the addresses and host keys that cluster.yaml has for them now, for
    commands that plan nothing. A host that it calls otherwise is told by its pinned key; not one behind a jump host."""
    nodes, current = cluster.nodes(), []
    pins: ssh_pins.Pins = {}
    with contextlib.suppress(GpuprovError):
        pins = ssh_pins.load_pins(cluster.paths)
    hosts_by_site = {
        site: provider.hosts.listed(())
        for site in dict.fromkeys(node.site for node in nodes)
        if (provider := made_by.get(site)) is not None and provider.hosts is not None
    }
    for recorded in nodes:
        node, listed = recorded, hosts_by_site.get(recorded.site, [])
        host = next((host for host in listed if host.name == node.id), None)
        if host is None and (pinned := pins.get(node.name)) is not None and pinned[0] == node.id:
            direct = (host for host in listed if not host.local and not host.jump)
            host = next((host for host in direct if host_keys.scan(host.address, host.port) == pinned[1]), None)
        if host is not None and not host.local:
            node = replace(node, address=host.address, private_address=host.address, port=host.port)
        current.append(node)
    given_keys: ssh_pins.Pins = {}
    for node in current:
        provider = made_by.get(node.site)
        with contextlib.suppress(GpuprovError):  # `host_keys` has none of a host that is gone
            if provider is not None and provider.hosts is not None and (key := provider.hosts.host_key(node.id)):
                given_keys[node.name] = (node.id, key)
    with contextlib.suppress(GpuprovError):  # damaged pins
        if ssh_pins.repin(cluster.paths, given_keys):
            (cluster.paths.ssh / "config").unlink(missing_ok=True)
    if current != nodes:
        fleet.save(cluster.paths, current)
        (cluster.paths.ssh / "config").unlink(missing_ok=True)


def _save_ssh(cluster: Cluster, nodes: Sequence[fleet.Node]) -> None:
    """Write how these nodes are reached, with the host keys that are pinned."""
    users, pins = _users(cluster, nodes), ssh_pins.load_pins(cluster.paths)
    ssh_config.save(cluster.paths, nodes, pins, users, cluster.providers.proxies(nodes), cluster.providers.local(nodes))


def _joined(errors: Sequence[GpuprovError]) -> GpuprovError:
    """What several machines of a site failed with, as one error; that of a single one as it is."""
    if len(errors) == 1:
        return errors[0]
    lines = "\n  ".join(f"{error.where}: {error.message}" if error.where else error.message for error in errors)
    return ProviderError(lines, hint="; ".join(dict.fromkeys(error.hint for error in errors if error.hint)))


def _with(error: GpuprovError, existing_text: str) -> GpuprovError:
    """The error, with what stands now."""
    if not existing_text:
        return error
    diagnostics, message = getattr(error, "diagnostics", ()), f"{error.message}\n  {existing_text}"
    if isinstance(error, NoCapacityError):
        return NoCapacityError(
            message, where=error.where, hint=error.hint, diagnostics=diagnostics, groups=error.groups, data=error.data
        )
    result = ProviderError(message, where=error.where, hint=error.hint, diagnostics=diagnostics)
    result.exit_code = error.exit_code
    return result


def occupied(cluster: Cluster, planned: Mapping[str, Planned]) -> dict[str, GpuprovError]:
    """Site → why it cannot be made, of those of `planned` that take a host which stays a node of another site: one that
    this run is not for, or that was left out. No two nodes may be one host."""
    refused: dict[str, GpuprovError] = {}
    while True:
        remaining = {site: changes for site, changes in planned.items() if site not in refused}
        staying = {node.id: node for node in cluster.nodes() if node.site not in remaining}
        errors = {
            site: _occupied(site, [staying[host] for host in changes.hosts if host in staying])
            for site, changes in remaining.items()
            if not staying.keys().isdisjoint(changes.hosts)
        }
        if not errors:
            return refused
        refused |= errors


def _occupied(site: str, nodes: Sequence[fleet.Node]) -> GpuprovError:
    text = ", ".join(f"{node.id} is {node.name} of site {node.site}" for node in nodes)
    return ProviderError(
        f"{text}, which this run does not change",
        where=f"site {site}",
        hint="run `gpuprov up` for both sites at once, or put the host back into its former group",
    )


def record_standing(cluster: Cluster, prepared: Sequence[tuple[Machines, Planned]], plan: Plan) -> None:
    """Take machines into nodes.json that Terraform's state has and it lacks: a file that was removed, or a run that was
    killed. Terraform is asked for them only where its plan shows that there are some."""
    recorded = {node.name for node in cluster.nodes()}
    for machines, changes in prepared:
        actions = {action.node: action.what for action in changes.actions if action.node and not action.attached}
        desired = {name for name, group in plan.nodes() if group.site == machines.site}
        desired -= set(capacity.without(cluster.paths.site(machines.site)))
        existing = {name for name in {*desired, *actions} if actions.get(name) != "create"}
        missing = (
            [node for node in machines.existing_nodes() if node.name not in recorded] if existing - recorded else []
        )
        if missing:
            record(cluster, [*cluster.nodes(), *missing])


def record(cluster: Cluster, nodes: list[fleet.Node]) -> None:
    """Write nodes.json. A machine that took the name of another one and was never proven has nothing of its verdict."""
    ledger, previous = Ledger(cluster.paths), {node.name: node.id for node in cluster.nodes()}
    new = [node.name for node in nodes if previous.get(node.name) != node.id and ledger.of(node) is None]
    if new:
        node_state.note_stage(cluster.paths, "made", new)
    fleet.save(cluster.paths, nodes)
    running_cost.note_machines(cluster, nodes)


def settled(cluster: Cluster) -> list[fleet.Node]:
    """The machines of the last run, but those that an apply which failed has left: their group may yet move to another
    zone."""
    state = node_state.load(cluster.paths)
    return [node for node in cluster.nodes() if state.of(node.name).stage != INCOMPLETE]


def _record_incomplete(
    cluster: Cluster, plan: Plan, sites: Sequence[Machines], other_nodes: Sequence[fleet.Node] = ()
) -> str:
    """Write down what stands after an apply that failed at these sites, and say it; empty where nothing does. What
    could not be asked is said, too. `other_nodes`: the nodes of other sites."""
    previous = {node.name: node for node in cluster.nodes()}
    nodes, unknown = list(other_nodes), []
    intended = plan.at([site.site for site in sites])
    for site in sites:
        try:
            nodes += site.existing_nodes()
        except (GpuprovError, OSError, ValueError, LookupError) as error:
            unknown.append(f"what stands at {site.site} could not be asked: {str(error).splitlines()[0]}")
            nodes += [node for node in previous.values() if node.site == site.site]
    elsewhere = {node.name for node in other_nodes}
    new = [node.name for node in nodes if node.name not in previous or previous[node.name].id != node.id]
    if not nodes:
        if not unknown:
            node_state.note_stage(cluster.paths, "planned", [name for name, _ in intended.nodes()])
        return "; ".join(unknown)
    record(cluster, nodes)
    node_state.note_stage(cluster.paths, INCOMPLETE, [name for name in new if name not in elsewhere], ok=False)
    names = {node.name for node in nodes}
    node_state.note_absent(cluster.paths, [n for n, g in intended.nodes() if n not in names], previous)
    cluster.share()
    spent = running_cost.so_far(cluster)
    price = ", ".join(f"{money(total.hour, total.currency)} an hour" for total in spent.sums) if spent else ""
    cost = f", about {price} by list prices" if price else ""
    some = f", {len(new)} of them made by this run," if 0 < len(new) < len(nodes) else ""
    stand = f"{counted(len(nodes), 'machine')} of the cluster{some} stand{'s' if len(nodes) == 1 else ''} now{cost}"
    return "; ".join([f"{stand}: `gpuprov up` goes on, `gpuprov down` removes them", *unknown])


def _own_machines(cluster: Cluster, nodes: Sequence[fleet.Node]) -> list[fleet.Node]:
    """Those of the nodes that existed before the cluster, whatever provider cluster.yaml names for their site now."""
    providers = {
        site: cluster.providers.made_at(site) for site in {node.site for node in nodes} & {*cluster.spec.sites}
    }
    return [node for node in nodes if node.site in providers and providers[node.site].hosts]


def admitted(cluster: Cluster, nodes: Sequence[fleet.Node]) -> dict[str, ProviderError]:
    """Let gpuprov in to machines that exist already; gives those that refuse it, each with why."""
    theirs = _own_machines(cluster, nodes)
    if not theirs:
        return {}
    cluster.share()  # with nodes.json: no state of Terraform names machines that are changed from here on
    failed = existing.admit(_host_access(cluster, theirs), theirs, cluster.events)
    for name, error in failed.items():
        cluster.events("fleet", "warning", error.message, node=name, unit="node")
    _forget(cluster, [node for node in theirs if isinstance(failed.get(node.name), existing.ForeignError)])
    return failed


def _forget(cluster: Cluster, foreign: Sequence[fleet.Node]) -> None:
    """Hosts that another cluster has configured are no nodes of this one: nothing may judge, drain or undo them."""
    if not foreign:
        return
    names = {node.name for node in foreign}
    record(cluster, [node for node in cluster.nodes() if node.name not in names])
    for site in {node.site for node in foreign}:
        file, ids = cluster.paths.site(site) / MARK, {node.id for node in foreign if node.site == site}
        remaining_hosts = (
            [host for host in file.read_text(encoding="utf-8").split() if host not in ids] if file.exists() else []
        )
        write_whole(file, "".join(f"{host}\n" for host in remaining_hosts))
    cluster.share()


def keep_consoles(cluster: Cluster, nodes: Sequence[fleet.Node], run_dir: Path) -> list[Path]:
    """Write what these machines' consoles show into the run's folder, where their provider hands it out; gives the
    files. To be called before a machine goes that nobody could log in to."""
    files = []
    for node in nodes:
        access = cluster.providers.at(node.site).access if node.site in cluster.spec.sites else None
        text = access.console(node.id) if access is not None else None
        if text:
            file = run_dir / f"console-{node.name}.txt"
            write_whole(file, printable(text.replace("\r\n", "\n")) + "\n")
            cluster.events("fleet", "log", f"its console is kept in {file}", node=node.name)
            files.append(file)
    return files


def contact(
    cluster: Cluster, nodes: Sequence[fleet.Node], events: Events, *, waiting: Sequence[str],
    only: Collection[str] | None = None, run_dir: Path | None = None,
) -> dict[str, ProviderError]:  # fmt: skip
    """Wait for ssh on the nodes `waiting`, pin the keys of new machines. See fleet.contact. The console of one that
    never answers is kept in `run_dir`. Gives the nodes that could not be pinned, each with why."""
    wait_s = float(cluster.spec.timeouts.ssh_s)
    tell_waiting(events, waiting, wait_s)
    closed = cluster.providers.save_jump_hosts(nodes)
    names = [node.name for node in nodes if only is None or node.name in only]
    failed = {node.name: closed[node.site] for node in nodes if node.site in closed and node.name in names}
    users, carried = _users(cluster, nodes), cluster.providers.proxies(nodes)
    given_keys = {} if cluster.sandbox else cluster.providers.given_keys(nodes)
    failed |= fleet.contact(
        cluster.paths, list(nodes), users, events, wait_s=wait_s,
        only=[name for name in names if name not in failed], vouched=cluster.providers.host_key,
        carried=carried, given=given_keys, local=cluster.providers.local(nodes),
        listed=[node.name for node in _own_machines(cluster, nodes)],
    )  # fmt: skip
    failed |= admitted(cluster, [node for node in nodes if node.name in waiting and node.name not in failed])
    for node in nodes:
        if (error := failed.get(node.name)) and run_dir and (files := keep_consoles(cluster, [node], run_dir)):
            hint = f"its console: {files[0]}; {error.hint}"
            failed[node.name] = ProviderError(error.message, where=error.where, hint=hint)
    reached = len(waiting) - len(failed)
    events("fleet", "failed" if failed else "done", f"{counted(reached, 'node')} reachable", total=len(waiting))
    return failed
