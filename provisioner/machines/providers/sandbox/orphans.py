"""What is left of sandboxes whose run directory is gone: nobody can `down` them any more."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from provisioner.common.errors import ProviderError
from provisioner.machines.providers.orphans import Found, Thing
from provisioner.machines.providers.sandbox import images
from provisioner.sandbox import containers, image, leftovers, network
from provisioner.sandbox.runtime import find_podman

PLACE = "this machine"
IMAGE, NODE_IMAGE = "golden image", "node image"
NODE_IMAGES = "node.images"
"""What the unused images of nodes are listed as; a dot cannot be in the name of a cluster."""


class OnThisMachine:
    """Containers by their labels, what is left of a sandbox network besides, golden images, and unused images of nodes.
    One whose run directory is there is `down`'s, or `image prune`'s."""

    def find(self) -> Found:
        existing = containers.list_containers()
        resources = [
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
                resources.append(
                    Thing(
                        leftover.kind, leftover.id, cluster, Path(workspace).name, PLACE, name=str(octet),
                        workspace=workspace,
                    )
                )  # fmt: skip
        resources += [
            Thing(IMAGE, golden.reference, f"{golden.recipe}.image", "", PLACE, workspace=golden.folder)
            for golden in images.golden_images()
        ]
        resources += [Thing(NODE_IMAGE, name, NODE_IMAGES, "", PLACE) for name in image.unused(find_podman())]
        return Found(tuple(resources))

    def remove(self, resources: Sequence[Thing], report: Callable[[str], None]) -> list[str]:
        remaining = list[str]()
        for resource in resources:
            report(f"removing {resource.id}")
            try:
                if resource.kind == "container":
                    containers.remove(resource.id)
                elif resource.kind == IMAGE:
                    images.remove_golden_image(resource.id)
                elif resource.kind == NODE_IMAGE:
                    image.remove(find_podman(), resource.id)
            except ProviderError as error:
                remaining.append(f"{resource}: {error.message}")
        networked = [resource for resource in resources if resource.kind not in (IMAGE, NODE_IMAGE)]
        in_use = {container.workspace for container in containers.list_containers()}
        for workspace in sorted({resource.workspace for resource in networked if resource.workspace} - in_use):
            remaining += network.release_octet(Path(workspace))
        for octet in sorted({int(resource.name) for resource in networked if not resource.workspace}):
            remaining += network.clear_octet(octet)
        return remaining


def _cluster(workspace: str) -> str:
    """The cluster that a site's folder in a run directory belongs to: <name>.sandbox/sites/<site> (paths.py)."""
    names = [part.removesuffix(".sandbox") for part in Path(workspace).parts if part.endswith(".sandbox")]
    return names[-1] if names else Path(workspace).name or "unknown"
