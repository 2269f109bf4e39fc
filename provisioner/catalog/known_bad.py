"""What is known to go wrong with certain versions, and which versions a security bulletin calls fixed: frozen models
over catalog/data/known_bad.yaml and security.yaml."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from provisioner.catalog.models import Basis, Row

Range = Annotated[str, Field(pattern=r"^(?:>=|<=|==|<|>)[0-9]+(?:\.[0-9]+)*(?:,(?:>=|<=|==|<|>)[0-9]+(?:\.[0-9]+)*)*$")]
"""Bounds of a version that all have to hold: ">=570.133.20,<=580.105.08" (verify/versions.py compares)."""
Version = Annotated[str, Field(pattern=r"^[0-9]+(?:\.[0-9]+)+$")]


class KnownBad(Row):
    """A combination of which somebody has reported that it goes wrong: every condition that a row has must hold. `gpus`
    are slugs of gpus.yaml (none: every GPU), `loaded` are kernel modules; `uptime_days` is the age of the boot from
    which on it is reported, in time for a reboot."""

    id: Annotated[str, Field(pattern=r"^[a-z0-9-]+$")]
    gpus: tuple[str, ...] = ()
    driver: Range | None = None
    modules: Literal["open", "proprietary"] | None = None
    kernel: Range | None = None
    nccl: Range | None = None
    container_toolkit: Range | None = None
    loaded: tuple[str, ...] = ()
    uptime_days: float | None = Field(None, gt=0)
    happens: str = Field(min_length=10)
    advice: str = Field(min_length=10)
    action: Literal["none", "reconfigure", "reset", "reboot", "replace", "vendor"]
    basis: Basis
    source: str = Field(min_length=5)

    @model_validator(mode="after")
    def names_a_version(self) -> KnownBad:
        """A row without any version would call every machine with that GPU bad."""
        if not (self.driver or self.kernel or self.nccl or self.container_toolkit):
            raise ValueError(f"{self.id}: no version in its conditions")
        return self


class Bulletin(Row):
    """A security bulletin: the first fixed version, of the driver one for each branch. A driver of a branch that is not
    listed is fixed where it is newer than all of them."""

    part: Literal["driver", "container_toolkit"]
    id: str
    published: Annotated[str, Field(pattern=r"^20[0-9]{2}-[01][0-9]$")]
    fixed: tuple[Version, ...] = Field(min_length=1)
    cves: tuple[Annotated[str, Field(pattern=r"^CVE-20[0-9]{2}-[0-9]{4,}$")], ...] = ()
    source: str = Field(min_length=5)
