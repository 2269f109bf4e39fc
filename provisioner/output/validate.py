"""The shape of `gpuprov validate --json`."""

from __future__ import annotations

from pydantic import Field

from provisioner.output.base import Output


class ProblemOutput(Output):
    """One thing wrong with a file."""

    file: str
    line: int = Field(ge=1)
    column: int = Field(ge=1)
    path: str = Field(description="Dotted, list items by index: sites.virginia.zones[0]")
    message: str
    hint: str


class ValidateOutput(Output):
    """`gpuprov validate --json`"""

    ok: bool
    problems: list[ProblemOutput]
