"""`docker image inspect`: which images are on the node, by tag and by digest."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from provisioner.verify.parsers import Unreadable, first_line
from provisioner.verify.tool import Tool


@dataclass(frozen=True, slots=True)
class LocalImage:
    """`digests` are sha256:… of the manifests that it was pulled by; `tags` as Docker shows them."""

    id: str
    tags: tuple[str, ...]
    digests: tuple[str, ...]


def parse(text: str) -> tuple[LocalImage, ...]:
    """An empty list is a real answer: none of the asked images is there."""
    decoder = json.JSONDecoder()
    position, entries = 0, []
    body = text.strip()
    if not body:
        raise Unreadable("nothing in it")
    while position < len(body):
        try:
            value, position = decoder.raw_decode(body, position)
        except (ValueError, RecursionError) as error:
            raise Unreadable(f"not JSON: {first_line(body[position:])}") from error
        entries += value if isinstance(value, list) else [value]
        while position < len(body) and body[position].isspace():
            position += 1
    return tuple(_read_image(entry) for entry in entries)


def _read_image(entry: Any) -> LocalImage:
    if not isinstance(entry, dict) or not isinstance(entry.get("Id"), str):
        raise Unreadable("an image without Id")
    return LocalImage(
        id=entry["Id"],
        tags=_strings(entry.get("RepoTags")),
        digests=tuple(name.rpartition("@")[2] for name in _strings(entry.get("RepoDigests"))),
    )


def _strings(value: Any) -> tuple[str, ...]:
    return tuple(v for v in value if isinstance(v, str)) if isinstance(value, list) else ()


def tag(reference: str) -> str:
    """A reference as Docker shows it: without docker.io/library/, with a tag.

    >>> tag("docker.io/library/debian")
    'debian:latest'
    """
    for prefix in ("docker.io/", "index.docker.io/"):
        reference = reference.removeprefix(prefix)
    reference = reference.removeprefix("library/")
    return reference if ":" in reference.rpartition("/")[2] else f"{reference}:latest"


TOOLS = (
    Tool(
        file="container-images.json",
        field="images",
        parse=parse,
        seconds=20,
        when=lambda expected: expected.images,
        configured=True,
        label="docker image inspect",
    ),
)
