"""Addresses of sandbox nodes: one octet per cluster on this machine, one number per node in the cluster.

A node is reached at 127.77.<octet>.<number>:22 and talks to the others as 10.77.<octet>.<number>, in podman's network
gpuprov-<octet>, which has nobody else's containers. Octets are directories in /var/lib/gpuprov, renamed into place
(atomic for all processes of the machine); numbers are written in the workspace, so that a node keeps its address when
groups grow, shrink or are reordered.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Collection, Iterable
from functools import partial
from ipaddress import IPv4Address, IPv4Network, ip_network
from pathlib import Path

from provisioner.common.errors import GpuprovError, ProviderError
from provisioner.common.paths import cache, private_dir, write_whole
from provisioner.common.text import counted
from provisioner.sandbox import containers, layers, leftovers
from provisioner.sandbox.backends import SandboxNetwork
from provisioner.sandbox.leftovers import Leftover

OCTETS = range(250, 0, -1)
MIRROR, JUMP = 2, 3
"""Numbers of the containers beside the nodes."""
FIRST = 4
MOST_NODES = 250
OWNER = "workspace"
NUMBERS = "addresses.json"
HOST_PREFIX = "127.77"
PREFIX = "10.77"
"""First two octets of the nodes' own addresses; GPUPROV_SANDBOX_NETWORK has others where this computer's network uses
them. podman gives its other networks 10.88.0.0/16 and what is above (containers.conf(5), `default_subnet_pools`)."""
ROUTES = Path("/proc/net/route")


def _octets() -> Path:
    # One for the whole machine, not for a user or a cache: two that run at once share podman's network.
    base = Path(os.environ.get("GPUPROV_STATE", "/var/lib/gpuprov"))
    if not os.access(base if base.exists() else base.parent, os.W_OK):
        base = cache()
    return private_dir(private_dir(base / "sandbox") / "octets")


def of_octet(octet: int) -> SandboxNetwork:
    """The network of one sandbox. Raises GpuprovError for a wrong GPUPROV_SANDBOX_NETWORK."""
    prefix = os.environ.get("GPUPROV_SANDBOX_NETWORK") or PREFIX
    try:
        ip_network(f"{prefix}.0.0/16")
    except ValueError:
        raise GpuprovError(
            f"GPUPROV_SANDBOX_NETWORK ({prefix!r}) is not two numbers from 0 to 255", hint=f"such as {PREFIX}"
        ) from None
    return SandboxNetwork(f"{leftovers.NETWORK}{octet}", f"{prefix}.{octet}", f"{HOST_PREFIX}.{octet}")


def allocate_octet(workspace: Path) -> int:
    """The octet (1 to 250) of this workspace, the same one at every call until it is released. What killed runs left
    of it is removed first; one where that fails is not chosen.

    Entries whose workspace is gone and that no container uses are taken over. Raises `GpuprovError` when all are in
    use, `ProviderError` where nodes stand in the workspace's octet and something of it cannot be removed.
    """
    owner = str(workspace.absolute())
    root = _octets()
    owner_of = {int(entry.name): _owner(entry) for entry in root.iterdir() if entry.name.isdigit()}
    used = containers.octets_in_use()
    current = next((octet for octet, holder in owner_of.items() if holder == owner), None)
    if current is not None and _is_ready(current, used):
        layers.remove_unused()
        return current
    for octet, holder in owner_of.items():
        if octet == current or (octet not in used and holder is not None and not Path(holder).is_dir()):
            _drop(root / str(octet))
    subnets, failures = _connected(), dict[int, str]()
    for octet in OCTETS:
        network = of_octet(octet)
        if octet in used or any(ip_network(network.cidr).overlaps(subnet) for subnet in subnets):
            continue
        if _claim(root, octet, owner):
            remaining = _clear(network) or leftovers.find_foreign(network)
            for number in sorted(leftovers.leased(network) & {MIRROR, JUMP}):
                remaining.append(f"podman does not give back {network.subnet}.{number} before the next boot")
            if not remaining:
                layers.remove_unused()
                return octet
            failures[octet] = remaining[0]
            _drop(root / str(octet))
    raise GpuprovError(
        f"no sandbox network of this machine is free: all {len(OCTETS)} are in use"
        + "".join(f"; {octet}: {reason}" for octet, reason in failures.items()),
        hint="`gpuprov down` a cluster that is not needed, or set GPUPROV_SANDBOX_NETWORK to the first two octets of "
        f"unused addresses (default {PREFIX})",
    )


def _is_ready(octet: int, used: Collection[int]) -> bool:
    """Whether a workspace can go on with its octet."""
    network = of_octet(octet)
    if octet not in used:
        return not _clear(network) and not leftovers.find_foreign(network)
    if remaining := leftovers.remove(network):
        raise ProviderError(
            "what a killed run left of this sandbox is not removed: " + "; ".join(remaining),
            where=network.name,
            hint="`gpuprov down FILE`, then `gpuprov up FILE --sandbox`: it takes other addresses where this remains",
        )
    return leftovers.leased(network).isdisjoint((MIRROR, JUMP))


def _clear(network: SandboxNetwork) -> list[str]:
    """Remove a network that no container is in, and all that is left of it. One sentence for each that stays."""
    remaining = list(leftovers.remove(network))
    if not remaining:
        try:
            leftovers.remove_network(network)
        except ProviderError as error:
            remaining.append(f"network {network.name}: {error.message}")
    return remaining


def _connected() -> list[IPv4Network]:
    """Subnets in which this computer is itself: podman refuses them. Those of podman's bridges are not among them."""
    subnets = []
    for line in ROUTES.read_text(encoding="ascii").splitlines()[1:]:
        interface, destination, gateway, *_, mask = line.split()[:8]
        if int(gateway, 16) == 0 and not interface.startswith(("podman", "cni-podman")):
            address, netmask = (IPv4Address(bytes.fromhex(text)[::-1]) for text in (destination, mask))
            subnets.append(IPv4Network(f"{address}/{netmask}", strict=False))
    return subnets


def _claim(root: Path, octet: int, owner: str) -> bool:
    # The directory arrives with its owner inside: renaming onto one that holds a file fails, so one of two wins.
    if (root / str(octet)).exists():
        return False
    prepared = Path(tempfile.mkdtemp(dir=root, prefix=".new-"))
    try:
        (prepared / OWNER).write_text(owner, encoding="utf-8")
        prepared.rename(root / str(octet))
    except OSError:
        shutil.rmtree(prepared, ignore_errors=True)
        return False
    return True


def release_octet(workspace: Path) -> list[str]:
    """Give the octet of this workspace back with its network; nothing happens when it has none. One sentence for each
    thing that could not be removed: the octet then stays."""
    owner, remaining = str(workspace.absolute()), list[str]()
    for entry in _octets().iterdir():
        if _owner(entry) == owner:
            entry_remaining = _clear(of_octet(int(entry.name))) if entry.name.isdigit() else []
            remaining += entry_remaining
            if not entry_remaining:
                _drop(entry)
                layers.remove_unused()
    return remaining


def list_leftovers(octet: int, *, in_use: bool) -> list[Leftover]:
    """What is left of an octet; its network with it, unless containers are in it. Raises ProviderError."""
    network = of_octet(octet)
    remaining = leftovers.find(network)
    if not in_use and leftovers.has_network(network):
        remaining.append(Leftover("network", network.name, partial(leftovers.remove_network, network)))
    return remaining


def clear_octet(octet: int) -> list[str]:
    """Remove all that is left of an octet that no workspace has. One sentence for each that stays."""
    remaining = _clear(of_octet(octet))
    layers.remove_unused()
    return remaining


def owners() -> dict[int, str]:
    """Octet → the workspace that has it."""
    entries = ((entry.name, _owner(entry)) for entry in _octets().iterdir())
    return {int(name): owner for name, owner in entries if name.isdigit() and owner is not None}


def _owner(entry: Path) -> str | None:
    try:
        return (entry / OWNER).read_text(encoding="utf-8")
    except OSError:
        return None


def _drop(entry: Path) -> None:
    # Renamed first: nobody ever sees a directory that is half gone, and of two that drop it one wins.
    dropped = entry.with_name(f".gone-{entry.name}")
    try:
        entry.rename(dropped)
    except OSError:
        return
    shutil.rmtree(dropped, ignore_errors=True)


def node_numbers(workspace: Path, names: Iterable[str], unusable: Collection[int] = ()) -> dict[str, int]:
    """A number for each node name, kept in the workspace: also that of a node that is not among them, which may still
    have its machine, as long as there are others. A number that a removed node had is used again last. `unusable`:
    numbers of this octet that no node can have; one that had it gets another.

    Raises `GpuprovError` where there are more nodes than numbers.
    """
    requested = list(names)
    maximum = MOST_NODES - len(unusable)
    if len(requested) > maximum:
        raise GpuprovError(
            f"{counted(len(requested), 'node')} are too many for one sandbox cluster, {maximum} is the most",
            hint="use smaller counts: the groups and their expectations stay the same",
        )
    path = private_dir(workspace) / NUMBERS
    known, last = _read_numbers(path)
    known = {name: number for name, number in known.items() if number not in unusable}
    former = [name for name in known if name not in requested]
    for name in former[: max(0, len(known.keys() | {*requested}) - maximum)]:
        del known[name]
    used = {*known.values(), *unusable}
    for name in requested:
        if name in known:
            continue
        number = last
        while True:
            number = FIRST + (number + 1 - FIRST) % MOST_NODES
            if number not in used:
                break
        known[name] = last = number
        used.add(number)
    write_whole(path, json.dumps({"last": last, "numbers": known}))
    return {name: known[name] for name in requested}


def _read_numbers(path: Path) -> tuple[dict[str, int], int]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return {str(k): int(v) for k, v in content["numbers"].items()}, int(content["last"])
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return {}, FIRST - 1
