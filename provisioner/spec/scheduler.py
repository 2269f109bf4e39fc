"""`scheduler:` of cluster.yaml: what gives jobs to the nodes."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from provisioner.spec.base import Model, Text


class Slurm(Model):
    """Slurm of the distribution: slurmctld on a head node, slurmd on every other node."""

    head: Text = Field(
        default="head",
        title="the name of a group",
        description="A group of one machine, which runs slurmctld; jobs are submitted there, and none runs on it",
        examples=["head"],
    )
    accounting: bool = Field(
        default=True,
        title="true or false",
        description="slurmdbd and MariaDB on the head node: who used which GPUs for how long (sacct)",
    )
    max_time: Annotated[str, Field(pattern=r"^[1-9][0-9]{0,2}[mhd]$")] | None = Field(
        default=None,
        title="minutes, hours or days such as 7d, or null",
        description="How long a job may run at most. Null: as long as it takes",
        examples=["7d"],
    )


class Scheduler(Model):
    """What gives jobs to the nodes."""

    slurm: Slurm | None = Field(
        default=None,
        title="a block, or null",
        description="A Slurm cluster of the nodes, which get jobs only once they are proven",
        examples=[{"head": "head"}],
    )

    @property
    def head(self) -> str | None:
        """The group whose machine runs the controller; None where there is no scheduler."""
        return self.slurm.head if self.slurm else None
