"""The shape of `gpuprov down --json`."""

from __future__ import annotations

from pydantic import Field

from provisioner.output.base import OpenOutput


class DownOutput(OpenOutput):
    """`gpuprov down --json`"""

    cluster: str
    removed: int = Field(ge=0, description="Terraform resources removed")
    left: list[str] = Field(description="What is still there, one sentence each")
    stays: dict[str, list[str]] = Field(
        default_factory=dict,
        description="Node → what stays on a machine that was there before gpuprov, by sentence",
    )
