"""What killed runs leave of a sandbox where podman does not know it any more: network namespaces, leases of addresses,
firewall rules, monitors of containers, containers of the storage alone, volumes.

All of it belongs to one octet of this machine, which one workspace has at a time (network.py): the network is called
gpuprov-<octet>, containers and volumes gpuprov-<cluster>…<octet>, and a start or a removal that is not through has a
file in RECORDS (terraform/sandbox/node.sh). Nothing else is touched, whatever state it is in.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import signal
import subprocess
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from provisioner.errors import GpuprovError, ProviderError
from provisioner.paths import private_dir, write_whole
from provisioner.sandbox import podman_state
from provisioner.sandbox.backends import BACKENDS, LEASES, Backend, Remains, SandboxNetwork
from provisioner.sandbox.podman_state import PodmanState
from provisioner.sandbox.runtime import Podman, find_podman

NETWORK = "gpuprov-"
"""The octet follows."""
RECORDS = Path("/run/gpuprov/starting")
"""Starts and removals that are not through, one file each: NAME.OCTET.PROCESS. Of a start it has what podman told, of a
removal the container's id."""
LEASED = Path("/run/gpuprov/leased")
"""Numbers by network, as netavark's leases until the next boot."""
LEASES_GO_WITH_NETWORK = (5, 1)
"""podman since when a network that is removed takes its leases with it (containers/common 206edae1, v0.59)."""
NAMESPACES = Path("/run/netns")
CGROUPS = Path("/sys/fs/cgroup")
MOUNTS = Path("/proc/self/mountinfo")
RUN = Path("/run")
"""runc and crun have a folder each, in it one for each container."""
ANNOTATION = "gpuprov.octet"
_CREATED = re.compile(r"Made network namespace at (/run/netns/[\w-]+) for container ([0-9a-f]{64})")
_REMOVING = re.compile(r"^removing ([0-9a-f]{64})$", re.M)
_SHM = re.compile(r"/overlay-containers/([0-9a-f]{64})/userdata/shm$")
_ADDRESS = re.compile(r"^address ([0-9.]+)$", re.M)
_LOCAL = re.compile(r"\|-- ([0-9.]+)\n\s+/32 host LOCAL")
"""An address of this host in /proc/net/fib_trie."""
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
    engine = podman or find_podman()
    octet = network.name.removeprefix(NETWORK)
    namespaces = sorted(NAMESPACES.iterdir()) if NAMESPACES.is_dir() else []  # before podman says which it knows
    journals = _journals(octet)
    state = podman_state.read(engine)
    backend: Backend = BACKENDS[podman_state.backend(engine)]()
    leftovers = [*_monitors(state, octet), *_runtime_states(state, octet)]
    leftovers += [*_stored(state, octet), *_volumes(state, octet)]
    leftovers += _networks(state, network, backend, namespaces, journals)
    return leftovers + [Leftover(_RECORD, path.name, path.unlink) for path in journals]


def remove(network: SandboxNetwork, *, podman: Podman | None = None) -> list[str]:
    """Remove all of it. One sentence for each that stays. Raises ProviderError as `find` does."""
    engine, remaining = podman or find_podman(), list[str]()
    for leftover in find(network, podman=engine):
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
    names = engine.run("network", "ls", "--format", "{{.Name}}").split()
    names += [path.name for path in LEASES.glob(f"{NETWORK}*")]
    octet_texts = {name.removeprefix(NETWORK) for name in names if name.startswith(NETWORK)}
    octet_texts |= {path.name.split(".")[-2] for path in RECORDS.glob("gpuprov-*.*.*")}
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
    BACKENDS[podman_state.backend(engine)]().forget(network)
    if leased(network) and podman_state.version(engine) >= LEASES_GO_WITH_NETWORK:
        (LEASED / network.name).unlink()


def _belongs(name: str, octet: str) -> bool:
    return name.startswith("gpuprov-") and name.endswith(f".{octet}")


def _monitors(state: PodmanState, octet: str) -> Iterator[Leftover]:
    """Monitors of containers that podman does not know; they hold the ports of their nodes open, and systemd runs on in
    the containers."""
    for pid, arguments in state.processes.items():
        options = dict(reversed([*itertools.pairwise(arguments)]))
        name, container = options.get("-n", ""), options.get("-c", "")
        if Path(arguments[0]).name == "conmon" and _belongs(name, octet) and container not in state.containers:
            yield Leftover("monitor", f"{name} (process {pid})", partial(_end, pid, container, state.podman))


def _end(pid: int, container: str, podman: Podman) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    _delete_from_runtime(container, podman)


def _runtime_states(state: PodmanState, octet: str) -> Iterator[Leftover]:
    """Containers that only the runtime knows, by an annotation that node.sh gives them (OCI runtime specification,
    runtime.md: State)."""
    folder = RUN / Path(state.podman.runtime).name
    for path in sorted(folder.iterdir()) if folder.is_dir() else []:
        if path.name in state.containers:
            continue
        argv = [state.podman.runtime, "state", path.name]
        done = subprocess.run(argv, capture_output=True, timeout=DEADLINE_S, check=False)
        with contextlib.suppress(ValueError, LookupError, TypeError):
            if json.loads(done.stdout)["annotations"][ANNOTATION] == octet:
                delete = partial(_delete_from_runtime, path.name, state.podman)
                yield Leftover("container of the runtime", path.name[:12], delete)


def _delete_from_runtime(container: str, podman: Podman) -> None:
    argv = [podman.runtime, "delete", "--force", container]
    subprocess.run(argv, capture_output=True, timeout=DEADLINE_S, check=False)
    _remove_cgroups(container)


def _remove_cgroups(container: str) -> None:
    """Control groups without processes of a container; where systemd manages them, it has removed them."""
    folders = [*CGROUPS.glob("libpod_parent"), *CGROUPS.glob("*/libpod_parent")]  # of version 2, of each controller
    for folder in (parent / f"libpod-{container}" for parent in folders if container):
        for path, _, _ in os.walk(folder, topdown=False):
            with contextlib.suppress(OSError):  # its container runs
                Path(path).rmdir()


def _stored(state: PodmanState, octet: str) -> Iterator[Leftover]:
    for container, name in state.stored.items():
        if _belongs(name, octet):
            yield Leftover("storage of container", name, partial(state.podman.run, "rm", "--force", container))


def _volumes(state: PodmanState, octet: str) -> Iterator[Leftover]:
    for name in state.volumes:
        if _belongs(name, octet) and name not in state.names:
            yield Leftover("volume", name, partial(state.podman.run, "volume", "rm", name))


def _journals(octet: str) -> list[Path]:
    paths = sorted(RECORDS.glob(f"gpuprov-*.{octet}.*")) if RECORDS.is_dir() else []
    return [path for path in paths if path.suffix[1:].isdigit()]


def _networks(
    state: PodmanState,
    network: SandboxNetwork,
    backend: Backend,
    namespaces: list[Path],
    journals: list[Path],
) -> Iterator[Leftover]:
    """Networks of containers that were never started to the end. A namespace is ours by its address, or because podman
    named it to us as it made it."""
    texts = [path.read_text(encoding="utf-8", errors="replace") for path in journals]
    created = dict(pair for text in texts for pair in _CREATED.findall(text))
    planned = {
        pair[1]: match[1] for text in texts for pair in _CREATED.findall(text) if (match := _ADDRESS.search(text))
    }
    stale = {a: container for a, container in backend.leases(network).items() if state.is_stale(container)}
    for path in namespaces:
        address = _address(path, network) if str(path) not in state.namespaces else None
        if not address and (str(path) not in created or str(path) in state.namespaces):
            continue
        container = created.get(str(path)) or stale.get(address or "", "")
        stale = {key: value for key, value in stale.items() if value != container}
        lease = "" if backend.gives_back else (address or planned.get(container, ""))
        take_down = partial(_take_down, backend, network, Remains(container, address, path))
        yield Leftover("network namespace", path.name, take_down, lease)
    for container in (id_ for text in texts for id_ in _REMOVING.findall(text) if state.is_stale(id_)):
        take_down = partial(_take_down, backend, network, Remains(container, None, None))
        yield Leftover("network of removed container", container[:12], take_down)
    for address, container in stale.items():
        take_down = partial(_take_down, backend, network, Remains(container, address, None))
        yield Leftover("address lease", f"{address} (container {container[:12]})", take_down)


def _address(namespace: Path, network: SandboxNetwork) -> str | None:
    """The address of a namespace in that network; None where it has none there, or is no namespace."""
    done = subprocess.run(
        ["nsenter", f"--net={namespace}", "cat", "/proc/self/net/fib_trie"],
        capture_output=True, text=True, encoding="utf-8", errors="replace", timeout=DEADLINE_S, check=False,
    )  # fmt: skip
    matches = (address for address in _LOCAL.findall(done.stdout) if address.startswith(f"{network.subnet}."))
    return next(matches, None)


def _take_down(backend: Backend, network: SandboxNetwork, remains: Remains) -> None:
    try:
        backend.tear_down(network, remains)  # reads in the namespace which rules to remove
    except ProviderError:  # CNI's bridge and netavark stop at a rule that is not there, and go on from there
        backend.tear_down(network, remains)
    _remove_cgroups(remains.container)
    if remains.namespace is not None:
        argv = ["umount", str(remains.namespace)]
        subprocess.run(argv, capture_output=True, timeout=DEADLINE_S, check=False)
        remains.namespace.unlink()
