"""The shape of `gpuprov maintain --json`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from provisioner.output.base import Number, OpenOutput

MaintainStep = Literal["done", "due", "missed", "left", "failed", "interrupted", "unneeded"]


class MaintainNode(OpenOutput):
    """One node after a maintenance, or in a dry run."""

    name: str
    group: str
    step: MaintainStep = Field(
        description="done: proven and in service; due: a dry run would do it; missed: its turn did not come; left: not "
        "touched; failed: out of service; interrupted: out of service, and the same command goes on; unneeded"
    )
    reason: str = Field(description="Why it was left out, or failed")
    needs: list[str] = Field(description="What it needed, one phrase each")
    updates: dict[str, str] = Field(description="Security updates that it needed: package → version")
    waiting: dict[str, str] = Field(description="Security updates that were not taken: package → why")
    packages: dict[str, str] = Field(description="The set that its group got: package → version")
    freed: int = Field(description="Bytes freed")
    freeable: int = Field(description="Bytes that cleaning could free, at most")
    rebooted: str = Field(description="Why it was rebooted; empty where it was not")
    due: str = Field(description="Why a reboot is due")


class MaintainOutput(OpenOutput):
    """`gpuprov maintain --json`"""

    cluster: str
    sandbox: bool = Field(default=False, description="Whether it is the sandbox of the file's cluster")
    ok: bool = Field(description="Every node that needed it was maintained, is healthy and in service")
    dry_run: bool
    message: str
    window_closed: bool = Field(description="The window ended before all nodes had their turn")
    nodes: list[MaintainNode]
    seconds: Number
