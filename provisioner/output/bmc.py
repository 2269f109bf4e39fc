"""The shape of `gpuprov bmc --json`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from provisioner.output.base import Number, OpenOutput


class BmcError(OpenOutput):
    """Why a machine's BMC gave no answer."""

    kind: str
    message: str
    hint: str


class BmcFinding(OpenOutput):
    """What one of its facts means."""

    check: str
    status: Literal["pass", "warn", "fail", "unknown"]
    message: str
    action: str


class BmcEvent(OpenOutput):
    """An entry of an event log."""

    log: str
    id: str
    time: str = Field(description="As the BMC has it; its clock may be wrong")
    severity: Literal["OK", "Warning", "Critical"] | None
    message: str


class BmcMachine(OpenOutput):
    """A machine by its BMC. What the BMC does not say is null."""

    host: str
    node: str | None
    bmc: str
    error: BmcError | None = None
    findings: list[BmcFinding] = Field(default=[])
    events: list[BmcEvent] = Field(default=[])
    power: str | None = None
    health: Literal["OK", "Warning", "Critical"] | None = None
    vendor: str | None = None
    model: str | None = None
    serial: str | None = None
    bios: str | None = None
    firmware: str | None = Field(default=None, description="The BMC's own version")
    gpus: int | None = Field(default=None, description="GPUs that the BMC shows; null where it shows none for sure")
    watts: Number | None = None
    versions: dict[str, str] = Field(default={}, description="Firmware by part, as sites.*.firmware names it")


class BmcOutput(OpenOutput):
    """`gpuprov bmc --json`"""

    cluster: str
    machines: list[BmcMachine]
