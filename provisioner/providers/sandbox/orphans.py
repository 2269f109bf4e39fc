"""What is left of rehearsals whose run directory is gone: nobody can `down` them any more."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from provisioner.errors import ProviderError
from provisioner.providers.orphans import Found, Thing
from provisioner.providers.sandbox import images
from provisioner.sandbox import containers, leftovers, network

PLACE = "this machine"
IMAGE = "golden image"


class OnThisMachine:
    """Containers by their labels, what is left of a sandbox network besides, and golden images. One whose run directory
    is there is `down`'s, or `image prune`'s."""

    def find(self) -> Found:
        existing = containers.list_containers()
        things = [
            Thing(
                "container", c.name, c.cluster, Path(c.workspace).name, PLACE, name=c.node or c.role, state=c.state,
                workspace=c.workspace,
            )
            for c in existing
        ]  # fmt: skip
        clusters = {c.workspace: c.cluster for c in existing}
        owners, in_use = network.owners(), {c.octet for c in existing}
        for octet in sorted(leftovers.octets() | owners.keys()):
            workspace = owners.get(octet, "")
            cluster = clusters.get(workspace) or _cluster(workspace)
            for leftover in network.list_leftovers(octet, in_use=octet in in_use):
                things.append(
                    Thing(
                        leftover.kind, leftover.id, cluster, Path(workspace).name, PLACE, name=str(octet),
                        workspace=workspace,
                    )
                )  # fmt: skip
        things += [
            Thing(IMAGE, image.reference, f"{image.recipe}.image", "", PLACE, workspace=image.folder)
            for image in images.golden_images()
        ]
        return Found(tuple(things))

    def remove(self, things: Sequence[Thing], tell: Callable[[str], None]) -> list[str]:
        remaining = list[str]()
        for thing in things:
            tell(f"removing {thing.id}")
            try:
                if thing.kind == "container":
                    containers.remove(thing.id)
                elif thing.kind == IMAGE:
                    images.remove_golden_image(thing.id)
            except ProviderError as error:
                remaining.append(f"{thing}: {error.message}")
        networked = [thing for thing in things if thing.kind != IMAGE]
        in_use = {container.workspace for container in containers.list_containers()}
        for workspace in sorted({thing.workspace for thing in networked if thing.workspace} - in_use):
            remaining += network.release_octet(Path(workspace))
        for octet in sorted({int(thing.name) for thing in networked if not thing.workspace}):
            remaining += network.clear_octet(octet)
        return remaining


def _cluster(workspace: str) -> str:
    """The cluster that a site's folder in a run directory belongs to: <name>.sandbox/sites/<site> (paths.py)."""
    names = [part.removesuffix(".sandbox") for part in Path(workspace).parts if part.endswith(".sandbox")]
    return names[-1] if names else Path(workspace).name or "unknown"
