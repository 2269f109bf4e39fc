"""What all of cluster.yaml is made of: the base of every block, and kinds of text that several have."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

NAME_TITLE = "a name: lower-case letters, digits and hyphens, at most 32, a letter first"
NAME_PATTERN = r"^[a-z]([a-z0-9-]{0,30}[a-z0-9])?$"
Name = Annotated[str, Field(pattern=NAME_PATTERN, title=NAME_TITLE, description=NAME_TITLE)]
"""Names end up in host names, cloud tags and file names: lower case, digits, hyphens, at most 32 characters."""

Text = Annotated[str, Field(min_length=1, max_length=255)]
Command = Annotated[str, Field(min_length=1, max_length=4096)]


REFUSED = "x-refused"
"""Of a block or a key in the JSON schema: words that people know from a cloud's documentation and that are left out on
purpose → why, and what to do instead."""


def refused(**reasons: tuple[str, str]) -> dict[str, Any]:
    """`json_schema_extra` of a block (keys) or a key (values): word → why, and what to do instead."""
    return {REFUSED: {key: list(texts) for key, texts in reasons.items()}}


class Model(BaseModel):
    """Base of every key: immutable, unknown keys refused, no silent conversion of types."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)
