"""The machines as they are: Terraform's outputs → nodes, pinned host keys, ssh configuration, inventory."""

from __future__ import annotations

import contextlib
import json
import re
import socket
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from provisioner import ssh, stored
from provisioner.catalog import mig
from provisioner.errors import GpuprovError, ProviderError
from provisioner.events import Events, Kind
from provisioner.mounts import Mount
from provisioner.paths import ClusterPaths, write_whole
from provisioner.plan import Plan, PlannedGroup
from provisioner.stack.texts import TEMPLATES

SSH_WAIT_S = 300.0
"""How long a new machine may take until its sshd answers; clouds boot GPU machines in one to five minutes."""

PARALLEL = 32


_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]*"
_SHAPES = {
    "name": (r"[a-z][a-z0-9-]*", "name"),
    "group": (r"[a-z]([a-z0-9-]{0,30}[a-z0-9])?", "group"),
    "site": (r"[a-z]([a-z0-9-]{0,30}[a-z0-9])?", "site"),
    "machine": (_NAME, "machine type"),
    "id": (r"[A-Za-z0-9][A-Za-z0-9._:/-]*", "machine's id"),
    "zone": (f"({_NAME})?", "zone"),
    "address": (r"[0-9A-Za-z][0-9A-Za-z.:-]*", "address"),
    "private_address": (r"([0-9A-Za-z][0-9A-Za-z.:-]*)?", "address"),
}
"""Fields of a node, and what they may be: nodes.json and Terraform's state lie in a bucket that others write to."""
_MOUNT = {
    "type": (r"[a-z0-9]+", "type of file system"),
    "source": (r"[A-Za-z0-9][A-Za-z0-9._:@/+=-]*", "file system"),
    "path": (r"/[A-Za-z0-9._/-]+", "folder"),
    "options": (r"([A-Za-z0-9_][A-Za-z0-9=_,.:-]*)?", "list of options"),
}


@dataclass(frozen=True, slots=True)
class Node:
    """One machine. `id` is the provider's; a machine that was replaced has the same name and another id."""

    name: str
    group: str
    site: str
    machine: str
    id: str
    zone: str
    address: str
    private_address: str
    mounts: tuple[Mount, ...] = ()
    """File systems of the network that were made for it."""


def from_outputs(
    plan: Plan, site: str, outputs: dict[str, dict[str, Any]], without: Collection[str] = ()
) -> list[Node]:
    """The nodes of one site, but those that it does without. Raises ProviderError where the module gave other nodes
    than were planned."""
    planned = {name: group for name, group in plan.nodes() if group.site == site and name not in without}
    if set(outputs) != set(planned):
        missing, extra = sorted(set(planned) - set(outputs)), sorted(set(outputs) - set(planned))
        raise ProviderError(
            f"Terraform's output does not match the plan: missing {', '.join(missing) or 'none'}, "
            f"unknown {', '.join(extra) or 'none'}",
            where=f"site {site}",
            hint="run `gpuprov up` again; if it stays, the workspace's module and state disagree",
        )
    try:
        return [
            _shaped(
                Node(
                    name=name,
                    group=out["group"],
                    site=site,
                    machine=out["machine"],
                    id=out["id"],
                    zone=out.get("zone") or "",
                    address=out.get("public_ip") or out["private_ip"],
                    private_address=out["private_ip"],
                    mounts=Mount.read(out.get("mounts") or ()),
                )
            )
            for name, out in sorted(outputs.items())
        ]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ProviderError(
            f"Terraform's output has no such node: {error}",
            where=f"site {site}",
            hint="look at the site's outputs (`terraform output`), and at who else writes to its state",
        ) from None


def _shaped(node: Node) -> Node:
    """The node. Raises ValueError for what could be read as anything else: a path, an option, a template."""
    for one, shapes in ((node, _SHAPES), *((mount, _MOUNT) for mount in node.mounts)):
        for field_name, (shape, what) in shapes.items():
            value = getattr(one, field_name)
            if not isinstance(value, str) or len(value) > 1024 or not re.fullmatch(shape, value):
                shown = value if isinstance(value, str) else json.dumps(value)
                raise ValueError(f"{field_name} of {str(node.name)[:60]!r} is {shown[:60]!r}, which is no {what}")
    return node


def save(paths: ClusterPaths, nodes: list[Node]) -> None:
    """Remember the nodes, for `status`, `ssh`, `verify` and the next run."""
    write_whole(paths.nodes, json.dumps([asdict(node) for node in nodes], indent=1) + "\n")


def load(paths: ClusterPaths) -> list[Node]:
    """The nodes of the last run that made machines; empty where there is none."""
    try:
        return parse(stored.load(paths.nodes))
    except FileNotFoundError:
        return []
    except ValueError as error:
        hint = "remove it and run `gpuprov up`: Terraform knows the nodes"
        raise GpuprovError(f"is damaged: {error}", where=str(paths.nodes), hint=hint) from error


def parse(rows: Any) -> list[Node]:
    """The nodes of nodes.json. Raises ValueError for what is none."""
    try:
        return [_shaped(Node(**{**row, "mounts": Mount.read(row.get("mounts", ()))})) for row in rows]
    except (TypeError, KeyError, AttributeError) as error:
        raise ValueError(str(error)) from error


def contact(
    paths: ClusterPaths,
    nodes: list[Node],
    user: str,
    events: Events,
    *,
    wait_s: float = SSH_WAIT_S,
    only: Collection[str] | None = None,
    vouched: Callable[[Node], str | None] = lambda _: None,
    carried: Mapping[str, str] | None = None,
) -> None:
    """Wait for every sshd, pin the host keys of machines that were never seen, write ssh's configuration. `only`: of
    the machines that are known, the ones to be waited for.

    A machine that is known by its id must show the key that was pinned; ssh itself refuses another one. `vouched` gives
    a new machine's key as its provider knows it by another way than the network; None where it does not. Raises
    ProviderError where the two differ. `carried`: node → the command that carries ssh to it, in place of its address.
    """
    carried = carried or {}
    pins = ssh.load_pins(paths)
    new = [node for node in nodes if pins.get(node.name, ("", ""))[0] != node.id]
    patience = Patience(time.monotonic() + wait_s)
    ssh.disconnect(paths, [node.name for node in new])  # a machine that was there before under the same name
    with ThreadPoolExecutor(max_workers=PARALLEL) as pool, patience.shared_by(pool):
        first = {pool.submit(_first_key, n, patience, vouched, carried.get(n.name)): n for n in new}
        for future in as_completed(first):
            node, (key, told) = first[future], future.result()
            pins[node.name] = (node.id, key)
            events("fleet", "progress", f"host key pinned: {ssh.fingerprint(key)}{told}", node=node.name, unit="node")
        here = [node for node in nodes if node not in new and node.name not in carried]
        known = [node for node in here if only is None or node.name in only]
        reached = {pool.submit(_wait_for_port, node.address, patience): node for node in known}
        for waited in as_completed(reached):
            node, error = reached[waited], waited.result()
            kind: Kind = "warning" if error else "log"
            said = f"sshd does not answer on {node.address}: {error}" if error else "sshd answers"
            events("fleet", kind, said, node=node.name, unit="node")
    names = {node.name for node in nodes}
    ssh.save(paths, nodes, {name: pin for name, pin in pins.items() if name in names}, user, carried)


@dataclass(frozen=True, slots=True)
class Patience:
    """How long the threads of one contact wait: until `deadline` (time.monotonic), or until one of them, or a person,
    gives up."""

    deadline: float
    given_up: threading.Event = field(default_factory=threading.Event)

    @property
    def over(self) -> bool:
        return self.given_up.is_set() or time.monotonic() > self.deadline

    def pause(self, seconds: float) -> None:
        self.given_up.wait(seconds)

    @contextlib.contextmanager
    def shared_by(self, pool: ThreadPoolExecutor) -> Iterator[None]:
        """What ends the block early (Ctrl-C, a host key that is another one) ends the waiting of all."""
        try:
            yield
        except BaseException:
            self.given_up.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _first_key(
    node: Node, patience: Patience, vouched: Callable[[Node], str | None], carried: str | None
) -> tuple[str, str]:
    """The host key that a machine shows at first contact, and what speaks for it."""
    error = None if carried else _wait_for_port(node.address, patience)
    if error is None:
        while True:
            key = ssh.scan_through(carried, node.address) if carried else ssh.scan(node.address)
            if key:
                return key, _compared(node, key, vouched(node))
            if patience.over:
                error = "no ed25519 host key was shown"
                break
            patience.pause(0.3)
    raise ProviderError(
        f"no ssh on {node.address}: {error}",
        where=node.name,
        hint="look at the machine's console; run `gpuprov up` again, it goes on from here",
    )


def _compared(node: Node, key: str, known: str | None) -> str:
    """What a provider's word about a host key adds to it. Raises ProviderError where it is another key."""
    if known is None:
        return ""
    if known.split()[:2] != key.split()[:2]:
        shown, said = ssh.fingerprint(key), ssh.fingerprint(known)
        raise ProviderError(
            f"{node.address} shows the host key {shown}, the machine's own console says {said}",
            where=node.name,
            hint="somebody may stand between you and the machine: nothing was sent to it. Look at network and proxy",
        )
    return ", as its console says"


def _wait_for_port(address: str, patience: Patience, port: int = 22) -> str | None:
    """None as soon as something greets like ssh on that port, else why not."""
    error = "time is up"
    while True:
        try:
            with socket.create_connection((address, port), timeout=5) as connection:
                if connection.makefile("rb").read(4) == b"SSH-":
                    return None
                error = "it does not greet like ssh"
        except OSError as failure:
            error = str(failure)
        if patience.over:
            return error
        patience.pause(0.2)


def write_inventory(
    paths: ClusterPaths,
    nodes: list[Node],
    plan: Plan,
    variables: dict[str, Any],
    fingerprints: dict[str, str],
    obsolete: Mapping[str, Sequence[str]] | None = None,
) -> Path:
    """The Ansible inventory: a group per cluster.yaml group, the lock's stack as its variables. No secret is in it.

    `fingerprints`: group → what its nodes are configured from; the playbook leaves it on the node. `obsolete`: group →
    packages of earlier locks that this one has not; the roles take them out.
    """
    groups = {}
    for planned in plan.groups:
        groups[planned.name] = {
            "hosts": {
                n.name: {"gpuprov_node": n.name, "gpuprov_private_address": n.private_address}
                for n in nodes
                if n.group == planned.name
            },
            "vars": {
                **group_variables(planned.name, plan),
                "gpuprov_fingerprint": fingerprints[planned.name],
                "gpuprov_obsolete": list((obsolete or {}).get(planned.name, ())),
            },
        }
    refuse_templates({"children": groups, "vars": variables})
    inventory = {"all": {"children": _untrusted(groups), "vars": _untrusted(variables)}}
    # JSON is YAML, and Ansible reads it an order of magnitude faster than YAML's long form.
    write_whole(paths.inventory, json.dumps(inventory, indent=1) + "\n")
    return paths.inventory


_UNTRUSTED = "__ansible_unsafe"
"""The key under which Ansible's JSON has a text that is no template, as !unsafe has it in YAML."""


def _untrusted(value: Any) -> Any:
    """The value with each text in it marked so that Ansible evaluates none."""
    if isinstance(value, str):
        return {_UNTRUSTED: value}
    if isinstance(value, dict):
        return {key: _untrusted(inner) for key, inner in value.items()}
    return [_untrusted(inner) for inner in value] if isinstance(value, list | tuple) else value


def plain(value: Any) -> Any:
    """What write_inventory was given, of what it has written."""
    if isinstance(value, dict):
        return value[_UNTRUSTED] if value.keys() == {_UNTRUSTED} else {k: plain(inner) for k, inner in value.items()}
    return [plain(inner) for inner in value] if isinstance(value, list) else value


def refuse_templates(value: Any, place: str = "") -> None:
    """Raise GpuprovError where a text for the roles opens a template, or a key is one of Ansible's own: nothing that
    gpuprov gives them has one."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if str(key).startswith("__ansible"):
                _refuse_template(f"{place}.{key}", str(key))
            refuse_templates(str(key), place)
            refuse_templates(inner, f"{place}.{key}".lstrip("."))
    elif isinstance(value, list | tuple):
        for index, inner in enumerate(value):
            refuse_templates(inner, f"{place}[{index}]")
    elif isinstance(value, str) and any(opening in value for opening in TEMPLATES):
        _refuse_template(place, value)


def _refuse_template(place: str, text: str) -> NoReturn:
    raise GpuprovError(
        f"{place} holds a template ({text[:80]!r}), which nothing that gpuprov writes has",
        hint="look who wrote it: cluster.lock, .gpuprov/*/locks, or the bucket of the shared state",
    )


def group_variables(name: str, plan: Plan) -> dict[str, Any]:
    """What the roles know of a group's machines: facts of the catalogue and of the lock, never of the node."""
    from provisioner import interruption

    group = plan.group(name)
    return {
        "gpuprov_group": name,
        "gpuprov_site": group.site,
        # Why a version was chosen is for people: a better sentence is no reason to configure a node again.
        "gpuprov_stack": group.stack.model_dump(
            mode="json", exclude={"components": True, "packages": {"__all__": {"asked"}}}
        ),
        "gpuprov_gpu_vendor": group.gpu.vendor,
        "gpuprov_gpu_arch": group.gpu.arch,
        "gpuprov_gpu_count": group.machine.gpu_count,
        "gpuprov_network_kind": group.machine.network.kind,
        "gpuprov_network_ports": group.machine.network.ports,
        "gpuprov_efa_devices": efa_devices(group),
        "gpuprov_fabric_manager": group.machine.fabric_manager_required,
        "gpuprov_subnet_manager": group.machine.subnet_manager_required,
        "gpuprov_imex": group.machine.imex_required,
        "gpuprov_persistence": group.spec.gpu.persistence,
        "gpuprov_mig": group.spec.gpu.mig,
        "gpuprov_mig_instances": mig.instances(group.gpu, group.spec.gpu.mig),
        "gpuprov_mig_capable": group.gpu.mig,
        "gpuprov_scratch": group.spec.storage.scratch,
        "gpuprov_local_nvme": group.machine.local_nvme.count,
        "gpuprov_dcgm_exporter": plan.spec.monitoring.dcgm_exporter,
        "gpuprov_user": plan.spec.access.user,
        "gpuprov_health": health(group, plan),
        "gpuprov_interruption": interruption.variables(group, plan),
    }


def health(group: PlannedGroup, plan: Plan) -> dict[str, Any] | None:
    """What role health is given: when the nodes look at themselves, what is expected of them, and which checks (their
    sha256, so that other checks are a reason to run the role). None where cluster.yaml wants none of it."""
    wanted = plan.spec.monitoring.health_check
    if wanted is None:
        return None
    from provisioner import catalog
    from provisioner.verify import archive
    from provisioner.verify.expectations import expect

    expected = expect(
        group.machine, group.gpu, group.stack, group.spec, catalog.load(), level="quick", simulated=plan.simulated
    )
    return {
        "every": wanted.every,
        "textfile": wanted.textfile,
        "expected": expected.to_json(),
        "archive": archive.digest(),
    }


def efa_devices(group: PlannedGroup) -> int:
    """EFA devices of one machine of the group; 0 where the machine has none or cluster.yaml does not want them."""
    machine = group.machine
    return machine.network.ports if machine.uses_efa(group.spec.network.wanted) else 0
