"""Images of simulated machines: container images of this machine."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from provisioner import catalog
from provisioner.common.errors import ProviderError
from provisioner.machines.providers.base import Place
from provisioner.machines.providers.images import Image, Tell
from provisioner.plan.models import PlannedGroup
from provisioner.rundir.fleet import Node
from provisioner.sandbox import containers
from provisioner.sandbox.inputs import DISK_BUILDER
from provisioner.sandbox.runtime import Podman, find_podman
from provisioner.spec.site import CloudSite

REPOSITORY = "localhost/gpuprov-image"
FOLDER = re.compile(r"^(.*/[^/]+\.image\.sandbox)(?:/|$)")
"""The run directory of a recipe, in the workspace of the machine that was captured (lifecycle/images/use.py)."""
DOCKER = "var/lib/docker"
"""What lies in a volume of its own on a simulated node, and on the same disk on a real one."""
BUILDER = "sandbox.builder"
"""A simulated machine without a GPU."""


@dataclass(frozen=True, slots=True)
class GoldenImage:
    """An image of a build. `folder`: the run directory of its recipe; empty where its labels do not have it."""

    reference: str
    recipe: str
    folder: str


def golden_images() -> list[GoldenImage]:
    """All of this machine, by their labels. Raises ProviderError."""
    arguments = ("--filter", "label=gpuprov-build", "--filter", f"reference={REPOSITORY}", "--format", "json")
    rows = json.loads(find_podman().run("images", *arguments) or "[]") or []
    images = []
    for row in rows:
        labels = row.get("Labels") or {}
        folder = FOLDER.match(str(labels.get(containers.WORKSPACE, "")))
        recipe = str(labels.get("gpuprov-image", "")) or "unknown"
        names = [name for name in row.get("Names") or () if name.startswith(f"{REPOSITORY}:")]
        images += [GoldenImage(name, recipe, folder[1] if folder else "") for name in names]
    return sorted(images, key=lambda image: image.reference)


def remove_golden_image(reference: str) -> None:
    """Remove it; one that a container was made of is refused by podman. Raises ProviderError."""
    find_podman().run("rmi", reference)


class SandboxImages:
    """See providers/images.py for the contract."""

    def __init__(self, site_context: Place) -> None:
        self._site_context = site_context

    def builder(self, group: PlannedGroup, requested_type: str | None) -> str:  # noqa: ARG002
        sells = catalog.load().provider(self._site_context.settings.provider).sells
        return (requested_type or BUILDER) if sells else DISK_BUILDER

    def check(self, regions: Sequence[str], accounts: Sequence[str]) -> None:
        """All of it can be done."""

    def find(self, name: str) -> Image | None:
        reference = f"{REPOSITORY}:{name}"
        image_id = find_podman().run("images", "--quiet", "--filter", f"reference={reference}").strip()
        return Image(reference, ready=True) if image_id else None

    def capture(self, node: Node, name: str, tags: Mapping[str, str], report: Tell) -> str:
        podman, reference = find_podman(), f"{REPOSITORY}:{name}"
        container = self._container(node.name, podman)
        report(f"stopping {node.name}")
        podman.run("stop", "--time", "20", container, deadline=60)
        with_docker_store(container, podman)
        report(f"making {reference}")
        labels = [argument for key, value in tags.items() for argument in ("--change", f"LABEL {key}={value}")]
        podman.run("commit", "--quiet", *labels, container, reference, deadline=300)
        return reference

    def publish(
        self, image: str, name: str, regions: Sequence[str], accounts: Sequence[str], tags: Mapping[str, str],  # noqa: ARG002
        report: Tell,  # noqa: ARG002
    ) -> dict[str, str]:  # fmt: skip
        site = self._site_context.settings
        return dict.fromkeys([site.region if isinstance(site, CloudSite) else "", *regions], image)

    def copies(self, name: str, regions: Sequence[str]) -> dict[str, str]:  # noqa: ARG002
        existing_image = self.find(name)
        site = self._site_context.settings
        return (
            {site.region if isinstance(site, CloudSite) else "": existing_image.id}
            if existing_image is not None
            else {}
        )

    def delete(self, ids: Mapping[str, str], tags: Mapping[str, str]) -> None:
        podman = find_podman()
        for reference in sorted(set(ids.values())):
            if not podman.run("images", "--quiet", "--filter", f"reference={reference}").strip():
                continue
            labels = json.loads(podman.run("image", "inspect", "--format", "{{json .Labels}}", reference)) or {}
            if any(labels.get(key) != value for key, value in tags.items()):
                raise ProviderError(f"{reference} is not of this build: it stays", where=self._site_context.site)
            podman.run("rmi", "--force", reference, check=False)

    def used(self, ids: Mapping[str, str]) -> list[str]:
        podman, names = find_podman(), []
        for reference in set(ids.values()):
            filters = ("--filter", f"ancestor={reference}", "--format", "{{.Names}}")
            names += podman.run("ps", "--all", *filters, check=False).split()
        return sorted(set(names))

    def _container(self, node: str, podman: Podman) -> str:
        names_by_node = {
            c.node: c.name for c in containers.list_containers(self._site_context.workspace, podman=podman)
        }
        return names_by_node[node]


def with_docker_store(container: str, podman: Podman) -> None:
    """Docker's store onto the disk that is captured, as it is on a real machine."""
    form = '{{range .Mounts}}{{if eq .Destination "/' + DOCKER + '"}}{{.Source}}{{end}}{{end}}'
    volume = Path(podman.run("container", "inspect", "--format", form, container).strip())
    disk = Path(podman.run("mount", container).strip())
    try:
        target = disk / DOCKER
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir(parents=True)
        # every attribute and device file of the layers as they are
        subprocess.run(["cp", "--archive", f"{volume}/.", f"{target}/"], check=True, capture_output=True, timeout=300)
    finally:
        podman.run("umount", container, check=False)
