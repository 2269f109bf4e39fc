"""What killed runs leave of a sandbox where podman does not know it any more: network namespaces, leases of addresses,
firewall rules, monitors of containers, containers of the storage alone, volumes.

All of it belongs to one octet of this machine, which one workspace has at a time (network.py): the network is called
gpuprov-<octet>, containers and volumes gpuprov-<cluster>…<octet>, and a start that is not through has a file in
STARTING (terraform/sandbox/node.sh). Nothing else is touched, whatever state it is in.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from provisioner.errors import GpuprovError, ProviderError
from provisioner.sandbox.backends import BACKENDS, LEASES, Backend, Remains, SandboxNetwork
from provisioner.sandbox.runtime import Podman, find_podman

NETWORK = "gpuprov-"
"""The octet follows."""
STARTING = Path("/run/gpuprov/starting")
"""What podman told of starts that are not through, one file each: NAME.OCTET.PROCESS."""
NAMESPACES = Path("/run/netns")
_CREATED = re.compile(r"Made network namespace at (/run/netns/[\w-]+) for container ([0-9a-f]{64})")
_ADDRESS = re.compile(r"^address ([0-9.]+)$", re.M)
_LOCAL = re.compile(r"\|-- ([0-9.]+)\n\s+/32 host LOCAL")
"""An address of this host in /proc/net/fib_trie."""
_RECORD = "record"
IMAGES = "localhost/gpuprov-"
CHANGING = frozenset({"build", "commit", "create", "import", "load", "pull", "rm", "rmi", "run"})
"""Commands of podman's that make or remove layers."""
TRIES = 3
DEADLINE_S = 30


@dataclass(frozen=True, slots=True)
class Leftover:
    """One of them. `remove` raises GpuprovError or OSError."""

    kind: str
    id: str
    remove: Callable[[], object]
    lease: str = ""
    """An address whose lease the backend gives back with the whole network alone."""

    def __str__(self) -> str:
        return f"{self.kind} {self.id}"


@dataclass(frozen=True, slots=True)
class _Container:
    name: str
    namespace: str


@dataclass(frozen=True, slots=True)
class _Machine:
    """What podman knows, and what runs. `containers`: by id; `stored`: id → name of those that only the storage knows;
    `processes`: arguments by process."""

    podman: Podman
    containers: dict[str, _Container]
    stored: dict[str, str]
    volumes: tuple[str, ...]
    processes: dict[int, list[str]]

    @property
    def names(self) -> set[str]:
        return {container.name for container in self.containers.values()}

    @property
    def namespaces(self) -> set[str]:
        return {container.namespace for container in self.containers.values()}

    def is_stale(self, container: str) -> bool:
        """Whether a container that has a lease has no network as podman knows it, and none is about to be made (the
        node boots again: its monitor has called podman)."""
        known = self.containers.get(container)
        if known is None or known.namespace:
            return known is None
        return not any(
            Path(arguments[0]).name == "podman" and not {container, known.name}.isdisjoint(arguments)
            for arguments in self.processes.values()
        )


@dataclass(frozen=True, slots=True)
class Removal:
    """`remaining`: one sentence for each thing that stays; `leased`: addresses that cannot be used before the whole
    network is removed."""

    remaining: Sequence[str]
    leased: Sequence[str]


def find(network: SandboxNetwork, *, podman: Podman | None = None) -> list[Leftover]:
    """Everything of that network's octet that no container has any more, in the order in which it can be removed.
    Raises ProviderError where podman does not answer: what it knows is never guessed."""
    engine = podman or find_podman()
    octet = network.name.removeprefix(NETWORK)
    namespaces = sorted(NAMESPACES.iterdir()) if NAMESPACES.is_dir() else []  # before podman says which it knows
    journals = _journals(octet)
    machine = _machine(engine)
    backend: Backend = BACKENDS[_backend(engine)]()
    leftovers = [*_monitors(machine, octet), *_stored(machine, octet), *_volumes(machine, octet)]
    leftovers += _networks(machine, network, backend, namespaces, journals)
    return leftovers + [Leftover(_RECORD, path.name, path.unlink) for path in journals]


def remove(network: SandboxNetwork, *, podman: Podman | None = None) -> Removal:
    """Remove all of it. Raises ProviderError as `find` does."""
    engine, remaining, leased = podman or find_podman(), list[str](), list[str]()
    for leftover in find(network, podman=engine):
        if leftover.kind == _RECORD and remaining:  # it still leads to what stays
            continue
        leased += [leftover.lease] if leftover.lease else []
        try:
            leftover.remove()
        except (GpuprovError, OSError) as error:
            remaining.append(f"{leftover}: {error}")
    return Removal(remaining, leased)


def remove_layers() -> None:
    """Remove layers on top of the sandbox's images that no container has: podman was killed between the two. podman
    itself has a command for them since 5.2 alone (`podman system check`); containers-storage deletes none that is in
    use. Nothing happens where that is not installed, or where podman is at work."""
    if shutil.which("containers-storage") is None:
        return
    layers, images, containers = (_storage(kind) for kind in ("layers", "images", "containers"))
    if any(Path(arguments[0]).name == "podman" and CHANGING & {*arguments} for arguments in _processes().values()):
        return
    bases = {row["layer"] for row in images if any(name.startswith(IMAGES) for name in row.get("names") or ())}
    in_use = {row.get("parent") for row in layers} | {row.get("layer") for row in (*images, *containers)}
    for layer in layers:
        if layer.get("parent") in bases and layer["id"] not in in_use:
            argv = ["containers-storage", "delete-layer", str(layer["id"])]
            subprocess.run(argv, capture_output=True, timeout=DEADLINE_S, check=False)


def _storage(kind: str) -> list[dict[str, Any]]:
    argv = ["containers-storage", kind, "--json"]
    done = subprocess.run(argv, capture_output=True, timeout=DEADLINE_S, check=False)
    try:
        rows = json.loads(done.stdout or "[]")
    except ValueError:
        rows = None
    if done.returncode or not isinstance(rows, list):
        raise ProviderError(f"containers-storage {kind} failed", hint="run it to see why")
    return rows


def octets(*, podman: Podman | None = None) -> set[int]:
    """Octets of this machine of which there is a network, a lease or the record of a start."""
    engine = podman or find_podman()
    names = engine.run("network", "ls", "--format", "{{.Name}}").split()
    names += [path.name for path in LEASES.glob(f"{NETWORK}*")]
    octet_texts = {name.removeprefix(NETWORK) for name in names if name.startswith(NETWORK)}
    octet_texts |= {path.name.split(".")[-2] for path in STARTING.glob("gpuprov-*.*.*")}
    return {int(text) for text in octet_texts if text.isdigit()}


def has_network(network: SandboxNetwork, *, podman: Podman | None = None) -> bool:
    """Whether podman has a network of that name, or its backend leases of one."""
    engine = podman or find_podman()
    names = engine.run("network", "ls", "--format", "{{.Name}}").split()
    return network.name in names or (LEASES / network.name).exists()


def remove_network(network: SandboxNetwork, *, podman: Podman | None = None) -> None:
    """Remove a network that no container is in, with all of its leases. Raises ProviderError."""
    engine = podman or find_podman()
    if network.name in engine.run("network", "ls", "--format", "{{.Name}}").split():
        engine.run("network", "rm", network.name)
    BACKENDS[_backend(engine)]().forget(network)


def _backend(engine: Podman) -> str:
    name = engine.run("info", "--format", "{{.Host.NetworkBackend}}").strip()
    if name not in BACKENDS:
        raise ProviderError(f"podman's network backend {name} is not known", hint="gpuprov knows cni and netavark")
    return name


def _machine(engine: Podman) -> _Machine:
    """Containers come and go meanwhile; one that cannot be looked at could be the owner of anything."""
    form = "{{.Id}} {{.Name}} {{.NetworkSettings.SandboxKey}}"
    for _ in range(TRIES):
        listed = engine.run("ps", "--all", "--external", "--no-trunc", "--format", "{{.ID}} {{.State}} {{.Names}}")
        rows = {row[0]: (row[1].lower(), row[2]) for line in listed.splitlines() if len(row := line.split()) > 2}
        stored = {id_: name for id_, (state, name) in rows.items() if state == "storage"}
        ids = [id_ for id_ in rows if id_ not in stored]
        details = engine.run("container", "inspect", "--format", form, *ids, check=False) if ids else ""
        containers = {row[0]: _Container(row[1], row[2]) for line in details.splitlines() if (row := line.split(" "))}
        for id_, (state, name) in rows.items():  # a removal that was killed half way, after that of the network
            if state == "removing" and id_ not in containers:
                containers[id_] = _Container(name, "")
        if containers.keys() >= {*ids}:
            volumes = tuple(engine.run("volume", "ls", "--quiet").split())
            return _Machine(engine, containers, stored, volumes, _processes())
    raise ProviderError("podman lists containers that it cannot inspect", hint="run `podman ps --all` to see them")


def _belongs(name: str, octet: str) -> bool:
    return name.startswith("gpuprov-") and name.endswith(f".{octet}")


def _processes() -> dict[int, list[str]]:
    processes = {}
    for entry in Path("/proc").iterdir():
        try:
            arguments = (entry / "cmdline").read_text(errors="replace").split("\0") if entry.name.isdigit() else [""]
        except OSError:  # it has ended meanwhile
            continue
        if arguments[0]:
            processes[int(entry.name)] = arguments
    return processes


def _monitors(machine: _Machine, octet: str) -> Iterator[Leftover]:
    """Monitors of containers that podman does not know; they hold the ports of their nodes open, and systemd runs on in
    the containers."""
    for pid, arguments in machine.processes.items():
        options = dict(reversed([*itertools.pairwise(arguments)]))
        name, container = options.get("-n", ""), options.get("-c", "")
        if Path(arguments[0]).name == "conmon" and _belongs(name, octet) and container not in machine.containers:
            yield Leftover("monitor", f"{name} (process {pid})", partial(_end, pid, container, machine.podman))


def _end(pid: int, container: str, podman: Podman) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    argv = [podman.runtime, "delete", "--force", container]
    subprocess.run(argv, capture_output=True, timeout=DEADLINE_S, check=False)


def _stored(machine: _Machine, octet: str) -> Iterator[Leftover]:
    for container, name in machine.stored.items():
        if _belongs(name, octet):
            yield Leftover("storage of container", name, partial(machine.podman.run, "rm", "--force", container))


def _volumes(machine: _Machine, octet: str) -> Iterator[Leftover]:
    for name in machine.volumes:
        if _belongs(name, octet) and name not in machine.names:
            yield Leftover("volume", name, partial(machine.podman.run, "volume", "rm", name))


def _journals(octet: str) -> list[Path]:
    paths = sorted(STARTING.glob(f"gpuprov-*.{octet}.*")) if STARTING.is_dir() else []
    return [path for path in paths if path.suffix[1:].isdigit()]


def _networks(
    machine: _Machine, network: SandboxNetwork, backend: Backend, namespaces: list[Path], journals: list[Path]
) -> Iterator[Leftover]:
    """Networks of containers that were never started to the end. A namespace is ours by its address, or because podman
    named it to us as it made it."""
    texts = [path.read_text(errors="replace") for path in journals]
    created = dict(pair for text in texts for pair in _CREATED.findall(text))
    planned = {
        pair[1]: match[1] for text in texts for pair in _CREATED.findall(text) if (match := _ADDRESS.search(text))
    }
    stale = {a: container for a, container in backend.leases(network).items() if machine.is_stale(container)}
    for path in namespaces:
        address = _address(path, network) if str(path) not in machine.namespaces else None
        if not address and (str(path) not in created or str(path) in machine.namespaces):
            continue
        container = created.get(str(path)) or stale.get(address or "", "")
        stale = {key: value for key, value in stale.items() if value != container}
        lease = "" if backend.gives_back else (address or planned.get(container, ""))
        take_down = partial(_take_down, backend, network, Remains(container, address, path))
        yield Leftover("network namespace", path.name, take_down, lease)
    for address, container in stale.items():
        take_down = partial(_take_down, backend, network, Remains(container, address, None))
        yield Leftover("address lease", f"{address} (container {container[:12]})", take_down)


def _address(namespace: Path, network: SandboxNetwork) -> str | None:
    """The address of a namespace in that network; None where it has none there, or is no namespace."""
    done = subprocess.run(
        ["nsenter", f"--net={namespace}", "cat", "/proc/self/net/fib_trie"],
        capture_output=True, text=True, timeout=DEADLINE_S, check=False,
    )  # fmt: skip
    matches = (address for address in _LOCAL.findall(done.stdout) if address.startswith(f"{network.subnet}."))
    return next(matches, None)


def _take_down(backend: Backend, network: SandboxNetwork, remains: Remains) -> None:
    backend.tear_down(network, remains)  # reads in the namespace which rules to remove
    if remains.namespace is not None:
        argv = ["umount", str(remains.namespace)]
        subprocess.run(argv, capture_output=True, timeout=DEADLINE_S, check=False)
        remains.namespace.unlink()
