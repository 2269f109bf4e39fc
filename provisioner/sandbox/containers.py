"""The containers of sandbox clusters: found by label, looked at, run in and removed, each with a deadline."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from provisioner.common.errors import GpuprovError
from provisioner.common.suggest import did_you_mean
from provisioner.common.text import few
from provisioner.sandbox import leftovers
from provisioner.sandbox.runtime import Podman, find_podman

CLUSTER = "gpuprov.cluster"
NODE = "gpuprov.node"
WORKSPACE = "gpuprov.workspace"
OCTET = "gpuprov.octet"
ROLE = "gpuprov.role"
"""Labels of every container that terraform/sandbox makes; role is `node`, `mirror` or `jump`."""


@dataclass(frozen=True, slots=True)
class Container:
    """One container of a sandbox cluster. `node` is empty for the mirror and the jump host; `state` as podman calls it
    (running, exited…)."""

    id: str
    name: str
    cluster: str
    node: str
    workspace: str
    role: str
    octet: int | None
    state: str


def list_containers(root: Path | None = None, *, podman: Podman | None = None) -> list[Container]:
    """All containers whose workspace is at or below that directory, or of every sandbox cluster; mirrors and jump
    hosts included. One of another name has its labels from an image (`podman commit` of a node): it is somebody's."""
    engine = podman or find_podman()
    answer = json.loads(engine.run("ps", "--all", "--filter", f"label={CLUSTER}", "--format", "json") or "[]") or []
    listed = [container for entry in answer if _has_own_name(container := _container(entry))]
    return sorted((c for c in listed if root is None or _within(c, root)), key=lambda c: c.name)


def _has_own_name(container: Container) -> bool:
    """gpuprov-<cluster>-<node>.<octet> or gpuprov-<cluster>.<role>.<octet> (terraform/sandbox/main.tf)."""
    prefix = f"gpuprov-{container.cluster}"
    return container.name.startswith((f"{prefix}-", f"{prefix}.")) and container.name.endswith(f".{container.octet}")


def _within(container: Container, root: Path) -> bool:
    return bool(container.workspace) and Path(container.workspace).is_relative_to(root.absolute())


def _container(entry: dict[str, object]) -> Container:
    labels = entry.get("Labels")
    label = labels if isinstance(labels, dict) else {}
    names = entry.get("Names")
    octet = str(label.get(OCTET, ""))
    return Container(
        id=str(entry.get("Id", "")),
        name=str(names[0]) if isinstance(names, list) and names else "",
        cluster=str(label.get(CLUSTER, "")),
        node=str(label.get(NODE, "")),
        workspace=str(label.get(WORKSPACE, "")),
        role=str(label.get(ROLE, "")),
        octet=int(octet) if octet.isdigit() else None,
        state=str(entry.get("State", "")),
    )


def find_node(root: Path, node: str, *, podman: Podman | None = None) -> Container:
    """The running container of that node of the cluster whose run directory is `root`. Raises `GpuprovError` naming the
    nodes that are there."""
    nodes = {c.node: c for c in list_containers(root, podman=podman) if c.role == "node"}
    if not nodes:
        raise GpuprovError(f"there are no sandbox nodes of {root}", hint="gpuprov up FILE --sandbox makes them")
    if node not in nodes:
        hint = f"{did_you_mean(node, nodes)} It has {few(list(nodes), 8, ',')}".strip()
        raise GpuprovError(f"there is no sandbox node {node}", hint=hint)
    container = nodes[node]
    if container.state != "running":
        raise GpuprovError(
            f"node {node} is {container.state}, not running",
            where=container.name,
            hint=f"podman start {container.name}",
        )
    return container


def execute(
    container: str, *command: str, stdin: str | None = None, deadline: float = 30, podman: Podman | None = None
) -> str:
    """Run a command in a container as root and give its standard output. Raises `ProviderError` when it fails."""
    engine = podman or find_podman()
    flags = ("-i",) if stdin is not None else ()
    return engine.run("exec", *flags, container, *command, stdin=stdin, deadline=deadline)


def remove(*names: str, podman: Podman | None = None) -> None:
    """Remove containers with their anonymous volumes, running or not; one that is gone already is fine."""
    if names:
        leftovers.remove_containers(names, podman or find_podman())


def sweep(workspaces: Path, *, podman: Podman | None = None) -> tuple[str, ...]:
    """Remove every container of the workspaces at or below that directory and give their names.

    Terraform forgets what it was making when it is killed, and runs no destroy step for what it made only half; labels
    do not forget.
    """
    engine = podman or find_podman()
    names = [c.name for c in list_containers(workspaces, podman=engine)]
    remove(*names, podman=engine)
    return tuple(names)


def octets_in_use(*, podman: Podman | None = None) -> frozenset[int]:
    """Octets of all sandbox containers on this machine, running or not."""
    return frozenset(c.octet for c in list_containers(podman=podman) if c.octet is not None)
