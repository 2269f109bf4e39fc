"""What on a node is not as its lock says: part of the documents of status and plan."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from provisioner.output.base import Output


class DriftOutput(Output):
    """One thing on a node that is not as its lock says."""

    kind: Literal[
        "unknown", "stamp", "package", "hold", "unit", "hook", "image", "updates", "system", "kernel", "reboot"
    ] = Field(description="unknown: it could not be read; stamp: the roles ran for something else, or never")
    subject: str = Field(description="The package, unit, image, file …")
    wanted: str | None
    found: str | None
    message: str
