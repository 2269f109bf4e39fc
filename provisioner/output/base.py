"""What every document that `--json` prints is made of."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, WithJsonSchema

Number = Annotated[int | float, WithJsonSchema({"type": "number"})]
"""As it was given: 1 is not printed as 1.0."""


class _Document(BaseModel):
    def to_json(self) -> dict[str, Any]:
        """As `--json` prints it: a key that was not given is left out."""
        return self.model_dump(exclude_unset=True, by_alias=True)


class Output(_Document):
    model_config = ConfigDict(extra="forbid")


class OpenOutput(_Document):
    """May carry more keys than are named here."""

    model_config = ConfigDict(extra="allow")
