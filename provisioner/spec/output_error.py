"""The shapes of what is wrong: `gpuprov validate --json`, and what every `--json` prints that came to no answer."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from provisioner.spec.output_shape import OpenOutput, Output


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


class FailureOutput(OpenOutput):
    """Why there is no answer."""

    message: str
    where: str = Field(description="A file with its line, a node, a Terraform resource; or empty")
    hint: str = Field(description="What to do next, or empty")


class ErrorOutput(OpenOutput):
    """What stands in for the document of a command that ended with an error. No other document has the key `error`."""

    ok: Literal[False]
    exit_code: int = Field(ge=0, description="As the process exits: 0 where a person was asked and said no")
    error: FailureOutput
    problems: list[ProblemOutput] = Field(description="What is wrong with a file, place by place; else empty")
