"""What simulated nodes show of real software, with where it was read: data/sources.yaml and the files beside it."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Literal

from pydantic import BaseModel, ConfigDict

from provisioner.common import yaml_text

DATA = files("provisioner.sandbox").joinpath("data")


class Shown(BaseModel):
    """One text that nodes show. `as_`: where a node has it; `file`: below data/; `texts`: variants, None: no file."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)

    name: str
    as_: str
    file: str | None = None
    texts: dict[str, str | None] = {}
    basis: Literal["measured", "documented", "simulated"]
    source: str


@cache
def source_rows() -> dict[str, Shown]:
    """Every row of sources.yaml by its name."""
    document = yaml_text.load(DATA.joinpath("sources.yaml").read_bytes())
    rows = [Shown.model_validate({"as_" if key == "as" else key: value for key, value in row.items()})
            for row in document["shown"]]  # fmt: skip
    return {row.name: row for row in rows}


def unit_file(name: str) -> str:
    """Text of a unit that packages or nodes bring."""
    return DATA.joinpath("units", name).read_text(encoding="utf-8")


def variant(name: str, key: str) -> str | None:
    """One variant of a text; None where the file is not there."""
    return source_rows()[name].texts[key]
