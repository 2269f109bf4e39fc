"""The name of a container image in its parts."""

from __future__ import annotations

import re
from dataclasses import dataclass

from provisioner.common.errors import GpuprovError

HUB = "docker.io"
HUBS = (HUB, "index.docker.io")

_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?(:[0-9]{1,5})?")
_PATH = re.compile(r"[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*(/[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*)*")
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")


@dataclass(frozen=True, slots=True)
class Name:
    """A reference in its parts: nvcr.io, nvidia/pytorch, 25.10-py3 (or the digest it names)."""

    written: str
    registry: str
    repository: str
    tag: str
    digest: str = ""

    def pull(self, digest: str) -> str:
        return f"{self.registry}/{self.repository}@{digest}"


def parse(reference: str) -> Name:
    """A reference as Docker reads it: without a registry it is Docker Hub's, without a tag `latest`. Raises
    GpuprovError for what is none: a path that leads anywhere else is none either."""
    tagged_name, at, digest = reference.partition("@")
    first, slash, inner = tagged_name.partition("/")
    if slash and (any(c in first for c in ".:") or first == "localhost"):
        registry, path = first, inner
    else:
        registry, path = HUB, tagged_name
    name, _, tag = path.partition(":")
    if registry in HUBS:
        registry, name = HUB, name if "/" in name else f"library/{name}"
    tag = tag or "latest"
    parts = ((_HOST, registry), (_PATH, name), (_TAG, tag), *(((_DIGEST, digest),) if at else ()))
    if not all(pattern.fullmatch(part) for pattern, part in parts):
        raise GpuprovError(f"image {reference}: not a valid image reference", hint="expected registry/repository:tag")
    return Name(reference, registry, name, tag, digest)
