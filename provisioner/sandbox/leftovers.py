"""What killed runs leave of a sandbox where podman does not know it any more: network namespaces, leases of addresses,
firewall rules, monitors of containers, containers of the storage alone, volumes.

All of it belongs to one octet of this machine, which one workspace has at a time (network.py): the network is called
gpuprov-<octet>, containers and volumes gpuprov-<cluster>…<octet>, and a start or a removal that is not through has a
file in RECORDS (terraform/sandbox/node.sh). A name alone is anybody's: networks and volumes have a label besides,
containers of the runtime an annotation, and a lease or a record leads to a namespace. Nothing else is touched, whatever
state it is in.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from provisioner.common.errors import GpuprovError, ProviderError
from provisioner.common.paths import private_dir, write_whole
from provisioner.sandbox import monitors, namespaces, podman_commands, podman_state
from provisioner.sandbox.backends import BACKENDS, CONTAINER_ID, LEASES, Backend, Remains, SandboxNetwork
from provisioner.sandbox.podman_state import OCTET, PodmanState
from provisioner.sandbox.runtime import Podman, find_podman

NETWORK = "gpuprov-"
"""The octet follows."""
RECORDS = Path("/run/gpuprov/starting")
"""Starts and removals that are not through, one file each: NAME.OCTET.PROCESS. It names the container, of a start also
the address."""
LEASED = Path("/run/gpuprov/leased")
"""Numbers by network, as netavark's leases until the next boot."""
LEASES_GO_WITH_NETWORK = (5, 1)
"""podman since when a network that is removed takes its leases with it (containers/common 206edae1, v0.59)."""
CGROUPS = Path("/sys/fs/cgroup")
MOUNTS = Path("/proc/self/mountinfo")
RUN = Path("/run")
"""runc and crun have a folder each, in it one for each container."""
_STARTING = re.compile(r"^address ([0-9.]+)\ncontainer ([0-9a-f]{64})$", re.M)
_REMOVING = re.compile(r"^removing ([0-9a-f]{64})$", re.M)
_RECORDED = re.compile(r"^(?:container|removing) ([0-9a-f]{64})$", re.M)
_SHM = re.compile(r"/overlay-containers/([0-9a-f]{64})/userdata/shm$")
_RECORD = "record"
DEADLINE_S = 30


@dataclass(frozen=True, slots=True)
class Leftover:
    """One of them. `remove` raises GpuprovError or OSError."""

    kind: str
    id: str
    remove: Callable[[], object]
    lease: str = ""
    """An address whose lease the backend does not give back."""

    def __str__(self) -> str:
        return f"{self.kind} {self.id}"


def find(network: SandboxNetwork, *, podman: Podman | None = None) -> list[Leftover]:
    """Everything of that network's octet that no container has any more, in the order in which it can be removed.
    Raises ProviderError where podman does not answer: what it knows is never guessed."""
    return _find(network, podman or find_podman()).leftovers


def find_foreign(network: SandboxNetwork, *, podman: Podman | None = None) -> list[str]:
    """What is in the way of a sandbox in that octet and is somebody else's; one sentence each. Raises ProviderError."""
    return _find(network, podman or find_podman()).foreign


@dataclass(frozen=True, slots=True)
class _Findings:
    """`foreign`: sentences about what is somebody else's; `makers`: processes that may be about to use one of the empty
    namespaces. As long as there are such, these are not among the leftovers, nor the records that lead to them."""

    leftovers: list[Leftover]
    foreign: list[str]
    makers: frozenset[int]


def _find(network: SandboxNetwork, engine: Podman) -> _Findings:
    octet = network.name.removeprefix(NETWORK)
    paths = namespaces.paths()  # before podman says which it knows
    journals = _journals(octet)
    state = podman_state.read(engine)
    backend: Backend = BACKENDS[podman_state.backend(engine)]()
    recorded = {path: _read(path) for path in journals}
    leftovers = [*_monitors(state, octet, recorded.values()), *_runtime_states(state, octet)]
    leftovers += [*_stored(state, octet), *_volumes(state, octet)]
    starts = [start for path, text in recorded.items() if (start := _cut_off(path, text, state))]
    removed = [id_ for text in recorded.values() for id_ in _REMOVING.findall(text) if state.is_stale(id_)]
    is_foreign_network = podman_state.networks(engine).get(network.name, octet) != octet
    leases = {} if is_foreign_network else backend.leases(network)
    stale = {address: container for address, container in leases.items() if state.is_stale(container)}
    address_of = {path: namespaces.address(path, network) for path in paths if str(path) not in state.namespaces}
    led = stale.keys() | {start.address for start in starts}
    foreign = [
        path for path, a in address_of.items() if a and not (namespaces.is_podmans(path) and (removed or a in led))
    ]
    addresses = {path: address for path, address in address_of.items() if path not in foreign}
    empty = _empty(addresses, starts, state)
    makers = frozenset(pid for path in empty for pid in namespaces.makers(path, state.processes))
    leftovers += _networks(network, backend, stale, addresses, starts, [] if makers else empty)
    leftovers += _removed(network, backend, removed)
    leftovers += [Leftover(_RECORD, path.name, path.unlink) for path in ([] if makers else journals)]
    sentences = [
        f"network namespace {path.name} has the address {address_of[path]} and is not gpuprov's" for path in foreign
    ]
    if is_foreign_network:
        sentences.append(f"podman network {network.name} does not have gpuprov's label")
    return _Findings(leftovers, sentences, makers)


def remove(network: SandboxNetwork, *, podman: Podman | None = None) -> list[str]:
    """Remove all of it, but a namespace that a podman at work may be about to use: its record leads the next call to
    it. One sentence for each that stays. Raises ProviderError as `find` does."""
    engine, remaining = podman or find_podman(), list[str]()
    findings = _find(network, engine)
    if findings.makers:
        podman_commands.wait_for_end(findings.makers)
        findings = _find(network, engine)
    for leftover in findings.leftovers:
        if leftover.kind == _RECORD and remaining:  # it still leads to what stays
            continue
        try:
            if leftover.lease:
                _note_lease(network, leftover.lease)
            leftover.remove()
        except (GpuprovError, OSError) as error:
            remaining.append(f"{leftover}: {error}")
    return remaining


def leased(network: SandboxNetwork) -> frozenset[int]:
    """Numbers of this network whose lease nobody has and podman does not give back."""
    path = LEASED / network.name
    return frozenset(map(int, path.read_text(encoding="ascii").split())) if path.exists() else frozenset()


def _note_lease(network: SandboxNetwork, address: str) -> None:
    numbers = leased(network) | {int(address.rpartition(".")[2])}
    write_whole(private_dir(LEASED) / network.name, "\n".join(map(str, sorted(numbers))) + "\n")


def remove_containers(names: Sequence[str], engine: Podman) -> None:
    """Remove containers with their anonymous volumes, running or not; one that is gone is fine. Their ids are in
    RECORDS until they are removed. Raises ProviderError."""
    rows = engine.run("ps", "--all", "--no-trunc", "--format", "{{.ID}} {{.Names}}")
    ids = {row[1]: row[0] for line in rows.splitlines() if len(row := line.split()) > 1}
    paths = {RECORDS / f"{name}.{os.getpid()}": ids[name] for name in names if name in ids}
    for path, container in paths.items():
        write_whole(private_dir(path.parent) / path.name, f"removing {container}\n")
    argv = ("rm", "--force", "--volumes", "--ignore", "--time", "0", *names)
    try:
        engine.run(*argv, deadline=120)
    except ProviderError:  # killed as it started one, podman does not know that it has mounted something
        running = engine.run("ps", "--quiet", "--no-trunc").split()
        _unmount_shm({*paths.values()} - {*running})
        engine.run(*argv, deadline=120)
    for path in paths:
        path.unlink(missing_ok=True)


def _unmount_shm(containers: Collection[str]) -> None:
    """Unmount /dev/shm of containers, a mount of its own (containers/storage: overlay-containers/ID/userdata/shm)."""
    for target in (line.split()[4] for line in MOUNTS.read_text(encoding="utf-8").splitlines()):
        if (match := _SHM.search(target)) and match[1] in containers:
            subprocess.run(["umount", target], capture_output=True, timeout=DEADLINE_S, check=False)


def octets(*, podman: Podman | None = None) -> set[int]:
    """Octets of this machine of which there is a network, a lease or the record of a start."""
    engine = podman or find_podman()
    labels = podman_state.networks(engine)
    names = [name for name, octet in labels.items() if name == f"{NETWORK}{octet}"]
    names += [path.name for path in LEASES.glob(f"{NETWORK}*") if path.name not in labels]
    octet_texts = {name.removeprefix(NETWORK) for name in names if name.startswith(NETWORK)}
    octet_texts |= {path.name.split(".")[-2] for path in RECORDS.glob("gpuprov-*.*.*")}
    return {int(text) for text in octet_texts if text.isdigit()}


def has_network(network: SandboxNetwork, *, podman: Podman | None = None) -> bool:
    """Whether podman has that network, or its backend leases of one that it does not have."""
    octet = podman_state.networks(podman or find_podman()).get(network.name)
    return (LEASES / network.name).exists() if octet is None else network.name == f"{NETWORK}{octet}"


def remove_network(network: SandboxNetwork, *, podman: Podman | None = None) -> None:
    """Remove a network that no container is in, with all of its leases; one of that name without our label is left.
    Raises ProviderError."""
    engine = podman or find_podman()
    octet = podman_state.networks(engine).get(network.name)
    if octet is not None:
        if network.name != f"{NETWORK}{octet}":
            return
        engine.run("network", "rm", network.name)
    BACKENDS[podman_state.backend(engine)]().forget(network)
    if leased(network) and podman_state.version(engine) >= LEASES_GO_WITH_NETWORK:
        (LEASED / network.name).unlink()


def _belongs(name: str, octet: str) -> bool:
    return name.startswith("gpuprov-") and name.endswith(f".{octet}")


def _monitors(state: PodmanState, octet: str, records: Collection[str]) -> Iterator[Leftover]:
    """Monitors of containers that podman does not know; they hold the ports of their nodes open, and systemd runs on in
    the containers. The runtime knows whose a container is; where it does not know that one, a record does."""
    recorded = {container for text in records for container in _RECORDED.findall(text)}
    for monitor in monitors.find(state.processes, state.podman):
        container = monitor.container
        if not _belongs(monitor.name, octet) or container in state.containers:
            continue
        annotation = _annotation(container, state.podman)
        if annotation == octet or (annotation is None and container in recorded):
            yield Leftover(
                "monitor", f"{monitor.name} (process {monitor.pid})", partial(_end, monitor, state.podman)
            )  # fmt: skip


def _end(monitor: monitors.Monitor, podman: Podman) -> None:
    monitors.kill(monitor)
    _delete_from_runtime(monitor.container, podman)


def _runtime_states(state: PodmanState, octet: str) -> Iterator[Leftover]:
    """Containers that only the runtime knows."""
    folder = RUN / Path(state.podman.runtime).name
    for path in sorted(folder.iterdir()) if folder.is_dir() else []:
        is_unknown = path.name not in state.containers and CONTAINER_ID.fullmatch(path.name)
        if is_unknown and _annotation(path.name, state.podman) == octet:
            delete = partial(_delete_from_runtime, path.name, state.podman)
            yield Leftover("container of the runtime", path.name[:12], delete)


def _annotation(container: str, podman: Podman) -> str | None:
    """The octet that node.sh gave a container (OCI runtime specification, runtime.md: State), "" for one that it did
    not make; None where the runtime does not know it."""
    argv = [podman.runtime, "state", container]
    done = subprocess.run(argv, capture_output=True, timeout=DEADLINE_S, check=False)
    try:
        annotations = json.loads(done.stdout)["annotations"]
    except (ValueError, LookupError, TypeError):
        return None if done.returncode else ""
    return str(annotations.get(OCTET, "")) if isinstance(annotations, dict) else ""


def _delete_from_runtime(container: str, podman: Podman) -> None:
    argv = [podman.runtime, "delete", "--force", container]
    subprocess.run(argv, capture_output=True, timeout=DEADLINE_S, check=False)
    _remove_cgroups(container)


def _remove_cgroups(container: str) -> None:
    """Control groups without processes of a container; where systemd manages them, it has removed them."""
    folders = [*CGROUPS.glob("libpod_parent"), *CGROUPS.glob("*/libpod_parent")]  # of version 2, of each controller
    for folder in (parent / f"libpod-{container}" for parent in folders if CONTAINER_ID.fullmatch(container)):
        for path, _, _ in os.walk(folder, topdown=False):
            with contextlib.suppress(OSError):  # its container runs
                Path(path).rmdir()


def _stored(state: PodmanState, octet: str) -> Iterator[Leftover]:
    for container, name in state.stored.items():
        if _belongs(name, octet):
            yield Leftover("storage of container", name, partial(state.podman.run, "rm", "--force", container))


def _volumes(state: PodmanState, octet: str) -> Iterator[Leftover]:
    for name, label in state.volumes.items():
        if label == octet and _belongs(name, octet) and name not in state.names:
            yield Leftover("volume", name, partial(state.podman.run, "volume", "rm", name))


def _journals(octet: str) -> list[Path]:
    paths = sorted(RECORDS.glob(f"gpuprov-*.{octet}.*")) if RECORDS.is_dir() else []
    return [path for path in paths if path.suffix[1:].isdigit()]


@dataclass(frozen=True, slots=True)
class _Start:
    """A start that was cut off, of a container without a network as podman knows it. `since`: Unix time."""

    address: str
    container: str
    since: float


def _read(record: Path) -> str:
    try:
        return record.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:  # it is through
        return ""


def _cut_off(record: Path, text: str, state: PodmanState) -> _Start | None:
    match = _STARTING.search(text)
    if not match or not state.is_stale(match[2]):
        return None
    try:
        return _Start(match[1], match[2], record.stat().st_mtime)
    except FileNotFoundError:  # it is through
        return None


def _empty(addresses: Mapping[Path, str | None], starts: Collection[_Start], state: PodmanState) -> list[Path]:
    """Namespaces without an address that were made since one of these starts and that nobody has: podman names none to
    us as it makes it."""
    since = min((start.since for start in starts), default=None)
    return [
        path
        for path, address in addresses.items()
        if since is not None and not address and namespaces.is_empty(path, since, state.processes)
    ]


def _networks(
    network: SandboxNetwork,
    backend: Backend,
    stale: Mapping[str, str],
    addresses: Mapping[Path, str | None],
    starts: Collection[_Start],
    empty: Collection[Path],
) -> Iterator[Leftover]:
    """Networks of containers that were never started to the end: namespaces with an address of the network, empty ones
    (which of them is which start's makes no difference), rules of starts without a namespace, leases (`stale`: address
    → container)."""
    started = {start.address: start.container for start in starts}
    remains = [
        Remains(stale.get(address) or started.get(address, ""), address, path)
        for path, address in addresses.items()
        if address
    ]
    remaining = iter([start for start in starts if start.address not in addresses.values()])
    leases = {remain: remain.address or "" for remain in remains}
    for path in empty:
        start = next(remaining, None)
        leases[Remains(start.container if start else "", None, path)] = start.address if start else ""
    for remain, lease in leases.items():
        stale = {key: value for key, value in stale.items() if value != remain.container}
        take_down = partial(_take_down, backend, network, remain)
        assert remain.namespace is not None
        yield Leftover("network namespace", remain.namespace.name, take_down, "" if backend.gives_back else lease)
    for start in remaining:  # podman has cleaned up after a plugin that failed, which leaves its rules
        if start.container not in stale.values():
            take_down = partial(_take_down, backend, network, Remains(start.container, None, None))
            yield Leftover("firewall rules of container", start.container[:12], take_down)
    for address, container in stale.items():
        take_down = partial(_take_down, backend, network, Remains(container, address, None))
        yield Leftover("address lease", f"{address} (container {container[:12]})", take_down)


def _removed(network: SandboxNetwork, backend: Backend, containers: Collection[str]) -> Iterator[Leftover]:
    """Networks of containers whose removal was cut off after podman had forgotten them."""
    for container in containers:
        take_down = partial(_take_down, backend, network, Remains(container, None, None))
        yield Leftover("network of removed container", container[:12], take_down)


def _take_down(backend: Backend, network: SandboxNetwork, remains: Remains) -> None:
    if remains.namespace is not None:
        for pid in namespaces.occupants(remains.namespace, podman_state.processes()):
            raise ProviderError(f"process {pid} runs in it")
    try:
        backend.tear_down(network, remains)  # reads in the namespace which rules to remove
    except ProviderError:  # CNI's bridge and netavark stop at a rule that is not there, and go on from there
        backend.tear_down(network, remains)
    _remove_cgroups(remains.container)
    if remains.namespace is not None:
        argv = ["umount", str(remains.namespace)]
        subprocess.run(argv, capture_output=True, timeout=DEADLINE_S, check=False)
        remains.namespace.unlink()
