"""The shape of `gpuprov doctor --json`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from provisioner.output.base import OpenOutput


class DiagnosisOutput(OpenOutput):
    """One thing of this machine."""

    subject: str
    status: Literal["ok", "missing", "unknown"]
    found: str
    needed_for: str
    mend: str = Field(description="The command that mends it, or empty")


class DoctorOutput(OpenOutput):
    """`gpuprov doctor --json`"""

    ok: bool
    findings: list[DiagnosisOutput]
