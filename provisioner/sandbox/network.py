"""Addresses of sandbox nodes: one octet per cluster on this machine, one number per node in the cluster.

A node is reached at 127.77.<octet>.<number>:22 and talks to the others as <podman subnet>.<octet>.<number>. Octets are
directories in /var/lib/gpuprov, renamed into place (atomic for all processes of the machine); numbers are written in
the
workspace, so that a node keeps its address when groups grow, shrink or are reordered.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path

from provisioner.errors import GpuprovError
from provisioner.paths import cache, private_dir, write_whole
from provisioner.sandbox import containers

# podman hands out its own addresses from the low end of the network, so clusters start at the high end.
OCTETS = range(250, 0, -1)
MIRROR = 2
FIRST = 4
MOST_NODES = 250
OWNER = "workspace"
NUMBERS = "addresses.json"


def _octets() -> Path:
    # One for the whole machine, not for a user or a cache: two that run at once share podman's network.
    base = Path(os.environ.get("GPUPROV_STATE", "/var/lib/gpuprov"))
    if not os.access(base if base.exists() else base.parent, os.W_OK):
        base = cache()
    return private_dir(private_dir(base / "sandbox") / "octets")


def allocate_octet(workspace: Path) -> int:
    """The octet (1 to 250) of this workspace, the same one at every call until it is released.

    Entries whose workspace is gone and that no container uses are taken over. Raises `GpuprovError` when all are in
    use.
    """
    owner = str(workspace.absolute())
    root = _octets()
    held = {int(entry.name): _owner(entry) for entry in root.iterdir() if entry.name.isdigit()}
    for octet, holder in held.items():
        if holder == owner:
            return octet
    used = containers.octets_in_use()
    for octet, holder in held.items():
        if octet not in used and holder is not None and not Path(holder).is_dir():
            _drop(root / str(octet))
    for octet in OCTETS:
        if octet not in used and _claim(root, octet, owner):
            return octet
    raise GpuprovError(
        f"all {len(OCTETS)} sandbox networks of this machine are in use",
        hint="`gpuprov down` a cluster that is not needed",
    )


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


def release_octet(workspace: Path) -> None:
    """Give the octet of this workspace back; nothing happens when it has none."""
    owner = str(workspace.absolute())
    for entry in _octets().iterdir():
        if _owner(entry) == owner:
            _drop(entry)


def _owner(entry: Path) -> str | None:
    try:
        return (entry / OWNER).read_text(encoding="utf-8")
    except OSError:
        return None


def _drop(entry: Path) -> None:
    # Renamed first: nobody ever sees a directory that is half gone, and of two that drop it one wins.
    gone = entry.with_name(f".gone-{entry.name}")
    try:
        entry.rename(gone)
    except OSError:
        return
    shutil.rmtree(gone, ignore_errors=True)


def node_numbers(workspace: Path, names: Iterable[str]) -> dict[str, int]:
    """A number for each node name, kept in the workspace: also that of a node that is not among them, which may still
    have its machine, as long as there are others. A number that a removed node had is used again last.

    Raises `GpuprovError` above 250 nodes.
    """
    wanted = list(names)
    if len(wanted) > MOST_NODES:
        raise GpuprovError(
            f"{len(wanted)} nodes are too many for one sandbox cluster, {MOST_NODES} is the most",
            hint="rehearse with smaller counts: the groups and their expectations stay the same",
        )
    path = private_dir(workspace) / NUMBERS
    known, last = _read_numbers(path)
    former = [name for name in known if name not in wanted]
    for name in former[: max(0, len(known.keys() | {*wanted}) - MOST_NODES)]:
        del known[name]
    used = set(known.values())
    for name in wanted:
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
    return {name: known[name] for name in wanted}


def _read_numbers(path: Path) -> tuple[dict[str, int], int]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return {str(k): int(v) for k, v in content["numbers"].items()}, int(content["last"])
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return {}, FIRST - 1
