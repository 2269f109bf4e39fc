"""The shape of `gpuprov monitoring export --json`."""

from __future__ import annotations

from pydantic import Field

from provisioner.output.base import OpenOutput


class ExportOutput(OpenOutput):
    """`gpuprov monitoring export --json`"""

    folder: str
    cluster: str
    sandbox: bool = Field(description="Whether the nodes have simulated hardware")
    nodes: int = Field(ge=0, description="Nodes that are scrape targets")
    alerts: int = Field(ge=0, description="Alerting rules")
    files: list[str] = Field(description="What was written, by its path below the folder")
    edited: list[str] = Field(description="Files that a person has edited, and that were left as they are")
    removed: list[str] = Field(description="Files of an earlier export of this cluster that nothing needs any more")
    missing: list[str] = Field(description="What is not watched, and why")
