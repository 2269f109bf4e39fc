"""The shapes of `gpuprov run --json` and `gpuprov run --list --json`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from provisioner.output.base import Number, OpenOutput

JobState = Literal["queued", "running", "completed", "failed", "stopped", "lost"]


class JobRow(OpenOutput):
    """One job, as its nodes describe it."""

    id: str
    name: str = Field(description="Its recipe, or what --name says; checkpoints have this name, too")
    state: JobState = Field(
        description="queued: it waits in Slurm; completed: every container ended with 0; stopped: somebody, or the "
        "cloud, ended it; lost: no node has its process any more"
    )
    status: int | None = Field(description="Exit status; null while it runs, and of a lost job")
    reason: str = Field(description="Why it failed or was stopped")
    owner: str
    command: list[str]
    nodes: list[str]
    missing: list[str] = Field(description="Nodes that do not answer, or do not know the job")
    began: Number = Field(description="Seconds since 1970")
    ended: Number | None = Field(description="Seconds since 1970; null while it runs")


class JobOutput(OpenOutput):
    """`gpuprov run --json`"""

    cluster: str
    sandbox: bool = Field(default=False, description="Whether it is the sandbox of the file's cluster")
    job: JobRow


class JobsOutput(OpenOutput):
    """`gpuprov run --list --json`"""

    cluster: str
    sandbox: bool = Field(default=False, description="Whether it is the sandbox of the file's cluster")
    jobs: list[JobRow]
    silent: dict[str, str] = Field(description="Nodes that did not answer: node → why")
