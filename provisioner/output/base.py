"""What every document that `--json` prints is made of."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Output(BaseModel):
    model_config = ConfigDict(extra="forbid")


class OpenOutput(BaseModel):
    """May carry more keys than are named here."""

    model_config = ConfigDict(extra="allow")
