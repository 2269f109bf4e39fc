"""The shape of what every `--json` prints where the command ended with an error."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from provisioner.output.base import OpenOutput
from provisioner.output.validate import ProblemOutput


class FailureOutput(OpenOutput):
    """Why there is no answer."""

    code: str = Field(description="The kind of failure: a name that stays (`gpuprov docs cli` has the list)")
    message: str
    where: str = Field(description="A file with its line, a node, a Terraform resource; or empty")
    hint: str = Field(description="What to do next, or empty")


class ErrorOutput(OpenOutput):
    """What stands in for the document of a command that ended with an error. No other document has the key `error`."""

    ok: Literal[False]
    exit_code: int = Field(ge=0, description="As the process exits: 0 where a person was asked and said no")
    error: FailureOutput
    problems: list[ProblemOutput] = Field(description="What is wrong with a file, place by place; else empty")
