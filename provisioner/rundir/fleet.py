"""The machines as they are: Terraform's outputs → nodes, pinned host keys, ssh configuration."""

from __future__ import annotations

import contextlib
import json
import re
import socket
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field
from typing import Any

from provisioner.common import stored
from provisioner.common.errors import DamagedFileError, ProviderError
from provisioner.common.events import Events, Kind
from provisioner.common.paths import ClusterPaths, write_whole
from provisioner.plan.models import Plan
from provisioner.transport import host_keys, ssh_config, ssh_pins, ssh_sockets

SSH_WAIT_S = 300.0
"""How long a new machine may take until its sshd answers, where `timeouts.ssh_s` does not say: clouds boot GPU machines
in one to five minutes."""

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
    "user": (r"([a-z_][a-z0-9_-]{0,31})?", "login name"),
}
"""Fields of a node, and what they may be: nodes.json and Terraform's state lie in a bucket that others write to."""
_MOUNT = {
    "type": (r"[a-z0-9]+", "type of file system"),
    "source": (r"[A-Za-z0-9][A-Za-z0-9._:@/+=-]*", "file system"),
    "path": (r"(/(?!\.{1,2}(/|$))[A-Za-z0-9._-]+)+/?", "folder"),
    "options": (r"([A-Za-z0-9_][A-Za-z0-9=_,.:-]*)?", "list of options"),
}


@dataclass(frozen=True, slots=True)
class Mount:
    """As the module's output `nodes` has it: type, source and options are fstab's; of a bucket the type is s3, the
    source bucket/prefix, the options ro or rw."""

    type: str
    source: str
    path: str
    options: str

    @classmethod
    def read(cls, rows: Iterable[Mapping[str, str]]) -> tuple[Mount, ...]:
        """Of a module's output, or of nodes.json. Raises KeyError, TypeError for anything else."""
        return tuple(cls(row["type"], row["source"], row["path"], row["options"]) for row in rows)


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
    port: int = 22
    """Of its sshd."""
    user: str = ""
    """The account on it; empty: that of its site."""


def refuse_shape(name: str, number: str) -> None:
    """Raise ValueError for a node's name, or a machine's id, that could be read as anything else."""
    for field_name, value in (("name", name), ("id", number)):
        shape, kind = _SHAPES[field_name]
        if len(value) > 1024 or not re.fullmatch(shape, value):
            raise ValueError(f"{value[:60]!r} is no {kind}")


def departed(name: str, number: str) -> Node:
    """A node whose machine is gone, as hooks are given it: its name and its machine's id, and nothing else."""
    return Node(name, name.rpartition("-")[0], "", "", number, "", "", "")


def from_outputs(
    plan: Plan, site: str, outputs: dict[str, dict[str, Any]], without: Collection[str] = ()
) -> list[Node]:
    """The nodes of one site, but those that it does without. Raises ProviderError where the module gave other nodes
    than were planned."""
    planned = {name for name, group in plan.nodes() if group.site == site and name not in without}
    if set(outputs) != planned:
        missing, extra = sorted(planned - set(outputs)), sorted(set(outputs) - planned)
        raise ProviderError(
            f"Terraform's output does not match the plan: missing {', '.join(missing) or 'none'}, "
            f"unknown {', '.join(extra) or 'none'}",
            where=f"site {site}",
            hint="run `gpuprov up` again; if it stays, the workspace's module and state disagree",
        )
    return from_rows(site, outputs)


def from_rows(site: str, rows: Mapping[str, Mapping[str, Any]]) -> list[Node]:
    """The nodes of rows as the module's output `nodes` has them, by name. Raises ProviderError for a row that is no
    node."""
    try:
        return [
            _shaped(
                Node(
                    name=name,
                    group=row["group"],
                    site=site,
                    machine=row["machine"],
                    id=row["id"],
                    zone=row.get("zone") or "",
                    address=row.get("public_ip") or row["private_ip"],
                    private_address=row["private_ip"],
                    mounts=Mount.read(row.get("mounts") or ()),
                )
            )
            for name, row in sorted(rows.items())
        ]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ProviderError(
            f"Terraform's output has no such node: {error}",
            where=f"site {site}",
            hint="look at the site's outputs (`terraform output`), and at who else writes to its state",
        ) from None


def _shaped(node: Node) -> Node:
    """The node. Raises ValueError for what could be read as anything else: a path, an option, a template."""
    for record, shapes in ((node, _SHAPES), *((mount, _MOUNT) for mount in node.mounts)):
        for field_name, (shape, kind) in shapes.items():
            value = getattr(record, field_name)
            if not isinstance(value, str) or len(value) > 1024 or not re.fullmatch(shape, value):
                value_text = value if isinstance(value, str) else json.dumps(value)
                raise ValueError(f"{field_name} of {str(node.name)[:60]!r} is {value_text[:60]!r}, which is no {kind}")
    if type(node.port) is not int or not 0 < node.port < 65536:
        raise ValueError(f"port of {node.name!r} is {json.dumps(node.port)[:60]}, which is not 1 to 65535")
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
        hint = "remove it and run `gpuprov up`: Terraform knows the nodes; `gpuprov down` does without it, too"
        raise DamagedFileError(str(error), str(paths.nodes), hint=hint) from error


def parse(rows: Any) -> list[Node]:
    """The nodes of nodes.json. Raises ValueError for what is none."""
    try:
        return [_shaped(Node(**{**row, "mounts": Mount.read(row.get("mounts", ()))})) for row in rows]
    except (TypeError, KeyError, AttributeError) as error:
        raise ValueError(str(error)) from error


def contact(
    paths: ClusterPaths,
    nodes: list[Node],
    users: Mapping[str, str],
    events: Events,
    *,
    wait_s: float = SSH_WAIT_S,
    only: Collection[str] | None = None,
    vouched: Callable[[Node], str | None] = lambda _: None,
    carried: Mapping[str, str] | None = None,
    given: Mapping[str, str] | None = None,
    local: Collection[str] = (),
    listed: Collection[str] = (),
) -> dict[str, ProviderError]:
    """Wait for every sshd, pin the host keys of machines that were never seen, write ssh's configuration. `only`:
    the machines to be waited for, where that is not all. Gives the machines that could not be pinned, each with why.

    A machine that is known by its id must show the key that was pinned; ssh itself refuses another one. `vouched` gives
    a new machine's key as its provider knows it by another way than the network; None where it does not: a machine
    that shows another one is not pinned. `users`: node → the account on it; `carried`: node → the command that carries
    ssh to it, in place of its address; `given`: node → its host key, which a person has written down; `local`: names of
    this very machine, which needs none of this; `listed`: names of machines whose addresses a person has written down,
    which may lead to another one of them.
    """
    carried, given = carried or {}, given or {}
    pins = ssh_pins.load_pins(paths)
    by_machine = dict(pins.values())
    waiting = [node for node in nodes if (only is None or node.name in only) and node.name not in local]
    for node in waiting:
        moved = by_machine.get(node.id) if node.id != pins.get(node.name, ("", ""))[0] else None
        if key := given.get(node.name) or moved:  # a machine keeps its key under another name
            pins[node.name] = (node.id, key)
    new = [node for node in waiting if pins.get(node.name, ("", ""))[0] != node.id]
    patience, failed = Patience(time.monotonic() + wait_s), dict[str, ProviderError]()
    ssh_sockets.disconnect(paths, [node.name for node in new])  # a machine that was there before under the same name
    with ThreadPoolExecutor(max_workers=PARALLEL) as pool, patience.shared_by(pool):
        first = {pool.submit(_first_key, n, patience, vouched, carried.get(n.name)): n for n in new}
        for future in as_completed(first):
            node = first[future]
            try:
                key, vouching = future.result()
                if node.name in listed:
                    _refuse_moved(node, key, nodes, pins, carried)
            except ProviderError as unpinned:
                failed[node.name] = unpinned
                pins.pop(node.name, None)
                events("fleet", "warning", unpinned.message, node=node.name, unit="node")
                continue
            pins[node.name] = (node.id, key)
            events(
                "fleet",
                "progress",
                f"host key pinned: {host_keys.fingerprint(key)}{vouching}",
                node=node.name,
                unit="node",
            )
        known = [node for node in waiting if node not in new and node.name not in carried]
        reached = {pool.submit(_wait_for_port, node.address, patience, node.port): node for node in known}
        for waited in as_completed(reached):
            node, error = reached[waited], waited.result()
            kind: Kind = "warning" if error else "log"
            message = f"sshd does not answer on {node.address}: {error}" if error else "sshd answers"
            events("fleet", kind, message, node=node.name, unit="node")
    names = {node.name for node in nodes}
    pinned = {name: pin for name, pin in pins.items() if name in names and name not in local}
    ssh_config.save(paths, nodes, pinned, users, carried, local)
    return failed


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
    error = None if carried else _wait_for_port(node.address, patience, node.port)
    if error is None:
        while True:
            key = host_keys.scan_through(carried, node.address) if carried else host_keys.scan(node.address, node.port)
            if key:
                return key, _compared(node, key, vouched(node))
            if patience.over:
                reason = host_keys.explain_through(carried, node.address) if carried else ""
                error = reason or "no ed25519 host key was shown"
                break
            patience.pause(0.3)
    raise ProviderError(
        f"no ssh on {node.address} port {node.port} ({node.id}): {error}",
        where=node.name,
        hint="look at the machine's console; run `gpuprov up` again, it goes on from here",
    )


def _compared(node: Node, key: str, known: str | None) -> str:
    """What a provider's word about a host key adds to it. Raises ProviderError where it is another key."""
    if known is None:
        return ""
    if known.split()[:2] != key.split()[:2]:
        actual_fingerprint, expected_fingerprint = host_keys.fingerprint(key), host_keys.fingerprint(known)
        raise ProviderError(
            f"{node.address} shows the host key {actual_fingerprint}, the machine's own console says "
            f"{expected_fingerprint}",
            where=node.name,
            hint="possible man in the middle: nothing was sent to the machine. Check network and proxy",
        )
    return ", as its console says"


def _refuse_moved(
    node: Node, key: str, nodes: Iterable[Node], pins: Mapping[str, tuple[str, str]], carried: Mapping[str, str]
) -> None:
    """Raise ProviderError where the machine at a new node's address is another node: it shows the host key that is
    pinned for that one, which does not show it at its own address. Copies of one image each show theirs."""
    for other in nodes:
        if other.id == node.id or pins.get(other.name) != (other.id, key):
            continue
        command = carried.get(other.name)
        observed_key = (
            host_keys.scan_through(command, other.address) if command else host_keys.scan(other.address, other.port)
        )
        if observed_key != key:
            raise ProviderError(
                f"{node.address} ({node.id}) shows the host key that is pinned for {other.id} ({other.name}), "
                f"and {other.address} ({other.id}) does not show it",
                where=node.name,
                hint="correct the addresses of both hosts in cluster.yaml; where a machine was copied, make new host "
                "keys on the copy",
            )


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
