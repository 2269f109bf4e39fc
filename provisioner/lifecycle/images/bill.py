"""The bill of materials of an image: CycloneDX 1.6, a file for each target (https://cyclonedx.org/docs/1.6/json/)."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from provisioner import __version__
from provisioner.common.paths import write_whole
from provisioner.lifecycle.images.manifest import Target

if TYPE_CHECKING:
    from cyclonedx.model.component import Component

_NAMESPACE = uuid.UUID("6e1e0c2e-4f0f-5d57-9d5d-6f5b1f0f7a11")


def write(file: Path, name: str, target: Target, *, build: str) -> None:
    """Write the bill of the image of that name. `build` is the build (20260131-031500), its time and its identity."""
    from cyclonedx.model.bom import Bom
    from cyclonedx.model.component import Component, ComponentType
    from cyclonedx.output import make_outputter
    from cyclonedx.schema import OutputFormat, SchemaVersion

    bom = Bom(serial_number=uuid.uuid5(_NAMESPACE, name))
    bom.metadata.timestamp = datetime.strptime(build, "%Y%m%d-%H%M%S").replace(tzinfo=UTC)
    bom.metadata.component = Component(name=name, type=ComponentType.PLATFORM, version=build, bom_ref=name)
    # The distribution by its own name and release, once: scanners choose their list of vulnerabilities by it, and take
    # its dependencies for the packages that it is about.
    distribution, _, release = target.stack.os.partition("-")
    system = Component(name=distribution, type=ComponentType.OPERATING_SYSTEM, version=release, bom_ref=target.stack.os)
    bom.metadata.tools.components.add(
        Component(name="gpuprov", type=ComponentType.APPLICATION, version=__version__, bom_ref="gpuprov")
    )
    parts = list(_components(target))
    packages = [part for part in parts if part.type == ComponentType.LIBRARY]
    bom.components.update([system, *parts])
    bom.register_dependency(bom.metadata.component, [system, *(part for part in parts if part not in packages)])
    bom.register_dependency(system, packages)
    text = make_outputter(bom, OutputFormat.JSON, SchemaVersion.V1_6).output_as_string(indent=1)
    write_whole(file, text + "\n", mode=0o644)


def _components(target: Target) -> Iterator[Component]:
    """Every package by its package URL, and every container image with its digest."""
    from cyclonedx.model import HashAlgorithm, HashType
    from cyclonedx.model.component import Component, ComponentType
    from packageurl import PackageURL

    distribution, _, release = target.stack.os.partition("-")
    for name, version in sorted(target.packages.items()):
        plain, _, arch = name.partition(":")
        qualifiers = {"distro": f"{distribution}-{release}"} | ({"arch": arch} if arch else {})
        source, _, of = target.sources.get(plain, "").partition(" ")
        if source:  # as syft writes it, which scanners read
            qualifiers["upstream"] = f"{source}@{of}" if of != version else source
        url = PackageURL("deb", distribution, plain, version, qualifiers)
        yield Component(name=name, type=ComponentType.LIBRARY, version=version, purl=url, bom_ref=str(url))
    for image in target.stack.images:
        content = image.digest.removeprefix("sha256:")
        digest = [HashType(alg=HashAlgorithm.SHA_256, content=content)] if content else []
        yield Component(
            name=image.reference, type=ComponentType.CONTAINER, version=image.digest, hashes=digest,
            bom_ref=f"{image.reference}@{image.digest}",
        )  # fmt: skip
