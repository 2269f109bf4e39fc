"""/etc/gpuprov/image.json: the golden image that a node was made of."""

from __future__ import annotations

import json
from dataclasses import dataclass

from provisioner.verify.parsers import Unreadable, first_line
from provisioner.verify.tool import Tool


@dataclass(frozen=True, slots=True)
class ImageIdentity:
    """Both empty on a node that was made of none."""

    image: str = ""
    build: str = ""


def parse(text: str) -> ImageIdentity:
    """Raises Unreadable for anything but an image's identity; an empty text says that there is none."""
    if not text.strip():
        return ImageIdentity()
    try:
        row = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Unreadable(f"not JSON: {first_line(text)}") from error
    fields = row if isinstance(row, dict) else {}
    image, build = fields.get("image"), fields.get("build")
    if not isinstance(image, str) or not isinstance(build, str):
        raise Unreadable(f"no image in it: {first_line(text)}")
    return ImageIdentity(image, build)


TOOLS = (
    Tool(
        file="image.json",
        field="image",
        parse=parse,
        paths=("/etc/gpuprov/image.json",),
        seconds=5,
        when=lambda expected: expected.image,
        empty=True,
    ),
)
